// Math of the NVPTX target: no library to link, so the functions are here. At most a few units in the last place from exact for
// exp, log, sin, cos, tanh and pow; sqrt, division and fma are correctly rounded. fast:: is what the GPU's special unit gives.
#pragma once
namespace msl {
namespace target {
#define MSL_UNARY(name, op) MSL_INLINE float name(float x) { float r; asm(op " %0, %1;" : "=f"(r) : "f"(x)); return r; }
MSL_UNARY(exp2_unit, "ex2.approx.ftz.f32") MSL_UNARY(log2_unit, "lg2.approx.f32") MSL_UNARY(sin_unit, "sin.approx.f32")
MSL_UNARY(cos_unit, "cos.approx.f32") MSL_UNARY(rsqrt_unit, "rsqrt.approx.f32") MSL_UNARY(reciprocal, "rcp.rn.f32")
MSL_UNARY(sqrt, "sqrt.rn.f32") MSL_UNARY(floor, "cvt.rmi.f32.f32") MSL_UNARY(ceil, "cvt.rpi.f32.f32")
MSL_UNARY(trunc, "cvt.rzi.f32.f32") MSL_UNARY(rint, "cvt.rni.f32.f32")
#undef MSL_UNARY
MSL_INLINE uint bits_of(float x) { return __builtin_bit_cast(uint, x); }
MSL_INLINE float from_bits(uint x) { return __builtin_bit_cast(float, x); }
MSL_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_INLINE float magnitude(float x) { return __builtin_fabsf(x); }
MSL_INLINE float signed_as(float x, float sign) { return from_bits((bits_of(x) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u)); }
MSL_INLINE float nan() { return from_bits(0x7fc00000u); }
// The greater or smaller one; of a number and a NaN, the number. min.f32 and max.f32 do so.
MSL_INLINE float fmin(float x, float y) { float r; asm("min.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }
MSL_INLINE float fmax(float x, float y) { float r; asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }
MSL_INLINE float round(float x) { return trunc(x + signed_as(0.49999997f, x)); }
MSL_INLINE float rsqrt(float x) { return reciprocal(sqrt(x)); }

// x * a as a whole number and the power of two of it. The sum with so large a number has that number in its low bits, from where it
// goes into a float's exponent; one less than it, so that 2^128 / 2 is still a float. Results below 2^-126 are 0, as on Apple's GPUs.
struct whole_power {
  float whole, half_scale;
  MSL_INLINE whole_power(float x, float a) {
    const float shifted = fmin(fmax(fma(x, a, 12583038.0f), 12582913.0f), 12583166.0f);
    whole = shifted - 12583038.0f;
    half_scale = from_bits(bits_of(shifted) << 23);
  }
  MSL_INLINE float times_exp2(float rest) const { return (exp2_unit(rest) * half_scale) * 2.0f; }
};
MSL_INLINE float exp(float x) {
  const whole_power t(x, 1.44269504f);
  return t.times_exp2(fma(t.whole, 1.90465421e-9f, fma(t.whole, -0.693147182f, x)) * 1.44269504f);
}
MSL_INLINE float exp2(float x) {
  const whole_power t(x, 1.0f);
  return t.times_exp2(x - t.whole);
}
MSL_INLINE float exp10(float x) {
  const whole_power t(x, 3.32192809f);
  return t.times_exp2(fma(t.whole, -4.6050390e-6f, fma(t.whole, -0.301025391f, x)) * 3.32192809f);
}
// x = 2^e * (1 + m) with m from -1/3 to 1/3; log(1 + m) through s = m / (2 + m).
MSL_INLINE float log(float x) {
  if (!(x > 0.0f)) return x == 0.0f ? -__builtin_huge_valf() : nan();
  if (__builtin_isinf(x)) return x;
  float e = 0.0f;
  if (x < 1.17549435e-38f) { x *= 8388608.0f; e = -23.0f; }
  const uint exponent = (bits_of(x) - 0x3f2aaaabu) & 0xff800000u;
  const float m = from_bits(bits_of(x) - exponent) - 1.0f;
  e += (float)(int)exponent * 1.1920928955078125e-7f;
  const float s = m / (2.0f + m), z = s * s;
  float p = fma(z, 0.18183573f, 0.22222198f);
  p = fma(fma(fma(p, z, 0.28571429f), z, 0.4f), z, 0.66666667f);
  return fma(e, 0.693147182f, fma(e, -1.90465421e-9f, m - s * (m - z * p)));
}
MSL_INLINE float log2(float x) { return log(x) * 1.44269504f; }
MSL_INLINE float log10(float x) { return log(x) * 0.434294482f; }
MSL_INLINE float log1p(float x) {
  const float u = 1.0f + x;
  return u == 1.0f ? x : __builtin_isinf(u) ? u : log(u) + (x - (u - 1.0f)) / u;
}

// x - quarter * pi/2, and the quarter.
MSL_INLINE float reduced(float x, int& quarter) {
  if (magnitude(x) > 39000.0f) {
    const double d = (double)x, j = __builtin_floor(d * 0.63661977236758134 + 0.5);
    quarter = (int)(j - 4.0 * __builtin_floor(j * 0.25));
    const double r = __builtin_fma(j, -6.123233995736766e-17, __builtin_fma(j, -1.5707963267948966, d));
    return magnitude(x) < 1e15f ? (float)r : __builtin_isfinite(x) ? 0.0f : nan();
  }
  const float k = rint(x * 0.636619747f);
  quarter = (int)k;
  return fma(k, -5.39030253e-15f, fma(k, -3.13916473e-7f, fma(k, -1.57079601f, x)));
}
MSL_INLINE float sin_near_zero(float r) {
  const float s = r * r;
  float p = fma(fma(s, 2.86567956e-6f, -1.98559923e-4f), s, 8.33338592e-3f);
  return fma(fma(p, s, -1.66666672e-1f) * s, r, r);
}
MSL_INLINE float cos_near_zero(float r) {
  const float s = r * r;
  float p = fma(fma(s, 2.44677067e-5f, -1.38877297e-3f), s, 4.16666567e-2f);
  return fma(fma(p, s, -0.5f), s, 1.0f);
}
MSL_INLINE float sin_at(float x, int ahead) {
  int quarter;
  const float r = reduced(x, quarter);
  quarter += ahead;
  const float y = quarter & 1 ? cos_near_zero(r) : sin_near_zero(r);
  return quarter & 2 ? -y : y;
}
MSL_INLINE float sin(float x) { return sin_at(x, 0); }
MSL_INLINE float cos(float x) { return sin_at(x, 1); }
MSL_INLINE float tan(float x) { return sin(x) / cos(x); }
MSL_INLINE float sinpi(float x) {
  const float y = x - 2.0f * rint(x * 0.5f);
  return sin(3.14159265f * (magnitude(y) > 0.5f ? signed_as(1.0f - magnitude(y), y) : y));
}
MSL_INLINE float cospi(float x) { return sin(3.14159265f * (0.5f - magnitude(x - 2.0f * rint(x * 0.5f)))); }

MSL_INLINE float tanh(float x) {
  const float a = magnitude(x);
  if (a >= 0.55f) return signed_as(a > 9.02f ? 1.0f : fma(-2.0f, reciprocal(exp(2.0f * a) + 1.0f), 1.0f), x);
  const float s = x * x;
  float p = fma(fma(s, 1.643758066599993e-2f, -5.267181327760551e-2f), s, 1.332072505223051e-1f);
  return fma(fma(p, s, -3.333294663641083e-1f) * s, x, x);
}
MSL_INLINE float atan(float x) {
  const float a = magnitude(x), t = a > 1.0f ? reciprocal(a) : a, s = t * t;
  float p = fma(fma(s, 0.00282363896f, -0.0159569028f), s, 0.0425049886f);
  p = fma(fma(fma(p, s, -0.0748900920f), s, 0.106347933f), s, -0.142027363f);
  const float r = fma(fma(fma(p, s, 0.199926957f), s, -0.333331018f) * s, t, t);
  return __builtin_isnan(x) ? x : signed_as(a > 1.0f ? 1.57079637f - r : r, x);
}
MSL_INLINE float atan2(float y, float x) {
  const float ax = magnitude(x), ay = magnitude(y), most = fmax(ax, ay), least = fmin(ax, ay);
  if (__builtin_isnan(x) || __builtin_isnan(y)) return nan();
  float r = most == 0.0f ? 0.0f : atan(least == most ? 1.0f : least / most);
  r = ay > ax ? 1.57079637f - r : r;
  return signed_as(bits_of(x) >> 31 ? 3.14159274f - r : r, y);
}
MSL_INLINE float asin(float x) { return magnitude(x) > 1.0f ? nan() : atan2(x, sqrt((1.0f - x) * (1.0f + x))); }
MSL_INLINE float acos(float x) { return magnitude(x) > 1.0f ? nan() : atan2(sqrt((1.0f - x) * (1.0f + x)), x); }
MSL_INLINE float sinh(float x) {
  const float a = magnitude(x), half_way = exp(a * 0.5f);
  if (a < 0.35f) {
    const float s = x * x;
    return fma(x * s, fma(s, fma(s, 1.98412698e-4f, 8.33333333e-3f), 1.66666667e-1f), x);
  }
  return signed_as(a > 80.0f ? (half_way * 0.5f) * half_way : 0.5f * (half_way * half_way - reciprocal(half_way * half_way)), x);
}
MSL_INLINE float cosh(float x) {
  const float a = magnitude(x), half_way = exp(a * 0.5f);
  return a > 80.0f ? (half_way * 0.5f) * half_way : 0.5f * (half_way * half_way + reciprocal(half_way * half_way));
}
MSL_INLINE float asinh(float x) {
  const float a = magnitude(x);
  return signed_as(a > 1e10f ? log(a) + 0.693147182f : log1p(a + a * a / (1.0f + sqrt(a * a + 1.0f))), x);
}
MSL_INLINE float acosh(float x) { return x > 1e10f ? log(x) + 0.693147182f : log1p((x - 1.0f) + sqrt((x - 1.0f) * (x + 1.0f))); }
MSL_INLINE float atanh(float x) { return 0.5f * log1p(2.0f * x / (1.0f - x)); }

// x^y = 2^(y * log2 x), both in double.
inline double log2_in_double(double x) {
  const ulong bits = __builtin_bit_cast(ulong, x);
  const long exponent = (long)((bits - 0x3fe5555555555555ul) & 0xfff0000000000000ul);
  const double m = __builtin_bit_cast(double, bits - (ulong)exponent), s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 0.0;
  for (int i = 21; i >= 3; i -= 2) p = (p + 1.0 / i) * z;
  return (double)(exponent >> 52) + 2.0 * s * (1.0 + p) * 1.4426950408889634;
}
inline float exp2_of_double(double t) {
  if (t > 128.0) return __builtin_huge_valf();
  if (t < -151.0) return 0.0f;
  const double k = __builtin_floor(t + 0.5), r = (t - k) * 0.6931471805599453;
  double p = 1.0;
  for (int i = 11; i >= 1; --i) p = 1.0 + p * r / i;
  return (float)(p * __builtin_bit_cast(double, (ulong)((long)k + 1023) << 52));
}
inline float pow(float x, float y) {
  if (y == 0.0f || x == 1.0f) return 1.0f;
  if (__builtin_isnan(x) || __builtin_isnan(y)) return nan();
  const float a = magnitude(x);
  const bool whole_y = trunc(y) == y, odd = whole_y && magnitude(y) < 16777216.0f && ((long)y & 1);
  if (__builtin_isinf(y)) return a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0.0f) ? __builtin_huge_valf() : 0.0f;
  const float special = a == 0.0f ? (y < 0.0f ? __builtin_huge_valf() : 0.0f) : (y < 0.0f ? 0.0f : a);
  const bool is_special = a == 0.0f || __builtin_isinf(a);
  const float r = is_special ? special : exp2_of_double((double)y * log2_in_double((double)a));
  if (!(bits_of(x) >> 31)) return r;
  return odd ? -r : !whole_y && !is_special ? nan() : r;
}
inline float fmod(float a, float b) {
  if (__builtin_isinf(a) || b == 0.0f || __builtin_isnan(a) || __builtin_isnan(b)) return nan();
  if (magnitude(a) < magnitude(b)) return a;
  float rest = magnitude(a);
  const float d = magnitude(b);
  while (rest >= d) {  // takes off the largest d * 2^n that fits, exactly
    float step = from_bits((bits_of(rest) & 0x7f800000u) | (bits_of(d) & 0x007fffffu));
    if ((bits_of(d) & 0x7f800000u) == 0) step = d;
    rest -= step > rest ? step * 0.5f : step;
  }
  return signed_as(rest, a);
}
MSL_INLINE float nextafter(float x, float y) {
  if (__builtin_isnan(x) || __builtin_isnan(y)) return nan();
  if (x == y) return y;
  if (x == 0.0f) return signed_as(from_bits(1u), y);
  return from_bits(bits_of(x) + ((x < y) == (x > 0.0f) ? 1u : ~0u));
}
MSL_INLINE float ldexp(float x, int e) {
  for (; e > 127; e -= 127) x *= 0x1p127f;
  for (; e < -126; e += 126) x *= 0x1p-126f;
  return x * from_bits((uint)(e + 127) << 23);
}

namespace fast {
using namespace msl::target;
MSL_INLINE float exp(float x) { return exp2_unit(x * 1.44269504f); }
MSL_INLINE float exp2(float x) { return exp2_unit(x); }
MSL_INLINE float exp10(float x) { return exp2_unit(x * 3.32192809f); }
MSL_INLINE float log(float x) { return log2_unit(x) * 0.693147181f; }
MSL_INLINE float log2(float x) { return log2_unit(x); }
MSL_INLINE float log10(float x) { return log2_unit(x) * 0.301029996f; }
MSL_INLINE float sin(float x) { return sin_unit(x); }
MSL_INLINE float cos(float x) { return cos_unit(x); }
MSL_INLINE float rsqrt(float x) { return rsqrt_unit(x); }
}  // namespace fast
}  // namespace target
}  // namespace msl
