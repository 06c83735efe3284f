// linear: y = x weight^T + bias, for few rows of x.
//
//   x [M, K], M <= 16; weight [N, K]; bias [N]; y [M, N]. N is the number of outputs, K the length of a sum.
//
// The time goes into reading the weight, so every form reads each weight once, for all rows of x:
//
//   vectors   a SIMD-group takes a few outputs; its lanes share K in 16-byte vectors. Weights with adjacent elements along K
//   long      the same for many weights and a few rows of x
//   matrices  the same weights and more rows of x: 8 x 8 matrices
//   straight  the same for up to 8 rows of x, without threadgroup memory between
//   deep      straight with half as much again in flight, for so few outputs that all SIMD-groups run at once
//   elements  the same, one element at a time, for any strides and any alignment
//   columns   neighbouring lanes take neighbouring outputs, for weights with adjacent elements along N (`w.t()`)
//
// geometry.py chooses. Where N is small, the SIMD-groups of a threadgroup share K as well ("parts"). Products are added up
// in float, in an order that only shape and layout decide: the result does not depend on how a GPU schedules its threads.

#include <metal_stdlib>
using namespace metal;

// Arrays indexed by these loops then live in registers.
#define LINEAR_UNROLL _Pragma("clang loop unroll(full)")

constant constexpr uint simd_width = 32;
constant constexpr uint group_simdgroups = 8;   // geometry.py: GROUP_SIMDGROUPS
constant constexpr int column_steps = 8;        // geometry.py: COLUMN_STEPS; elements of a column in flight

// The launch, as geometry.py lists it: torch.mps.compile_shader hands a list of ints over as int64s. In elements.
struct LinearLaunch {
  long rows;           // of x: M
  long outputs;        // N
  long length;         // K
  long x_row;          // strides
  long x_step;
  long weight_row;     // from one output's weights to the next one's
  long weight_step;    // along K
  long bias_step;
  long has_bias;
  long parts;          // SIMD-groups that share K, and
  long blocks;         // those that share the rows of x: powers of two (but parts of "straight" and "deep") whose product is at most
                       // group_simdgroups
};

// ---- pieces of a row: a vector of 16 bytes, or one element -------------------------------------------------------

template <typename T>
inline float get_lane(uint4 v, int j);
template <>
inline float get_lane<float>(uint4 v, int j) { return as_type<float>(v[j]); }
template <>
inline float get_lane<half>(uint4 v, int j) { return float(as_type<half2>(v[j >> 1])[j & 1]); }
template <>
inline float get_lane<bfloat>(uint4 v, int j) {
  return as_type<float>((j & 1) != 0 ? v[j >> 1] & 0xffff0000u : v[j >> 1] << 16);
}

// As loaded, so that pieces in flight take no more registers than they have bytes.
template <typename T, int width>
struct Piece {
  uint4 v;
  static Piece none() { return {uint4(0)}; }
  static Piece load(device const T* row, long i, long) { return {reinterpret_cast<device const uint4*>(row)[i]}; }
  float operator[](int j) const { return get_lane<T>(v, j); }
};

template <typename T>
struct Piece<T, 1> {
  T v;
  static Piece none() { return {T(0.0f)}; }
  static Piece load(device const T* row, long i, long step) { return {row[i * step]}; }
  float operator[](int) const { return float(v); }
};

// The rows that a SIMD-group reads.
template <typename T, int count>
struct Rows {
  device const T* at[count];

  // `count` rows from `first` on, `apart` of each other, as far as there are rows; then the last one again.
  Rows(device const T* base, uint first, uint rows, long stride, uint apart = 1) {
    LINEAR_UNROLL
    for (int i = 0; i < count; ++i) {
      at[i] = base + long(min(first + i * apart, rows - 1)) * stride;
    }
  }
};

// ---- sums ---------------------------------------------------------------------------------------------------------

// Adds up sums[0 .. count) over the SIMD-group's lanes, each in the same order. Afterwards sums[0] of lane l is sum number
// l / (32 / count). In halves: a lane keeps one half of its sums and gives the other one away, so that all 32 sums take as many
// shuffles as one would take in every lane.
template <int count, int mask = simd_width / 2>
struct LaneSums {
  static constant constexpr int kept = count > 1 ? count / 2 : 1;

