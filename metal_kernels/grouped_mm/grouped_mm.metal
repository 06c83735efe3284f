// grouped_mm: matrix products of ragged groups, and the routing that makes the groups: topk and histc.
//
//   y[r, n] = sum over k of x[r, k] * weight[g][n, k], with g the group of row r (or of the whole product)
//
// x, weight and y stand for the operands in whatever order and layout geometry.py has brought them. offs holds the groups' ends
// along the rows or along K, and is read here only: no host ever waits for it. Forms:
//
//   vectors   few rows. A SIMD-group takes four outputs of one or two rows of a group; its lanes share K in 16-byte vectors
//   columns   few rows. Neighbouring lanes take neighbouring outputs, for weights with adjacent elements along N; "wide": 8 bytes of them
//   tiles     many rows. A threadgroup takes 32 rows of one group by 64 outputs, in 8x8 matrices
//
// The few-row forms read the weights of groups that have rows, and no others. Products are added up in float, in an order that only
// shape and layout decide: the result does not depend on how a GPU schedules its threads.

#include <metal_stdlib>
using namespace metal;

// Arrays indexed by these loops then live in registers.
#define GROUPED_UNROLL _Pragma("clang loop unroll(full)")

constant constexpr uint simd_width = 32;
constant constexpr uint column_simdgroups = 8;  // of a threadgroup; geometry.py: COLUMN_SIMDGROUPS
constant constexpr uint vector_simdgroups = 4;  // of a threadgroup; geometry.py: VECTOR_SIMDGROUPS
constant constexpr int block_rows = 2;          // geometry.py: BLOCK_ROWS; of the few-row forms
constant constexpr int vector_outputs = 4;      // geometry.py: VECTOR_OUTPUTS
constant constexpr int vector_sums = 4;         // in a lane's registers: of one row, or of two rows and half of the outputs
constant constexpr int column_steps = 8;        // elements of a column in flight, one wide or 8 bytes

constant constexpr int tile_rows = 32;          // geometry.py: TILE_ROWS
constant constexpr int tile_outputs = 64;       // geometry.py: TILE_OUTPUTS
constant constexpr int tile_length = 32;        // along K, between two barriers
constant constexpr uint tile_threads = 128;     // geometry.py: TILE_THREADS; 2 x 2 SIMD-groups

// The launch, as geometry.py lists it: torch.mps.compile_shader hands a list of ints over as int64s. In elements.
struct GroupedLaunch {
  long kind;           // what offs divides, below
  long rows;           // of x
  long outputs;        // N
  long length;         // K
  long groups;
  long offs_step;
  long x_group;        // strides
  long x_row;
  long x_step;
  long x_skew;         // past a 16-byte boundary
  long weight_group;
  long weight_row;     // from one output's weights to the next one's
  long weight_step;    // along K
  long weight_skew;
  long y_group;
  long y_row;
  long y_step;
  long parts;          // SIMD-groups that share K, in the few-row forms: 1, 2 or 4
};
constant constexpr long kind_rows = 0;     // offs divides the rows of x
constant constexpr long kind_length = 1;   // offs divides K
// else: no offs; all groups have all rows and the whole K

// ---- groups -------------------------------------------------------------------------------------------------------

// An end as given, within [0, limit].
inline int bounded(device const int* offs, constant GroupedLaunch& p, uint group, int limit) {
  return clamp(offs[long(group) * p.offs_step], 0, limit);
}

// The largest end before `group`: where it begins, also if the ends do not ascend. The same in all lanes.
inline int begin_of(device const int* offs, constant GroupedLaunch& p, uint group, int limit, uint lane) {
  int begin = 0;
  for (uint g = lane; g < group; g += simd_width) {
    begin = max(begin, bounded(offs, p, g, limit));
  }
  return simd_max(begin);
}

struct Rows {
  uint group;   // p.groups: past the last end, where y is zero
  int begin;
  int end;
};

// The first group whose end is past `row`, p.groups if there is none, and what a lane has seen of the ends.
struct Found {
  uint group;
  uint owner;   // the lane that holds the group's end
  int end;
  int before;   // the largest end before the group

  // The whole group. The same in all lanes.
  Rows rows(constant GroupedLaunch& p) const {
    Rows r;
    r.group = group;
    r.begin = simd_max(before);
    r.end = simd_shuffle(end, ushort(owner));
    r.end = group < uint(p.groups) ? r.end : int(p.rows);
    return r;
  }
};

