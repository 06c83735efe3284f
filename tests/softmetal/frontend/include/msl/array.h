// <metal_array>: array<T, N>. A member function knows no address space here, so the front end reads a[i] as a.msl_elements[i] wherever
// the array lies (copies.py); the functions are for arrays of the thread's own.
#pragma once
namespace metal {
template <class T, size_t N> struct array {
  T msl_elements[N ? N : 1];
  static constexpr size_t size() { return N; }
  static constexpr size_t max_size() { return N; }
  static constexpr bool empty() { return N == 0; }
  MSL_INLINE constexpr thread T* data() { return msl_elements; }
  MSL_INLINE constexpr const thread T* data() const { return msl_elements; }
  MSL_INLINE constexpr thread T& front() { return msl_elements[0]; }
  MSL_INLINE constexpr const thread T& front() const { return msl_elements[0]; }
  MSL_INLINE constexpr thread T& back() { return msl_elements[N - 1]; }
  MSL_INLINE constexpr const thread T& back() const { return msl_elements[N - 1]; }
  MSL_INLINE constexpr thread T* begin() { return msl_elements; }
  MSL_INLINE constexpr const thread T* begin() const { return msl_elements; }
  MSL_INLINE constexpr thread T* end() { return msl_elements + N; }
  MSL_INLINE constexpr const thread T* end() const { return msl_elements + N; }
  MSL_INLINE constexpr void fill(T value) { for (size_t i = 0; i < N; ++i) msl_elements[i] = value; }
};
}  // namespace metal
