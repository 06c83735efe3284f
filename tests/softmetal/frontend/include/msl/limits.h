// <metal_limits>: numeric_limits of every scalar.
#pragma once
namespace metal {
template <class T> struct numeric_limits { static constexpr bool is_specialized = false; };
#define MSL_INTEGER(T, LOW, HIGH, DIGITS) \
  template <> struct numeric_limits<T> { \
    static constexpr bool is_specialized = true, is_signed = (T)(-1) < (T)0, is_integer = true, is_exact = true; \
    static constexpr bool has_infinity = false, has_quiet_NaN = false, has_signaling_NaN = false; \
    static constexpr int digits = DIGITS, digits10 = DIGITS * 30103 / 100000, radix = 2; \
    static constexpr T min() { return LOW; } \
    static constexpr T lowest() { return LOW; } \
    static constexpr T max() { return HIGH; } \
    static constexpr T epsilon() { return 0; } \
    static constexpr T infinity() { return 0; } \
    static constexpr T quiet_NaN() { return 0; } \
  };
MSL_INTEGER(bool, false, true, 1)
MSL_INTEGER(char, -128, 127, 7)
MSL_INTEGER(signed char, -128, 127, 7)
MSL_INTEGER(uchar, 0, 255, 8)
MSL_INTEGER(short, -32768, 32767, 15)
MSL_INTEGER(ushort, 0, 65535, 16)
MSL_INTEGER(int, -2147483647 - 1, 2147483647, 31)
MSL_INTEGER(uint, 0, 4294967295u, 32)
MSL_INTEGER(long, -9223372036854775807l - 1, 9223372036854775807l, 63)
MSL_INTEGER(ulong, 0, 18446744073709551615ul, 64)
#undef MSL_INTEGER
#define MSL_FLOAT(T, LEAST, HIGH, EPSILON, DENORMAL, DIGITS, DIGITS10, MIN_EXP, MAX_EXP) \
  template <> struct numeric_limits<T> { \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false; \
    static constexpr bool has_infinity = true, has_quiet_NaN = true, has_signaling_NaN = true; \
    static constexpr int digits = DIGITS, digits10 = DIGITS10, radix = 2, min_exponent = MIN_EXP, max_exponent = MAX_EXP; \
    static constexpr T min() { return (T)LEAST; } \
    static constexpr T lowest() { return (T)(-HIGH); } \
    static constexpr T max() { return (T)HIGH; } \
    static constexpr T epsilon() { return (T)EPSILON; } \
    static constexpr T denorm_min() { return (T)DENORMAL; } \
    static constexpr T round_error() { return (T)0.5f; } \
    static constexpr T infinity() { return (T)__builtin_huge_valf(); } \
    static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); } \
    static constexpr T signaling_NaN() { return (T)__builtin_nanf(""); } \
  };
MSL_FLOAT(float, 1.17549435e-38f, 3.40282347e+38f, 1.19209290e-7f, 1.40129846e-45f, 24, 6, -125, 128)
MSL_FLOAT(half, 6.103515625e-5f, 65504.0f, 9.765625e-4f, 5.9604645e-8f, 11, 3, -13, 16)
MSL_FLOAT(bfloat, 1.17549435e-38f, 3.38953139e+38f, 7.8125e-3f, 9.18354962e-41f, 8, 2, -125, 128)
#undef MSL_FLOAT
}  // namespace metal
