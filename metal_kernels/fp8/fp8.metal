// FP8 in storage, float in arithmetic.
//
// Formats by number, as formats.py has them: 0 e4m3fn, 1 e5m2, 2 e4m3fnuz, 3 e5m2fnuz, 4 e8m0fnu. Casts work on bits, not on
// values: Apple's GPUs flush float32 subnormals, and NaN must come out as the CPU's.
//
//   fp8_decode, fp8_encode    flat casts, with a scale of the tensor or of the row if wanted
//   fp8_recode                from one FP8 format to another
//   fp8_amax                  largest magnitude, and the scale that follows from it, without the host
//   fp8_stochastic            rounding up or down by a given random byte
//   fp8_quantize_mx, fp8_dequantize_mx, fp8_dequantize_nv   blocks with scales in the tiled layout of NVIDIA's libraries
//   fp8_gemv                  x [M, K] times an FP8 weight [N, K], M <= 16: one byte read for each weight
//
// Scalars arrive as a list of int64s: see the struct before each kernel.

#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

// Arrays indexed by these loops then live in registers.
#define FP8_UNROLL _Pragma("clang loop unroll(full)")
// Also where a function is long: called, it would have its caller's arrays in memory.
#define FP8_INLINE inline __attribute__((always_inline))

constant constexpr int e4m3fn = 0;
constant constexpr int e5m2 = 1;
constant constexpr int e4m3fnuz = 2;
constant constexpr int e5m2fnuz = 3;

// ---- one value ----------------------------------------------------------------------------------------------------

// The bits of the float32 that the CPU makes of byte b.
inline uint decode_bits(uint b, int format) {
  if (format > e5m2fnuz) {  // e8m0fnu: a power of two
    return b == 0 ? 0x00400000u : b == 0xffu ? 0x7f800001u : b << 23;
  }
  const uint sign = (b & 0x80u) << 24;
  const uint m = b & 0x7fu;
  if (format == e4m3fn) {
    const uint magnitude = m < 8 ? as_type<uint>(float(m) * 0x1p-9f) : (m << 20) + (120u << 23);
    return sign | (m == 0x7fu ? 0x7ff00000u : magnitude);
  }
  if (format == e5m2) {
    const uint magnitude = m < 4 ? as_type<uint>(float(m) * 0x1p-16f) : (m << 21) + (112u << 23);
    return sign | (m >= 0x7cu ? 0x7f800000u | (m > 0x7cu ? 0x00400000u | ((m & 3u) << 21) : 0u) : magnitude);
  }
  if (b == 0x80u) {  // the only NaN of the fnuz formats, which have no negative zero
    return 0x7f800001u;
  }
  if (format == e4m3fnuz) {
    return sign | (m < 8 ? as_type<uint>(float(m) * 0x1p-10f) : (m << 20) + (119u << 23));
  }
  return sign | (m < 4 ? as_type<uint>(float(m) * 0x1p-17f) : (m << 21) + (111u << 23));
}

// Round to nearest even; a format's constants in float32: first value out of range, smallest normal, and the number whose
// last place is the format's smallest subnormal, so that adding it rounds.
struct Rounding {
  uint limit;
  uint normal;
  uint denormal;
  int bias;
  int shift;
};

inline uint round_magnitude(uint f, Rounding r) {
  if (f < r.normal) {
    return as_type<uint>(as_type<float>(f) + as_type<float>(r.denormal)) - r.denormal;
  }
  const uint odd = (f >> r.shift) & 1u;
  return (f + (uint(r.bias - 127) << 23) + ((1u << (r.shift - 1)) - 1u) + odd) >> r.shift;
}

// The byte that the CPU makes of a float32's bits. saturate: e4m3fn beyond its range is 448, not NaN (torch's releases differ).
inline uint encode_bits(uint f, int format, bool saturate) {
  const uint sign = (f >> 24) & 0x80u;
  const uint magnitude = f & 0x7fffffffu;
  const bool nan = magnitude > 0x7f800000u;
  if (format == e4m3fn) {
    const Rounding r = {1087u << 20, 121u << 23, 141u << 23, 7, 20};
    const uint beyond = saturate && !nan ? 0x7eu : 0x7fu;
    const uint rounded = magnitude >= r.limit ? 0x7fu : round_magnitude(magnitude, r) & 0xffu;
    return sign | (rounded == 0x7fu ? beyond : rounded);
  }
  if (format == e5m2) {
    const Rounding r = {143u << 23, 113u << 23, 134u << 23, 15, 21};
    return sign | (magnitude >= r.limit ? (nan ? 0x7fu : 0x7cu) : round_magnitude(magnitude, r) & 0xffu);
  }
  if (format > e5m2fnuz) {  // the nearest power of two, whatever the sign; subnormals round half down
    const uint exponent = magnitude >> 23;
    const uint fraction = magnitude & 0x7fffffu;
    const bool up = exponent > 0 ? fraction >= 0x400000u : fraction > 0x400000u;
    return exponent == 0xffu ? 0xffu : exponent + uint(up);
  }
  const Rounding r4 = {135u << 23, 120u << 23, 140u << 23, 8, 20};
  const Rounding r5 = {143u << 23, 112u << 23, 133u << 23, 16, 21};
  const Rounding r = format == e4m3fnuz ? r4 : r5;
  if (magnitude >= r.limit) {
    return 0x80u;
  }
  const uint rounded = round_magnitude(magnitude, r) & 0xffu;
  return rounded == 0 ? 0u : sign | rounded;
}

// A wide type as its bits: in and out of float32 as the CPU converts, NaN's sign and payload too.
template <typename T>
struct Wide {};

template <>
struct Wide<float> {
  typedef uint bits_t;
  static uint to_float(uint v) { return v; }
  static uint from_float(uint f) { return f; }
  static uint round(float v) { return as_type<uint>(v); }  // any NaN for a NaN
};

template <>
struct Wide<half> {
  typedef ushort bits_t;
  static ushort round(float v) { return as_type<ushort>(half(v)); }
  static uint to_float(ushort v) {
    const uint sign = uint(v & 0x8000) << 16;
    const uint m = v & 0x7fffu;
    return sign | (m > 0x7c00u ? 0x7fc00000u | (m & 0x3ffu) << 13 : as_type<uint>(float(as_type<half>(ushort(m)))));
  }
  static ushort from_float(uint f) {
    const uint m = f & 0x7fffffffu;
    const uint sign = (f >> 16) & 0x8000u;
    return ushort(sign | (m > 0x7f800000u ? 0x7e00u | (m & 0x7fffffu) >> 13 : uint(as_type<ushort>(half(as_type<float>(m))))));
  }
};

