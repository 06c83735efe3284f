// softmax and log_softmax, forward and backward.
//
// All four are one job with four small differences: reduce each row to a state, then make each output element from its
// input elements and the row's state. What differs stands in an Op (Forward<log>, Backward<log>); how rows are spread
// over threads stands in the kernels:
//
//   rows      a row in the registers of a few lanes, a SIMD-group or a threadgroup: one read of memory
//   whole     the same for a threadgroup each, of the usual rows: whole vectors, in one dimension
//   looped    longer rows, many of them: a threadgroup each, which reads its row twice
//   partial   few very long rows: each is cut into chunks, a threadgroup each. This launch reduces the chunks,
//   apply     and this one merges the chunks' states, every SIMD-group for itself, and writes. Of the usual rows: whole_partial and
//             whole_apply
//   columns   neighbouring threads take neighbouring rows, for softmax over a dimension that is not the innermost one,
//             and for rows of a few elements
//
// geometry.py chooses. A row's elements are added up in an order that only shapes and strides decide, so results do not
// depend on how a GPU schedules its threads. Everything is computed in float.
//
// The maximum of a state may be -infinity: so far there was nothing else. exp(x - max) would then be NaN, so sums are
// taken against finite(max); a whole row of -infinity still ends as NaN, since -infinity - -infinity is. NaN and +infinity
// reach the sum as NaN by themselves, and from there every element of the row.

#include <metal_stdlib>
using namespace metal;

// Arrays indexed by these loops then live in registers.
#define SOFTMAX_UNROLL _Pragma("clang loop unroll(full)")

constant constexpr uint simd_width = 32;
constant constexpr uint max_simdgroups = 32;
constant constexpr uint max_chunks = 128;      // geometry.py: MAX_CHUNKS
constant constexpr uint column_threads = 256;  // geometry.py: COLUMN_THREADS
constant constexpr int column_batch = 4;       // elements of each column in flight

// The launch, as geometry.py lists it: torch.mps.compile_shader hands a list of ints over as int64s. In elements.
struct SoftmaxLaunch {
  long rows;
  long length;       // of a row, at most 2^31
  long a_offset;     // from the bound tensors to the first row of this launch
  long b_offset;
  long out_offset;
  long a_stride;     // along a row
  long b_stride;
  long out_stride;
  long vectors;      // 1: 16-byte vectors along the row. All strides along it are 1, and all rows' starts are congruent
  long skew;         // elements by which the bound `a` lies past a boundary of a vector
  long row_threads;  // threads that share a row (columns: a column)
  long chunks;       // partial, apply: chunks of a row,
  long chunk_blocks; // and blocks of a chunk; a block is what a threadgroup reads at once
  long dims;         // dimensions of the rows beyond the innermost one, which is
  long row_size;     // this one: the usual sole dimension, so that nothing waits for a second buffer
  long row_a_stride;
  long row_b_stride;
  long row_out_stride;
};

// A dimension of the rows beyond the innermost one, from inside out.
struct SoftmaxDim {
  long size;
  long a_stride;
  long b_stride;
  long out_stride;
};

// ---- 16-byte vectors ---------------------------------------------------------------------------------------------

template <typename T>
METAL_FUNC float get_lane(uint4 v, int j);
template <>
METAL_FUNC float get_lane<float>(uint4 v, int j) { return as_type<float>(v[j]); }
template <>
METAL_FUNC float get_lane<half>(uint4 v, int j) { return float(as_type<half>(ushort(v[j >> 1] >> (16 * (j & 1))))); }
template <>
METAL_FUNC float get_lane<bfloat>(uint4 v, int j) { return as_type<float>((v[j >> 1] >> (16 * (j & 1))) << 16); }

METAL_FUNC void set_lane(thread uint4& v, int j, float x) { v[j] = as_type<uint>(x); }
METAL_FUNC void set_lane(thread uint4& v, int j, half x) { v[j >> 1] |= uint(as_type<ushort>(x)) << (16 * (j & 1)); }
METAL_FUNC void set_lane(thread uint4& v, int j, bfloat x) { v[j >> 1] |= uint(as_type<ushort>(x)) << (16 * (j & 1)); }

// N elements at p, which lies on a 16-byte boundary if they are whole vectors.
template <typename T, int N>
METAL_FUNC void load(device const T* p, thread float* x) {
  constexpr int lanes = 16 / sizeof(T);
  if (N % lanes == 0) {
    SOFTMAX_UNROLL
    for (int i = 0; i < N / lanes; ++i) {
      const uint4 v = reinterpret_cast<device const uint4*>(p)[i];
      SOFTMAX_UNROLL
      for (int j = 0; j < lanes; ++j) {
        x[i * lanes + j] = get_lane<T>(v, j);
      }
    }
  } else {
    SOFTMAX_UNROLL
    for (int j = 0; j < N; ++j) {
      x[j] = float(p[j]);
    }
  }
}

// The same as the bits that they arrive in, and what these stand for.
template <typename T, int N>
struct Bits {
  static constant constexpr int count = (N * sizeof(T) + 15) / 16;
  uint4 v[count];

