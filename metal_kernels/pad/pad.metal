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
// neighbour's, so a cache hit) instead of eight loads of two bytes. Where a row ends inside a vector, the end of its input and the start
// of the next row's are neighbours in memory: the same two loads have both, and the fill is put between them.
//
// Positions count elements from the first one of this launch in 32 bits (geometry.py cuts larger outputs into several
// launches); offset_t is the type of input offsets, long where a stride product can pass 2^31.

#include <metal_stdlib>
using namespace metal;

// Arrays indexed by these loops then live in registers.
#define PAD_UNROLL _Pragma("clang loop unroll(full)")

// These two are geometry.py's GROUP_THREADS and VECTORS_PER_THREAD (of pad_strided).
constant constexpr uint group_threads = 128;
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
  long windows;         // so many elements from readable_begin on may be the first of two such vectors
  long pieces;          // 1: where rows meet in a vector of the output, they do not in the input
  long period;          // rows that are a whole number of vectors: in vectors,
  long period_magic;
  long period_shift;
  long period_rows;     // and in rows
  long steps;           // vectors of a thread
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

template <typename T>
struct unsigned_of { typedef uint type; };
template <>
struct unsigned_of<long> { typedef ulong type; };

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
  offset_t windows;
  int gap_margin;
  uint4 fill;

  // May sixteen bytes from element `first` on be read, by the two aligned vectors that hold them?
  bool readable(offset_t first) const {
    typedef typename unsigned_of<offset_t>::type U;
    return U(first) - U(readable_begin) < U(windows);
  }
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
  r.windows = offset_t(p.windows);
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
  return uint((ulong(high) << 32 | low) >> bits);
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