template <>
struct Wide<bfloat> {
  typedef ushort bits_t;
  static ushort round(float v) { return as_type<ushort>(bfloat(v)); }
  static uint to_float(ushort v) { return uint(v) << 16; }
  static ushort from_float(uint f) {
    if ((f & 0x7fffffffu) > 0x7f800000u) {
      return 0x7fc0;
    }
    return ushort((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
  }
};

// ---- four values at once -------------------------------------------------------------------------------------------

// Four bytes as halves, bytes 0 and 2 in `even`, 1 and 3 in `odd`. e4m3fn has the bits of a half 256 times smaller, subnormals
// included; its NaN has those of a finite half: see `nan_marks`.
struct Four {
  half2 even;
  half2 odd;
};

template <int format>
FP8_INLINE Four unpack(uint w) {
  Four r;
  if (format == e5m2) {
    r.even = as_type<half2>((w << 8) & 0xff00ff00u);
    r.odd = as_type<half2>(w & 0xff00ff00u);
  } else {
    r.even = as_type<half2>(((w << 7) & 0x3f803f80u) | ((w << 8) & 0x80008000u));
    r.odd = as_type<half2>(((w >> 1) & 0x3f803f80u) | (w & 0x80008000u));
  }
  return r;
}

// Is a byte's top bit set, one of the four is 0x7f or 0xff. Without such a byte, no sum carries into the next one.
inline uint nan_marks(uint w) { return (w + 0x01010101u) ^ w; }

// Top bits: which of the four are e4m3fn's NaN, or e5m2's infinity or NaN. The halves of the others are the values, as above.
template <int format>
FP8_INLINE uint odd_ones(uint w) {
  return (format == e4m3fn ? nan_marks(w) : (w & 0x7f7f7f7fu) + 0x04040404u) & 0x80808080u;
}

// ---- flat casts ---------------------------------------------------------------------------------------------------

// A matrix of `rows` x `cols` adjacent elements; without row scales, one row. Threads: (columns / width, rows), the columns
// in several lines of `line` threads where a uint cannot number them.
struct CastLaunch {
  long cols;
  long line;        // threads of a line
  long lines;       // of one row
  long format;
  long scaling;     // 0 none, 1 of the tensor, 2 of the row
  long saturate;
  long target;      // fp8_recode: the format written
};

template <int width>
inline bool locate(constant CastLaunch& p, uint2 position, thread long& first, thread long& row) {
  row = p.lines == 1 ? long(position.y) : long(position.y) / p.lines;
  const long column = ((long(position.y) - row * p.lines) * p.line + long(position.x)) * width;
  first = row * p.cols + column;
  return column < p.cols;
}

inline float scale_for(constant CastLaunch& p, device const float* scales, long row) {
  return p.scaling == 0 ? 1.0f : scales[p.scaling == 1 ? 0 : row];
}

template <typename T>
inline typename Wide<T>::bits_t decode_one(uint b, constant CastLaunch& p, float scale) {
  const uint f = decode_bits(b, int(p.format));
  return Wide<T>::from_float(p.scaling == 0 ? f : as_type<uint>(as_type<float>(f) * scale));
}

// `count` values at once, so many that neighbouring threads read and write neighbouring memory in pieces of at most 16 bytes, or two
// of them: 16 of a type of two bytes, four floats.
template <int count>
struct Bytes {
  uint word[count / 4];
  static Bytes load(device const uchar* from) {
    Bytes b;
    if (count == 16) {
      const uint4 v = *reinterpret_cast<device const uint4*>(from);
      FP8_UNROLL
      for (int i = 0; i < count / 4; ++i) {
        b.word[i] = v[i];
      }
    } else if (count == 8) {
      const uint2 v = *reinterpret_cast<device const uint2*>(from);
      b.word[0] = v.x;
      b.word[count / 4 - 1] = v.y;
    } else {
      b.word[0] = *reinterpret_cast<device const uint*>(from);
    }
    return b;
  }
  void store(device uchar* to) const {
    if (count == 16) {
      uint4 v;
      FP8_UNROLL
      for (int i = 0; i < count / 4; ++i) {
        v[i] = word[i];
      }
      *reinterpret_cast<device uint4*>(to) = v;
    } else if (count == 8) {
      *reinterpret_cast<device uint2*>(to) = uint2(word[0], word[count / 4 - 1]);
    } else {
      *reinterpret_cast<device uint*>(to) = word[0];
    }
  }
};

// Four bytes of e4m3fn or e5m2 that are no NaN and no infinity, times `gain`: which is 256 times the scale for e4m3fn, see Four.
template <typename T, int format>
FP8_INLINE void decode_usual(uint word, float gain, thread typename Wide<T>::bits_t* b) {
  const Four four = unpack<format>(word);
  b[0] = Wide<T>::round(float(four.even.x) * gain);
  b[1] = Wide<T>::round(float(four.odd.x) * gain);
  b[2] = Wide<T>::round(float(four.even.y) * gain);
  b[3] = Wide<T>::round(float(four.odd.y) * gain);
}

// format: e4m3fn or e5m2; -1 for any, value by value.
template <typename T, int count, int format>
[[kernel]] void fp8_decode_wide(
    device const uchar* in [[buffer(0)]],
    device uint4* out [[buffer(1)]],
    device const float* scales [[buffer(2)]],
    constant CastLaunch& p [[buffer(3)]],
    uint2 position [[thread_position_in_grid]]) {
  typedef typename Wide<T>::bits_t bits_t;
  constexpr int lanes = 16 / sizeof(bits_t);
  long first, row;
  if (!locate<count>(p, position, first, row)) {
    return;
  }
  const Bytes<count> v = Bytes<count>::load(in + first);
  const float scale = scale_for(p, scales, row);
  uint odd = 0;
  FP8_UNROLL
  for (int j = 0; j < count / 4; ++j) {
    odd |= odd_ones<format>(v.word[j]);
  }
  bits_t b[count];
  // 256 times a scale of 2^120 would be infinite.
  if (format >= 0 && odd == 0 && fabs(scale) < 0x1p120f) {
    const float gain = format == e4m3fn ? scale * 256.0f : scale;
    FP8_UNROLL
    for (int j = 0; j < count; j += 4) {
      decode_usual<T, format>(v.word[j / 4], gain, b + j);
    }
  } else {
    FP8_UNROLL
    for (int j = 0; j < count; ++j) {
      b[j] = decode_one<T>((v.word[j / 4] >> (8 * (j % 4))) & 0xffu, p, scale);
    }
  }
  FP8_UNROLL
  for (int j = 0; j < count; j += lanes) {
    uint4 w;
    if (lanes == 4) {
      w = uint4(b[j], b[j + 1], b[j + 2], b[j + 3]);
    } else {
      FP8_UNROLL
      for (int i = 0; i < 4; ++i) {
        w[i] = uint(b[j + 2 * i]) | uint(b[j + 2 * i + 1]) << 16;
      }
    }
    out[ulong(first + j) / lanes] = w;
  }
}

template <typename T>
[[kernel]] void fp8_decode_1(
    device const uchar* in [[buffer(0)]],
    device typename Wide<T>::bits_t* out [[buffer(1)]],
    device const float* scales [[buffer(2)]],
    constant CastLaunch& p [[buffer(3)]],
    uint2 position [[thread_position_in_grid]]) {
  long first, row;
  if (locate<1>(p, position, first, row)) {
    out[first] = decode_one<T>(in[first], p, scale_for(p, scales, row));
  }
}

// With a scale: times its reciprocal in T, the product in T, both within the format's range, as comfy-kitchen's eager
// quantize_per_tensor_fp8 does.
template <typename T>
inline uint encode_one(typename Wide<T>::bits_t v, constant CastLaunch& p, float reciprocal) {
  uint f = Wide<T>::to_float(v);
  if (p.scaling != 0) {
    const float product = as_type<float>(Wide<T>::to_float(Wide<T>::from_float(as_type<uint>(as_type<float>(f) * reciprocal))));
    const float most = p.format == e5m2 ? 57344.0f : 448.0f;
    f = as_type<uint>(isnan(product) ? product : clamp(product, -most, most));
  }
  return encode_bits(f, int(p.format), p.saturate != 0);
}

template <typename T>
inline float reciprocal_for(constant CastLaunch& p, device const float* scales, long row) {
  return as_type<float>(Wide<T>::to_float(Wide<T>::from_float(as_type<uint>(1.0f / scale_for(p, scales, row)))));
}

// Two halves in a word each, as bits: elements 0 and 2 of four in `even`, 1 and 3 in `odd`.
struct Halves {
  uint even;
  uint odd;
};

// As halves: what T's values of a format's range are exactly, but for bfloats so small that they round to zero in either format.
// Larger ones and NaN become what `Pairs::beyond` is above. With a scale: the product in T, which for halves is theirs.
template <typename T>
struct Pairs {
  static Halves of(uint, uint) { return {0u, 0u}; }
  static Halves product(uint, uint, float) { return {0u, 0u}; }
};

template <>
struct Pairs<half> {
  static Halves of(uint first, uint second) {
    return {(first & 0xffffu) | (second << 16), (first >> 16) | (second & 0xffff0000u)};
  }
  static Halves product(uint first, uint second, float factor) {
    const half2 f = half2(half(factor));
    return of(as_type<uint>(as_type<half2>(first) * f), as_type<uint>(as_type<half2>(second) * f));
  }
};

template <>
struct Pairs<bfloat> {
  static uint two(float low, float high) { return as_type<uint>(half2(half(low), half(high))); }
  static Halves of(uint first, uint second) {
    return {two(as_type<float>(first << 16), as_type<float>(second << 16)),
            two(as_type<float>(first & 0xffff0000u), as_type<float>(second & 0xffff0000u))};
  }
  static uint scaled(uint w, float factor) {
    const bfloat low = bfloat(as_type<float>(w << 16) * factor);
    const bfloat high = bfloat(as_type<float>(w & 0xffff0000u) * factor);
    return uint(as_type<ushort>(low)) | uint(as_type<ushort>(high)) << 16;
  }
  static Halves product(uint first, uint second, float factor) { return of(scaled(first, factor), scaled(second, factor)); }
};

// The larger and the smaller of two halves each, none of them negative: they order as their bits do.
FP8_INLINE uint larger(uint a, uint b) { return as_type<uint>(max(as_type<ushort2>(a), as_type<ushort2>(b))); }
FP8_INLINE uint smaller(uint a, uint b) { return as_type<uint>(min(as_type<ushort2>(a), as_type<ushort2>(b))); }

// The format's bytes of two halves of no NaN, in the upper bytes of the word's halves; the lower ones are zero. Adding a number whose
// last place is the format's for this value, and taking it off again, rounds to nearest even; what is left has, 256 times smaller,
// e4m3fn's bits (see Four). A half's own upper byte is e5m2. `most`: bits of what greater ones become.
template <int format>
FP8_INLINE uint pack_halves(uint w, uint most) {
  const uint sign = w & 0x80008000u;
  const uint bits = smaller(w & 0x7fff7fffu, most);
  if (format == e5m2) {
    return ((bits + 0x007f007fu + ((bits >> 8) & 0x00010001u)) & 0x7f007f00u) | sign;
  }
  const uint power = larger(bits & 0x7c007c00u, 0x24002400u);  // at least the smallest normal's
  const half2 large = as_type<half2>(power + 0x1c001c00u);
  const half2 rounded = ((as_type<half2>(bits) + large) - large) * half2(1.0h / 256.0h);
  return (as_type<uint>(rounded) << 1) | sign;
}
template <int format>
FP8_INLINE uint pack_halves(Halves h, uint most) {
  return (pack_halves<format>(h.even, most) >> 8) | pack_halves<format>(h.odd, most);
}

// The bytes of four values of less than e4m3fn's 464, or e5m2's 65536, and of no NaN. Adding a number whose last place is the
// format's for this value, and taking it off again, rounds to nearest even; what is left is exact as a half, 256 times smaller for
// e4m3fn (see Four), and has the format's bits there, subnormals too.
template <int format>
FP8_INLINE uint pack(thread const float* v) {
  constexpr uint normal = format == e5m2 ? 113u << 23 : 121u << 23;
  constexpr uint places = format == e5m2 ? 21u << 23 : 20u << 23;
  half h[4];
  FP8_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint bits = as_type<uint>(v[i]);
    const float magnitude = as_type<float>(bits & 0x7fffffffu);
    const float large = as_type<float>(max(bits & 0x7f800000u, normal) + places);
    const float rounded = ((magnitude + large) - large) * (format == e5m2 ? 1.0f : 1.0f / 256.0f);
    h[i] = half(as_type<float>(as_type<uint>(rounded) | (bits & 0x80000000u)));
  }
  const uint even = as_type<uint>(half2(h[0], h[2]));
  const uint odd = as_type<uint>(half2(h[1], h[3]));
  if (format == e5m2) {
    return ((even >> 8) & 0x00ff00ffu) | (odd & 0xff00ff00u);
  }
  return ((even >> 7) & 0x007f007fu) | ((even >> 8) & 0x00800080u) | ((odd << 1) & 0x7f007f00u) | (odd & 0x80008000u);
}

// The wide values of `count` places, as floats.
template <typename T, int count>
FP8_INLINE void load_wide(thread const uint4* in, thread float* v) {
  typedef typename Wide<T>::bits_t bits_t;
  constexpr int lanes = 16 / sizeof(T);
  FP8_UNROLL
  for (int j = 0; j < count / lanes; ++j) {
    const uint4 w = in[j];
    FP8_UNROLL
    for (int i = 0; i < lanes; ++i) {
      const uint word = w[i * 4 / lanes];
      const uint bits = sizeof(T) == 4 ? word : (word >> (16 * (i & 1))) & 0xffffu;
      v[j * lanes + i] = float(as_type<T>(bits_t(bits)));
    }
  }
}

// The bytes of `count` values, in pieces of 16 bytes, into `words`; or false, if one of them is not usual: a NaN, an infinity, or without
// a scale beyond the range.
template <typename T, int count, int format, bool scaled>
FP8_INLINE bool encode_usual(thread const uint4* w, float reciprocal, thread uint* words) {
  constexpr int lanes = 16 / sizeof(T);
  if (sizeof(T) == 2) {
    Halves h[count / 4];
    // Added to a half's magnitude, sets its top bit from the first value on that is not usual: 464 for e4m3fn without a scale, else
    // infinity.
    constexpr uint past = scaled || format == e5m2 ? 0x04000400u : 0x20c020c0u;
    constexpr uint most = format == e4m3fn ? 0x5f005f00u : scaled ? 0x7b007b00u : 0x7bff7bffu;
    uint marks = 0;
    FP8_UNROLL
    for (int i = 0; i < count / 4; ++i) {
      const uint low = w[4 * i / lanes][2 * i % 4], high = w[4 * i / lanes][2 * i % 4 + 1];
      h[i] = scaled ? Pairs<T>::product(low, high, reciprocal) : Pairs<T>::of(low, high);
      marks |= ((h[i].even & 0x7fff7fffu) + past) | ((h[i].odd & 0x7fff7fffu) + past);
    }
    FP8_UNROLL
    for (int i = 0; i < count / 4; ++i) {
      words[i] = pack_halves<format>(h[i], most);
    }
    return (marks & 0x80008000u) == 0;
  }
  float v[count];
  load_wide<T, count>(w, v);
  constexpr float most = format == e5m2 ? 57344.0f : 448.0f;
  float mark = 0.0f, largest = 0.0f;  // mark: NaN if any value is NaN or infinite
  FP8_UNROLL
  for (int i = 0; i < count; ++i) {
    if (scaled) {
      v[i] = float(T(v[i] * reciprocal));
      mark = fma(v[i], 0.0f, mark);
      v[i] = clamp(v[i], -most, most);
    } else {
      mark = fma(v[i], 0.0f, mark);
      largest = max(largest, fabs(v[i]));
    }
  }
  FP8_UNROLL
  for (int i = 0; i < count / 4; ++i) {
    words[i] = pack<format>(v + 4 * i);
  }
  return mark == 0.0f && largest < (format == e5m2 ? 65536.0f : 464.0f);
}

// format: e4m3fn or e5m2; -1 for any, value by value.
template <typename T, int count, int format>
[[kernel]] void fp8_encode_wide(
    device const uint4* in [[buffer(0)]],
    device uchar* out [[buffer(1)]],
    device const float* scales [[buffer(2)]],
    constant CastLaunch& p [[buffer(3)]],
    uint2 position [[thread_position_in_grid]]) {
  typedef typename Wide<T>::bits_t bits_t;
  constexpr int lanes = 16 / sizeof(bits_t);
  long first, row;
  if (!locate<count>(p, position, first, row)) {
    return;
  }
  device const uint4* vectors = in + ulong(first) / lanes;
  uint4 w[count / lanes];
  FP8_UNROLL
  for (int j = 0; j < count / lanes; ++j) {
    w[j] = vectors[j];
  }
  Bytes<count> b;
  bool usual = false;
  float reciprocal = 1.0f;
  if (p.scaling != 0) {
    reciprocal = reciprocal_for<T>(p, scales, row);
    usual = format >= 0 && encode_usual<T, count, format, true>(w, reciprocal, b.word);
  } else {
    usual = format >= 0 && encode_usual<T, count, format, false>(w, reciprocal, b.word);
  }
  if (!usual) {
    FP8_UNROLL
    for (int i = 0; i < count / 4; ++i) {
      b.word[i] = 0;
    }
    FP8_UNROLL
    for (int j = 0; j < count / lanes; ++j) {
      const uint4 again = vectors[j];  // by their bits: a NaN keeps its sign
      FP8_UNROLL
      for (int i = 0; i < lanes; ++i) {
        const uint word = again[i * 4 / lanes];
        const bits_t value = bits_t(sizeof(bits_t) == 4 ? word : word >> (16 * (i & 1)));
        const int at = j * lanes + i;
        b.word[at / 4] |= encode_one<T>(value, p, reciprocal) << (8 * (at % 4));
      }
    }
  }
  b.store(out + first);
}

template <typename T>
[[kernel]] void fp8_encode_1(
    device const typename Wide<T>::bits_t* in [[buffer(0)]],
    device uchar* out [[buffer(1)]],
    device const float* scales [[buffer(2)]],
    constant CastLaunch& p [[buffer(3)]],
    uint2 position [[thread_position_in_grid]]) {
  long first, row;
  if (locate<1>(p, position, first, row)) {
    out[first] = uchar(encode_one<T>(in[first], p, reciprocal_for<T>(p, scales, row)));
  }
}

[[kernel]] void fp8_recode(
    device const uchar* in [[buffer(0)]],
    device uchar* out [[buffer(1)]],
    constant CastLaunch& p [[buffer(2)]],
    uint2 position [[thread_position_in_grid]]) {
  long first, row;
  if (locate<1>(p, position, first, row)) {
    out[first] = uchar(encode_bits(decode_bits(in[first], int(p.format)), int(p.target), p.saturate != 0));
  }
}

// ---- the largest magnitude ----------------------------------------------------------------------------------------

struct AmaxLaunch {
  long cols;
  long stripes;  // threadgroups of a row: out[row * stripes + stripe]
  long final;    // write the scale that makes the largest magnitude `most`, not the magnitude
  long vectors;  // rows begin on 16-byte boundaries and are whole vectors
};

constant constexpr uint amax_threads = 256;
constant constexpr int amax_flight = 4;

// The larger magnitudes so far, as bits of T: those of the upper halves of the words, and of the lower ones, both in the upper half.
struct Largest {
  uint upper;
  uint lower;
};

template <typename T>
FP8_INLINE void take_word(thread Largest& l, uint word) {
  if (sizeof(T) == 4) {
    l.upper = max(l.upper, word & 0x7fffffffu);
  } else {
    l.upper = max(l.upper, word & 0x7fff0000u);
    l.lower = max(l.lower, (word << 16) & 0x7fff0000u);
  }
}

// Magnitudes order as their bits do, and NaN, as in torch.amax, is the largest of all.
template <typename T>
[[kernel]] void fp8_amax(
    device const typename Wide<T>::bits_t* in [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant AmaxLaunch& p [[buffer(2)]],
    constant float& most [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_position_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  typedef typename Wide<T>::bits_t bits_t;
  threadgroup uint largest_of[amax_threads / 32];
  const long row = p.stripes == 1 ? long(group) : long(group) / p.stripes;
  const long stripe = long(group) - row * p.stripes;
  const long step = p.stripes * amax_threads;
  const long begin = stripe * amax_threads + thread_in_group;
  device const bits_t* from = in + row * p.cols;
  Largest l = {0u, 0u};
  if (p.vectors != 0) {
    device const uint4* vectors = reinterpret_cast<device const uint4*>(from);
    const long count = p.cols * long(sizeof(bits_t)) / 16;
    for (long i = begin; i < count; i += amax_flight * step) {
      uint4 v[amax_flight];
      FP8_UNROLL
      for (int f = 0; f < amax_flight; ++f) {
        v[f] = vectors[min(i + f * step, count - 1)];  // past the end: the last one again
      }
      FP8_UNROLL
      for (int f = 0; f < amax_flight; ++f) {
        FP8_UNROLL
        for (int j = 0; j < 4; ++j) {
          take_word<T>(l, v[f][j]);
        }
      }
    }
  } else {
    for (long c = begin; c < p.cols; c += step) {
      take_word<T>(l, uint(from[c]) << (sizeof(bits_t) == 4 ? 0 : 16));
    }
  }
  const uint bits = max(l.upper, l.lower);
  uint largest = sizeof(bits_t) == 4 ? bits : Wide<T>::to_float(bits_t(bits >> 16));
  largest = simd_max(largest);
  if (lane == 0) {
    largest_of[simdgroup] = largest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_in_group == 0) {
    FP8_UNROLL
    for (uint i = 1; i < amax_threads / 32; ++i) {
      largest = max(largest, largest_of[i]);
    }
    const float amax = as_type<float>(largest);
    // All zeros: any scale will do, and 0 would make them NaN.
    out[group] = p.final == 0 ? amax : largest == 0 ? 1.0f : amax / most;
  }
}

// ---- stochastic rounding ------------------------------------------------------------------------------------------

inline float in_half(float v) { return float(half(v)); }

inline float power_of_two(int n) { return as_type<float>(uint(n + 127) << 23); }  // exact, as exp2 need not be

// comfy-kitchen's eager stochastic_rounding_fp8, whose steps are half-precision torch ops: the same roundings in the same
// places, one quirk included. Its exponent is floor(half(log2(x))), and half(log2(x)) already is the next integer for x
// just below a power of two: from fraction `first_up` on.
inline int exponent_of(uint m) {
  const int e = int(m >> 10);
  int exponent = e - 15;
  uint fraction = m & 0x3ffu;
  if (e == 0) {
    const int shift = int(clz(m)) - 21;
    exponent = -14 - shift;
    fraction = (m << shift) & 0x3ffu;
  }
  // log2(x) lies just below n: x goes up when n - log2(x) is at most half of what separates halves there.
  const int n = exponent + 1;
  const int binade = n > 0 ? n - 1 : -n;
  const uint first_up = binade >= 16 ? 1013 : binade >= 8 ? 1019 : binade >= 4 ? 1022 : binade >= 2 ? 1023 : 1024;
  return fraction >= first_up ? n : exponent;
}

struct StochasticLaunch {
  long count;
  long line;
  long format;
  long saturate;
};

template <typename T>
[[kernel]] void fp8_stochastic(
    device const typename Wide<T>::bits_t* in [[buffer(0)]],
    device const uchar* random [[buffer(1)]],
    device uchar* out [[buffer(2)]],
    constant StochasticLaunch& p [[buffer(3)]],
    uint2 position [[thread_position_in_grid]]) {
  const long i = long(position.y) * p.line + long(position.x);
  if (i >= p.count) {
    return;
  }
  const uint h = Wide<half>::from_float(Wide<T>::to_float(in[i]));
  const uint m = h & 0x7fffu;
  if (m == 0 || m > 0x7c00u) {
    out[i] = m == 0 ? uchar(0) : uchar(0x7f);
    return;
  }
  const int bits = p.format == e5m2 ? 2 : 3;
  const int bias = p.format == e5m2 ? 15 : 7;
  const int top = p.format == e5m2 ? 31 : 15;
  const float x = float(as_type<half>(ushort(m)));
  const int exponent = m == 0x7c00u ? top : clamp(exponent_of(m) + bias, 0, top);
  const float steps = float(1 << bits);
  const float unit = in_half(power_of_two(exponent == 0 ? 1 - bias - bits : exponent - bias));
  float scaled = exponent == 0 ? in_half(x / unit) : in_half(in_half(in_half(x / unit) - 1.0f) * steps);
  scaled = in_half(scaled + float(random[i]) * (1.0f / 256.0f));
  const float mantissa = in_half(floor(scaled) / steps);
  float value = exponent == 0 ? in_half(power_of_two(1 - bias) * mantissa) : in_half(unit * in_half(1.0f + mantissa));
  const float most = p.format == e5m2 ? 57344.0f : 448.0f;
  if (isnan(value)) {  // of an infinity for e5m2, with the sign that the device gives a NaN
    out[i] = 0x7f;
    return;
  }
  value = clamp((h & 0x8000u) != 0 ? -value : value, -most, most);
  out[i] = uchar(encode_bits(as_type<uint>(value), int(p.format), p.saturate != 0));
}

// ---- blocks with scales of their own ------------------------------------------------------------------------------

// Scales of blocks lie in tiles of 128 rows x 4 blocks, 512 bytes each: rows 32 apart are neighbours in a tile.
inline long tiled(long row, long block, long tiles_per_row) {
  const long tile = (row >> 7) * tiles_per_row + (block >> 2);
  return tile * 512 + (row & 31) * 16 + ((row >> 5) & 3) * 4 + (block & 3);
}

// rows x blocks blocks; one thread a block. Grid: (blocks, rows).
struct BlockLaunch {
  long blocks;       // of a row
  long tiles;        // of a row, for the scales
  long saturate;
  long hi_first;     // nvfp4: the first of two values is in the high bits
};

// The OCP's MXFP8: 32 e4m3fn values and a power of two, the least for which all of them fit.
template <typename T>
[[kernel]] void fp8_quantize_mx(
    device const typename Wide<T>::bits_t* in [[buffer(0)]],
    device uchar* out [[buffer(1)]],
    device uchar* scales [[buffer(2)]],
    constant BlockLaunch& p [[buffer(3)]],
    uint2 position [[thread_position_in_grid]]) {
  const long row = long(position.y);
  const long block = long(position.x);
  const long first = (row * p.blocks + block) * 32;
  uint largest = 0;
  uint v[32];
  FP8_UNROLL
  for (int i = 0; i < 32; ++i) {
    v[i] = Wide<T>::to_float(in[first + i]);
    largest = max(largest, v[i] & 0x7fffffffu);
  }
  // Smallest power of two not below amax / 448 = (amax / 256) / 1.75; a float32 below 2^-126 * 448 takes 2^-127, byte 0.
  uint exponent = 0;
  if (largest > 0x7f800000u) {
    exponent = 0;
  } else if (largest >= (8u << 23)) {
    exponent = min((largest >> 23) - 8u + uint((largest & 0x7fffffu) > 0x600000u), 254u);
  }
  const bool zero = largest == 0;
  // Times the power's reciprocal, which is exact too, and never a subnormal: the exponent is at most 247.
  const float reciprocal = as_type<float>((254u - exponent) << 23);
  FP8_UNROLL
  for (int i = 0; i < 32; ++i) {
    const float q = zero ? 0.0f : as_type<float>(v[i]) * reciprocal;
    const float within = isnan(q) ? q : clamp(q, -448.0f, 448.0f);
    out[first + i] = uchar(encode_bits(as_type<uint>(within), e4m3fn, p.saturate != 0));
  }
  scales[tiled(row, block, p.tiles)] = uchar(zero ? 0u : exponent);
}

template <typename T>
[[kernel]] void fp8_dequantize_mx(
    device const uchar* in [[buffer(0)]],
    device const uchar* scales [[buffer(1)]],
    device typename Wide<T>::bits_t* out [[buffer(2)]],
    constant BlockLaunch& p [[buffer(3)]],
    constant long& format [[buffer(4)]],
    uint2 position [[thread_position_in_grid]]) {
  const long row = long(position.y);
  const long block = long(position.x);
  const long first = (row * p.blocks + block) * 32;
  const uint exponent = scales[tiled(row, block, p.tiles)];
  // 2^-127 is subnormal, which a GPU may flush: in two steps. 255 is NaN.
  const float scale = as_type<float>(exponent == 0xffu ? 0x7fc00000u : max(exponent, 1u) << 23);
  const float half_or_one = exponent == 0 ? 0.5f : 1.0f;
  for (int i = 0; i < 32; ++i) {
    const float value = as_type<float>(decode_bits(in[first + i], int(format))) * half_or_one * scale;
    out[first + i] = Wide<T>::from_float(isnan(value) ? 0x7fc00000u : as_type<uint>(value));  // devices' NaNs differ
  }
}

// NVFP4: 16 e2m1 values, two a byte, an e4m3fn scale for each block and a float32 one for all. Each step is rounded to T, as
// comfy-kitchen's eager dequantize_nvfp4 has it.
template <typename T>
[[kernel]] void fp8_dequantize_nv(
    device const uchar* in [[buffer(0)]],
    device const uchar* scales [[buffer(1)]],
    device typename Wide<T>::bits_t* out [[buffer(2)]],
    device const float* tensor_scale [[buffer(3)]],
    constant BlockLaunch& p [[buffer(4)]],
    uint2 position [[thread_position_in_grid]]) {
  const long row = long(position.y);
  const long block = long(position.x);
  const long first = (row * p.blocks + block) * 8;
  const float whole = float(T(tensor_scale[0]));
  const float scale = float(T(whole * as_type<float>(decode_bits(scales[tiled(row, block, p.tiles)], e4m3fn))));
  for (int i = 0; i < 16; ++i) {
    const uint byte = in[first + (i >> 1)];
    const uint e = ((i & 1) != 0) == (p.hi_first != 0) ? byte & 0xfu : byte >> 4;
    const uint m = e & 7u;
    const float magnitude = m < 2 ? float(m) * 0.5f : as_type<float>((m << 22) + (126u << 23));
    const float value = (e & 8u) != 0 ? -magnitude : magnitude;
    out[2 * first + i] = Wide<T>::from_float(as_type<uint>(value * scale));
  }
}

// ---- x times an FP8 weight ----------------------------------------------------------------------------------------

// y[m, n] = (sum over k of x[m, k] * w[n, k]) * x_scale[m] * scale[n] + bias[n]. A SIMD-group holds `rows_each` rows of the
// weight; its lanes take chunks of `chunk` adjacent k in turn, so that a SIMD-group reads 512 adjacent bytes at once. The
// x that meets them is widened once and serves all of its rows. With `split` > 1 that many SIMD-groups share the rows, each a part
// of the chunks, and threadgroup memory adds them up in order: the same bits under any schedule.
struct GemvLaunch {
  long rows;          // N
  long cols;          // K
  long row_stride;    // of the weight, in bytes
  long batch;         // M: the template's, or less
  long split;         // SIMD-groups that share K; fp8_gemv: a power of two, up to a threadgroup's
  long format;        // e4m3fn or e5m2 in the wide forms, any in fp8_gemv_1
  long scaling;       // 0 none, 1 of the tensor, 2 of the row
  long x_scaling;     // the same for x
  long has_bias;
  long out_type;      // 0 float, 1 half, 2 bfloat: of the result and of the bias
};

constant constexpr uint gemv_simdgroups = 4;  // of a threadgroup: a small one ends without waiting for many

inline float load_as(device const uchar* p, long i, long type) {
  return type == 0   ? reinterpret_cast<device const float*>(p)[i]
         : type == 1 ? float(reinterpret_cast<device const half*>(p)[i])
                     : float(reinterpret_cast<device const bfloat*>(p)[i]);
}

inline void store_as(device uchar* p, long i, long type, float v) {
  if (type == 0) {
    reinterpret_cast<device float*>(p)[i] = v;
  } else if (type == 1) {
    reinterpret_cast<device half*>(p)[i] = half(v);
  } else {
    reinterpret_cast<device bfloat*>(p)[i] = bfloat(v);
  }
}

// What a sum over a row becomes in the result: read before the sum is made, so that nothing is waited for afterwards.
struct Ending {
  float scale;
  float x_scale;
  float bias;

  static Ending load(
      constant GemvLaunch& p, long m, long n, device const float* scales, device const float* x_scales, device const uchar* bias) {
    const float scale = p.scaling == 0 ? 1.0f : scales[p.scaling == 1 ? 0 : n];
    const float x_scale = p.x_scaling == 0 ? 1.0f : x_scales[p.x_scaling == 1 ? 0 : m];
    return {scale, x_scale, p.has_bias == 0 ? 0.0f : load_as(bias, n, p.out_type)};
  }
  // Neither the scales' product nor the first of the two need be a float where the result is one: a small sum meets the larger scale
  // first, a large one the smaller.
  float of(float sum) const {
    const bool scale_first = (fabs(scale) > fabs(x_scale)) == (fabs(sum) < 1.0f);
    return sum * (scale_first ? scale : x_scale) * (scale_first ? x_scale : scale) + bias;
  }
};

FP8_INLINE void widen(uint4 v, thread float* x, float) {
  x[0] = as_type<float>(v.x);
  x[1] = as_type<float>(v.y);
  x[2] = as_type<float>(v.z);
  x[3] = as_type<float>(v.w);
}
FP8_INLINE void widen(uint4 v, thread float* x, half) {
  FP8_UNROLL
  for (int i = 0; i < 4; ++i) {
    const half2 h = as_type<half2>(v[i]);
    x[2 * i] = float(h.x);
    x[2 * i + 1] = float(h.y);
  }
}
FP8_INLINE void widen(uint4 v, thread float* x, bfloat) {
  FP8_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = as_type<float>(v[i] << 16);
    x[2 * i + 1] = as_type<float>(v[i] & 0xffff0000u);
  }
}

// `count` adjacent values of x from k on: 8 on a 16-byte boundary, or 4 anywhere.
template <typename T, int count>
FP8_INLINE void load_x(device const T* x, long k, thread float* v) {
  if (count == 8) {
    constexpr int lanes = 16 / sizeof(T);
    FP8_UNROLL
    for (int j = 0; j < count / lanes; ++j) {
      widen(*reinterpret_cast<device const uint4*>(x + k + j * lanes), v + j * lanes, T(0));
    }
  } else {
    FP8_UNROLL
    for (int j = 0; j < count; ++j) {
      v[j] = float(x[k + j]);
    }
  }
}

template <int chunk>
struct Words {
  uint w[chunk / 4];
  FP8_INLINE void load(device const uchar* from) {
    if (chunk == 16) {
      const uint4 v = *reinterpret_cast<device const uint4*>(from);
      FP8_UNROLL
      for (int i = 0; i < chunk / 4; ++i) {
        w[i] = v[i];
      }
    } else {
      w[0] = *reinterpret_cast<device const uint*>(from);
    }
  }
};

// A chunk is decoded and used eight weights at a time, so that few registers hold them.
template <typename T, int chunk, int format, int rows_each, int batch>
FP8_INLINE void accumulate(
    thread const Words<chunk>* words, thread const uint4* held, device const T* x, long k, constant GemvLaunch& p, thread float* sums,
    thread uint* marks) {
  constexpr int piece = chunk == 16 ? 8 : 4;
  FP8_UNROLL
  for (int at = 0; at < chunk; at += piece) {
    float w[rows_each][piece];
    FP8_UNROLL
    for (int r = 0; r < rows_each; ++r) {
      FP8_UNROLL
      for (int i = 0; i < piece; i += 4) {
        const uint word = words[r].w[(at + i) / 4];
        const Four four = unpack<format>(word);
        if (format == e4m3fn) {
          marks[r] |= nan_marks(word);
        }
        w[r][i] = float(four.even.x);
        w[r][i + 1] = float(four.odd.x);
        w[r][i + 2] = float(four.even.y);
        w[r][i + 3] = float(four.odd.y);
      }
    }
    FP8_UNROLL
    for (int m = 0; m < batch; ++m) {
      // Past x's last row: that one again, and the sums are dropped. A branch would keep the loads from overlapping.
      float v[piece];
      if (batch == 1 && chunk == 16) {
        constexpr int lanes = 16 / sizeof(T);
        FP8_UNROLL
        for (int j = 0; j < piece; j += lanes) {
          widen(held[(at + j) / lanes], v + j, T(0));
        }
      } else {
        load_x<T, piece>(x, min(long(m), p.batch - 1) * p.cols + k + at, v);
      }
      FP8_UNROLL
      for (int r = 0; r < rows_each; ++r) {
        FP8_UNROLL
        for (int i = 0; i < piece; ++i) {
          sums[r * batch + m] = fma(v[i], w[r][i], sums[r * batch + m]);
        }
      }
    }
  }
}

// A lane's chunk of each row, and for one row of x the x that meets it: a load that waits behind one of memory takes as long.
template <typename T, int chunk, int rows_each, int batch>
struct Chunks {
  static constant constexpr int held = batch == 1 && chunk == 16 ? int(sizeof(T)) : 0;  // vectors of x
  Words<chunk> of[rows_each];
  uint4 x[held > 0 ? held : 1];
  FP8_INLINE void load(device const uchar* thread* rows, device const T* from, long k) {
    FP8_UNROLL
    for (int i = 0; i < held; ++i) {
      x[i] = reinterpret_cast<device const uint4*>(from + k)[i];
    }
    FP8_UNROLL
    for (int r = 0; r < rows_each; ++r) {
      of[r].load(rows[r] + k);
    }
  }
};

// A chunk that is used has the one `flight` steps on loaded first: the memory never waits for the arithmetic.
template <typename T, int chunk, int format, int rows_each, int batch, int flight>
FP8_INLINE void take_ahead(
    device const uchar* thread* rows, device const T* x, long k, long step, constant GemvLaunch& p, thread float* sums,
    thread uint* marks) {
  Chunks<T, chunk, rows_each, batch> chunks[flight];
  FP8_UNROLL
  for (int f = 0; f < flight; ++f) {
    if (k + f * step < p.cols) {
      chunks[f].load(rows, x, k + f * step);
    }
  }
  for (; k + (2 * flight - 1) * step < p.cols; k += flight * step) {
    FP8_UNROLL
    for (int f = 0; f < flight; ++f) {
      const Chunks<T, chunk, rows_each, batch> now = chunks[f];
      chunks[f].load(rows, x, k + (f + flight) * step);
      accumulate<T, chunk, format, rows_each, batch>(now.of, now.x, x, k + f * step, p, sums, marks);
    }
  }
  for (; k < p.cols; k += flight * step) {
    FP8_UNROLL
    for (int f = 0; f < flight; ++f) {
      if (k + f * step < p.cols) {
        accumulate<T, chunk, format, rows_each, batch>(chunks[f].of, chunks[f].x, x, k + f * step, p, sums, marks);
      }
      if (k + (f + flight) * step < p.cols) {
        chunks[f].load(rows, x, k + (f + flight) * step);
      }
    }
  }
}

// `flight` chunks of each of the rows, `step` apart, all loaded before the first is used.
template <typename T, int chunk, int format, int rows_each, int batch, int flight>
FP8_INLINE void take_chunks(
    device const uchar* thread* rows, device const T* x, long k, long step, constant GemvLaunch& p, thread float* sums,
    thread uint* marks) {
  Words<chunk> words[flight][rows_each];
  FP8_UNROLL
  for (int f = 0; f < flight; ++f) {
    FP8_UNROLL
    for (int r = 0; r < rows_each; ++r) {
      words[f][r].load(rows[r] + k + f * step);
    }
  }
  FP8_UNROLL
  for (int f = 0; f < flight; ++f) {
    accumulate<T, chunk, format, rows_each, batch>(words[f], static_cast<thread const uint4*>(nullptr), x, k + f * step, p, sums, marks);
  }
}

template <typename T, int chunk, int format, int rows_each, int batch, int flight>
FP8_INLINE void take_together(
    device const uchar* thread* rows, device const T* x, long k, long step, constant GemvLaunch& p, thread float* sums,
    thread uint* marks) {
  for (; k + (flight - 1) * step < p.cols; k += flight * step) {
    take_chunks<T, chunk, format, rows_each, batch, flight>(rows, x, k, step, p, sums, marks);
  }
  for (; k < p.cols; k += step) {
    take_chunks<T, chunk, format, rows_each, batch, 1>(rows, x, k, step, p, sums, marks);
  }
}

// With few sums there are registers for the next chunks.
template <typename T, int chunk, int format, int rows_each, int batch, int flight>
FP8_INLINE void take(
    device const uchar* thread* rows, device const T* x, long k, long step, constant GemvLaunch& p, thread float* sums,
    thread uint* marks) {
  if (batch <= 2) {
    take_ahead<T, chunk, format, rows_each, batch, flight>(rows, x, k, step, p, sums, marks);
  } else {
    take_together<T, chunk, format, rows_each, batch, flight>(rows, x, k, step, p, sums, marks);
  }
}

template <typename T, int chunk, int rows_each, int batch, int flight>
[[kernel]] void fp8_gemv(
    device const uchar* weight [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device uchar* out [[buffer(2)]],
    device const float* scales [[buffer(3)]],
    device const float* x_scales [[buffer(4)]],
    device const uchar* bias [[buffer(5)]],
    constant GemvLaunch& p [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[gemv_simdgroups][rows_each * batch];
  const uint split = uint(p.split);  // a power of two
  const uint part = simdgroup & (split - 1);
  const long first = (long(group) * (gemv_simdgroups >> ctz(split)) + (simdgroup >> ctz(split))) * rows_each;

  float sums[rows_each * batch];
  uint marks[rows_each];
  FP8_UNROLL
  for (int i = 0; i < rows_each * batch; ++i) {
    sums[i] = 0.0f;
  }
  device const uchar* rows[rows_each];
  FP8_UNROLL
  for (int r = 0; r < rows_each; ++r) {
    marks[r] = 0;
    rows[r] = weight + min(first + r, p.rows - 1) * p.row_stride;  // past the last row: read it again, and drop the sum
  }
  // What lane i writes: row i / batch of the weight, row i % batch of x.
  const long n = first + long(lane) / batch, m = long(lane) % batch;
  const bool writes = part == 0 && lane < rows_each * batch && n < p.rows && m < p.batch;
  Ending ending = {1.0f, 1.0f, 0.0f};
  if (writes) {
    ending = Ending::load(p, m, n, scales, x_scales, bias);
  }
  const long step = long(split) * 32 * chunk;
  const long k = (long(part) * 32 + lane) * chunk;
  const bool is_e5m2 = p.format == e5m2;
  if (is_e5m2) {
    take<T, chunk, e5m2, rows_each, batch, flight>(rows, x, k, step, p, sums, marks);
  } else {
    take<T, chunk, e4m3fn, rows_each, batch, flight>(rows, x, k, step, p, sums, marks);
  }

  static_assert(rows_each * batch <= 32, "a lane writes one value at most");
  FP8_UNROLL
  for (int r = 0; r < rows_each; ++r) {
    const bool nan = !is_e5m2 && (simd_or(marks[r]) & 0x80808080u) != 0;
    FP8_UNROLL
    for (int m = 0; m < batch; ++m) {
      const float sum = simd_sum(sums[r * batch + m]) * (is_e5m2 ? 1.0f : 256.0f);
      if (lane == 0) {
        parts[simdgroup][r * batch + m] = nan ? NAN : sum;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (writes) {
    float sum = parts[simdgroup][lane];
    FP8_UNROLL
    for (uint s = 1; s < gemv_simdgroups; ++s) {
      if (s < split) {
        sum += parts[simdgroup + s][lane];
      }
    }
    store_as(out, m * p.rows + n, p.out_type, ending.of(sum));
  }
}

// The same byte by byte, for weights whose rows begin anywhere, in any format. One row a SIMD-group.
template <typename T>
[[kernel]] void fp8_gemv_1(
    device const uchar* weight [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device uchar* out [[buffer(2)]],
    device const float* scales [[buffer(3)]],
    device const float* x_scales [[buffer(4)]],
    device const uchar* bias [[buffer(5)]],
    constant GemvLaunch& p [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const long n = long(group) * gemv_simdgroups + simdgroup;
  if (n >= p.rows) {
    return;
  }
  device const uchar* row = weight + n * p.row_stride;
  float sums[16];
  FP8_UNROLL
  for (int m = 0; m < 16; ++m) {
    sums[m] = 0.0f;
  }
  for (long k = lane; k < p.cols; k += 32) {
    const float w = as_type<float>(decode_bits(row[k], int(p.format)));
    FP8_UNROLL
    for (int m = 0; m < 16; ++m) {
      if (m < p.batch) {
        sums[m] = fma(float(x[m * p.cols + k]), w, sums[m]);
      }
    }
  }
  FP8_UNROLL
  for (int m = 0; m < 16; ++m) {
    const float sum = simd_sum(sums[m]);
    if (lane == 0 && m < p.batch) {
      store_as(out, m * p.rows + n, p.out_type, Ending::load(p, m, n, scales, x_scales, bias).of(sum));
    }
  }
}

// ---- x times an FP8 weight, in 8 x 8 matrices --------------------------------------------------------------------

// y^T = W x^T, the elements of the matrices straight from memory into their lanes. Of an 8 x 8 matrix a lane holds two neighbours in a
// row, and a sum over k may be taken in any order: of 64 k, matrix t = 0 .. 7 has in column 2c + e number 16c + 8e + t. So a lane's
// part of the eight matrices of W is sixteen adjacent weights, and of those of x^T eight adjacent values of two rows of x.
constant constexpr int strip_length = 64;
constant constexpr int strip_matrices = strip_length / 8;

inline uint matrix_row(uint lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }  // Apple's GPUs have it so
inline uint matrix_pair(uint lane) { return ((lane / 4) & 2) + lane % 2; }

// Two neighbours in a row.
template <typename T>
struct Neighbours {};

template <>
struct Neighbours<half> {
  typedef half2 type;
  static half2 of(half low, half high) { return half2(low, high); }
};

template <>
struct Neighbours<bfloat> {
  typedef bfloat2 type;
  static bfloat2 of(half low, half high) {  // exact: they have eight places at most
    return as_type<bfloat2>(ushort2(as_type<ushort2>(float(low)).y, as_type<ushort2>(float(high)).y));
  }
};

// From a lane's values of two rows of x to its elements of x^T's matrices.
template <typename T>
FP8_INLINE void transpose(uint4 first, uint4 second, thread simdgroup_matrix<T, 8, 8>* matrices) {
  FP8_UNROLL
  for (int t = 0; t < strip_matrices; ++t) {
    const uint a = first[t / 2], b = second[t / 2];
    const uint pair = t % 2 == 0 ? (a & 0xffffu) | (b << 16) : (a >> 16) | (b & 0xffff0000u);
    matrices[t].thread_elements() = as_type<typename Neighbours<T>::type>(pair);
  }
}

// The weights of a product: e4m3fn's 144 times larger, which is exact, and what makes its NaN, and them alone, infinite. No sum with one
// of those is finite, so that only where a sum is not someone has to look for them.
constant constexpr float growth = 144.0f;
template <int format>
FP8_INLINE Four unpack_weights(uint w) {
  Four four = unpack<format>(w);
  if (format == e4m3fn) {
    four.even *= half2(256.0h * 144.0h);
    four.odd *= half2(256.0h * 144.0h);
  }
  return four;
}

// Has e4m3fn's row a NaN in the sixteen bytes from k on that a lane reads, or in those `step` further, and so on up to `end`?
inline bool has_nan(device const uchar* row, long k, long step, long end) {
  uint marks = 0;
  for (; k < end; k += step) {
    const uint4 w = *reinterpret_cast<device const uint4*>(row + k);
    marks |= nan_marks(w.x) | nan_marks(w.y) | nan_marks(w.z) | nan_marks(w.w);
  }
  return (marks & 0x80808080u) != 0;
}

// Eight rows of the weight times `row_tiles` times eight of x: what a lane has of 64 k.
template <typename T, int format, int row_tiles>
FP8_INLINE void multiply_strip(
    uint4 w, thread const simdgroup_matrix<T, 8, 8> (*x)[strip_matrices], thread simdgroup_matrix<float, 8, 8>* sums) {
  FP8_UNROLL
  for (int j = 0; j < 2; ++j) {
    const Four low = unpack_weights<format>(w[j]), high = unpack_weights<format>(w[j + 2]);
    FP8_UNROLL
    for (int t = 0; t < 4; ++t) {
      const half2 first = t % 2 == 0 ? low.even : low.odd, second = t % 2 == 0 ? high.even : high.odd;
      simdgroup_matrix<T, 8, 8> left;
      left.thread_elements() = Neighbours<T>::of(first[t / 2], second[t / 2]);
      FP8_UNROLL
      for (int m = 0; m < row_tiles; ++m) {
        simdgroup_multiply_accumulate(sums[m], left, x[m][4 * j + t], sums[m]);
      }
    }
  }
}

// A threadgroup takes 8 * tiles rows of the weight and 8 * row_tiles of x; its SIMD-groups share K, each a piece of it.
template <typename T, int format, int row_tiles, int tiles>
[[kernel, max_total_threads_per_threadgroup(512)]] void fp8_matrices(
    device const uchar* weight [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device uchar* out [[buffer(2)]],
    device const float* scales [[buffer(3)]],
    device const float* x_scales [[buffer(4)]],
    device const uchar* bias [[buffer(5)]],
    constant GemvLaunch& p [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint part [[simdgroup_index_in_threadgroup]]) {
  constexpr int outputs = 8 * tiles;
  threadgroup float parts[16 / row_tiles][row_tiles * 8 * outputs];
  const uint split = uint(p.split);
  const long first = long(group) * outputs;
  const uint row = matrix_row(lane), pair = matrix_pair(lane);

  // Past the last row of the weight or of x: that one again, and its sums are dropped.
  device const uchar* rows[tiles];
  FP8_UNROLL
  for (int n = 0; n < tiles; ++n) {
    rows[n] = weight + min(first + 8 * n + row, p.rows - 1) * p.row_stride + 16 * pair;
  }
  device const T* x_rows[2 * row_tiles];
  FP8_UNROLL
  for (int m = 0; m < 2 * row_tiles; ++m) {
    x_rows[m] = x + min(long(m / 2 * 8 + 2 * pair + m % 2), p.batch - 1) * p.cols + 8 * row;
  }
  // What a thread writes: one column of the result, every `at_once`-th row from m on.
  const uint at_once = split * 32 / outputs, m = (part * 32 + lane) / outputs, in_group = (part * 32 + lane) % outputs;
  const long n = first + in_group;
  const bool writes = m < at_once && m < uint(p.batch) && n < p.rows;
  Ending ending = {1.0f, 1.0f, 0.0f};
  if (writes) {
    ending = Ending::load(p, m, n, scales, x_scales, bias);
  }

  simdgroup_matrix<float, 8, 8> sums[tiles][row_tiles];
  FP8_UNROLL
  for (int n = 0; n < tiles; ++n) {
    FP8_UNROLL
    for (int m = 0; m < row_tiles; ++m) {
      sums[n][m] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
  const uint strips = uint((p.cols + strip_length - 1) / strip_length);
  const long begin = long(part * strips / split) * strip_length;
  const long end = min(long((part + 1) * strips / split) * strip_length, p.cols);
  const long w_last = p.cols - 16 * pair - 16, x_last = p.cols - 8 * row - 8;
  uint4 w[tiles], v[2 * row_tiles];
  FP8_UNROLL
  for (int n = 0; n < tiles; ++n) {
    w[n] = *reinterpret_cast<device const uint4*>(rows[n] + min(begin, w_last));
  }
  FP8_UNROLL
  for (int m = 0; m < 2 * row_tiles; ++m) {
    v[m] = *reinterpret_cast<device const uint4*>(x_rows[m] + min(begin, x_last));
  }
  simdgroup_matrix<T, 8, 8> right[row_tiles][strip_matrices];
  // What has been used makes room for what comes next, which is on its way while the others are used.
  long k = begin;
  for (; k + strip_length < end; k += strip_length) {
    FP8_UNROLL
    for (int m = 0; m < row_tiles; ++m) {
      transpose(v[2 * m], v[2 * m + 1], right[m]);
    }
    const long w_next = min(k + strip_length, w_last), x_next = min(k + strip_length, x_last);
    FP8_UNROLL
    for (int m = 0; m < 2 * row_tiles; ++m) {
      v[m] = *reinterpret_cast<device const uint4*>(x_rows[m] + x_next);
    }
    FP8_UNROLL
    for (int n = 0; n < tiles; ++n) {
      multiply_strip<T, format, row_tiles>(w[n], right, sums[n]);
      w[n] = *reinterpret_cast<device const uint4*>(rows[n] + w_next);
    }
  }
  // The last strip of a row may be shorter.
  const bool has_weights = k <= w_last, has_x = k <= x_last;
  FP8_UNROLL
  for (int m = 0; m < row_tiles; ++m) {
    transpose(has_x ? v[2 * m] : uint4(0), has_x ? v[2 * m + 1] : uint4(0), right[m]);
  }
  FP8_UNROLL
  for (int n = 0; n < tiles; ++n) {
    multiply_strip<T, format, row_tiles>(has_weights ? w[n] : uint4(0), right, sums[n]);
  }

  FP8_UNROLL
  for (int n = 0; n < tiles; ++n) {
    bool finite = true;
    FP8_UNROLL
    for (int m = 0; m < row_tiles; ++m) {
      finite = finite && all(isfinite(float2(sums[n][m].thread_elements())));
    }
    bool nan = false;
    if (format == e4m3fn && simd_any(!finite)) {
      const uint found = has_nan(rows[n], begin, strip_length, min(end, w_last + 1)) ? 1 : 0;  // in a lane's quarter of the row
      const uint half_row = found | simd_shuffle_xor(found, ushort(1));
      nan = (half_row | simd_shuffle_xor(half_row, ushort(8))) != 0;
    }
    FP8_UNROLL
    for (int m = 0; m < row_tiles; ++m) {
      const float2 sum = float2(sums[n][m].thread_elements()) / (format == e4m3fn ? growth : 1.0f);
      parts[part][(8 * m + 2 * pair) * outputs + 8 * n + row] = nan ? NAN : sum.x;
      parts[part][(8 * m + 2 * pair + 1) * outputs + 8 * n + row] = nan ? NAN : sum.y;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = m; writes && i < uint(p.batch); i += at_once) {
    float sum = 0.0f;
    for (uint s = 0; s < split; ++s) {
      sum += parts[s][i * outputs + in_group];
    }
    if (i != m && p.x_scaling == 2) {
      ending.x_scale = x_scales[i];
    }
    store_as(out, long(i) * p.rows + n, p.out_type, ending.of(sum));
  }
}

// ---- instantiations ----------------------------------------------------------------------------------------------

#define INSTANTIATE_FP8(kernel_name, T) \
  template [[host_name(#kernel_name "_" #T)]] [[kernel]] decltype(kernel_name<T>) kernel_name<T>;
#define INSTANTIATE_FP8_TYPES(kernel_name) \
  INSTANTIATE_FP8(kernel_name, float)      \
  INSTANTIATE_FP8(kernel_name, half)       \
  INSTANTIATE_FP8(kernel_name, bfloat)

INSTANTIATE_FP8_TYPES(fp8_decode_1)
INSTANTIATE_FP8_TYPES(fp8_encode_1)
INSTANTIATE_FP8_TYPES(fp8_amax)
INSTANTIATE_FP8_TYPES(fp8_stochastic)
INSTANTIATE_FP8_TYPES(fp8_quantize_mx)
INSTANTIATE_FP8_TYPES(fp8_dequantize_mx)
INSTANTIATE_FP8_TYPES(fp8_dequantize_nv)
INSTANTIATE_FP8_TYPES(fp8_gemv_1)

// The name has the values of a thread, cast.py's WIDTHS, and the format: none for any.
#define INSTANTIATE_CAST_OF(kernel_name, T, count, name, format)                               \
  template [[host_name("fp8_" #kernel_name "_" #count "_" #T name)]] [[kernel]] decltype(      \
      fp8_##kernel_name##_wide<T, count, format>) fp8_##kernel_name##_wide<T, count, format>;
#define INSTANTIATE_CAST(kernel_name, T, count)                   \
  INSTANTIATE_CAST_OF(kernel_name, T, count, "", -1)              \
  INSTANTIATE_CAST_OF(kernel_name, T, count, "_e4m3fn", e4m3fn)   \
  INSTANTIATE_CAST_OF(kernel_name, T, count, "_e5m2", e5m2)
INSTANTIATE_CAST(decode, float, 4)
INSTANTIATE_CAST(decode, half, 16)
INSTANTIATE_CAST(decode, bfloat, 16)
INSTANTIATE_CAST(encode, float, 8)
INSTANTIATE_CAST(encode, half, 16)
INSTANTIATE_CAST(encode, bfloat, 16)

// The name has the chunk, the batch and the rows of the weight.
#define INSTANTIATE_GEMV(chunk, rows_each, batch, flight, T)                            \
  template [[host_name("fp8_gemv_" #chunk "_" #batch "x" #rows_each "_" #T)]] [[kernel]] decltype(      \
      fp8_gemv<T, chunk, rows_each, batch, flight>) fp8_gemv<T, chunk, rows_each, batch, flight>;
#define INSTANTIATE_GEMV_TYPES(chunk, rows_each, batch, flight)  \
  INSTANTIATE_GEMV(chunk, rows_each, batch, flight, float)       \
  INSTANTIATE_GEMV(chunk, rows_each, batch, flight, half)        \
  INSTANTIATE_GEMV(chunk, rows_each, batch, flight, bfloat)

INSTANTIATE_GEMV_TYPES(16, 2, 1, 1)
INSTANTIATE_GEMV_TYPES(16, 3, 1, 1)
INSTANTIATE_GEMV_TYPES(16, 4, 2, 1)
INSTANTIATE_GEMV_TYPES(16, 4, 4, 1)
INSTANTIATE_GEMV_TYPES(4, 2, 1, 2)
INSTANTIATE_GEMV_TYPES(4, 2, 16, 1)
// More rows of the types of two bytes are matrices.
INSTANTIATE_GEMV(16, 4, 8, 1, float)
INSTANTIATE_GEMV(16, 2, 16, 1, float)

// The name has the rows of x, the tiles of eight rows of the weight, and the format.
#define INSTANTIATE_MATRICES_OF(row_tiles, batch, tiles, T, format)                                     \
  template [[host_name("fp8_matrices_" #batch "x" #tiles "_" #T "_" #format)]] [[kernel]] decltype(             \
      fp8_matrices<T, format, row_tiles, tiles>) fp8_matrices<T, format, row_tiles, tiles>;
#define INSTANTIATE_MATRICES(row_tiles, batch, tiles)                  \
  INSTANTIATE_MATRICES_OF(row_tiles, batch, tiles, half, e4m3fn)       \
  INSTANTIATE_MATRICES_OF(row_tiles, batch, tiles, half, e5m2)         \
  INSTANTIATE_MATRICES_OF(row_tiles, batch, tiles, bfloat, e4m3fn)     \
  INSTANTIATE_MATRICES_OF(row_tiles, batch, tiles, bfloat, e5m2)
INSTANTIATE_MATRICES(1, 8, 1)
INSTANTIATE_MATRICES(1, 8, 4)
INSTANTIATE_MATRICES(2, 16, 2)
INSTANTIATE_MATRICES(2, 16, 4)
