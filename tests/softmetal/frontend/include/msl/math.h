// <metal_math> and <metal_common>: overloads for float and half, scalars and vectors. A half function computes in float and rounds
// once. There are none for bfloat, as in Metal.
#pragma once

// Element by element, for vectors of T.
#define MSL_MAP1(T, name) \
  template <int N> MSL_INLINE metal::vec<T, N> name(metal::vec<T, N> x) { \
    metal::vec<T, N> r; \
    for (int i = 0; i < N; ++i) r[i] = name((T)x[i]); \
    return r; \
  }
#define MSL_MAP2(T, name) \
  template <int N> MSL_INLINE metal::vec<T, N> name(metal::vec<T, N> x, msl::same<metal::vec<T, N>> y) { \
    metal::vec<T, N> r; \
    for (int i = 0; i < N; ++i) r[i] = name((T)x[i], (T)y[i]); \
    return r; \
  }
#define MSL_MAP3(T, name) \
  template <int N> MSL_INLINE metal::vec<T, N> name(metal::vec<T, N> x, msl::same<metal::vec<T, N>> y, msl::same<metal::vec<T, N>> z) { \
    metal::vec<T, N> r; \
    for (int i = 0; i < N; ++i) r[i] = name((T)x[i], (T)y[i], (T)z[i]); \
    return r; \
  }
#define MSL_FLOAT1(name, expression) \
  MSL_INLINE float name(float x) { return expression; } \
  MSL_INLINE half name(half x_) { const float x = (float)x_; return (half)(expression); } \
  MSL_MAP1(float, name) MSL_MAP1(half, name)
#define MSL_FLOAT2(name, expression) \
  MSL_INLINE float name(float x, float y) { return expression; } \
  MSL_INLINE half name(half x_, half y_) { const float x = (float)x_, y = (float)y_; return (half)(expression); } \
  MSL_MAP2(float, name) MSL_MAP2(half, name)
#define MSL_FLOAT3(name, expression) \
  MSL_INLINE float name(float x, float y, float z) { return expression; } \
  MSL_INLINE half name(half x_, half y_, half z_) { const float x = (float)x_, y = (float)y_, z = (float)z_; return (half)(expression); } \
  MSL_MAP3(float, name) MSL_MAP3(half, name)

namespace msl {
namespace scalar {
MSL_INLINE float fract(float x) { const float r = x - target::floor(x); return r < 0x1.fffffep-1f ? r : 0x1.fffffep-1f; }
MSL_INLINE float tanpi(float x) {
  const float r = x - target::rint(x);  // the period is 1
  return r == 0.0f ? r : __builtin_fabsf(r) == 0.5f ? __builtin_copysignf(__builtin_huge_valf(), r) : target::sinpi(r) / target::cospi(r);
}
MSL_INLINE float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f; }
MSL_INLINE float abs(float x) { return __builtin_fabsf(x); }
MSL_INLINE float copysign(float x, float y) { return __builtin_copysignf(x, y); }
MSL_INLINE float clamp(float x, float low, float high) { return target::fmin(target::fmax(x, low), high); }
MSL_INLINE float median3(float x, float y, float z) { return target::fmax(target::fmin(x, y), target::fmin(target::fmax(x, y), z)); }
MSL_INLINE float smoothstep(float a, float b, float x) { const float t = clamp((x - a) / (b - a), 0.0f, 1.0f); return t * t * (3.0f - 2.0f * t); }
}  // namespace scalar
}  // namespace msl