  METAL_FUNC static Bits load(device const T* p) {
    Bits b;
    SOFTMAX_UNROLL
    for (int i = 0; i < count; ++i) {
      b.v[i] = reinterpret_cast<device const uint4*>(p)[i];
    }
    return b;
  }
  METAL_FUNC void unpack(thread float* x) const {
    constexpr int lanes = 16 / sizeof(T);
    SOFTMAX_UNROLL
    for (int j = 0; j < N; ++j) {
      x[j] = get_lane<T>(v[j / lanes], j % lanes);
    }
  }
};

template <typename T, int N>
METAL_FUNC void store(device T* p, thread const float* x) {
  constexpr int lanes = 16 / sizeof(T);
  if (N % lanes == 0) {
    SOFTMAX_UNROLL
    for (int i = 0; i < N / lanes; ++i) {
      uint4 v = uint4(0);
      SOFTMAX_UNROLL
      for (int j = 0; j < lanes; ++j) {
        set_lane(v, j, T(x[i * lanes + j]));
      }
      reinterpret_cast<device uint4*>(p)[i] = v;
    }
  } else {
    SOFTMAX_UNROLL
    for (int j = 0; j < N; ++j) {
      p[j] = T(x[j]);
    }
  }
}

// ---- lanes that share a row --------------------------------------------------------------------------------------

// `lanes` is 32 or a smaller power of two, the same in the whole SIMD-group. All its lanes must take part.
METAL_FUNC float row_max(float x, uint lanes) {
  if (lanes == simd_width) {
    return simd_max(x);
  }
  for (uint mask = lanes / 2; mask > 0; mask /= 2) {
    x = max(x, simd_shuffle_xor(x, ushort(mask)));
  }
  return x;
}

METAL_FUNC float row_sum(float x, uint lanes) {
  if (lanes == simd_width) {
    return simd_sum(x);
  }
  for (uint mask = lanes / 2; mask > 0; mask /= 2) {
    x += simd_shuffle_xor(x, ushort(mask));
  }
  return x;
}

// ---- what is computed --------------------------------------------------------------------------------------------

// exp(x) for x <= 0, by three operations an element: exp2 is exact to a unit or two, and the roundings of x * log2(e) move the result
// by about |x| units of 2^-24, as the rounding of x itself does, which is the distance from a maximum. An Apple GPU's exp2 is put to
// the test by the self-check.
METAL_FUNC float power(float x) { return fast::exp2(x * M_LOG2E_F); }

