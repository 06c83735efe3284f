// <metal_relational>: tests and selection. Comparing vectors gives clang's masks (integers, all ones for true); the functions here
// take those and vectors of bool alike.
#pragma once
namespace msl {
template <class T> MSL_INLINE constexpr bool is_true(T x) { return x != (T)0; }
}
namespace metal {
#define MSL_TEST(name, expression, mask) \
  MSL_INLINE bool name(float x) { return expression; } \
  MSL_INLINE bool name(half x_) { const float x = (float)x_; return expression; } \
  template <int N> MSL_INLINE msl::bools<N> name(vec<float, N> v) { return mask; } \
  template <int N> MSL_INLINE msl::bools<N> name(vec<half, N> h) { const vec<float, N> v = __builtin_convertvector(h, vec<float, N>); return mask; }
MSL_TEST(isnan, __builtin_isnan(x), v != v)
MSL_TEST(isinf, __builtin_isinf(x), __builtin_elementwise_abs(v) == __builtin_huge_valf())
MSL_TEST(isfinite, __builtin_isfinite(x), __builtin_elementwise_abs(v) < __builtin_huge_valf())
MSL_TEST(signbit, (__builtin_bit_cast(uint, x) >> 31) != 0, (__builtin_bit_cast(vec<int, N>, v) < 0))
#undef MSL_TEST
// A half is normal from 2^-14 on.
MSL_INLINE bool isnormal(float x) { return __builtin_isnormal(x); }
MSL_INLINE bool isnormal(half x) { const float m = __builtin_fabsf((float)x); return m >= 0x1p-14f && m <= 65504.0f; }
MSL_INLINE bool isunordered(float x, float y) { return __builtin_isunordered(x, y); }
MSL_INLINE bool isordered(float x, float y) { return !__builtin_isunordered(x, y); }

MSL_INLINE bool all(bool x) { return x; }
MSL_INLINE bool any(bool x) { return x; }
template <class T, int N> MSL_INLINE bool all(vec<T, N> x) { bool r = true; for (int i = 0; i < N; ++i) r = r && msl::is_true((T)x[i]); return r; }
template <class T, int N> MSL_INLINE bool any(vec<T, N> x) { bool r = false; for (int i = 0; i < N; ++i) r = r || msl::is_true((T)x[i]); return r; }

template <int N> MSL_INLINE bool all(msl::bools<N> x) { bool r = true; for (int i = 0; i < N; ++i) r = r && x[i]; return r; }
template <int N> MSL_INLINE bool any(msl::bools<N> x) { bool r = false; for (int i = 0; i < N; ++i) r = r || x[i]; return r; }

// select(a, b, c): c ? b : a, element by element.
template <class T> MSL_INLINE constexpr T select(T a, msl::same<T> b, bool c) { return c ? b : a; }
template <class T, int N, class C> MSL_INLINE vec<T, N> select(vec<T, N> a, msl::same<vec<T, N>> b, vec<C, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = msl::is_true((C)c[i]) ? b[i] : a[i];
  return r;
}
template <class T, int N> MSL_INLINE T select(T a, msl::same<T> b, msl::bools<N> c) {
  static_assert(msl::element<T>::count == N, "select: the condition has as many elements as the values");
  for (int i = 0; i < N; ++i) a[i] = c[i] ? b[i] : a[i];
  return a;
}
}  // namespace metal
