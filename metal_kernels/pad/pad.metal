// constant_pad_nd as a byte move.
//
// Padding computes nothing, so these kernels know element sizes (1, 2, 4, 8, 16 bytes), not dtypes: every bit of the
// input arrives, NaN payloads included. geometry.py turns any pad of any layout into one form:
//
//   * The output is a dense run of elements in its own memory order. A thread makes whole 16-byte vectors of it, on
//     16-byte boundaries whatever the length of a row, so each byte is stored once and in the widest piece there is.
//   * Seen from the output, the innermost dimension is a row: `left` fill, `extent` elements of the input, fill to `width`.
//     The outer dimensions say which row of the input that is, if any. Crops are gone: they moved in_offset and extent.
//   * Elements are as wide as all lengths and offsets allow. A pad of only the time axis of a video moves uint4 to uint4.
//
// One element of left padding shifts a whole row against the 16-byte grid. pad_dense then loads the two aligned vectors of
// the input that hold the sixteen bytes wanted and funnels them into place: two wide loads (the second one of a
// neighbour's, so a cache hit) instead of eight loads of two bytes.
//
// Positions count elements from the first one of this launch in 32 bits (geometry.py cuts larger outputs into several
// launches); offset_t is the type of input offsets, long where a stride product can pass 2^31.

#include <metal_stdlib>
using namespace metal;

// Arrays indexed by these loops then live in registers.
#define PAD_UNROLL _Pragma("clang loop unroll(full)")

// A group makes group_threads * vectors_per_thread vectors in a row: each pass of the group is one contiguous stretch.
// These two are geometry.py's GROUP_THREADS and VECTORS_PER_THREAD.
constant constexpr uint group_threads = 256;
constant constexpr uint vectors_per_thread = 2;
constant constexpr int dense_outer = 3;

// The launch, as geometry.py lists it: torch.mps.compile_shader hands a list of ints over as int64s. In elements.
struct PadLaunch {
  long out_offset;      // from the bound output to the first element of this launch
  long in_offset;       // from the bound input to the element that lands on row 0 of the padded region, column `left`
  long out_skew;        // elements between out_offset and the 16-byte boundary at or below it
  long in_skew;         // the same for in_offset
  long count;           // elements to write
  long readable_begin;  // whole vectors of the input that may be read, as elements from in_offset - in_skew on: within the
  long readable_end;    // tensor, and all of it
  long gap_margin;      // 0; where rows have gaps between them, what a window needs of its row on each side to read no gap
  long width;           // of a row of the output
  long width_magic;     // see divide()
  long width_shift;
  long left;
  long extent;
  long stride;          // of the input along the row; 1 in pad_dense
  long outer;           // number of outer dimensions
  long fill_low;        // 16 bytes of the fill value
  long fill_high;
};

// An outer dimension; the innermost of them comes first.
struct PadDim {
  long size;            // of the output
  long magic;
  long shift;
  long left;
  long extent;          // of the input
  long stride;          // of the input
};

// n / d for n < 2^31, with magic = ceil(2^(31 + shift) / d) and shift = ceil(log2(d)). The excess of magic * d over 2^(31 + shift)
// is below d <= 2^shift, so that the quotient's error stays below n / 2^31 / d: too little to reach the next integer.
inline uint divide(uint n, uint magic, uint shift) {
  return mulhi(n << 1, magic) >> shift;
}

template <typename offset_t>
struct Dim {
  uint size;
  uint magic;
  uint shift;
  uint left;
  uint extent;
  offset_t stride;
};

// Copied out of constant memory once: a compiler that cannot see that the stores leave it alone would reload it after each.
template <typename offset_t>
inline Dim<offset_t> unpack(constant PadDim& d) {
  Dim<offset_t> r;
  r.size = uint(d.size);
  r.magic = uint(d.magic);
  r.shift = uint(d.shift);
  r.left = uint(d.left);
  r.extent = uint(d.extent);
  r.stride = offset_t(d.stride);
  return r;
}

template <typename offset_t>
struct Launch {
  int count;
  int out_skew;
  int width;
  uint width_magic;
  uint width_shift;
  int left;
  int extent;
  offset_t stride;
  offset_t in_skew;
  offset_t readable_begin;
  offset_t readable_end;
  int gap_margin;
  uint4 fill;
};