  static void reduce(thread float* sums, uint lane) {
    const bool upper = (lane & mask) != 0;
    LINEAR_UNROLL
    for (int i = 0; i < kept; ++i) {
      if (count > 1) {
        const float given = upper ? sums[i] : sums[i + kept];
        sums[i] = (upper ? sums[i + kept] : sums[i]) + simd_shuffle_xor(given, ushort(mask));
      } else {
        sums[i] += simd_shuffle_xor(sums[i], ushort(mask));
      }
    }
    LaneSums<kept, mask / 2>::reduce(sums, lane);
  }
};

template <int count>
struct LaneSums<count, 0> {
  static void reduce(thread float*, uint) {}
};

// Adds to a sum those of the next parts - 1 SIMD-groups, in their order. Loads that wait for none before them.
template <int count>
inline float add_parts(threadgroup const float (*partial)[count], uint simdgroup, uint parts, uint index, float sum) {
  LINEAR_UNROLL
  for (uint s = 1; s < group_simdgroups; ++s) {
    if (s < parts) {
      sum += partial[simdgroup + s][index];
    }
  }
  return sum;
}

template <typename T>
inline void store(constant LinearLaunch& p, device T* y, device const T* bias, long m, long n, float sum) {
  if (m < p.rows && n < p.outputs) {
    if (p.has_bias != 0) {
      sum += float(bias[n * p.bias_step]);
    }
    y[m * p.outputs + n] = T(sum);
  }
}

// ---- lanes along K ------------------------------------------------------------------------------------------------

// Piece `i` of each of `outputs` rows of the weight, and of a single row of x: a load that waits behind those of memory takes as long.
template <typename T, int width, int outputs>
struct Pieces {
  Piece<T, width> x;
  Piece<T, width> w[outputs];

  static Pieces load(device const T* x, thread const Rows<T, outputs>& weight, constant LinearLaunch& p, uint i) {
    Pieces r;
    r.x = Piece<T, width>::load(x, long(i), p.x_step);
    LINEAR_UNROLL
    for (int n = 0; n < outputs; ++n) {
      r.w[n] = Piece<T, width>::load(weight.at[n], long(i), p.weight_step);
    }
    return r;
  }

  void multiply(thread float* sums) const {
    LINEAR_UNROLL
    for (int j = 0; j < width; ++j) {
      LINEAR_UNROLL
      for (int n = 0; n < outputs; ++n) {
        sums[n] = fma(w[n][j], x[j], sums[n]);
      }
    }
  }
};

// The pieces that are multiplied have the next ones on their way. Every stride-th piece from `i` on, or the same ones from the last on;
// stride is a power of two.
template <typename T, int width, int outputs>
inline void multiply_ahead(
    device const T* x, thread const Rows<T, outputs>& weight, constant LinearLaunch& p, uint i, uint stride, uint pieces, bool backwards,
    thread float* sums) {
  if (i >= pieces) {
    return;
  }
  uint step = stride;
  if (backwards) {
    i += (pieces - 1 - i) & ~(stride - 1);
    step = 0u - stride;
  }
  Pieces<T, width, outputs> next = Pieces<T, width, outputs>::load(x, weight, p, i);
  for (i += step; i < pieces; i += step) {  // backwards past 0: far past the end
    const Pieces<T, width, outputs> now = next;
    next = Pieces<T, width, outputs>::load(x, weight, p, i);
    now.multiply(sums);
  }
  next.multiply(sums);
}

