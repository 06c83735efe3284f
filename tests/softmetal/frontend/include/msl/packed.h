// packed_float3 and its kin: N elements without padding, aligned as one element. They convert to and from the vector.
#pragma once
namespace msl {
template <class T, int N> struct packed_elements;
template <class T> struct packed_elements<T, 2> { T x, y; };
template <class T> struct packed_elements<T, 3> { T x, y, z; };
template <class T> struct packed_elements<T, 4> { T x, y, z, w; };
}  // namespace msl
namespace metal {
template <class T, int N> struct packed_vec : msl::packed_elements<T, N> {
  packed_vec() = default;
  MSL_INLINE constexpr packed_vec(msl::vector<T, N> v) : packed_vec(make_index_sequence<N>(), v) {}
  MSL_INLINE constexpr explicit packed_vec(T s) : packed_vec(msl::make<msl::vector<T, N>>(s)) {}
  template <class A, class B, class... R>
  MSL_INLINE constexpr packed_vec(A a, B b, R... rest) : packed_vec(msl::make<msl::vector<T, N>>(a, b, rest...)) {}
  MSL_INLINE operator msl::vector<T, N>() const { msl::vector<T, N> v = {}; __builtin_memcpy(&v, (const void*)this, sizeof(*this)); return v; }
  MSL_INLINE T& operator[](int i) { return (&this->x)[i]; }
  MSL_INLINE const T& operator[](int i) const { return (&this->x)[i]; }

 private:
  template <size_t... I>
  MSL_INLINE constexpr packed_vec(index_sequence<I...>, msl::vector<T, N> v) : msl::packed_elements<T, N>{v[I]...} {}
};
}  // namespace metal
#define MSL_PACKED(T) \
  typedef metal::packed_vec<T, 2> packed_##T##2; typedef metal::packed_vec<T, 3> packed_##T##3; typedef metal::packed_vec<T, 4> packed_##T##4; \
  namespace metal { using ::packed_##T##2; using ::packed_##T##3; using ::packed_##T##4; }
MSL_FOR_EACH_SCALAR(MSL_PACKED)
#undef MSL_PACKED