template <typename offset_t>
inline Launch<offset_t> unpack(constant PadLaunch& p) {
  Launch<offset_t> r;
  r.count = int(p.count);
  r.out_skew = int(p.out_skew);
  r.width = int(p.width);
  r.width_magic = uint(p.width_magic);
  r.width_shift = uint(p.width_shift);
  r.left = int(p.left);
  r.extent = int(p.extent);
  r.stride = offset_t(p.stride);
  r.in_skew = offset_t(p.in_skew);
  r.readable_begin = offset_t(p.readable_begin);
  r.readable_end = offset_t(p.readable_end);
  r.gap_margin = int(p.gap_margin);
  r.fill = uint4(uint(ulong(p.fill_low)), uint(ulong(p.fill_low) >> 32), uint(ulong(p.fill_high)), uint(ulong(p.fill_high) >> 32));
  return r;
}

// ---- lanes of a 16-byte vector -----------------------------------------------------------------------------------

inline void set_lane(thread uint4& v, int j, uchar e) {
  const uint shift = 8 * (j & 3);
  v[j >> 2] = (v[j >> 2] & ~(0xffu << shift)) | (uint(e) << shift);
}
inline void set_lane(thread uint4& v, int j, ushort e) {
  const uint shift = 16 * (j & 1);
  v[j >> 1] = (v[j >> 1] & ~(0xffffu << shift)) | (uint(e) << shift);
}
inline void set_lane(thread uint4& v, int j, uint e) { v[j] = e; }
inline void set_lane(thread uint4& v, int j, uint2 e) {
  v[2 * j] = e.x;
  v[2 * j + 1] = e.y;
}
inline void set_lane(thread uint4& v, int, uint4 e) { v = e; }

inline void get_lane(uint4 v, int j, thread uchar& e) { e = uchar(v[j >> 2] >> (8 * (j & 3))); }
inline void get_lane(uint4 v, int j, thread ushort& e) { e = ushort(v[j >> 1] >> (16 * (j & 1))); }
inline void get_lane(uint4 v, int j, thread uint& e) { e = v[j]; }
inline void get_lane(uint4 v, int j, thread uint2& e) { e = uint2(v[2 * j], v[2 * j + 1]); }
inline void get_lane(uint4 v, int, thread uint4& e) { e = v; }

// Ones in the bytes from `byte` on, of the eight that start at `base`.
inline ulong bytes_from(int byte, int base) {
  const int n = clamp(byte - base, 0, 8);
  return n == 8 ? 0ul : ~0ul << (8 * n);
}

// Bytes [begin, end) of b, the others of a.
inline uint4 blend(uint4 a, uint4 b, int begin, int end) {
  const ulong low = bytes_from(begin, 0) & ~bytes_from(end, 0);
  const ulong high = bytes_from(begin, 8) & ~bytes_from(end, 8);
  const uint4 mask = uint4(uint(low), uint(low >> 32), uint(high), uint(high >> 32));
  return (a & ~mask) | (b & mask);
}

// high:low >> bits, for bits of 0, 8, 16 or 24.
inline uint funnel(uint low, uint high, uint bits) {
  return (low >> bits) | ((high << 1) << (31 - bits));
}

// Sixteen bytes of a followed by b, from byte `lane` * sizeof(T) of a on: the shift has only the bits that an element leaves it.
template <typename T>
inline uint4 funnel(uint4 a, uint4 b, int lane) {
  const uint byte = uint(lane) * sizeof(T);
  if (sizeof(T) < 16 && (byte & 8)) {
    a = uint4(a.zw, b.xy);
    b.xy = b.zw;
  }
  if (sizeof(T) < 8 && (byte & 4)) {
    a = uint4(a.yzw, b.x);
    b.x = b.y;
  }
  if (sizeof(T) < 4) {
    const uint bits = 8 * (byte & 3);
    a = uint4(funnel(a.x, a.y, bits), funnel(a.y, a.z, bits), funnel(a.z, a.w, bits), funnel(a.w, b.x, bits));
  }
  return a;
}

// ---- moves --------------------------------------------------------------------------------------------------------

// Lanes [begin, end) of v, one at a time: lane j is in[first + j * stride].
template <typename T, typename offset_t>
inline uint4 gather(uint4 v, device const T* in, offset_t first, offset_t stride, int begin, int end) {
  constexpr int lanes = 16 / sizeof(T);
  PAD_UNROLL
  for (int j = 0; j < lanes; ++j) {
    if (j >= begin && j < end) {
      set_lane(v, j, in[first + offset_t(j) * stride]);
    }
  }
  return v;
}

