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
  long parts;          // SIMD-groups that share K: 1, 2, 4 or 8
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

// ---- sums ---------------------------------------------------------------------------------------------------------

// Adds up sums[0 .. count) over the SIMD-group's lanes, each in the same order. Afterwards sums[0] of lane l is sum number
// l / (32 / count). In halves: a lane keeps one half of its sums and gives the other one away, so that all 32 sums take as many
// shuffles as one would take in every lane.
template <int count>
inline void reduce_lanes(thread float* sums, uint lane) {
  ushort mask = simd_width / 2;
  LINEAR_UNROLL
  for (int half_count = count / 2; half_count > 0; half_count /= 2) {
    const bool upper = (lane & mask) != 0;
    LINEAR_UNROLL
    for (int i = 0; i < half_count; ++i) {
      const float kept = upper ? sums[i + half_count] : sums[i];
      const float given = upper ? sums[i] : sums[i + half_count];
      sums[i] = kept + simd_shuffle_xor(given, mask);
    }
    mask /= 2;
  }
  for (; mask > 0; mask /= 2) {
    sums[0] += simd_shuffle_xor(sums[0], mask);
  }
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

// `rows` rows of x times `outputs` rows of the weight, of which a lane has `flight` pieces each in flight. Where there are fewer,
// the last ones are taken again and the result is dropped.
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
  constexpr uint lanes_per_sum = simd_width / count;
  threadgroup float partial[group_simdgroups][count];
  const uint parts = uint(p.parts);
  const uint part = simdgroup & (parts - 1);
  const long first = (long(group) * (group_simdgroups / parts) + simdgroup / parts) * outputs;

  device const T* x_rows[rows];
  LINEAR_UNROLL
  for (int m = 0; m < rows; ++m) {
    x_rows[m] = x + min(long(m), p.rows - 1) * p.x_row;
  }
  device const T* weight_rows[outputs];
  LINEAR_UNROLL
  for (int n = 0; n < outputs; ++n) {
    weight_rows[n] = weight + min(first + n, p.outputs - 1) * p.weight_row;
  }
  float sums[count];
  LINEAR_UNROLL
  for (int i = 0; i < count; ++i) {
    sums[i] = 0.0f;
  }

  const uint pieces = uint(p.length) / width;
  const uint stride = parts * simd_width;
  for (uint begin = part * simd_width + lane; begin < pieces; begin += flight * stride) {
    Piece<T, width> w[flight][outputs];
    LINEAR_UNROLL
    for (int f = 0; f < flight; ++f) {
      const uint i = begin + f * stride;
      LINEAR_UNROLL
      for (int n = 0; n < outputs; ++n) {
        w[f][n] = Piece<T, width>::none();
        if (f == 0 || i < pieces) {
          w[f][n] = Piece<T, width>::load(weight_rows[n], long(i), p.weight_step);
        }
      }
    }
    LINEAR_UNROLL
    for (int f = 0; f < flight; ++f) {
      const uint i = begin + f * stride;
      if (f > 0 && i >= pieces) {
        break;
      }
      LINEAR_UNROLL
      for (int m = 0; m < rows; ++m) {
        const Piece<T, width> v = Piece<T, width>::load(x_rows[m], long(i), p.x_step);
        LINEAR_UNROLL
        for (int j = 0; j < width; ++j) {
          LINEAR_UNROLL
          for (int n = 0; n < outputs; ++n) {
            sums[m * outputs + n] = fma(w[f][n][j], v[j], sums[m * outputs + n]);
          }
        }
      }
    }
  }

  reduce_lanes<count>(sums, lane);
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
    for (uint i = 1; i < parts; ++i) {
      sums[0] += partial[simdgroup + i][index];
    }
  }
  if (owner) {
    store(p, y, bias, long(index / outputs), first + index % outputs, sums[0]);
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
#define INSTANTIATE(name, T, lanes)                   \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 1, 1, 4)  \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 2, 2, 2)  \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 4, 4, 1)  \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 8, 4, 1)  \
  INSTANTIATE_ROWS(vectors, name, T, lanes, 16, 2, 1) \
  INSTANTIATE_ROWS(elements, name, T, 1, 1, 1, 8)     \
  INSTANTIATE_ROWS(elements, name, T, 1, 4, 2, 4)     \
  INSTANTIATE_ROWS(elements, name, T, 1, 16, 2, 4)    \
  INSTANTIATE_COLUMNS(name, T, 1)                     \
  INSTANTIATE_COLUMNS(name, T, 4)                     \
  INSTANTIATE_COLUMNS(name, T, 16)

INSTANTIATE(float, float, 4)
INSTANTIATE(half, half, 8)
INSTANTIATE(bfloat, bfloat, 8)