// Ones in the first n bytes of a vector.
constant uint4 first_bytes[17] = {
  {0, 0, 0, 0},
  {0xff, 0, 0, 0},
  {0xffff, 0, 0, 0},
  {0xffffff, 0, 0, 0},
  {0xffffffff, 0, 0, 0},
  {0xffffffff, 0xff, 0, 0},
  {0xffffffff, 0xffff, 0, 0},
  {0xffffffff, 0xffffff, 0, 0},
  {0xffffffff, 0xffffffff, 0, 0},
  {0xffffffff, 0xffffffff, 0xff, 0},
  {0xffffffff, 0xffffffff, 0xffff, 0},
  {0xffffffff, 0xffffffff, 0xffffff, 0},
  {0xffffffff, 0xffffffff, 0xffffffff, 0},
  {0xffffffff, 0xffffffff, 0xffffffff, 0xff},
  {0xffffffff, 0xffffffff, 0xffffffff, 0xffff},
  {0xffffffff, 0xffffffff, 0xffffffff, 0xffffff},
  {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
};

template <typename T>
inline uint4 first_lanes(int n) { return first_bytes[n * int(sizeof(T))]; }

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

// The sixteen bytes of the input from element `first` on, out of two aligned vectors, which both may be read.
template <typename T, typename offset_t>
inline uint4 window(device const T* in, offset_t first) {
  typedef Window<T, offset_t> W;
  device const uint4* words = reinterpret_cast<device const uint4*>(in) + (first >> W::lane_bits);
  return W::lanes == 1 ? words[0] : funnel<T>(words[0], words[1], int(first) & (W::lanes - 1));
}

// A row of the output by its place in the plane, which is what the innermost outer dimension runs over.
template <typename offset_t>
struct Row {
  uint number;    // from the plane's first row of the input on; the fill before that comes last
  uint extent;    // rows of the input in the plane; 0 where the plane is all fill
  offset_t base;  // the row's first element of the input

  // Is the row so many rows before it one of the input?
  bool has_data(uint rows_before) const { return number - rows_before < extent; }

  // `turn` is one more than the row's number in the output. Each dimension is counted from its first position of the input on, one
  // round before the first: nothing is negative.
  Row(uint turn, thread const Dim<offset_t>* dim) {
    uint i[dense_outer];
    PAD_UNROLL
    for (int d = 0; d < dense_outer; ++d) {
      const uint n = turn + dim[d].size - dim[d].left - 1;
      turn = divide(n, dim[d].magic, dim[d].shift);
      i[d] = n - turn * dim[d].size;
    }
    bool inside = turn == 1;
    base = 0;
    PAD_UNROLL
    for (int d = 0; d < dense_outer; ++d) {
      inside = inside && (d == 0 || i[d] < dim[d].extent);
      base += offset_t(i[d]) * dim[d].stride;
    }
    number = i[0];
    extent = inside ? dim[0].extent : 0;
  }
};

// Some rows together, a period, are a whole number of vectors, so a vector one period on lies in its row as this one does. A thread
// walks down the output in periods: it finds its place in a row once, and what is left to do for each vector is little more than
// to move it.
template <typename T, typename offset_t>
[[kernel, max_total_threads_per_threadgroup(group_threads)]] void pad_dense(
    device const uchar* in [[buffer(0)]],
    device uchar* out [[buffer(1)]],
    constant PadLaunch& launch [[buffer(2)]],
    constant PadDim* dims [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_position_in_threadgroup]]) {
  constexpr int lanes = 16 / sizeof(T);
  const Launch<offset_t> p = unpack<offset_t>(launch);
  Dim<offset_t> dim[dense_outer];
  PAD_UNROLL
  for (int d = 0; d < dense_outer; ++d) {
    dim[d] = unpack<offset_t>(dims[d]);
  }
  device const T* from = reinterpret_cast<device const T*>(in) + (launch.in_offset - launch.in_skew);
  device T* to = reinterpret_cast<device T*>(out) + launch.out_offset;

  const uint period = uint(launch.period);
  const uint steps = uint(launch.steps);
  const uint thread_number = group * group_threads + thread_in_group;
  const uint walk = divide(thread_number, uint(launch.period_magic), uint(launch.period_shift));
  int e = int((thread_number + walk * (steps - 1) * period) * lanes) - p.out_skew;

  // The last of the rows that begin in the vector, or else the row that it lies in: `x` is where that has lane 0. A row begins with its
  // first element of the input here, and ends with the fill before the next one's.
  const uint n = uint(e + lanes - 1 + p.width - p.left);
  uint turn = divide(n, p.width_magic, p.width_shift);
  const int x = int(n - turn * uint(p.width)) - (lanes - 1);
  // Of two rows at most there is something: lanes below `low` of one, fill, and from `high` on the next one, which is the last.
  const bool two = x < 0;
  const int gap = p.width - p.extent;
  const int low = two ? max(-x - gap, 0) : clamp(p.extent - x, 0, lanes);
  const int high = two ? -x : lanes;
  const bool pieces = launch.pieces != 0 && !(x >= p.gap_margin && x + lanes + p.gap_margin <= p.extent);
  const uint whole = uint(max(p.count - lanes + 1, 0));  // a vector that begins below lies in the output whole

  const int start = e;
  uint slow = 0;  // the steps that are left for later
  Row<offset_t> row(turn, dim);
  offset_t first = row.base + p.in_skew + offset_t(x);
  for (uint step = 0; step < steps && e < p.count; ++step) {
    const bool has_low = low > 0 && row.has_data(two);
    const bool has_high = two && row.has_data(0);
    const bool has_data = has_low || has_high;
    if (uint(e) >= whole || pieces || (has_data && !p.readable(first))) {
      slow |= 1u << step;
    } else {
      uint4 v = p.fill;
      if (has_data) {
        v = window<T>(from, first);
        if (lanes > 1 && low < lanes) {
          const uint4 v_low = funnel<T>(v, v, two ? gap : 0);
          const uint4 is_low = first_lanes<T>(has_low ? low : 0);
          const uint4 is_not_high = first_lanes<T>(has_high ? high : lanes);
          v = (v_low & is_low) | (v & ~is_not_high) | (p.fill & ~is_low & is_not_high);
        }
      }
      *reinterpret_cast<device uint4*>(to + e) = v;
    }
    e += int(period) * lanes;
    turn += uint(launch.period_rows);
    row.number += uint(launch.period_rows);
    first += offset_t(launch.period_rows) * dim[0].stride;
    if (row.number >= dim[0].size) {
      row = Row<offset_t>(turn, dim);
      first = row.base + p.in_skew + offset_t(x);
    }
  }
  // What cannot be made so: the ends of the output, the ends of the input, rows that are shorter than a vector or lie apart.
  for (; slow != 0; slow &= slow - 1) {
    const int at = start + int(ctz(slow) * period) * lanes;
    store(to, at, p.count, assemble<T>(p, dim, from, at));
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