// A lane loads several ends at once: with 256 groups the memory's latency is met once.
inline Found find_group(device const int* offs, constant GroupedLaunch& p, int row, uint lane) {
  constexpr uint held = 8;
  const uint groups = uint(p.groups);
  Found found = {groups, 0, 0, 0};
  for (uint base = 0; base < groups && found.group == groups; base += held * simd_width) {
    int ends[held];
    GROUPED_UNROLL
    for (uint i = 0; i < held; ++i) {
      ends[i] = 0;
      if (base + i * simd_width < groups) {  // past the last group: its end again, which comes after itself
        ends[i] = bounded(offs, p, min(base + i * simd_width + lane, groups - 1), int(p.rows));
      }
    }
    uint load = 0, past = 0;  // the first load with an end past the row, and the lanes that have one
    GROUPED_UNROLL
    for (int i = int(held) - 1; i >= 0; --i) {
      const uint lanes = uint(simd_vote::vote_t(simd_ballot(ends[i] > row)));
      load = lanes != 0 ? uint(i) : load;
      past = lanes != 0 ? lanes : past;
    }
    if (past != 0) {
      found.owner = ctz(past);
      found.group = base + load * simd_width + found.owner;
    }
    GROUPED_UNROLL
    for (uint i = 0; i < held; ++i) {
      found.end = i == load ? ends[i] : found.end;
      found.before = max(found.before, base + i * simd_width + lane < found.group ? ends[i] : 0);
    }
  }
  return found;
}

inline Rows rows_around(device const int* offs, constant GroupedLaunch& p, int row, uint lane) {
  return find_group(offs, p, row, lane).rows(p);
}

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

inline uint4 load_vector(device const void* row, uint i) { return static_cast<device const uint4*>(row)[i]; }

// Adds up sums[0 .. count) over the SIMD-group's lanes, each in the same order. Afterwards sums[0] of lane l is sum number
// l / (32 / count). In halves: a lane keeps one half of its sums and gives the other one away.
template <int count, int mask = simd_width / 2>
struct LaneSums {
  static void reduce(thread float* sums, uint lane) {
    constexpr int kept = count > 1 ? count / 2 : 1;
    const bool upper = (lane & mask) != 0;
    GROUPED_UNROLL
    for (int i = 0; i < kept; ++i) {
      const float given = count > 1 && !upper ? sums[i + kept] : sums[i];
      sums[i] = (count > 1 && upper ? sums[i + kept] : sums[i]) + simd_shuffle_xor(given, ushort(mask));
    }
    LaneSums<kept, mask / 2>::reduce(sums, lane);
  }
};

template <int count>
struct LaneSums<count, 0> {
  static void reduce(thread float*, uint) {}
};

// ---- few rows, lanes along K --------------------------------------------------------------------------------------

// Vector `i` of each of `rows` rows of x and `outputs` rows of the weight.
template <typename T, int rows, int outputs>
struct Vectors {
  uint4 x[rows];
  uint4 w[outputs];

  static Vectors load(thread device const T* const* x, thread device const T* const* w, uint i) {
    Vectors v;
    GROUPED_UNROLL
    for (int m = 0; m < rows; ++m) {
      v.x[m] = load_vector(x[m], i);
    }
    GROUPED_UNROLL
    for (int n = 0; n < outputs; ++n) {
      v.w[n] = load_vector(w[n], i);
    }
    return v;
  }

  void multiply(thread float* sums) const {
    GROUPED_UNROLL
    for (int j = 0; j < int(16 / sizeof(T)); ++j) {
      GROUPED_UNROLL
      for (int m = 0; m < rows; ++m) {
        GROUPED_UNROLL
        for (int n = 0; n < outputs; ++n) {
          sums[m * outputs + n] = fma(get_lane<T>(w[n], j), get_lane<T>(x[m], j), sums[m * outputs + n]);
        }
      }
    }
  }
};

// The products of a lane's share of K, added up over all lanes: sum number l / 8 of four in lane l. The vectors that are multiplied
// have the next ones on their way; `next` are vectors `i`, if there are any. `begin`: where elements are left that fill no vector.
template <typename T, int rows, int outputs>
inline float multiply_rows(
    thread device const T* const* x, thread device const T* const* w, Vectors<T, rows, outputs> next, uint i, uint stride, uint length,
    bool has_rest, uint lane) {
  constexpr uint width = 16 / sizeof(T);
  static_assert(rows * outputs == vector_sums, "");
  float sums[vector_sums] = {0.0f, 0.0f, 0.0f, 0.0f};
  const uint pieces = length / width;
  if (i < pieces) {
    for (i += stride; i < pieces; i += stride) {
      const Vectors<T, rows, outputs> now = next;
      next = Vectors<T, rows, outputs>::load(x, w, i);
      now.multiply(sums);
    }
    next.multiply(sums);
  }
  const uint k = pieces * width + lane;
  if (has_rest && k < length) {
    GROUPED_UNROLL
    for (int m = 0; m < rows; ++m) {
      GROUPED_UNROLL
      for (int n = 0; n < outputs; ++n) {
        sums[m * outputs + n] = fma(float(w[n][k]), float(x[m][k]), sums[m * outputs + n]);
      }
    }
  }
  LaneSums<vector_sums>::reduce(sums, lane);
  return sums[0];
}