// The vector at element `e` of the output, or as much of it as there is: the first and the last one may be cut off.
template <typename T>
inline void store(device T* out, int e, int count, uint4 v) {
  constexpr int lanes = 16 / sizeof(T);
  if (e >= 0 && e + lanes <= count) {
    *reinterpret_cast<device uint4*>(out + e) = v;
    return;
  }
  PAD_UNROLL
  for (int j = 0; j < lanes; ++j) {
    if (e + j >= 0 && e + j < count) {
      T element;
      get_lane(v, j, element);
      out[e + j] = element;
    }
  }
}

// ---- where a row comes from --------------------------------------------------------------------------------------

// Which row of the input is row `row` of the output? False where it is all fill; otherwise `base` is its first element.
template <typename offset_t>
inline bool locate(uint row, thread const Dim<offset_t>* dim, thread offset_t& base) {
  base = 0;
  PAD_UNROLL
  for (int d = 0; d < dense_outer; ++d) {
    // The outermost coordinate is what is left of the row: past the end of the output it is past its extent too.
    const uint rest = d + 1 < dense_outer ? divide(row, dim[d].magic, dim[d].shift) : 0;
    const uint i = row - rest * dim[d].size - dim[d].left;  // wraps to something large before `left`
    if (i >= dim[d].extent) {
      return false;
    }
    base += offset_t(i) * dim[d].stride;
    row = rest;
  }
  return true;
}

template <typename offset_t>
inline bool locate(uint row, constant PadDim* dims, int outer, thread offset_t& base) {
  base = 0;
  for (int d = 0; d < outer; ++d) {
    const Dim<offset_t> dim = unpack<offset_t>(dims[d]);
    const uint rest = divide(row, dim.magic, dim.shift);
    const uint i = row - rest * dim.size - dim.left;
    if (i >= dim.extent) {
      return false;
    }
    base += offset_t(i) * dim.stride;
    row = rest;
  }
  return true;
}

// ---- rows of adjacent elements: at most three outer dimensions ----------------------------------------------------

// Sixteen bytes of the input, of which lanes [begin, end) are wanted, and the two aligned vectors that hold those: one and the
// same where they lie in one. Elements count from words[0] here.
template <typename T, typename offset_t>
struct Window {
  static constant constexpr int lanes = 16 / sizeof(T);
  static constant constexpr int lane_bits = lanes == 16 ? 4 : lanes == 8 ? 3 : lanes == 4 ? 2 : lanes == 2 ? 1 : 0;
  offset_t low;
  offset_t high;
  int lane;

  Window(offset_t first, int begin, int end) {
    const offset_t word = first >> lane_bits;  // rounds down: at a row's start lane 0 may lie before the input
    lane = int(first) & (lanes - 1);
    low = word + ((lane + begin) >> lane_bits);
    high = word + ((lane + end - 1) >> lane_bits);
  }

  // May both vectors be read whole, for a row that starts at `row`?
  bool readable(thread const Launch<offset_t>& p, offset_t row) const {
    const offset_t begin = p.gap_margin != 0 ? row : p.readable_begin;
    const offset_t end = p.gap_margin != 0 ? row + p.extent : p.readable_end;
    return low * lanes >= begin && (high + 1) * lanes <= end;
  }

  uint4 read(device const T* in) const {
    device const uint4* words = reinterpret_cast<device const uint4*>(in);
    const uint4 a = words[low];
    return lanes == 1 ? a : funnel<T>(a, words[high], lane);
  }
};

// The vector of the output that starts at element `e`, whatever rows meet in it: fill, and over it what each row has there. Most
// have one row or two; more take rows shorter than a vector.
template <typename T, typename offset_t>
inline uint4 assemble(thread const Launch<offset_t>& p, thread const Dim<offset_t>* dim, device const T* in, int e) {
  constexpr int lanes = 16 / sizeof(T);
  uint4 v = p.fill;
  uint row = e < 0 ? 0 : divide(uint(e), p.width_magic, p.width_shift);
  int x = e - int(row) * p.width;
  for (const int limit = min(lanes, p.count - e); -x < limit; x -= p.width, ++row) {
    const int begin = max(p.left - x, 0);
    const int end = min(p.left + p.extent - x, lanes);
    offset_t base;
    if (begin < end && locate(row, dim, base)) {
      const offset_t first = base + p.in_skew + offset_t(x - p.left);
      const Window<T, offset_t> window(first, begin, end);
      if (window.readable(p, base + p.in_skew)) {
        v = blend(v, window.read(in), begin * int(sizeof(T)), end * int(sizeof(T)));
      } else {
        v = gather(v, in, first, offset_t(1), begin, end);
      }
    }
  }
  return v;
}

