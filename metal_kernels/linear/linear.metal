// linear: y = x weight^T + bias, for few rows of x.
//
//   x [M, K], M <= 16; weight [N, K]; bias [N]; y [M, N]. N is the number of outputs, K the length of a sum.
//
// The time goes into reading the weight, so every form reads each weight once, for all rows of x:
//
//   vectors   a SIMD-group takes a few outputs; its lanes share K in 16-byte vectors. Weights with adjacent elements along K
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
  long blocks;         // those that share the rows of x: powers of two whose product is at most group_simdgroups
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

  // `count` rows from `first` on, as far as there are rows; then the last one again.
  Rows(device const T* base, long first, long rows, long stride) {
    LINEAR_UNROLL
    for (int i = 0; i < count; ++i) {
      at[i] = base + min(first + i, rows - 1) * stride;
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

// `flight` pieces of each of `outputs` rows of the weight, `stride` pieces apart, times the same pieces of `rows` rows of x. All
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
  const uint block = (simdgroup / parts) & (blocks - 1);
  const uint sharing = parts * blocks;
  const long first = (long(group) * (group_simdgroups / sharing) + simdgroup / sharing) * outputs;

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
    for (uint s = 1; s < parts; ++s) {
      sums[0] += partial[simdgroup + s][index];
    }
  }
  if (owner) {
    store(p, y, bias, long(block * rows + index / outputs), first + index % outputs, sums[0]);
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
#define INSTANTIATE_ROWS(form, name, T, width, rows, outputs, flight)                \
  template [[host_name("linear_" #form "_" #name "_" #rows)]] [[kernel]]             \
  decltype(linear_rows<T, width, rows, outputs, flight>) linear_rows<T, width, rows, outputs, flight>;
#define INSTANTIATE_COLUMNS(name, T, rows)                               \
  template [[host_name("linear_columns_" #name "_" #rows)]] [[kernel]]   \
  decltype(linear_columns<T, rows>) linear_columns<T, rows>;
#define INSTANTIATE(name, T, lanes)                  \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 1, 4, 1) \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 2, 4, 2) \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 4, 8, 1) \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 8, 4, 1) \
  INSTANTIATE_ROWS(elements, name, T, 1, 1, 2, 4)    \
  INSTANTIATE_ROWS(elements, name, T, 1, 8, 2, 4)    \
  INSTANTIATE_COLUMNS(name, T, 1)                    \
  INSTANTIATE_COLUMNS(name, T, 4)                    \
  INSTANTIATE_COLUMNS(name, T, 16)

INSTANTIATE(float, float, 4)
INSTANTIATE(half, half, 8)
INSTANTIATE(bfloat, bfloat, 8)
