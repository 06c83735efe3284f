// <metal_relational>: tests and selection. Comparing vectors gives clang's masks (integers, all ones for true); the functions here
// take those and vectors of bool alike.
#pragma once
namespace msl {
template <class T> MSL_INLINE constexpr bool is_true(T x) { return x != (T)0; }
}
namespace metal {
#define MSL_TEST(name, expression) \
  MSL_INLINE bool name(float x) { return expression; } \
  MSL_INLINE bool name(half x_) { const float x = (float)x_; return expression; } \
  template <int N> MSL_INLINE vec<bool, N> name(vec<float, N> v) { vec<bool, N> r; for (int i = 0; i < N; ++i) r[i] = name((float)v[i]); return r; } \
  template <int N> MSL_INLINE vec<bool, N> name(vec<half, N> v) { vec<bool, N> r; for (int i = 0; i < N; ++i) r[i] = name((half)v[i]); return r; }
MSL_TEST(isnan, __builtin_isnan(x)) MSL_TEST(isinf, __builtin_isinf(x)) MSL_TEST(isfinite, __builtin_isfinite(x))
MSL_TEST(signbit, (__builtin_bit_cast(uint, x) >> 31) != 0)
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

// select(a, b, c): c ? b : a, element by element.
template <class T> MSL_INLINE constexpr T select(T a, msl::same<T> b, bool c) { return c ? b : a; }
template <class T, int N, class C> MSL_INLINE vec<T, N> select(vec<T, N> a, msl::same<vec<T, N>> b, vec<C, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = msl::is_true((C)c[i]) ? b[i] : a[i];
  return r;
}
}  // namespace metal