// One row of x and `outputs` rows of the weight. A threadgroup has 4 or 8 SIMD-groups: small ones leave their place to others sooner.
// Where rows are a power of two apart, what all threadgroups read at a time would lie in the same few channels of the memory: every
// other one goes through K backwards.
template <typename T, int width, int outputs>
[[kernel]] void linear_row(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant LinearLaunch& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroups [[simdgroups_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint lanes_per_sum = simd_width / outputs;
  threadgroup float partial[group_simdgroups][outputs];
  const uint parts = uint(p.parts);
  const uint part = simdgroup & (parts - 1);
  const uint first = ((group * simdgroups + simdgroup) >> ctz(parts)) * outputs;

  const Rows<T, outputs> weight_rows(weight, first, uint(p.outputs), p.weight_row);
  const bool backwards = group % 2 != 0 && (p.weight_row & (p.weight_row - 1)) == 0;
  float sums[outputs];
  LINEAR_UNROLL
  for (int n = 0; n < outputs; ++n) {
    sums[n] = 0.0f;
  }
  multiply_ahead<T, width, outputs>(
      x, weight_rows, p, part * simd_width + lane, parts * simd_width, uint(p.length) / width, backwards, sums);
  LaneSums<outputs>::reduce(sums, lane);
  const uint index = lane / lanes_per_sum;
  const bool owner = lane % lanes_per_sum == 0;
  if (parts > 1) {
    if (owner) {
      partial[simdgroup][index] = sums[0];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (part != 0) {
      return;
    }
    sums[0] = add_parts(partial, simdgroup, parts, index, sums[0]);
  }
  if (owner) {
    store(p, y, bias, 0, first + index, sums[0]);
  }
}

// Several rows. `flight` pieces of each of `outputs` rows of the weight, `stride` pieces apart, times the same pieces of x. All
// loads come before their use. whole: all pieces are there; else the first one is, and zeros stand for those past the end.
template <typename T, int width, int rows, int outputs, int flight, int chains, bool whole>
inline void accumulate(
    thread const Rows<T, rows>& x, thread const Rows<T, outputs>& weight, constant LinearLaunch& p, uint first, uint stride,
    uint pieces, thread float* sums) {
  Piece<T, width> w[flight][outputs];
  LINEAR_UNROLL
  for (int f = 0; f < flight; ++f) {
    const uint i = first + f * stride;
    LINEAR_UNROLL
    for (int n = 0; n < outputs; ++n) {
      w[f][n] = Piece<T, width>::none();
      if (whole || f == 0 || i < pieces) {
        w[f][n] = Piece<T, width>::load(weight.at[n], long(i), p.weight_step);
      }
    }
  }
  LINEAR_UNROLL
  for (int f = 0; f < flight; ++f) {
    const uint i = first + f * stride;
    LINEAR_UNROLL
    for (int m = 0; m < rows; ++m) {
      Piece<T, width> v = Piece<T, width>::none();
      if (whole || f == 0 || i < pieces) {
        v = Piece<T, width>::load(x.at[m], long(i), p.x_step);
      }
      LINEAR_UNROLL
      for (int j = 0; j < width; ++j) {
        LINEAR_UNROLL
        for (int n = 0; n < outputs; ++n) {
          thread float& sum = sums[((f % chains) * rows + m) * outputs + n];
          sum = fma(w[f][n][j], v[j], sum);
        }
      }
    }
  }
}

// `rows` rows of x times `outputs` rows of the weight, of which a lane has `flight` pieces each in flight. Where there are fewer,
// the last ones are taken again and the result is dropped. Neighbouring SIMD-groups with more rows of x read the same weights at
// about the same time, which then come from memory once.
template <typename T, int width, int rows, int outputs, int flight>
[[kernel]] void linear_rows(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant LinearLaunch& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int count = rows * outputs;
  constexpr int chains = count < flight ? flight : 1;  // of additions that need not wait for each other
  constexpr uint lanes_per_sum = simd_width / count;
  threadgroup float partial[group_simdgroups][count];
  const uint parts = uint(p.parts);
  const uint part = simdgroup & (parts - 1);
  const uint blocks = uint(p.blocks);
  const uint block = (simdgroup >> ctz(parts)) & (blocks - 1);
  const uint sharing = ctz(parts * blocks);
  const long first = (long(group) * (group_simdgroups >> sharing) + (simdgroup >> sharing)) * outputs;

  const Rows<T, rows> x_rows(x, block * rows, p.rows, p.x_row);
  const Rows<T, outputs> weight_rows(weight, first, p.outputs, p.weight_row);
  float sums[chains * count];
  LINEAR_UNROLL
  for (int i = 0; i < chains * count; ++i) {
    sums[i] = 0.0f;
  }

  const uint pieces = uint(p.length) / width;
  const uint stride = parts * simd_width;
  uint i = part * simd_width + lane;
  for (; i + (flight - 1) * stride < pieces; i += flight * stride) {
    accumulate<T, width, rows, outputs, flight, chains, true>(x_rows, weight_rows, p, i, stride, pieces, sums);
  }
  if (i < pieces) {
    accumulate<T, width, rows, outputs, flight, chains, false>(x_rows, weight_rows, p, i, stride, pieces, sums);
  }
  LINEAR_UNROLL
  for (int c = 1; c < chains; ++c) {
    LINEAR_UNROLL
    for (int n = 0; n < count; ++n) {
      sums[n] += sums[c * count + n];
    }
  }

  LaneSums<count>::reduce(sums, lane);
  const uint index = lane / lanes_per_sum;
  const bool owner = lane % lanes_per_sum == 0;
  if (parts > 1) {
    if (owner) {
      partial[simdgroup][index] = sums[0];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (part != 0) {
      return;
    }
    sums[0] = add_parts(partial, simdgroup, parts, index, sums[0]);
  }
  if (owner) {
    store(p, y, bias, long(block * rows + index / outputs), first + index % outputs, sums[0]);
  }
}

// ---- 8 x 8 matrices -----------------------------------------------------------------------------------------------

// A lane's vectors of 32 * steps along K: lane l has the vectors l % 4, l % 4 + 4, ... of line l / 4 of each matrix.
template <typename T, int row_tiles, int output_tiles, int steps>
struct Strip {
  static constant constexpr int tiles = row_tiles + output_tiles;
  static constant constexpr int line = 32 * steps + 8;  // of threadgroup memory: a vector's gap keeps its banks apart
  uint4 v[steps][tiles];

  // Strip number `strip`. Where there is none, and for rows of x past the last: zeros.
  static Strip load(
      thread const Rows<T, row_tiles>& x, thread const Rows<T, output_tiles>& weight, thread const bool* exists, uint strip, uint pieces,
      uint lane) {
    Strip s;
    LINEAR_UNROLL
    for (int j = 0; j < steps; ++j) {
      const uint i = (strip * steps + j) * 4 + lane % 4;
      LINEAR_UNROLL
      for (int m = 0; m < row_tiles; ++m) {
        s.v[j][m] = uint4(0);
        if (exists[m] && i < pieces) {
          s.v[j][m] = reinterpret_cast<device const uint4*>(x.at[m])[i];
        }
      }
      LINEAR_UNROLL
      for (int n = 0; n < output_tiles; ++n) {
        s.v[j][row_tiles + n] = uint4(0);
        if (i < pieces) {
          s.v[j][row_tiles + n] = reinterpret_cast<device const uint4*>(weight.at[n])[i];
        }
      }
    }
    return s;
  }

  void store(threadgroup uint4* memory, uint lane) const {
    LINEAR_UNROLL
    for (int j = 0; j < steps; ++j) {
      LINEAR_UNROLL
      for (int t = 0; t < tiles; ++t) {
        memory[(t * 8 + lane / 4) * (line / 8) + j * 4 + lane % 4] = v[j][t];
      }
    }
  }

  static void multiply(threadgroup const T* memory, thread simdgroup_matrix<float, 8, 8>* sums) {
    LINEAR_UNROLL
    for (int k = 0; k < 32 * steps; k += 8) {
      simdgroup_matrix<T, 8, 8> x[row_tiles];
      LINEAR_UNROLL
      for (int m = 0; m < row_tiles; ++m) {
        simdgroup_load(x[m], memory + m * 8 * line + k, line, ulong2(0), true);
      }
      LINEAR_UNROLL
      for (int n = 0; n < output_tiles; ++n) {
        simdgroup_matrix<T, 8, 8> w;
        simdgroup_load(w, memory + (row_tiles + n) * 8 * line + k, line);
        LINEAR_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
          simdgroup_multiply_accumulate(sums[n * row_tiles + m], w, x[m], sums[n * row_tiles + m]);
        }
      }
    }
  }
};

// More rows than a lane could multiply as fast as the weights arrive. A SIMD-group takes 8 * output_tiles outputs, strip by strip along
// K: from memory to registers, `flight` strips ahead, and through its own threadgroup memory into matrices. Types of two bytes.
template <typename T, int row_tiles, int output_tiles, int steps, int flight>
[[kernel]] void linear_matrices(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant LinearLaunch& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int outputs = 8 * output_tiles;
  typedef Strip<T, row_tiles, output_tiles, steps> Ahead;
  threadgroup uint4 memory[group_simdgroups][Ahead::tiles * Ahead::line];  // 8 lines, of line / 8 vectors each
  const uint parts = uint(p.parts);
  const uint part = simdgroup & (parts - 1);
  const uint sharing = ctz(parts);
  const long first = (long(group) * (group_simdgroups >> sharing) + (simdgroup >> sharing)) * outputs;
  const long line = lane / 4;

  const Rows<T, row_tiles> x_rows(x, line, p.rows, p.x_row, 8);
  const Rows<T, output_tiles> weight_rows(weight, first + line, p.outputs, p.weight_row, 8);
  bool exists[row_tiles];
  LINEAR_UNROLL
  for (int m = 0; m < row_tiles; ++m) {
    exists[m] = line + m * 8 < p.rows;
  }
  simdgroup_matrix<float, 8, 8> sums[output_tiles * row_tiles];
  LINEAR_UNROLL
  for (int i = 0; i < output_tiles * row_tiles; ++i) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  const uint pieces = uint(p.length) / 8;
  const uint strips = (pieces + 4 * steps - 1) / (4 * steps);
  Ahead ahead[flight];
  LINEAR_UNROLL
  for (int f = 0; f < flight; ++f) {
    ahead[f] = Ahead::load(x_rows, weight_rows, exists, part + f * parts, pieces, lane);
  }
  for (uint strip = part; strip < strips; strip += flight * parts) {
    LINEAR_UNROLL
    for (int f = 0; f < flight; ++f) {  // past the end: zeros times zeros
      ahead[f].store(memory[simdgroup], lane);
      ahead[f] = Ahead::load(x_rows, weight_rows, exists, strip + (f + flight) * parts, pieces, lane);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      Ahead::multiply(reinterpret_cast<threadgroup const T*>(memory[simdgroup]), sums);
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  threadgroup float* own = reinterpret_cast<threadgroup float*>(memory[simdgroup]);
  LINEAR_UNROLL
  for (int i = 0; i < output_tiles * row_tiles; ++i) {
    simdgroup_store(sums[i], own + i * 64, 8);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint at = part * simd_width + lane; at < uint(p.rows) * outputs; at += parts * simd_width) {
    const uint m = at / outputs, n = at % outputs;
    const uint in_matrix = (n / 8 * row_tiles + m / 8) * 64 + n % 8 * 8 + m % 8;
    float sum = 0.0f;
    for (uint s = 0; s < parts; ++s) {
      sum += reinterpret_cast<threadgroup const float*>(memory[simdgroup - part + s])[in_matrix];
    }
    store(p, y, bias, long(m), first + n, sum);
  }
}

// ---- 8 x 8 matrices straight from memory ---------------------------------------------------------------------------

// y^T = weight x^T in 8 x 8 matrices whose elements go from 16-byte vectors straight into their lanes. Of an 8 x 8 matrix lane l holds
// the elements (row, 2 * pair) and (row, 2 * pair + 1). A sum over K may be taken in any order, so the matrices t = 0 .. 3 of 32
// elements along K have in column 2c + e element 8c + 2t + e: a lane's four pairs of the weight are one vector. Of x^T, a lane has
// two rows of x at one K: it reads a vector of each, of which the lane beside it takes the other halves.
template <typename T>
struct Pair {
  typedef half2 type;
};
template <>
struct Pair<bfloat> {
  typedef bfloat2 type;
};

template <int tiles, int steps>
struct Vectors {
  uint4 w[steps][tiles];
  uint4 x[steps][2];

  // From vector `first` of the rows on, every fourth; zeros past their end.
  template <typename T>
  static Vectors load(thread const Rows<T, 2>& x, thread const Rows<T, tiles>& weight, uint first, uint x_pair, uint pair, uint pieces) {
    Vectors r;
    LINEAR_UNROLL
    for (int s = 0; s < steps; ++s) {
      const uint at = first + 4 * s;
      LINEAR_UNROLL
      for (int n = 0; n < tiles; ++n) {
        r.w[s][n] = at + pair < pieces ? reinterpret_cast<device const uint4*>(weight.at[n])[at + pair] : uint4(0);
      }
      LINEAR_UNROLL
      for (int m = 0; m < 2; ++m) {
        r.x[s][m] = at + x_pair < pieces ? reinterpret_cast<device const uint4*>(x.at[m])[at + x_pair] : uint4(0);
      }
    }
    return r;
  }
};

// 8 rows of x and 8 * tiles outputs of types of two bytes; 32 * steps elements of each row in flight.
template <typename T, int tiles, int steps>
[[kernel]] void linear_straight(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant LinearLaunch& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint outputs = 8 * tiles;
  threadgroup float memory[group_simdgroups][tiles * 64];
  const uint parts = uint(p.parts), blocks = uint(p.blocks);  // a threadgroup has a multiple of both together
  const uint block = simdgroup / parts % blocks, part = simdgroup % parts;
  const uint sharing = parts * blocks;
  const long first = (long(group) * (simdgroups / sharing) + simdgroup / sharing) * outputs;
  const uint row = ((lane / 4) & 4) + (lane / 2) % 4;  // Apple's GPUs have it so
  const uint pair = ((lane / 4) & 2) + lane % 2;

  const Rows<T, tiles> weight_rows(weight, first + row, p.outputs, p.weight_row, 8);
  const Rows<T, 2> x_rows(x, 8 * block + 2 * pair, p.rows, p.x_row);
  const bool upper = row % 2 != 0;
  simdgroup_matrix<float, 8, 8> sums[tiles];
  LINEAR_UNROLL
  for (int n = 0; n < tiles; ++n) {
    sums[n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  const uint pieces = uint(p.length) / 8;
  uint i = part * 4 * steps;
  Vectors<tiles, steps> next = Vectors<tiles, steps>::load(x_rows, weight_rows, i, row / 2, pair, pieces);
  while (i < pieces) {
    const Vectors<tiles, steps> now = next;
    i += parts * 4 * steps;
    next = Vectors<tiles, steps>::load(x_rows, weight_rows, i, row / 2, pair, pieces);
    LINEAR_UNROLL
    for (int s = 0; s < steps; ++s) {
      LINEAR_UNROLL
      for (int t = 0; t < 4; ++t) {
        const uint a = now.x[s][0][t], b = now.x[s][1][t];
        simdgroup_matrix<T, 8, 8> right, left;
        right.thread_elements() = as_type<typename Pair<T>::type>(upper ? (a >> 16) | (b & 0xffff0000u) : (a & 0xffffu) | (b << 16));
        LINEAR_UNROLL
        for (int n = 0; n < tiles; ++n) {
          left.thread_elements() = as_type<typename Pair<T>::type>(now.w[s][n][t]);
          simdgroup_multiply_accumulate(sums[n], left, right, sums[n]);
        }
      }
    }
  }

  LINEAR_UNROLL
  for (int n = 0; n < tiles; ++n) {
    simdgroup_store(sums[n], memory[simdgroup] + n * 64, 8);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint at = part * simd_width + lane; at < 8 * outputs; at += parts * simd_width) {
    const uint m = at / outputs, n = at % outputs;
    float sum = 0.0f;
    for (uint s = 0; s < parts; ++s) {
      sum += memory[simdgroup - part + s][n * 8 + m];
    }
    store(p, y, bias, long(8 * block + m), first + n, sum);
  }
}

// ---- lanes along N ------------------------------------------------------------------------------------------------

// A threadgroup takes 32 outputs, and its SIMD-groups take turns along K.
template <typename T, int rows>
[[kernel]] void linear_columns(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant LinearLaunch& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float partial[group_simdgroups][rows][simd_width];
  const long first = long(group) * simd_width;
  device const T* column = weight + min(first + lane, p.outputs - 1) * p.weight_row;
  float sums[rows];
  LINEAR_UNROLL
  for (int m = 0; m < rows; ++m) {
    sums[m] = 0.0f;
  }
  for (long begin = long(simdgroup) * column_steps; begin < p.length; begin += group_simdgroups * column_steps) {
    T w[column_steps];
    LINEAR_UNROLL
    for (int i = 0; i < column_steps; ++i) {
      w[i] = column[min(begin + i, p.length - 1) * p.weight_step];
    }
    LINEAR_UNROLL
    for (int i = 0; i < column_steps; ++i) {
      if (begin + i < p.length) {
        LINEAR_UNROLL
        for (int m = 0; m < rows; ++m) {
          const T v = x[min(long(m), p.rows - 1) * p.x_row + (begin + i) * p.x_step];  // the same in all lanes
          sums[m] = fma(float(w[i]), float(v), sums[m]);
        }
      }
    }
  }

  LINEAR_UNROLL
  for (int m = 0; m < rows; ++m) {
    partial[simdgroup][m][lane] = sums[m];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint m = simdgroup; m < uint(rows); m += group_simdgroups) {
    float sum = partial[0][m][lane];
    for (uint i = 1; i < group_simdgroups; ++i) {
      sum += partial[i][m][lane];
    }
    store(p, y, bias, long(m), first + lane, sum);
  }
}

// ---- instantiations -----------------------------------------------------------------------------------------------

// rows, outputs and flight as in geometry.py's TILES: rows * outputs sums and outputs * flight pieces in a lane's registers.
#define INSTANTIATE_ROW(name, T, width, outputs)                        \
  template [[host_name("linear_vectors_" #name "_1x" #outputs)]] [[kernel]] \
  decltype(linear_row<T, width, outputs>) linear_row<T, width, outputs>;
#define INSTANTIATE_ROWS(form, name, T, width, rows, outputs, flight)                \
  template [[host_name("linear_" #form "_" #name "_" #rows "x" #outputs)]] [[kernel]] \
  decltype(linear_rows<T, width, rows, outputs, flight>) linear_rows<T, width, rows, outputs, flight>;
#define INSTANTIATE_MATRICES(name, T, rows, outputs, row_tiles, output_tiles, steps, flight)   \
  template [[host_name("linear_matrices_" #name "_" #rows "x" #outputs)]] [[kernel]]        \
  decltype(linear_matrices<T, row_tiles, output_tiles, steps, flight>) linear_matrices<T, row_tiles, output_tiles, steps, flight>;
#define INSTANTIATE_STRAIGHT(form, name, T, rows, outputs, tiles, steps)                \
  template [[host_name("linear_" #form "_" #name "_" #rows "x" #outputs)]] [[kernel]] \
  decltype(linear_straight<T, tiles, steps>) linear_straight<T, tiles, steps>;
#define INSTANTIATE_COLUMNS(name, T, rows)                               \
  template [[host_name("linear_columns_" #name "_" #rows "x32")]] [[kernel]] \
  decltype(linear_columns<T, rows>) linear_columns<T, rows>;
#define INSTANTIATE(name, T, lanes)                  \
  INSTANTIATE_ROW(name, T, lanes, 4)                 \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 2, 4, 2) \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 4, 8, 1) \
  INSTANTIATE_ROWS(long, name, T, lanes, 4, 4, 1)    \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 8, 4, 1) \
  INSTANTIATE_ROWS(elements, name, T, 1, 1, 2, 4)    \
  INSTANTIATE_ROWS(elements, name, T, 1, 8, 2, 4)    \
  INSTANTIATE_COLUMNS(name, T, 1)                    \
  INSTANTIATE_COLUMNS(name, T, 4)                    \
  INSTANTIATE_COLUMNS(name, T, 16)

INSTANTIATE(float, float, 4)
INSTANTIATE(half, half, 8)
INSTANTIATE(bfloat, bfloat, 8)
INSTANTIATE_MATRICES(half, half, 16, 32, 2, 4, 1, 1)
INSTANTIATE_MATRICES(bfloat, bfloat, 16, 32, 2, 4, 1, 1)
INSTANTIATE_STRAIGHT(straight, half, half, 8, 16, 2, 2)
INSTANTIATE_STRAIGHT(straight, bfloat, bfloat, 8, 16, 2, 2)
INSTANTIATE_STRAIGHT(deep, half, half, 8, 16, 2, 3)
INSTANTIATE_STRAIGHT(deep, bfloat, bfloat, 8, 16, 2, 3)