METAL_FUNC float finite(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

// y = exp(x - max) / sum, or its logarithm x - max - log(sum). `a` is x; there is no `b`.
template <bool log_of>
struct Forward {
  typedef float2 State;  // the maximum so far, and the sum of exp(x - finite(maximum))
  typedef float2 Final;
  static constant constexpr int inputs = 1;
  static constant constexpr float fill = -INFINITY;  // adds nothing to a state

  METAL_FUNC static State empty() { return State(-INFINITY, 0.0f); }

  METAL_FUNC static State merge(State s, State t) {
    const float maximum = max(s.x, t.x);
    const float r = finite(maximum);
    return State(maximum, s.y * power(s.x - r) + t.y * power(t.x - r));
  }

  METAL_FUNC static State join(State s, uint lanes) {
    const float maximum = row_max(s.x, lanes);
    return State(maximum, row_sum(s.y * power(s.x - finite(maximum)), lanes));
  }

  // Of `count` states, N at most for each lane.
  template <int N>
  METAL_FUNC static State join_all(device const State* states, uint count, uint lane) {
    State s[N];
    float maximum = -INFINITY;
    SOFTMAX_UNROLL
    for (int i = 0; i < N; ++i) {
      s[i] = empty();
      if (i * simd_width + lane < count) {
        s[i] = states[i * simd_width + lane];
      }
      maximum = max(maximum, s[i].x);
    }
    maximum = simd_max(maximum);
    const float r = finite(maximum);
    float sum = 0.0f;
    SOFTMAX_UNROLL
    for (int i = 0; i < N; ++i) {
      if (i * simd_width < count) {
        sum += s[i].y * power(s[i].x - r);
      }
    }
    return State(maximum, simd_sum(sum));
  }

  template <int N>
  METAL_FUNC static float maximum_of(thread const float* a) {
    float maximum = a[0];
    SOFTMAX_UNROLL
    for (int i = 1; i < N; ++i) {
      maximum = max(maximum, a[i]);
    }
    return maximum;
  }

  template <int N>
  METAL_FUNC static State absorb(State s, thread const float* a, thread const float*) {
    const float maximum = max(s.x, maximum_of<N>(a));
    const float r = finite(maximum);
    float sum = s.y * power(s.x - r);
    SOFTMAX_UNROLL
    for (int i = 0; i < N; ++i) {
      sum += power(a[i] - r);
    }
    return State(maximum, sum);
  }

  METAL_FUNC static Final finish(State total) { return Final(total.x, log_of ? log(total.y) : 1.0f / total.y); }
  METAL_FUNC static float value(float a, float, Final f) { return log_of ? a - f.x - f.y : power(a - f.x) * f.y; }

  // Rows held in registers: the exponentials, against the maximum of this SIMD-group's part, take the place of x, so that each
  // is computed once.
  template <int N>
  METAL_FUNC static State hold(thread float* a, thread const float*, uint lanes) {
    const float maximum = row_max(maximum_of<N>(a), lanes);
    const float r = finite(maximum);
    float sum = 0.0f;
    SOFTMAX_UNROLL
    for (int i = 0; i < N; ++i) {
      const float e = power(a[i] - r);
      sum += e;
      a[i] = log_of ? a[i] : e;
    }
    return State(maximum, row_sum(sum, lanes));
  }

  METAL_FUNC static Final finish_held(State mine, State total) {
    return log_of ? finish(total) : Final(0.0f, power(mine.x - total.x) / total.y);
  }
  METAL_FUNC static float value_held(float a, float b, Final f) { return log_of ? value(a, b, f) : a * f.y; }
};

// `a` is the gradient g of the output y, `b` is y: y * (g - sum(g * y)), or of the logarithm g - exp(y) * sum(g).
template <bool log_of>
struct Backward {
  typedef float State;
  typedef float Final;
  static constant constexpr int inputs = 2;
  static constant constexpr float fill = 0.0f;

  METAL_FUNC static State empty() { return 0.0f; }
  METAL_FUNC static State merge(State s, State t) { return s + t; }
  METAL_FUNC static State join(State s, uint lanes) { return row_sum(s, lanes); }

  template <int N>
  METAL_FUNC static State join_all(device const State* states, uint count, uint lane) {
    State s = 0.0f;
    for (uint i = lane; i < count; i += simd_width) {
      s += states[i];
    }
    return simd_sum(s);
  }

  template <int N>
  METAL_FUNC static State absorb(State s, thread const float* a, thread const float* b) {
    SOFTMAX_UNROLL
    for (int i = 0; i < N; ++i) {
      s = log_of ? s + a[i] : fma(a[i], b[i], s);
    }
    return s;
  }

  METAL_FUNC static Final finish(State total) { return total; }
  METAL_FUNC static float value(float a, float b, Final f) { return log_of ? a - power(b) * f : b * (a - f); }

  template <int N>
  METAL_FUNC static State hold(thread float* a, thread const float* b, uint lanes) {
    return row_sum(absorb<N>(0.0f, a, b), lanes);
  }
  METAL_FUNC static Final finish_held(State, State total) { return total; }
  METAL_FUNC static float value_held(float a, float b, Final f) { return value(a, b, f); }
};

// The states of a threadgroup's SIMD-groups, as one; each lane must hold its SIMD-group's.
template <typename Op, typename State>
METAL_FUNC State join_group(State s, threadgroup State* shared, uint lane, uint simdgroup, uint simdgroups) {
  if (simdgroups == 1) {
    return s;
  }
  if (lane == 0) {
    shared[simdgroup] = s;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return Op::join(lane < simdgroups ? shared[lane] : Op::empty(), simd_width);
}

// ---- where things are --------------------------------------------------------------------------------------------

struct Bases {
  long a;
  long b;
  long out;
};

METAL_FUNC Bases locate(uint row, constant SoftmaxLaunch& p, constant SoftmaxDim* dims) {
  const int count = int(p.dims);
  // The outermost coordinate is what is left: a sole dimension takes no division.
  uint rest = count > 0 ? row / uint(p.row_size) : 0;
  uint i = row - rest * uint(p.row_size);
  Bases at = {
      p.a_offset + long(i) * p.row_a_stride,
      p.b_offset + long(i) * p.row_b_stride,
      p.out_offset + long(i) * p.row_out_stride,
  };
  for (int d = 0; d < count; ++d) {
    row = rest;
    rest = d + 1 < count ? row / uint(dims[d].size) : 0;
    i = row - rest * uint(dims[d].size);
    at.a += long(i) * dims[d].a_stride;
    at.b += long(i) * dims[d].b_stride;
    at.out += long(i) * dims[d].out_stride;
  }
  return at;
}

// A thread's part of a row. With vectors, the row is numbered in vectors from the 16-byte boundary at or below its first
// element on, which is element `lead` there; a thread takes every `threads`th vector. Without, every `threads`th element.
template <int V>
struct Part {
  bool vectors;
  uint length;
  uint lead;
  uint low;   // the first and the last vector that lie in the row whole; there is one
  uint high;
  uint threads;
  uint me;

  METAL_FUNC Part(constant SoftmaxLaunch& p, long a_base, uint row_threads, uint thread_in_row) {
    vectors = p.vectors != 0;
    length = uint(p.length);
    lead = vectors ? uint((p.skew + a_base) & (V - 1)) : 0;
    low = lead == 0 ? 0 : 1;
    high = (lead + length) / V - 1;
    threads = row_threads;
    me = thread_in_row;
  }

  template <int K>
  METAL_FUNC uint blocks() const {
    const uint block = K * V * threads;
    return (lead + length - 1) / block + 1;
  }

  // K vectors of block `block`, as bits. No load waits for a test: those that would miss the row are sent into it, and what they bring
  // is dropped.
  template <typename T, int K>
  METAL_FUNC void fetch(device const T* row, uint block, thread Bits<T, V>* bits) const {
    SOFTMAX_UNROLL
    for (int k = 0; k < K; ++k) {
      const uint vector = (block * K + k) * threads + me;
      bits[k] = Bits<T, V>::load(row + (long(clamp(vector, low, high) * V) - long(lead)));
    }
  }

  // Those as elements; `fill` where the row has none.
  template <typename T, int K>
  METAL_FUNC void unpack(thread const Bits<T, V>* bits, device const T* row, uint block, float fill, thread float* x) const {
    SOFTMAX_UNROLL
    for (int k = 0; k < K; ++k) {
      const uint vector = (block * K + k) * threads + me;
      bits[k].unpack(x + k * V);
      if (vector < low || vector > high) {
        SOFTMAX_UNROLL
        for (int j = 0; j < V; ++j) {
          const uint e = vector * V + j - lead;  // wraps to something large before the row
          x[k * V + j] = e < length ? float(row[e]) : fill;
        }
      }
    }
  }

  // K vectors, or as many elements.
  template <typename T, int K>
  METAL_FUNC void read(device const T* row, long stride, uint block, float fill, thread float* x) const {
    if (vectors) {
      Bits<T, V> bits[K > 0 ? K : 1];
      fetch<T, K>(row, block, bits);
      unpack<T, K>(bits, row, block, fill, x);
    } else {
      SOFTMAX_UNROLL
      for (int k = 0; k < K * V; ++k) {
        const uint e = (block * K * V + k) * threads + me;
        x[k] = float(row[long(min(e, length - 1)) * stride]);
      }
      SOFTMAX_UNROLL
      for (int k = 0; k < K * V; ++k) {
        const uint e = (block * K * V + k) * threads + me;
        x[k] = e < length ? x[k] : fill;
      }
    }
  }

  template <typename T, int K>
  METAL_FUNC void write(device T* row, long stride, uint block, thread const float* x) const {
    if (vectors) {
      SOFTMAX_UNROLL
      for (int k = 0; k < K; ++k) {
        const uint vector = (block * K + k) * threads + me;
        if (vector >= low && vector <= high) {
          store<T, V>(row + (long(vector * V) - long(lead)), x + k * V);
          continue;
        }
        SOFTMAX_UNROLL
        for (int j = 0; j < V; ++j) {
          const uint e = vector * V + j - lead;
          if (e < length) {
            row[e] = T(x[k * V + j]);
          }
        }
      }
    } else {
      SOFTMAX_UNROLL
      for (int k = 0; k < K * V; ++k) {
        const uint e = (block * K * V + k) * threads + me;
        if (e < length) {
          row[long(e) * stride] = T(x[k]);
        }
      }
    }
  }
};

// K vectors of each input. A second input that there is not has one element, which nothing looks at.
template <typename Op, typename T, int K, int V>
METAL_FUNC void read_inputs(
    device const T* a, device const T* b, constant SoftmaxLaunch& p, thread const Part<V>& part, uint block, thread float* x,
    thread float* y) {
  part.template read<T, K>(a, p.a_stride, block, Op::fill, x);
  y[0] = 0.0f;
  if (Op::inputs == 2) {
    part.template read<T, Op::inputs == 2 ? K : 0>(b, p.b_stride, block, Op::fill, y);
  }
}

// The output's elements in the place of x.
template <typename Op, int N>
METAL_FUNC void apply_state(typename Op::Final f, thread float* x, thread const float* y) {
  SOFTMAX_UNROLL
  for (int i = 0; i < N; ++i) {
    x[i] = Op::value(x[i], y[Op::inputs == 2 ? i : 0], f);
  }
}

// Elements of a vector: sixteen bytes of the narrower of the two types.
template <typename T, typename U>
constexpr int vector_length() {
  return 16 / (sizeof(T) < sizeof(U) ? sizeof(T) : sizeof(U));
}

// ---- kernels -----------------------------------------------------------------------------------------------------

#define SOFTMAX_INPUTS                         \
  device const T* a [[buffer(0)]],             \
  device const T* b [[buffer(1)]],             \
  constant SoftmaxLaunch& p [[buffer(2)]],     \
  constant SoftmaxDim* dims [[buffer(3)]]

#define SOFTMAX_ARGUMENTS SOFTMAX_INPUTS, device U* out [[buffer(4)]]

// Of rows of whole vectors, which are one dimension. A split row's threadgroups are a grid of chunks by rows: what a group has
// to do is known without a division.
#define SOFTMAX_WHOLE_INPUTS                   \
  device const T* a [[buffer(0)]],             \
  device const T* b [[buffer(1)]],             \
  constant SoftmaxLaunch& p [[buffer(2)]]

#define SOFTMAX_WHOLE_ARGUMENTS SOFTMAX_WHOLE_INPUTS, device U* out [[buffer(3)]]

#define SOFTMAX_CHUNK_POSITIONS                              \
  uint2 group [[threadgroup_position_in_grid]],              \
  uint2 grid [[threadgroups_per_grid]],                      \
  uint2 group_size [[threads_per_threadgroup]],              \
  uint thread_in_group [[thread_index_in_threadgroup]],      \
  uint lane [[thread_index_in_simdgroup]],                   \
  uint simdgroup [[simdgroup_index_in_threadgroup]]

#define SOFTMAX_POSITIONS                                      \
  uint group [[threadgroup_position_in_grid]],                 \
  uint thread_in_group [[thread_position_in_threadgroup]],     \
  uint group_threads [[threads_per_threadgroup]],              \
  uint lane [[thread_index_in_simdgroup]],                     \
  uint simdgroup [[simdgroup_index_in_threadgroup]]

// Either a whole threadgroup shares a row, or `row_threads` lanes of a SIMD-group do. The row fits into one block.
template <typename Op, typename T, typename U, int K>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax_rows(SOFTMAX_ARGUMENTS, SOFTMAX_POSITIONS) {
  constexpr int V = vector_length<T, U>();
  threadgroup typename Op::State shared[max_simdgroups];
  const uint row_threads = uint(p.row_threads);
  // Lanes that share a row are a power of two: no division stands before the first load.
  const bool shared_simdgroup = row_threads <= simd_width;
  const uint shift = shared_simdgroup ? ctz(row_threads) : 0;
  const uint row = shared_simdgroup ? (group * group_threads + thread_in_group) >> shift : group;
  const uint thread_in_row = shared_simdgroup ? thread_in_group & (row_threads - 1) : thread_in_group;
  const bool exists = row < uint(p.rows);
  // The last group may have fewer rows than room: its other threads follow the last row's and write nothing.
  const Bases at = locate(exists ? row : uint(p.rows) - 1, p, dims);
  const Part<V> part(p, at.a, row_threads, thread_in_row);

  float x[K * V];
  float y[Op::inputs == 2 ? K * V : 1];
  read_inputs<Op, T, K>(a + at.a, b + at.b, p, part, 0, x, y);
  const typename Op::State mine = Op::template hold<K * V>(x, y, min(row_threads, simd_width));
  const typename Op::State total =
      join_group<Op>(mine, shared, lane, simdgroup, shared_simdgroup ? 1 : group_threads / simd_width);
  const typename Op::Final f = Op::finish_held(mine, total);
  SOFTMAX_UNROLL
  for (int i = 0; i < K * V; ++i) {
    x[i] = Op::value_held(x[i], y[Op::inputs == 2 ? i : 0], f);
  }
  if (exists) {
    part.template write<U, K>(out + at.out, p.out_stride, 0, x);
  }
}

// The state of blocks [begin, end) of a row, the same in all lanes of a SIMD-group.
template <typename Op, typename T, int K, int V>
METAL_FUNC typename Op::State reduce_blocks(
    device const T* a, device const T* b, constant SoftmaxLaunch& p, thread const Part<V>& part, uint begin, uint end) {
  typename Op::State s = Op::empty();
  for (uint block = begin; block < end; ++block) {
    float x[K * V];
    float y[Op::inputs == 2 ? K * V : 1];
    read_inputs<Op, T, K>(a, b, p, part, block, x, y);
    s = Op::template absorb<K * V>(s, x, y);
  }
  return Op::join(s, simd_width);
}

// Writes blocks [begin, end), the last one first: it is the likeliest to be in the cache still.
template <typename Op, typename T, typename U, int K, int V>
METAL_FUNC void write_blocks(
    device const T* a, device const T* b, device U* out, constant SoftmaxLaunch& p, thread const Part<V>& part, uint begin,
    uint end, typename Op::Final f) {
  for (uint block = end; block > begin; --block) {
    float x[K * V];
    float y[Op::inputs == 2 ? K * V : 1];
    read_inputs<Op, T, K>(a, b, p, part, block - 1, x, y);
    apply_state<Op, K * V>(f, x, y);
    part.template write<U, K>(out, p.out_stride, block - 1, x);
  }
}

// The usual rows are adjacent elements that are whole vectors, in one dimension. They take fewer instructions and registers: a thread's
// vectors of such a row, `step` elements apart.
template <typename Op, typename T, typename U, int K>
struct Block {
  static constant constexpr int V = vector_length<T, U>();
  float x[K * V];
  float y[Op::inputs == 2 ? K * V : 1];

  METAL_FUNC void read(device const T* a, device const T* b, uint first, uint step, uint length) {
    Bits<T, V> a_bits[K];
    Bits<T, V> b_bits[Op::inputs == 2 ? K : 1];
    SOFTMAX_UNROLL
    for (int k = 0; k < K; ++k) {
      if (first + k * step < length) {
        a_bits[k] = Bits<T, V>::load(a + (first + k * step));
        if (Op::inputs == 2) {
          b_bits[k] = Bits<T, V>::load(b + (first + k * step));
        }
      }
    }
    y[0] = 0.0f;
    SOFTMAX_UNROLL
    for (int k = 0; k < K; ++k) {
      SOFTMAX_UNROLL
      for (int j = 0; j < V; ++j) {
        x[k * V + j] = Op::fill;
        if (Op::inputs == 2) {
          y[k * V + j] = Op::fill;
        }
      }
      if (first + k * step < length) {
        a_bits[k].unpack(x + k * V);
        if (Op::inputs == 2) {
          b_bits[k].unpack(y + k * V);
        }
      }
    }
  }

  METAL_FUNC void write(device U* out, uint first, uint step, uint length) const {
    SOFTMAX_UNROLL
    for (int k = 0; k < K; ++k) {
      if (first + k * step < length) {
        store<U, V>(out + (first + k * step), x + k * V);
      }
    }
  }
};

// A row each threadgroup.
template <typename Op, typename T, typename U, int K>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax_whole(SOFTMAX_WHOLE_ARGUMENTS, SOFTMAX_POSITIONS) {
  typedef Block<Op, T, U, K> Held;
  threadgroup typename Op::State shared[max_simdgroups];
  const uint first = thread_in_group * Held::V, step = group_threads * Held::V;
  Held held;
  held.read(a + (p.a_offset + long(group) * p.row_a_stride), b + (p.b_offset + long(group) * p.row_b_stride), first, step, uint(p.length));
  const typename Op::State mine = Op::template hold<K * Held::V>(held.x, held.y, simd_width);
  const typename Op::State total = join_group<Op>(mine, shared, lane, simdgroup, group_threads / simd_width);
  const typename Op::Final f = Op::finish_held(mine, total);
  SOFTMAX_UNROLL
  for (int i = 0; i < K * Held::V; ++i) {
    held.x[i] = Op::value_held(held.x[i], held.y[Op::inputs == 2 ? i : 0], f);
  }
  held.write(out + (p.out_offset + long(group) * p.row_out_stride), first, step, uint(p.length));
}

template <typename Op, typename T, typename U, int K>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax_looped(SOFTMAX_ARGUMENTS, SOFTMAX_POSITIONS) {
  constexpr int V = vector_length<T, U>();
  threadgroup typename Op::State shared[max_simdgroups];
  const Bases at = locate(group, p, dims);
  const Part<V> part(p, at.a, group_threads, thread_in_group);
  const uint blocks = part.template blocks<K>();
  const typename Op::State mine = reduce_blocks<Op, T, K, V>(a + at.a, b + at.b, p, part, 0, blocks);
  const typename Op::State total = join_group<Op>(mine, shared, lane, simdgroup, group_threads / simd_width);
  write_blocks<Op, T, U, K, V>(a + at.a, b + at.b, out + at.out, p, part, 0, blocks, Op::finish(total));
}

template <typename Op, typename T, typename U, int K>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax_partial(
    SOFTMAX_INPUTS, device typename Op::State* states [[buffer(4)]], SOFTMAX_POSITIONS) {
  constexpr int V = vector_length<T, U>();
  threadgroup typename Op::State shared[max_simdgroups];
  const uint chunks = uint(p.chunks);
  const uint row = group / chunks;
  const Bases at = locate(row, p, dims);
  const Part<V> part(p, at.a, group_threads, thread_in_group);
  const uint begin = (group - row * chunks) * uint(p.chunk_blocks);
  const uint end = min(begin + uint(p.chunk_blocks), part.template blocks<K>());
  const typename Op::State mine = reduce_blocks<Op, T, K, V>(a + at.a, b + at.b, p, part, begin, end);
  const typename Op::State total = join_group<Op>(mine, shared, lane, simdgroup, group_threads / simd_width);
  if (thread_in_group == 0) {
    states[group] = total;
  }
}

template <typename Op, typename T, typename U, int K>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax_apply(
    SOFTMAX_ARGUMENTS, device const typename Op::State* states [[buffer(5)]], SOFTMAX_POSITIONS) {
  constexpr int V = vector_length<T, U>();
  const uint chunks = uint(p.chunks);
  const uint row = group / chunks;
  const Bases at = locate(row, p, dims);
  const Part<V> part(p, at.a, group_threads, thread_in_group);
  const uint begin = (group - row * chunks) * uint(p.chunk_blocks);
  const uint end = min(begin + uint(p.chunk_blocks), part.template blocks<K>());

  // The first block, often the only one, is on its way while the states are merged.
  float x[K * V];
  float y[Op::inputs == 2 ? K * V : 1];
  read_inputs<Op, T, K>(a + at.a, b + at.b, p, part, begin, x, y);
  typename Op::State s = Op::empty();
  for (uint i = lane; i < chunks; i += simd_width) {
    s = Op::merge(s, states[row * chunks + i]);
  }
  const typename Op::Final f = Op::finish(Op::join(s, simd_width));
  apply_state<Op, K * V>(f, x, y);
  part.template write<U, K>(out + at.out, p.out_stride, begin, x);
  write_blocks<Op, T, U, K, V>(a + at.a, b + at.b, out + at.out, p, part, begin + 1, end, f);
}

// As above, of the usual rows; a chunk is one block.
template <typename Op, typename T, typename U, int K>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax_whole_partial(
    SOFTMAX_WHOLE_INPUTS, device typename Op::State* states [[buffer(3)]], SOFTMAX_CHUNK_POSITIONS) {
  typedef Block<Op, T, U, K> Held;
  threadgroup typename Op::State shared[max_simdgroups];
  const uint row = group.y;
  const uint first = (group.x * K * group_size.x + thread_in_group) * Held::V, step = group_size.x * Held::V;
  Held held;
  held.read(a + (p.a_offset + long(row) * p.row_a_stride), b + (p.b_offset + long(row) * p.row_b_stride), first, step, uint(p.length));
  const typename Op::State mine = Op::template hold<K * Held::V>(held.x, held.y, simd_width);
  const typename Op::State total = join_group<Op>(mine, shared, lane, simdgroup, group_size.x / simd_width);
  if (thread_in_group == 0) {
    states[row * grid.x + group.x] = total;
  }
}

template <typename Op, typename T, typename U, int K>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax_whole_apply(
    SOFTMAX_WHOLE_ARGUMENTS, device const typename Op::State* states [[buffer(4)]], SOFTMAX_CHUNK_POSITIONS) {
  typedef Block<Op, T, U, K> Held;
  const uint row = group.y;
  const uint first = (group.x * K * group_size.x + thread_in_group) * Held::V, step = group_size.x * Held::V;
  Held held;
  held.read(a + (p.a_offset + long(row) * p.row_a_stride), b + (p.b_offset + long(row) * p.row_b_stride), first, step, uint(p.length));
  const typename Op::Final f = Op::finish(Op::template join_all<max_chunks / simd_width>(states + row * grid.x, grid.x, lane));
  apply_state<Op, K * Held::V>(f, held.x, held.y);
  held.write(out + (p.out_offset + long(row) * p.row_out_stride), first, step, uint(p.length));
}

// A thread has C neighbouring rows, here columns, and of each every `row_threads`th element.
template <typename Op, typename T, typename U, int C>
[[kernel, max_total_threads_per_threadgroup(column_threads)]] void softmax_columns(
    SOFTMAX_ARGUMENTS,
    uint group [[threadgroup_position_in_grid]],
    uint thread_in_group [[thread_position_in_threadgroup]]) {
  threadgroup typename Op::State shared[column_threads];
  const uint length = uint(p.length);
  const uint depth = uint(p.row_threads);
  const uint width = column_threads / depth;
  const uint x = thread_in_group % width;
  const uint y = thread_in_group / width;
  const uint column = (group * width + x) * C;
  const bool exists = column < uint(p.rows);
  const Bases at = locate(exists ? column : uint(p.rows) - C, p, dims);

  typename Op::State s[C];
  SOFTMAX_UNROLL
  for (int c = 0; c < C; ++c) {
    s[c] = Op::empty();
  }
  for (uint first = y; first < length; first += column_batch * depth) {
    float v[column_batch][C];
    float w[column_batch][C] = {{0.0f}};
    SOFTMAX_UNROLL
    for (int i = 0; i < column_batch; ++i) {
      const long e = min(first + i * depth, length - 1);
      load<T, C>(a + (at.a + e * p.a_stride), v[i]);
      if (Op::inputs == 2) {
        load<T, C>(b + (at.b + e * p.b_stride), w[i]);
      }
    }
    SOFTMAX_UNROLL
    for (int c = 0; c < C; ++c) {
      float v_column[column_batch];
      float w_column[column_batch];
      SOFTMAX_UNROLL
      for (int i = 0; i < column_batch; ++i) {
        const bool inside = first + i * depth < length;
        v_column[i] = inside ? v[i][c] : Op::fill;
        w_column[i] = inside ? w[i][c] : Op::fill;
      }
      s[c] = Op::template absorb<column_batch>(s[c], v_column, w_column);
    }
  }

  typename Op::Final f[C];
  SOFTMAX_UNROLL
  for (int c = 0; c < C; ++c) {
    typename Op::State total = s[c];
    if (depth > 1) {
      shared[thread_in_group] = total;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      total = shared[x];
      for (uint i = 1; i < depth; ++i) {
        total = Op::merge(total, shared[i * width + x]);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    f[c] = Op::finish(total);
  }
  if (!exists) {
    return;
  }

  for (uint first = y; first < length; first += column_batch * depth) {
    float v[column_batch][C];
    float w[column_batch][C] = {{0.0f}};
    SOFTMAX_UNROLL
    for (int i = 0; i < column_batch; ++i) {
      const long e = min(first + i * depth, length - 1);
      load<T, C>(a + (at.a + e * p.a_stride), v[i]);
      if (Op::inputs == 2) {
        load<T, C>(b + (at.b + e * p.b_stride), w[i]);
      }
    }
    SOFTMAX_UNROLL
    for (int i = 0; i < column_batch; ++i) {
      SOFTMAX_UNROLL
      for (int c = 0; c < C; ++c) {
        v[i][c] = Op::value(v[i][c], w[i][c], f[c]);
      }
      if (first + i * depth < length) {
        store<U, C>(out + (at.out + long(first + i * depth) * p.out_stride), v[i]);
      }
    }
  }
}

// ---- instantiations ----------------------------------------------------------------------------------------------
// Op_form_types_n: n is K, vectors that a thread holds of a row, or C, the columns of a thread.

typedef Forward<false> Softmax;
typedef Forward<true> LogSoftmax;
typedef Backward<false> SoftmaxBackward;
typedef Backward<true> LogSoftmaxBackward;

#define INSTANTIATE(form, name, Op, types, T, U, n)                    \
  template [[host_name(name "_" #form "_" types "_" #n)]] [[kernel]] \
  decltype(softmax_##form<Op, T, U, n>) softmax_##form<Op, T, U, n>;

#define INSTANTIATE_FORWARD(name, Op, types, T, U, wide) \
  INSTANTIATE(rows, name, Op, types, T, U, 1)            \
  INSTANTIATE(rows, name, Op, types, T, U, 2)            \
  INSTANTIATE(rows, name, Op, types, T, U, 4)            \
  INSTANTIATE(whole, name, Op, types, T, U, 1)           \
  INSTANTIATE(whole, name, Op, types, T, U, 2)           \
  INSTANTIATE(whole, name, Op, types, T, U, 4)           \
  INSTANTIATE(looped, name, Op, types, T, U, 2)          \
  INSTANTIATE(apply, name, Op, types, T, U, 2)           \
  INSTANTIATE(whole_apply, name, Op, types, T, U, 2)     \
  INSTANTIATE(columns, name, Op, types, T, U, 1)         \
  INSTANTIATE(columns, name, Op, types, T, U, wide)

// The state of a forward softmax is that of its logarithm: they share `partial`.
#define INSTANTIATE_BOTH_FORWARD(types, T, U, wide)                  \
  INSTANTIATE(partial, "softmax", Softmax, types, T, U, 2)           \
  INSTANTIATE(whole_partial, "softmax", Softmax, types, T, U, 2)     \
  INSTANTIATE_FORWARD("softmax", Softmax, types, T, U, wide)         \
  INSTANTIATE_FORWARD("log_softmax", LogSoftmax, types, T, U, wide)

#define INSTANTIATE_BACKWARD(name, Op, types, T, U, wide) \
  INSTANTIATE(rows, name, Op, types, T, U, 1)             \
  INSTANTIATE(rows, name, Op, types, T, U, 2)             \
  INSTANTIATE(whole, name, Op, types, T, U, 1)            \
  INSTANTIATE(whole, name, Op, types, T, U, 2)            \
  INSTANTIATE(looped, name, Op, types, T, U, 1)           \
  INSTANTIATE(partial, name, Op, types, T, U, 1)          \
  INSTANTIATE(apply, name, Op, types, T, U, 1)            \
  INSTANTIATE(whole_partial, name, Op, types, T, U, 1)    \
  INSTANTIATE(whole_apply, name, Op, types, T, U, 1)      \
  INSTANTIATE(columns, name, Op, types, T, U, 1)          \
  INSTANTIATE(columns, name, Op, types, T, U, wide)

#define INSTANTIATE_BOTH_BACKWARD(types, T, U, wide)                                  \
  INSTANTIATE_BACKWARD("softmax_backward", SoftmaxBackward, types, T, U, wide)        \
  INSTANTIATE_BACKWARD("log_softmax_backward", LogSoftmaxBackward, types, T, U, wide)

INSTANTIATE_BOTH_FORWARD("float_float", float, float, 4)
INSTANTIATE(whole, "softmax", Softmax, "float_float", float, float, 8)
INSTANTIATE(whole, "log_softmax", LogSoftmax, "float_float", float, float, 8)
INSTANTIATE_BOTH_FORWARD("half_half", half, half, 8)
INSTANTIATE_BOTH_FORWARD("bfloat_bfloat", bfloat, bfloat, 8)
INSTANTIATE_BOTH_FORWARD("half_float", half, float, 8)
INSTANTIATE_BOTH_FORWARD("bfloat_float", bfloat, float, 8)
INSTANTIATE_BOTH_BACKWARD("float_float", float, float, 4)
INSTANTIATE_BOTH_BACKWARD("half_half", half, half, 8)
INSTANTIATE_BOTH_BACKWARD("bfloat_bfloat", bfloat, bfloat, 8)
INSTANTIATE_BOTH_BACKWARD("float_half", float, half, 8)
INSTANTIATE_BOTH_BACKWARD("float_bfloat", float, bfloat, 8)