// Adds up what the SIMD-groups that share K have, and stores output n of a row from the first lane that has its sum.
template <typename T>
inline void store_sum(
    device T* y, constant GroupedLaunch& p, threadgroup float (*partial)[vector_sums], float sum, long row, uint n, uint simdgroup,
    uint lane) {
  constexpr uint lanes_per_sum = simd_width / vector_sums;
  const uint parts = uint(p.parts);
  const bool owner = lane % lanes_per_sum == 0;
  if (parts > 1) {
    if (owner) {
      partial[simdgroup][lane / lanes_per_sum] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if ((simdgroup & (parts - 1)) != 0) {
      return;
    }
    GROUPED_UNROLL
    for (uint i = 1; i < vector_simdgroups; ++i) {
      if (i < parts) {
        sum += partial[simdgroup + i][lane / lanes_per_sum];
      }
    }
  }
  if (owner && n < uint(p.outputs)) {
    y[row * p.y_row + n * p.y_step] = T(sum);
  }
}

// A threadgroup at grid row r works if r is the first of a block of two rows of its group; the others leave at once. One row of a
// group is the usual case: four outputs of it. Two rows take the same four outputs in two turns, so that they need no more registers.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(vector_simdgroups * simd_width)]] void grouped_vectors(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const int* offs [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant GroupedLaunch& p [[buffer(4)]],
    uint2 position [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int pair_outputs = vector_outputs / block_rows;
  threadgroup float partial[block_rows][vector_simdgroups][vector_sums];
  const int row = int(position.y);
  const uint parts = uint(p.parts);
  const uint part = simdgroup & (parts - 1);
  const uint first = ((position.x * vector_simdgroups + simdgroup) >> ctz(parts)) * vector_outputs;
  const uint begin = part * simd_width + lane, stride = parts * simd_width;
  device const T* x_rows[block_rows] = {x + long(row) * p.x_row, x + min(row + 1l, p.rows - 1) * p.x_row};

  const Found found = find_group(offs, p, row, lane);
  const bool has_weight = found.group < uint(p.groups);
  const uint length = has_weight ? uint(p.length) : 0;
  device const T* matrix = weight + (has_weight ? long(found.group) * p.weight_group : 0);
  device const T* weight_rows[vector_outputs];
  GROUPED_UNROLL
  for (int n = 0; n < vector_outputs; ++n) {
    weight_rows[n] = matrix + long(min(first + n, uint(p.outputs) - 1)) * p.weight_row;
  }
  // On their way before it is known which rows the group has.
  typedef Vectors<T, 1, vector_outputs> Single;
  typedef Vectors<T, block_rows, pair_outputs> Pair;
  Single next;
  if (begin < length * sizeof(T) / 16) {
    next = Single::load(x_rows, weight_rows, begin);
  }
  const Rows around = found.rows(p);
  if ((row - around.begin) % block_rows != 0) {
    return;
  }
  const uint index = lane / (simd_width / vector_sums);
  if (around.end - row == 1) {
    const float sum = multiply_rows<T, 1, vector_outputs>(x_rows, weight_rows, next, begin, stride, length, part == 0, lane);
    store_sum(y, p, partial[0], sum, row, first + index, simdgroup, lane);
    return;
  }
  GROUPED_UNROLL
  for (int turn = 0; turn < block_rows; ++turn) {
    Pair pair;
    if (begin < length * sizeof(T) / 16) {
      pair = Pair::load(x_rows, weight_rows + turn * pair_outputs, begin);
    }
    const float sum = multiply_rows<T, block_rows, pair_outputs>(
        x_rows, weight_rows + turn * pair_outputs, pair, begin, stride, length, part == 0, lane);
    store_sum(
        y, p, partial[turn], sum, row + index / pair_outputs, first + turn * pair_outputs + index % pair_outputs, simdgroup, lane);
  }
}

// ---- few rows, lanes along N --------------------------------------------------------------------------------------

// `width` adjacent outputs' weights, of which `left` exist; 8 bytes at once, or one element.
template <typename T, int width>
inline void load_outputs(device const T* from, int left, thread float* to) {
  if (width > 1 && left == width) {
    const uint2 v = *reinterpret_cast<device const uint2*>(from);
    GROUPED_UNROLL
    for (int j = 0; j < width; ++j) {
      to[j] = get_lane<T>(uint4(v.x, v.y, 0, 0), j);
    }
  } else {
    GROUPED_UNROLL
    for (int j = 0; j < width; ++j) {
      to[j] = 0.0f;
      if (j < left) {
        to[j] = float(from[j]);
      }
    }
  }
}

// A threadgroup takes 32 times `width` outputs of a block of rows, and its SIMD-groups take turns along K. A width of 1: any strides.
template <typename T, int width>
[[kernel]] void grouped_columns(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const int* offs [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant GroupedLaunch& p [[buffer(4)]],
    uint2 position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint group_outputs = simd_width * width;
  threadgroup float partial[column_simdgroups][block_rows][group_outputs];
  const int row = int(position.y);
  const Rows around = rows_around(offs, p, row, lane);
  if ((row - around.begin) % block_rows != 0) {
    return;
  }
  const int active = min(around.end - row, block_rows);
  const bool has_weight = long(around.group) < p.groups;
  const long length = has_weight ? p.length : 0;
  const long first = long(position.x) * group_outputs;
  const long n = first + lane * width;
  const int left = int(clamp(p.outputs - n, 0l, long(width)));
  device const T* column =
      weight + (has_weight ? long(around.group) * p.weight_group : 0) + min(n, p.outputs - 1) * p.weight_row;
  device const T* x_rows = x + long(row) * p.x_row;
  float sums[block_rows][width];
  GROUPED_UNROLL
  for (int m = 0; m < block_rows; ++m) {
    GROUPED_UNROLL
    for (int j = 0; j < width; ++j) {
      sums[m][j] = 0.0f;
    }
  }
  for (long begin = long(simdgroup) * column_steps; begin < length; begin += column_simdgroups * column_steps) {
    float w[column_steps][width];
    GROUPED_UNROLL
    for (int i = 0; i < column_steps; ++i) {
      load_outputs<T, width>(column + min(begin + i, length - 1) * p.weight_step, left, w[i]);
    }
    GROUPED_UNROLL
    for (int i = 0; i < column_steps; ++i) {
      if (begin + i < length) {
        GROUPED_UNROLL
        for (int m = 0; m < block_rows; ++m) {
          if (m < active) {
            const float v = float(x_rows[m * p.x_row + (begin + i) * p.x_step]);  // the same in all lanes
            GROUPED_UNROLL
            for (int j = 0; j < width; ++j) {
              sums[m][j] = fma(w[i][j], v, sums[m][j]);
            }
          }
        }
      }
    }
  }

  GROUPED_UNROLL
  for (int m = 0; m < block_rows; ++m) {
    GROUPED_UNROLL
    for (int j = 0; j < width; ++j) {
      partial[simdgroup][m][lane * width + j] = sums[m][j];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < uint(active) * group_outputs; i += column_simdgroups * simd_width) {
    const uint m = i / group_outputs, at = i % group_outputs;
    if (first + at < p.outputs) {
      float sum = partial[0][m][at];
      for (uint s = 1; s < column_simdgroups; ++s) {
        sum += partial[s][m][at];
      }
      y[(row + long(m)) * p.y_row + (first + at) * p.y_step] = T(sum);
    }
  }
}

// ---- many rows: tiles ---------------------------------------------------------------------------------------------

// The rows of tile number `tile` when every group, and what lies past the last end, is cut into tiles of its own. begin == end: there
// is no such tile. A lane looks at one group, 32 at a time. The same in all lanes.
inline Rows rows_of_tile(device const int* offs, constant GroupedLaunch& p, uint tile, uint lane) {
  const uint groups = uint(p.groups);
  const int limit = int(p.rows);
  int last_end = 0;
  uint last_tile = 0;
  for (uint base = 0; base <= groups; base += simd_width) {
    const uint group = base + lane;
    int end = group < groups ? bounded(offs, p, group, limit) : (group == groups ? limit : 0);
    end = max(end, last_end);
    for (ushort distance = 1; distance < simd_width; distance *= 2) {  // the running maximum
      const int before = simd_shuffle_up(end, distance);
      end = lane >= distance ? max(end, before) : end;
    }
    const int before = simd_shuffle_up(end, 1);
    const int begin = lane == 0 ? last_end : before;
    const uint tiles = uint(end - begin + tile_rows - 1) / tile_rows;
    const uint tiles_end = last_tile + simd_prefix_inclusive_sum(tiles);
    const bool here = tile < tiles_end && tile >= tiles_end - tiles;
    if (simd_any(here)) {
      const uint owner = simd_max(here ? lane : 0u);
      Rows r;
      r.group = base + owner;
      r.begin = simd_shuffle(begin + int(tile - (tiles_end - tiles)) * tile_rows, ushort(owner));
      r.end = min(simd_shuffle(end, ushort(owner)), r.begin + tile_rows);
      return r;
    }
    last_end = simd_shuffle(end, ushort(simd_width - 1));
    last_tile = simd_shuffle(tiles_end, ushort(simd_width - 1));
  }
  Rows none;
  none.group = groups;
  none.begin = 0;
  none.end = 0;
  return none;
}

// `lines` lines of `length` adjacent elements into threadgroup memory, a vector's gap after each; zero where there are no more.
// aligned: the lines start on 16-byte boundaries.
template <typename T, int lines, int length>
inline void load_tile(
    threadgroup T* tile, device const T* source, long line_stride, int lines_left, int length_left, bool aligned, uint thread_index) {
  constexpr int width = 16 / sizeof(T);
  constexpr int line_vectors = length / width;
  for (int i = int(thread_index); i < lines * line_vectors; i += int(tile_threads)) {
    const int line = i / line_vectors;
    const int at = i % line_vectors * width;
    threadgroup T* to = tile + line * (length + width) + at;
    device const T* from = source + line * line_stride + at;
    if (aligned && line < lines_left && at + width <= length_left) {
      *reinterpret_cast<threadgroup uint4*>(to) = *reinterpret_cast<device const uint4*>(from);
    } else {
      GROUPED_UNROLL
      for (int j = 0; j < width; ++j) {
        T value = T(0.0f);
        if (line < lines_left && at + j < length_left) {
          value = from[j];
        }
        to[j] = value;
      }
    }
  }
}

// x_along, weight_along: whether adjacent elements of x and the weight lie along K; else along the rows or the outputs.
template <typename T, bool x_along, bool weight_along>
[[kernel]] void grouped_tiles(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const int* offs [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant GroupedLaunch& p [[buffer(4)]],
    uint3 position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int width = 16 / sizeof(T);
  constexpr int x_lines = x_along ? tile_rows : tile_length, x_length = x_along ? tile_length : tile_rows;
  constexpr int w_lines = weight_along ? tile_outputs : tile_length, w_length = weight_along ? tile_length : tile_outputs;
  constexpr int x_line = x_length + width, w_line = w_length + width;
  threadgroup uint4 x_memory[x_lines * x_line / width];
  threadgroup uint4 w_memory[w_lines * w_line / width];
  threadgroup float block[4][8 * simd_width];
  threadgroup T* x_tile = reinterpret_cast<threadgroup T*>(x_memory);
  threadgroup T* w_tile = reinterpret_cast<threadgroup T*>(w_memory);

  uint group = position.z;
  int row = int(position.y) * tile_rows, end = min(int(p.rows), row + tile_rows);
  int k = 0, k_end = int(p.length);
  if (p.kind == kind_rows) {
    const Rows r = rows_of_tile(offs, p, position.y, lane);
    if (r.begin == r.end) {
      return;
    }
    group = r.group;
    row = r.begin;
    end = r.end;
    k_end = long(group) < p.groups ? k_end : 0;
  } else if (p.kind == kind_length) {
    k = begin_of(offs, p, group, k_end, lane);
    k_end = max(k, bounded(offs, p, group, k_end));
  }
  const int first = int(position.x) * tile_outputs;
  const int rows_left = end - row, outputs_left = int(p.outputs) - first;
  const long x_at = (p.kind == kind_rows ? 0 : long(group) * p.x_group) + row * p.x_row + k * p.x_step;
  const long w_at = long(group) * p.weight_group + first * p.weight_row + k * p.weight_step;
  const bool x_aligned = (p.x_skew + x_at) % width == 0 && (x_along ? p.x_row : p.x_step) % width == 0;
  const bool w_aligned =
      (p.weight_skew + w_at) % width == 0 && (weight_along ? p.weight_row : p.weight_step) % width == 0;

  // A SIMD-group takes 16 rows by 32 outputs.
  const int r0 = int(simdgroup / 2) * 16, n0 = int(simdgroup % 2) * 32;
  simdgroup_matrix<float, 8, 8> sums[2][4];
  GROUPED_UNROLL
  for (int r = 0; r < 2; ++r) {
    GROUPED_UNROLL
    for (int n = 0; n < 4; ++n) {
      sums[r][n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
  for (int done = 0; k + done < k_end; done += tile_length) {
    const int left = k_end - k - done;
    device const T* x_from = x + x_at + done * p.x_step;
    device const T* w_from = weight + w_at + done * p.weight_step;
    load_tile<T, x_lines, x_length>(
        x_tile, x_from, x_along ? p.x_row : p.x_step, x_along ? rows_left : left, x_along ? left : rows_left, x_aligned, thread_index);
    load_tile<T, w_lines, w_length>(
        w_tile, w_from, weight_along ? p.weight_row : p.weight_step, weight_along ? outputs_left : left,
        weight_along ? left : outputs_left, w_aligned, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const int steps = min(left, tile_length);
    for (int i = 0; i < steps; i += 8) {
      simdgroup_matrix<T, 8, 8> a[2], b[4];
      GROUPED_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int at = r0 + r * 8;
        simdgroup_load(a[r], x_tile + (x_along ? at * x_line + i : i * x_line + at), x_line, ulong2(0), !x_along);
      }
      GROUPED_UNROLL
      for (int n = 0; n < 4; ++n) {
        const int at = n0 + n * 8;
        simdgroup_load(b[n], w_tile + (weight_along ? at * w_line + i : i * w_line + at), w_line, ulong2(0), weight_along);
      }
      GROUPED_UNROLL
      for (int r = 0; r < 2; ++r) {
        GROUPED_UNROLL
        for (int n = 0; n < 4; ++n) {
          simdgroup_multiply_accumulate(sums[r][n], a[r], b[n], sums[r][n]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  // Through threadgroup memory, eight rows at a time: neighbouring lanes then write neighbouring outputs.
  const int n = first + n0 + int(lane);
  device T* y_rows = y + (p.kind == kind_rows ? 0 : long(group) * p.y_group);
  GROUPED_UNROLL
  for (int r = 0; r < 2; ++r) {
    GROUPED_UNROLL
    for (int c = 0; c < 4; ++c) {
      simdgroup_store(sums[r][c], &block[simdgroup][c * 8], simd_width);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < 8; ++i) {
      const int at = row + r0 + r * 8 + i;
      if (at < end && n < int(p.outputs)) {
        y_rows[at * p.y_row + n * p.y_step] = T(block[simdgroup][i * simd_width + lane]);
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// ---- topk ---------------------------------------------------------------------------------------------------------

constant constexpr int topk_most = 32;          // routing.py: MAX_K
constant constexpr int topk_held = 16;          // candidates in the registers of a lane
constant constexpr int topk_slice = 512;        // routing.py: SLICE; simd_width * topk_held
constant constexpr int topk_few = 8;            // found one after the other
constant constexpr uint topk_simdgroups = 8;    // routing.py: MAX_SLICES

struct TopkLaunch {
  long rows;
  long candidates;
  long k;
  long row;            // strides of x
  long step;
  long largest;
  long slices;         // SIMD-groups that share a row: 1, or 8
};

inline uint bits_of(float v) { return as_type<uint>(v); }
inline uint bits_of(half v) { return uint(as_type<ushort>(v)); }
inline uint bits_of(bfloat v) { return uint(as_type<ushort>(v)); }

// A key for each value: the greater, the earlier in the result, equal for equal values. 0 is left for what is no candidate. By its
// bits, so that no GPU takes a subnormal for zero. NaN counts as the greatest value, as on the CPU: first of the largest,
// last of the smallest.
template <typename T>
inline uint key_of(T value, bool largest) {
  constexpr uint sign = sizeof(T) == 4 ? 0x80000000u : 0x8000u;
  constexpr uint infinity = sizeof(T) == 4 ? 0x7f800000u : (is_same<T, half>::value ? 0x7c00u : 0x7f80u);
  const uint bits = bits_of(value);
  const uint magnitude = bits & (sign - 1);
  if (magnitude > infinity) {
    return largest ? 0xffffffffu : 1u;
  }
  // -infinity .. infinity as 2 + (0 .. 2 * infinity); both zeros are one value.
  const uint ordered = (bits & sign) != 0 ? infinity - magnitude : infinity + magnitude;
  return 2 + (largest ? ordered : 2 * infinity - ordered);
}

struct Candidate {
  uint key;
  uint index;
};

// The best of the lanes' candidates: the greatest key, and of equal ones the lowest index. The same in all lanes.
inline Candidate best_of(Candidate mine) {
  const uint key = simd_max(mine.key);
  return {key, simd_min(mine.key == key ? mine.index : 0xffffffffu)};
}

// The k best of what the lanes hold, one after the other: number i in lane i.
template <int count>
inline Candidate best_few(thread Candidate* held, int k, uint lane) {
  Candidate chosen = {0u, 0xffffffffu};
  uint taken = 0xffffffffu;
  for (int i = 0; i < k; ++i) {
    Candidate mine = {0u, 0xffffffffu};
    GROUPED_UNROLL
    for (int j = 0; j < count; ++j) {
      held[j].key = held[j].index == taken ? 0u : held[j].key;
      if (held[j].key > mine.key || (held[j].key == mine.key && held[j].index < mine.index)) {
        mine = held[j];
      }
    }
    const Candidate best = best_of(mine);
    taken = best.index;
    if (int(lane) == i) {
      chosen = best;
    }
  }
  return chosen;
}

// Is `a` earlier in the result?
inline bool before(Candidate a, Candidate b) { return a.key > b.key || (a.key == b.key && a.index < b.index); }

// The earlier one of this lane's and its partner's, or the later one.
inline Candidate exchange(Candidate mine, ushort mask, bool earlier) {
  const Candidate other = {simd_shuffle_xor(mine.key, mask), simd_shuffle_xor(mine.index, mask)};
  return before(mine, other) == earlier ? mine : other;
}

// `lists` lists of 32, each sorted over the lanes, to one of the best 32 in c[0]. Of two, the best of a lane's and of the mirrored lane's
// of the other are the best 32, rising and then falling: five exchanges sort them.
template <int lists>
struct Merge {
  static void run(thread Candidate* c, uint lane) {
    constexpr int pairs = lists / 2;
    GROUPED_UNROLL
    for (int i = 0; i < pairs; ++i) {
      const Candidate other = {simd_shuffle_xor(c[i + pairs].key, ushort(31)), simd_shuffle_xor(c[i + pairs].index, ushort(31))};
      c[i] = before(c[i], other) ? c[i] : other;
    }
    for (ushort mask = simd_width / 2; mask > 0; mask /= 2) {
      GROUPED_UNROLL
      for (int i = 0; i < pairs; ++i) {
        c[i] = exchange(c[i], mask, (lane & mask) == 0);
      }
    }
    Merge<pairs>::run(c, lane);
  }
};
template <>
struct Merge<1> {
  static void run(thread Candidate*, uint) {}
};

// Sorts each of `lists` over the lanes: bitonic, 15 exchanges.
template <int lists>
inline void sort_lists(thread Candidate* c, uint lane) {
  for (uint size = 2; size <= simd_width; size *= 2) {
    for (uint mask = size / 2; mask > 0; mask /= 2) {
      const bool earlier = ((lane & mask) == 0) == ((lane & size) == 0);
      GROUPED_UNROLL
      for (int i = 0; i < lists; ++i) {
        c[i] = exchange(c[i], ushort(mask), earlier);
      }
    }
  }
}

// A row, or 512 candidates of one, per SIMD-group: k times the best of what its lanes hold in registers, or for a larger k all of them
// sorted by 32 and merged. Longer rows: their SIMD-groups' results meet in threadgroup memory, where the first SIMD-group does the same.
template <typename T>
[[kernel]] void topk_rows(
    device const T* x [[buffer(0)]],
    device T* values [[buffer(1)]],
    device long* indices [[buffer(2)]],
    constant TopkLaunch& p [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup Candidate winners[topk_simdgroups][topk_most];
  const bool shared_row = p.slices > 1;
  const long row = shared_row ? long(group) : long(group) * topk_simdgroups + simdgroup;
  const int k = int(p.k);
  if (row >= p.rows) {
    return;  // only where rows are not shared: no barrier follows
  }
  device const T* from = x + row * p.row;
  Candidate held[topk_held];
  const uint first = shared_row ? simdgroup * topk_slice : 0;
  GROUPED_UNROLL
  for (int i = 0; i < topk_held; ++i) {
    const uint index = first + i * simd_width + lane;
    held[i].index = index;
    held[i].key = long(index) < p.candidates ? key_of<T>(from[index * p.step], p.largest != 0) : 0u;
  }
  const bool sorting = k > topk_few;
  Candidate chosen;
  if (sorting) {
    sort_lists<topk_held>(held, lane);
    Merge<topk_held>::run(held, lane);
    chosen = held[0];
  } else {
    chosen = best_few<topk_held>(held, k, lane);
  }
  if (shared_row) {
    winners[simdgroup][lane] = int(lane) < k ? chosen : Candidate{0u, 0xffffffffu};
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup != 0) {
      return;
    }
    GROUPED_UNROLL
    for (int i = 0; i < int(topk_simdgroups); ++i) {
      held[i] = winners[i][lane];
    }
    if (sorting) {
      Merge<int(topk_simdgroups)>::run(held, lane);
      chosen = held[0];
    } else {
      chosen = best_few<int(topk_simdgroups)>(held, k, lane);
    }
  }
  if (int(lane) < k) {
    values[row * k + lane] = from[chosen.index * p.step];
    indices[row * k + lane] = long(chosen.index);
  }
}

// ---- histc --------------------------------------------------------------------------------------------------------

constant constexpr uint histc_bins = 4096;      // routing.py: GROUP_BINS; counted in threadgroup memory

struct HistcLaunch {
  long elements;
  long bins;
};

// floor(distance * bins / range), exactly: bins below 2^31, distance at most range.
inline ulong bin_of(ulong distance, ulong range, ulong bins) {
  if (distance < (1ul << 32)) {
    return distance * bins / range;
  }
  if (range >> 63 != 0) {  // so that what follows stays within 64 bits; beyond 2^63 a bin's edge may be off by one value
    distance >>= 1;
    range >>= 1;
  }
  ulong quotient = 0, rest = 0;
  for (int bit = 30; bit >= 0; --bit) {
    quotient *= 2;
    rest *= 2;
    if (rest >= range) {
      rest -= range;
      quotient += 1;
    }
    if ((bins >> bit & 1) != 0) {
      rest += distance;
      if (rest >= range) {
        rest -= range;
        quotient += 1;
      }
    }
  }
  return quotient;
}

// The bin of a value, or `bins` if it is outside of the edges. Edges that are the same stand for themselves and one more on both sides.
inline ulong bin_of(long value, constant long* edges, ulong bins) {
  const long same = edges[0] == edges[1] ? 1 : 0;
  const long low = edges[0] - same, high = edges[1] + same;
  if (value < low || value > high) {
    return bins;
  }
  return min(bin_of(ulong(value) - ulong(low), ulong(high) - ulong(low), bins), bins - 1);
}

// One threadgroup counts in its own memory, and writes each count once: for a router's indices.
template <typename T>
[[kernel]] void histc_group(
    device const T* x [[buffer(0)]],
    constant long* edges [[buffer(1)]],
    device T* counts [[buffer(2)]],
    constant HistcLaunch& p [[buffer(3)]],
    uint thread_index [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  threadgroup atomic_uint own[histc_bins];
  for (uint i = thread_index; i < uint(p.bins); i += threads) {
    atomic_store_explicit(&own[i], 0u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < uint(p.elements); i += threads) {
    const ulong bin = bin_of(long(x[i]), edges, ulong(p.bins));
    if (bin < ulong(p.bins)) {
      atomic_fetch_add_explicit(&own[bin], 1u, memory_order_relaxed);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < uint(p.bins); i += threads) {
    counts[i] = T(atomic_load_explicit(&own[i], memory_order_relaxed));
  }
}

// Many elements or bins: everyone adds to counts that were zero before.
template <typename T>
[[kernel]] void histc_many(
    device const T* x [[buffer(0)]],
    constant long* edges [[buffer(1)]],
    device atomic_uint* counts [[buffer(2)]],
    constant HistcLaunch& p [[buffer(3)]],
    uint index [[thread_position_in_grid]],
    uint threads [[threads_per_grid]]) {
  for (ulong i = index; i < ulong(p.elements); i += threads) {
    const ulong bin = bin_of(long(x[i]), edges, ulong(p.bins));
    if (bin < ulong(p.bins)) {
      atomic_fetch_add_explicit(&counts[bin], 1u, memory_order_relaxed);
    }
  }
}

// ---- instantiations -----------------------------------------------------------------------------------------------

#define INSTANTIATE(function, name, ...) \
  template [[host_name(name)]] [[kernel]] decltype(function<__VA_ARGS__>) function<__VA_ARGS__>;
#define INSTANTIATE_FLOATS(name, T)                                                    \
  INSTANTIATE(grouped_vectors, "grouped_vectors_" #name, T)                            \
  INSTANTIATE(grouped_columns, "grouped_columns_" #name, T, 1)                         \
  INSTANTIATE(grouped_columns, "grouped_columns_" #name "_wide", T, 8 / sizeof(T))     \
  INSTANTIATE(grouped_tiles, "grouped_tiles_" #name "_rows_columns", T, false, false)  \
  INSTANTIATE(grouped_tiles, "grouped_tiles_" #name "_rows_along", T, false, true)     \
  INSTANTIATE(grouped_tiles, "grouped_tiles_" #name "_along_columns", T, true, false)  \
  INSTANTIATE(grouped_tiles, "grouped_tiles_" #name "_along_along", T, true, true)     \
  INSTANTIATE(topk_rows, "topk_" #name, T)
#define INSTANTIATE_INTEGERS(name, T)             \
  INSTANTIATE(histc_group, "histc_group_" #name, T) \
  INSTANTIATE(histc_many, "histc_many_" #name, T)

INSTANTIATE_FLOATS(float, float)
INSTANTIATE_FLOATS(half, half)
INSTANTIATE_FLOATS(bfloat, bfloat)
INSTANTIATE_INTEGERS(uchar, uchar)
INSTANTIATE_INTEGERS(char, char)
INSTANTIATE_INTEGERS(short, short)
INSTANTIATE_INTEGERS(int, int)
INSTANTIATE_INTEGERS(long, long)