// An edge is a place in the output where fill and input meet, or where it begins or ends. Around the start of each row lies a
// pair: the end of the row before's input, and the start of this row's. The last pair has the end of the output for its second.
template <typename offset_t>
inline int edge_before(thread const Launch<offset_t>& p, int row) {
  return row == 0 ? 0 : (row - 1) * p.width + p.left + p.extent;
}
template <typename offset_t>
inline int edge_after(thread const Launch<offset_t>& p, int row) {
  const int start = row * p.width;
  return start == p.count ? start : start + p.left;
}

// The vectors with no edge inside, which are all fill or a plain window of the input.
template <typename T, typename offset_t>
inline void move_plain(
    thread const Launch<offset_t>& p, thread const Dim<offset_t>* dim, device const T* in, device T* out, int begin) {
  constexpr int lanes = 16 / sizeof(T);
  // All addresses, then all loads, then all stores: a thread has its loads in flight together.
  offset_t first[vectors_per_thread];
  uint plain = 0;
  uint windows = 0;
  uint singles = 0;
  PAD_UNROLL
  for (uint i = 0; i < vectors_per_thread; ++i) {
    const int e = begin + int(i * group_threads) * lanes;
    const uint row = divide(uint(e), p.width_magic, p.width_shift);
    const int y = int(uint(e) - row * uint(p.width)) - p.left;  // along the row, from its first element of the input
    const bool data = y >= 0 && y < p.extent;
    const int edge = y < 0 ? 0 : data ? p.extent : p.width;
    if (e < 0 || e + lanes > p.count || y + lanes > edge) {
      continue;
    }
    plain |= 1u << i;
    offset_t base;
    if (data && locate(row, dim, base)) {
      first[i] = base + p.in_skew + offset_t(y);
      // Conservative, and cheaper than Window::readable: it leaves out windows that happen to be aligned.
      const bool readable = first[i] >= p.readable_begin && first[i] + lanes <= p.readable_end && y >= p.gap_margin &&
                            y + lanes + p.gap_margin <= p.extent;
      windows |= uint(readable) << i;
      singles |= uint(!readable) << i;
    }
  }
  uint4 v[vectors_per_thread];
  PAD_UNROLL
  for (uint i = 0; i < vectors_per_thread; ++i) {
    v[i] = p.fill;
    if (windows & (1u << i)) {
      v[i] = Window<T, offset_t>(first[i], 0, lanes).read(in);
    }
  }
  // Fill and windows leave in one store, so that neighbouring threads fill whole sectors of memory together.
  PAD_UNROLL
  for (uint i = 0; i < vectors_per_thread; ++i) {
    if (plain & ~singles & (1u << i)) {
      *reinterpret_cast<device uint4*>(out + begin + int(i * group_threads) * lanes) = v[i];
    }
  }
  // Windows that reach into what must not be read: at the ends of the input, and of its rows where there are gaps between them.
  for (int e = begin; singles != 0; e += int(group_threads) * lanes, singles >>= 1) {
    if (singles & 1u) {
      store(out, e, p.count, assemble<T>(p, dim, in, e));
    }
  }
}

// The vectors with edges inside of elements [begin, end) of the output, a lane each; a vector belongs to the first edge inside it. Edge
// 2 * row and the next one are the pair around the start of `row`.
template <typename T, typename offset_t>
inline void move_edges(
    thread const Launch<offset_t>& p, thread const Dim<offset_t>* dim, device const T* in, device T* out, int begin, int end, int lane,
    int step) {
  constexpr int lanes = 16 / sizeof(T);
  const int last = 2 * int(divide(uint(p.count), p.width_magic, p.width_shift)) + 1;
  const int row = begin < 0 ? 0 : int(divide(uint(begin), p.width_magic, p.width_shift));
  for (int number = 2 * row + lane; number <= last; number += step) {
    const bool second = (number & 1) != 0;
    const int edge = second ? edge_after(p, number >> 1) : edge_before(p, number >> 1);
    const int e = edge - ((edge + p.out_skew) & (lanes - 1));
    if (e >= end) {
      return;
    }
    const int previous = second ? edge_before(p, number >> 1) : number == 0 ? -lanes : edge_after(p, (number >> 1) - 1);
    if (e >= begin && previous <= e && e < edge) {
      store(out, e, p.count, assemble<T>(p, dim, in, e));
    }
  }
}