// fast:: holds what the target has faster at a larger error (nothing on the CPU); M is where the target's functions are.
#define MSL_ALL_MATH(M) \
  MSL_FLOAT1(exp, M::exp(x)) MSL_FLOAT1(exp2, M::exp2(x)) MSL_FLOAT1(exp10, M::exp10(x)) \
  MSL_FLOAT1(log, M::log(x)) MSL_FLOAT1(log2, M::log2(x)) MSL_FLOAT1(log10, M::log10(x)) \
  MSL_FLOAT1(sin, M::sin(x)) MSL_FLOAT1(cos, M::cos(x)) MSL_FLOAT1(tan, M::tan(x)) \
  MSL_FLOAT1(asin, msl::target::asin(x)) MSL_FLOAT1(acos, msl::target::acos(x)) MSL_FLOAT1(atan, msl::target::atan(x)) \
  MSL_FLOAT1(sinh, msl::target::sinh(x)) MSL_FLOAT1(cosh, msl::target::cosh(x)) MSL_FLOAT1(tanh, msl::target::tanh(x)) \
  MSL_FLOAT1(asinh, msl::target::asinh(x)) MSL_FLOAT1(acosh, msl::target::acosh(x)) MSL_FLOAT1(atanh, msl::target::atanh(x)) \
  MSL_FLOAT1(sqrt, M::sqrt(x)) MSL_FLOAT1(rsqrt, M::rsqrt(x)) MSL_FLOAT1(floor, msl::target::floor(x)) \
  MSL_FLOAT1(ceil, msl::target::ceil(x)) MSL_FLOAT1(trunc, msl::target::trunc(x)) MSL_FLOAT1(rint, msl::target::rint(x)) \
  MSL_FLOAT1(round, msl::target::round(x)) MSL_FLOAT1(fabs, msl::scalar::abs(x)) MSL_FLOAT1(abs, msl::scalar::abs(x)) \
  MSL_FLOAT1(tanpi, msl::scalar::tanpi(x)) MSL_FLOAT1(fract, msl::scalar::fract(x)) MSL_FLOAT1(sinpi, msl::target::sinpi(x)) MSL_FLOAT1(cospi, msl::target::cospi(x)) \
  MSL_FLOAT1(sign, msl::scalar::sign(x)) MSL_FLOAT1(saturate, msl::scalar::clamp(x, 0.0f, 1.0f)) \
  MSL_FLOAT2(pow, M::pow(x, y)) MSL_FLOAT2(powr, M::pow(x, y)) MSL_FLOAT2(atan2, msl::target::atan2(x, y)) \
  MSL_FLOAT2(fmod, msl::target::fmod(x, y)) MSL_FLOAT2(copysign, msl::scalar::copysign(x, y)) MSL_FLOAT2(divide, x / y) \
  MSL_FLOAT2(fdim, (x > y ? x - y : 0.0f)) MSL_FLOAT2(step, (y < x ? 0.0f : 1.0f)) \
  MSL_FLOAT2(fmin, msl::target::fmin(x, y)) MSL_FLOAT2(fmax, msl::target::fmax(x, y)) \
  MSL_FLOAT2(min, msl::target::fmin(x, y)) MSL_FLOAT2(max, msl::target::fmax(x, y)) \
  MSL_FLOAT3(fma, msl::target::fma(x, y, z)) MSL_FLOAT3(mad, x * y + z) MSL_FLOAT3(mix, x + (y - x) * z) \
  MSL_FLOAT3(clamp, msl::scalar::clamp(x, y, z)) MSL_FLOAT3(smoothstep, msl::scalar::smoothstep(x, y, z)) \
  MSL_FLOAT3(min3, msl::target::fmin(msl::target::fmin(x, y), z)) MSL_FLOAT3(max3, msl::target::fmax(msl::target::fmax(x, y), z)) \
  MSL_FLOAT3(fmin3, msl::target::fmin(msl::target::fmin(x, y), z)) MSL_FLOAT3(fmax3, msl::target::fmax(msl::target::fmax(x, y), z)) \
  MSL_FLOAT3(median3, msl::scalar::median3(x, y, z))

namespace metal {
MSL_ALL_MATH(msl::target)
MSL_FLOAT2(nextafter, msl::target::nextafter(x, y))
// The edges of steps may be scalars beside a vector.
template <int N> MSL_INLINE vec<float, N> step(float edge, vec<float, N> x) { return step(vec<float, N>(edge), x); }
template <int N> MSL_INLINE vec<float, N> smoothstep(float low, float high, vec<float, N> x) { return smoothstep(vec<float, N>(low), vec<float, N>(high), x); }
namespace precise {
MSL_ALL_MATH(msl::target)
}
namespace fast {
MSL_ALL_MATH(msl::target::fast)
}

MSL_INLINE float ldexp(float x, int e) { return msl::target::ldexp(x, e); }
MSL_INLINE half ldexp(half x, int e) { return (half)msl::target::ldexp((float)x, e); }
MSL_INLINE float modf(float x, float& whole) {
  whole = msl::target::trunc(x);
  return msl::scalar::copysign(__builtin_isinf(x) ? 0.0f : x - whole, x);
}
MSL_INLINE float frexp(float x, int& exponent) {
  if (x == 0.0f || __builtin_isnan(x) || __builtin_isinf(x)) {
    exponent = 0;
    return x;
  }
  const float scaled = x * 0x1p64f;  // makes subnormals normal
  const bool tiny = (__builtin_bit_cast(uint, x) & 0x7f800000u) == 0;
  const uint bits = __builtin_bit_cast(uint, tiny ? scaled : x);
  exponent = (int)((bits >> 23) & 255) - 126 - (tiny ? 64 : 0);
  return __builtin_bit_cast(float, (bits & 0x807fffffu) | 0x3f000000u);
}
MSL_INLINE int ilogb(float x) { int e; frexp(x, e); return e - 1; }
MSL_INLINE float sincos(float x, float& cosine) { cosine = cos(x); return sin(x); }

#define MSL_X(T) \
  template <int N> MSL_INLINE T dot(vec<T, N> a, msl::same<vec<T, N>> b) { T r = a[0] * b[0]; for (int i = 1; i < N; ++i) r = r + a[i] * b[i]; return r; } \
  template <int N> MSL_INLINE T length_squared(vec<T, N> a) { return dot(a, a); } \
  template <int N> MSL_INLINE T length(vec<T, N> a) { return sqrt(dot(a, a)); } \
  template <int N> MSL_INLINE T distance(vec<T, N> a, msl::same<vec<T, N>> b) { return length(a - b); } \
  template <int N> MSL_INLINE vec<T, N> normalize(vec<T, N> a) { return a * rsqrt(dot(a, a)); } \
  MSL_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) { return a.yzx * b.zxy - a.zxy * b.yzx; }
MSL_X(float) MSL_X(half)
#undef MSL_X
}  // namespace metal
