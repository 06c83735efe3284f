// <metal_integer> and the integer half of <metal_common>: every integer type, scalars and vectors.
#pragma once
namespace msl {
template <class T> using wide = metal::conditional_t<(T(-1) < T(0)), __int128, unsigned __int128>;
}
namespace metal {
#define MSL_INT1(T, name, expression) MSL_INLINE constexpr T name(T x) { return (T)(expression); } MSL_MAP1(T, name)
#define MSL_INT2(T, name, expression) MSL_INLINE constexpr T name(T x, T y) { return (T)(expression); } MSL_MAP2(T, name)
#define MSL_INT3(T, name, expression) MSL_INLINE constexpr T name(T x, T y, T z) { return (T)(expression); } MSL_MAP3(T, name)
#define MSL_X(T) \
  MSL_INT2(T, min, y < x ? y : x) MSL_INT2(T, max, x < y ? y : x) \
  MSL_INT3(T, clamp, min(max(x, y), z)) MSL_INT3(T, min3, min(min(x, y), z)) MSL_INT3(T, max3, max(max(x, y), z)) \
  MSL_INT3(T, median3, max(min(x, y), min(max(x, y), z))) \
  MSL_INT1(T, abs, x < (T)0 ? (T)-x : x) MSL_INT2(T, absdiff, x > y ? (make_unsigned_t<T>)x - (make_unsigned_t<T>)y : (make_unsigned_t<T>)y - (make_unsigned_t<T>)x) \
  MSL_INT1(T, popcount, __builtin_popcountll((ulong)(make_unsigned_t<T>)x)) \
  MSL_INT1(T, clz, x == 0 ? (int)sizeof(T) * 8 : __builtin_clzll((ulong)(make_unsigned_t<T>)x) - (64 - (int)sizeof(T) * 8)) \
  MSL_INT1(T, ctz, x == 0 ? (int)sizeof(T) * 8 : __builtin_ctzll((ulong)(make_unsigned_t<T>)x)) \
  MSL_INT1(T, reverse_bits, __builtin_bitreverse64((ulong)(make_unsigned_t<T>)x) >> (64 - sizeof(T) * 8)) \
  MSL_INT2(T, mulhi, ((msl::wide<T>)x * (msl::wide<T>)y) >> (8 * sizeof(T))) \
  MSL_INT3(T, madhi, mulhi(x, y) + z) \
  MSL_INT2(T, hadd, (x & y) + ((x ^ y) >> 1)) MSL_INT2(T, rhadd, (x | y) - ((x ^ y) >> 1)) \
  MSL_INT2(T, rotate, ((make_unsigned_t<T>)x << (y & (T)(sizeof(T) * 8 - 1))) | ((make_unsigned_t<T>)x >> ((sizeof(T) * 8 - (uint)(y & (T)(sizeof(T) * 8 - 1))) & (sizeof(T) * 8 - 1)))) \
  MSL_INLINE constexpr T addsat(T x, T y) { T r = 0; return __builtin_add_overflow(x, y, &r) ? (x < (T)0 ? numeric_limits<T>::min() : numeric_limits<T>::max()) : r; } MSL_MAP2(T, addsat) \
  MSL_INLINE constexpr T subsat(T x, T y) { T r = 0; return __builtin_sub_overflow(x, y, &r) ? (x < y ? numeric_limits<T>::min() : numeric_limits<T>::max()) : r; } MSL_MAP2(T, subsat) \
  MSL_INLINE constexpr T extract_bits(T x, uint offset, uint bits) { return bits == 0 ? (T)0 : (T)((T)(x << (sizeof(T) * 8 - offset - bits)) >> (sizeof(T) * 8 - bits)); } \
  MSL_INLINE constexpr T insert_bits(T base, T insert, uint offset, uint bits) { \
    const ulong mask = (bits >= 64 ? ~0ul : (1ul << bits) - 1) << offset; \
    return (T)(((ulong)base & ~mask) | (((ulong)insert << offset) & mask)); \
  }
MSL_FOR_EACH_INTEGER(MSL_X)
#undef MSL_X
MSL_INT2(int, mul24, ((x << 8) >> 8) * ((y << 8) >> 8)) MSL_INT2(uint, mul24, (x & 0xffffffu) * (y & 0xffffffu))
MSL_INT3(int, mad24, mul24(x, y) + z) MSL_INT3(uint, mad24, mul24(x, y) + z)
}  // namespace metal