// Vectors with edges take several times longer. Made where they are met, each would hold up a SIMD-group for one lane. So
// each threadgroup has SIMD-groups that make nothing else, at the same time as the others make its other vectors: the pieces of a cache
// line meet in the cache.
template <typename T, typename offset_t>
[[kernel]] void pad_dense(
    device const uchar* in [[buffer(0)]],
    device uchar* out [[buffer(1)]],
    constant PadLaunch& launch [[buffer(2)]],
    constant PadDim* dims [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  constexpr int lanes = 16 / sizeof(T);
  const Launch<offset_t> p = unpack<offset_t>(launch);
  Dim<offset_t> dim[dense_outer];
  PAD_UNROLL
  for (int d = 0; d < dense_outer; ++d) {
    dim[d] = unpack<offset_t>(dims[d]);
  }
  device const T* from = reinterpret_cast<device const T*>(in) + (launch.in_offset - launch.in_skew);
  device T* to = reinterpret_cast<device T*>(out) + launch.out_offset;

  const int begin = int(group * group_threads * vectors_per_thread) * lanes - p.out_skew;
  if (thread_in_group < group_threads) {
    move_plain(p, dim, from, to, begin + int(thread_in_group) * lanes);
  } else {
    const int end = begin + int(group_threads * vectors_per_thread) * lanes;
    move_edges(p, dim, from, to, begin, end, int(thread_in_group - group_threads), int(threads - group_threads));
  }
}

// ---- any layout --------------------------------------------------------------------------------------------------

// Elements of a row may lie anywhere in the input and there are up to 15 outer dimensions, so elements are read one at a time.
template <typename T, typename offset_t>
[[kernel]] void pad_strided(
    device const uchar* in [[buffer(0)]],
    device uchar* out [[buffer(1)]],
    constant PadLaunch& launch [[buffer(2)]],
    constant PadDim* dims [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_position_in_threadgroup]]) {
  constexpr int lanes = 16 / sizeof(T);
  const Launch<offset_t> p = unpack<offset_t>(launch);
  const int outer = int(launch.outer);
  device const T* from = reinterpret_cast<device const T*>(in) + launch.in_offset;
  device T* to = reinterpret_cast<device T*>(out) + launch.out_offset;
  const uint first_vector = group * group_threads * vectors_per_thread + thread_in_group;

  PAD_UNROLL
  for (uint i = 0; i < vectors_per_thread; ++i) {
    const int e = int((first_vector + i * group_threads) * lanes) - p.out_skew;
    if (e >= p.count) {
      return;
    }
    uint4 v = p.fill;
    uint row = e < 0 ? 0 : divide(uint(e), p.width_magic, p.width_shift);
    int x = e - int(row) * p.width;
    for (const int limit = min(lanes, p.count - e); -x < limit; x -= p.width, ++row) {
      const int begin = max(p.left - x, 0);
      const int end = min(p.left + p.extent - x, lanes);
      offset_t base;
      if (begin < end && locate(row, dims, outer, base)) {
        v = gather(v, from, base + offset_t(x - p.left) * p.stride, p.stride, begin, end);
      }
    }
    store(to, e, p.count, v);
  }
}

// ---- instantiations ----------------------------------------------------------------------------------------------

#define INSTANTIATE_PAD(path, bytes, T)                                                                        \
  template [[host_name(#path "_" #bytes)]] [[kernel]] decltype(path<T, int>) path<T, int>;                     \
  template [[host_name(#path "_" #bytes "_int64")]] [[kernel]] decltype(path<T, long>) path<T, long>;
#define INSTANTIATE_PAD_SIZES(path)  \
  INSTANTIATE_PAD(path, 1, uchar)    \
  INSTANTIATE_PAD(path, 2, ushort)   \
  INSTANTIATE_PAD(path, 4, uint)     \
  INSTANTIATE_PAD(path, 8, uint2)    \
  INSTANTIATE_PAD(path, 16, uint4)

INSTANTIATE_PAD_SIZES(pad_dense)
INSTANTIATE_PAD_SIZES(pad_strided)
