// The NVPTX target: kernels for an NVIDIA GPU, whose warps stand for SIMD-groups. The names are target_cpu.h's.
//
// An entry takes its buffers in the order of the kernel's parameters: `T*` as a pointer to device memory, `constant T&` by value,
// `constant T*` as a block of constant_bytes by value (MSL_CONSTANT_TENSORS: as a pointer to device memory). Then the grid, in
// threads: the launch rounds it up to whole threadgroups, and the threads outside of it leave at once.
#pragma once
#include "softmetal_abi.h"

#define MSL_PARAMETER(index, ...) typename msl::passed<__VA_ARGS__>::type msl_buffer_##index,
#define MSL_ENTRY(n, ...) \
  extern "C" __attribute__((used, nvptx_kernel)) void msl_kernel_##n(__VA_ARGS__ uint msl_grid_x, uint msl_grid_y, uint msl_grid_z)
#define MSL_BEGIN \
  const msl::coordinates msl_position = {msl_grid_x, msl_grid_y, msl_grid_z}; \
  if (msl::target::outside(msl_position)) return;
#define MSL_BUFFER(index) (&msl_buffer_##index)
#define MSL_POSITION(name) msl::target::name(msl_position)
// The announcement is for reflection.py; nvptx.py takes the call out.
#define MSL_THREADGROUP(type, name) \
  static threadgroup type name; \
  msl_rt_threadgroup_variable((void*)&name, sizeof(type), #name)

namespace msl {
struct sum;
struct least;
struct greatest;  // simdgroup.h
struct coordinates { uint x, y, z; };

// How a buffer arrives: `T&` of constant memory as the T itself, `T*` of constant memory as a block with the T's at its start.
inline constexpr ulong constant_bytes = 1024;
template <class T> struct block { alignas(16) unsigned char bytes[constant_bytes]; };
template <class T> struct passed;
template <class T> struct passed<device T*> { typedef device T* type; };
template <class T> struct passed<const device T*> { typedef const device T* type; };
template <class T> struct passed<device T&> { typedef device T* type; };
template <class T> struct passed<const device T&> { typedef const device T* type; };
template <class T> struct passed<constant T&> { typedef T type; };
#ifdef MSL_CONSTANT_TENSORS
template <class T> struct passed<constant T*> { typedef const device T* type; };
#else
template <class T> struct passed<constant T*> { typedef block<T> type; };
#endif
template <class T> struct passed<T* const> : passed<T*> {};

namespace target {
template <class T, class P> MSL_INLINE T* bound(device P** p) { return (T*)*p; }
template <class T, class P> MSL_INLINE T* bound(const device P** p) { return (T*)*p; }
template <class T, class P> MSL_INLINE T* bound(P* p) { return (T*)p; }
#define MSL_REGISTER(name) MSL_INLINE uint name() { return (uint)__nvvm_read_ptx_sreg_##name(); }
MSL_REGISTER(tid_x) MSL_REGISTER(tid_y) MSL_REGISTER(tid_z) MSL_REGISTER(ntid_x) MSL_REGISTER(ntid_y) MSL_REGISTER(ntid_z)
MSL_REGISTER(ctaid_x) MSL_REGISTER(ctaid_y) MSL_REGISTER(ctaid_z) MSL_REGISTER(nctaid_x) MSL_REGISTER(nctaid_y)
MSL_REGISTER(nctaid_z)
#undef MSL_REGISTER

// Lanes that take part in collectives. The whole warp, unless MSL_PARTIAL_SIMDGROUPS says that some lanes may not be there: for
// launches whose last threadgroup ends inside a SIMD-group, and for kernels that some lanes leave before a collective.
#ifdef MSL_PARTIAL_SIMDGROUPS
inline constexpr bool whole = false;
#else
inline constexpr bool whole = true;
#endif

// ---- places ---------------------------------------------------------------------------------------------------------
// The two elements of a matrix that a lane holds are the tensor cores' own, row l / 4 and pair of columns l % 4 of lane l, unless the
// source looks at them (MSL_APPLE_MATRICES). Then they are where Apple's GPUs have them: lane b4 b3 b2 b1 b0 has row b4 b2 b1 and
// pair b3 b0. That is the same but for the order of the lane's bits, so the kernel is told another number: the thread at place
// b4 b2 b1 b3 b0 of a warp is lane b4 b3 b2 b1 b0 of its SIMD-group, and no element ever moves. Where lanes may be missing a lane is
// its place, and a product moves the elements.
#ifdef MSL_APPLE_MATRICES
inline constexpr bool apple_matrices = true;
#else
inline constexpr bool apple_matrices = false;
#endif
inline constexpr bool renumbered = apple_matrices && whole;
MSL_INLINE uint lane_at(uint place) { return renumbered ? (place & 17) | ((place & 2) << 2) | ((place & 12) >> 1) : place; }
MSL_INLINE uint place_of(uint lane) { return renumbered ? (lane & 17) | ((lane & 8) >> 2) | ((lane & 6) << 1) : lane; }
MSL_INLINE uint place() { return (uint)__nvvm_read_ptx_sreg_laneid(); }
MSL_INLINE uint lane() { return lane_at(place()); }
// A bit for each place to a bit for each lane: two bits of the bits' numbers change places, twice.
MSL_INLINE uint lanes_at(uint places) {
  if (!renumbered) return places;
  uint other = (places ^ (places >> 2)) & 0x0c0c0c0cu;
  places ^= other ^ (other << 2);
  other = (places ^ (places >> 4)) & 0x00f000f0u;
  return places ^ other ^ (other << 4);
}
MSL_INLINE uint smaller(uint a, uint b) { return a < b ? a : b; }

MSL_INLINE uint index_of_place() { return (tid_z() * ntid_y() + tid_y()) * ntid_x() + tid_x(); }
// The last warp of a threadgroup may not be full: there, too, a lane is its place (a kernel with collectives is not launched so).
MSL_INLINE uint index() {
  const uint i = index_of_place();
  return renumbered && (i | 31) < ntid_x() * ntid_y() * ntid_z() ? (i & ~31u) | lane_at(i & 31) : i;
}
MSL_INLINE coordinates thread_position_in_threadgroup(coordinates) {
  if (!renumbered) return {tid_x(), tid_y(), tid_z()};
  const uint i = index();
  if (ntid_y() * ntid_z() == 1) return {i, 0, 0};
  if (ntid_x() % 32 == 0) return {i - index_of_place() + tid_x(), tid_y(), tid_z()};
  return {i % ntid_x(), i / ntid_x() % ntid_y(), i / ntid_x() / ntid_y()};
}
MSL_INLINE coordinates threadgroup_position_in_grid(coordinates) { return {ctaid_x(), ctaid_y(), ctaid_z()}; }
MSL_INLINE coordinates threadgroups_per_grid(coordinates) { return {nctaid_x(), nctaid_y(), nctaid_z()}; }
MSL_INLINE coordinates threads_per_grid(coordinates grid) { return grid; }
MSL_INLINE coordinates dispatch_threads_per_threadgroup(coordinates) { return {ntid_x(), ntid_y(), ntid_z()}; }
MSL_INLINE coordinates thread_position_in_grid(coordinates grid) {
  const coordinates at = thread_position_in_threadgroup(grid);
  return {ctaid_x() * ntid_x() + at.x, ctaid_y() * ntid_y() + at.y, ctaid_z() * ntid_z() + at.z};
}
// Of this group: the last one along a dimension may be partial.
MSL_INLINE coordinates threads_per_threadgroup(coordinates grid) {
  return {smaller(ntid_x(), grid.x - ctaid_x() * ntid_x()), smaller(ntid_y(), grid.y - ctaid_y() * ntid_y()),
          smaller(ntid_z(), grid.z - ctaid_z() * ntid_z())};
}
MSL_INLINE bool outside(coordinates grid) {
  const coordinates at = thread_position_in_grid(grid);
  return at.x >= grid.x || at.y >= grid.y || at.z >= grid.z;
}
MSL_INLINE uint count(coordinates c) { return c.x * c.y * c.z; }
MSL_INLINE coordinates thread_index_in_threadgroup(coordinates) { return {index(), 0, 0}; }
MSL_INLINE coordinates thread_index_in_simdgroup(coordinates) { return {renumbered ? index() % 32 : lane(), 0, 0}; }
MSL_INLINE coordinates simdgroup_index_in_threadgroup(coordinates) { return {index() / 32, 0, 0}; }
MSL_INLINE coordinates simdgroups_per_threadgroup(coordinates grid) { return {(count(threads_per_threadgroup(grid)) + 31) / 32, 0, 0}; }
MSL_INLINE coordinates dispatch_simdgroups_per_threadgroup(coordinates) { return {(ntid_x() * ntid_y() * ntid_z() + 31) / 32, 0, 0}; }
MSL_INLINE coordinates threads_per_simdgroup(coordinates) { return {32, 0, 0}; }
MSL_INLINE coordinates thread_execution_width(coordinates) { return {32, 0, 0}; }
MSL_INLINE coordinates quadgroup_index_in_threadgroup(coordinates) { return {index() / 4, 0, 0}; }
MSL_INLINE coordinates thread_index_in_quadgroup(coordinates) { return {index() % 4, 0, 0}; }

struct loop {
  MSL_INLINE explicit loop(uint) {}
  MSL_INLINE void next() {}
};

#define MSL_LANES __attribute__((convergent)) MSL_INLINE
#ifdef MSL_PARTIAL_SIMDGROUPS
MSL_LANES uint mask() { uint m; asm volatile("activemask.b32 %0;" : "=r"(m)); return m; }
#else
MSL_LANES uint mask() { return 0xffffffffu; }
#endif

MSL_LANES void threadgroup_barrier(uint, int) { asm volatile("bar.sync 0;" ::: "memory"); }
MSL_LANES void simdgroup_barrier(uint, int) { asm volatile("bar.warp.sync %0;" ::"r"(mask()) : "memory"); }

// ---- lanes --------------------------------------------------------------------------------------------------------
// m: of places. n: a lane, or the difference of the lanes.
struct by_index { static MSL_LANES int move(uint m, int v, uint n) { return __nvvm_shfl_sync_idx_i32(m, v, (int)place_of(n), 31); } };
struct by_xor { static MSL_LANES int move(uint m, int v, uint n) { return __nvvm_shfl_sync_bfly_i32(m, v, (int)place_of(n), 31); } };
struct from_below {
  static MSL_LANES int move(uint m, int v, uint n) {
    if (renumbered) return by_index::move(m, v, (lane() - n) & 31);
    return __nvvm_shfl_sync_up_i32(m, v, (int)n, 0);
  }
};

// Another lane's value, a word at a time.
template <class Way, class T> MSL_LANES T shuffle(uint m, T value, uint n) {
  constexpr int words = (sizeof(T) + 3) / 4;
  int bits[words] = {};
  __builtin_memcpy(bits, &value, sizeof(T));
  for (int i = 0; i < words; ++i) bits[i] = Way::move(m, bits[i], n);
  __builtin_memcpy(&value, bits, sizeof(T));
  return value;
}

// As target_cpu.h combines them: in halves, so that floats come out the same.
template <class Operation, class T> MSL_LANES T reduce(uint, T value, uint, uint width, int) {
  const uint m = mask();
  for (uint distance = width / 2; distance; distance /= 2) {
    const T other = shuffle<by_xor>(m, value, distance);
    if (whole || ((m >> (lane() ^ distance)) & 1)) value = Operation::apply(value, other);
  }
  if (!whole && width == 32) value = shuffle<by_index>(m, value, 0);  // lanes without a partner have a part only
  return value;
}
template <class Operation, class T> MSL_LANES T prefix(T value, T start, uint me, bool inclusive, int) {
  const uint m = mask();
  for (uint distance = 1; distance < 32; distance *= 2) {
    const T other = shuffle<from_below>(m, value, distance);
    if (me >= distance) value = Operation::apply(other, value);
  }
  if (inclusive) return value;
  const T before = shuffle<from_below>(m, value, 1);
  return me ? before : start;
}
template <class T> MSL_LANES T read_lane(uint, T value, uint source, int) { return shuffle<by_index>(mask(), value, source); }
template <class T> MSL_LANES T read_lane_or(uint, T value, int source, int first, int last, T other, int) {
  const T read = shuffle<by_index>(mask(), value, (uint)source & 31u);
  return source < first || source >= last ? other : read;
}
template <class T> MSL_LANES T read_first(uint, T value, int) {
  const uint m = mask();
  return shuffle<by_index>(m, value, whole ? 0u : (uint)__builtin_ctz(m));
}
MSL_LANES uint active(int) { uint m; asm volatile("activemask.b32 %0;" : "=r"(m)); return lanes_at(m); }
MSL_LANES uint ballot(bool vote, int) { return lanes_at(__nvvm_vote_ballot_sync(mask(), vote)); }

// ---- matrices: two elements of each in a lane ---------------------------------------------------------------------
MSL_INLINE uint matrix_row(uint lane) { return apple_matrices ? ((lane / 4) & 4) + (lane / 2) % 4 : lane / 4; }
MSL_INLINE uint matrix_column(uint lane) { return apple_matrices ? ((lane / 4) & 2) * 2 + (lane % 2) * 2 : lane % 4 * 2; }
MSL_INLINE uint matrix_lane(uint row, uint column) {
  const uint pair = column / 2;
  return apple_matrices ? ((row & 4) << 2) | ((pair & 2) << 2) | ((row & 3) << 1) | (pair & 1) : row * 4 + pair;
}

template <class T> MSL_LANES T to_native(T value) {
  if constexpr (apple_matrices && !renumbered) return shuffle<by_index>(0xffffffffu, value, matrix_lane(lane() / 4, lane() % 4 * 2));
  else return value;
}
template <class T> MSL_LANES T from_native(T value) {
  if constexpr (apple_matrices && !renumbered) return shuffle<by_index>(0xffffffffu, value, matrix_row(lane()) * 4 + matrix_column(lane()) / 2);
  else return value;
}
template <class A, class B> MSL_LANES metal::vec<float, 2> matrix_product(metal::vec<A, 2> a, metal::vec<B, 2> b, metal::vec<float, 2> c, int) {
  if constexpr (metal::is_same<A, B>::value && sizeof(A) == 2) {
    const uint x = to_native(__builtin_bit_cast(uint, a)), rows_of_b = to_native(__builtin_bit_cast(uint, b));
    const metal::vec<float, 2> d = to_native(c);
    // Not volatile: of a matrix that several products share, one transposition is left.
    uint y;
    float unused[2];
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(rows_of_b));
    // Sixteen rows. What the lower eight hold, nobody looks at: undefined, so that no registers are cleared for them. (A GPU whose
    // matrices have eight rows clears none either. Kernels with many sums pay for it with registers, others win up to a quarter.)
    uint below;
    float d0, d1, sums_below[2];
#define MSL_MMA(type) \
    asm("mma.sync.aligned.m16n8k8.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" \
        : "=f"(d0), "=f"(d1), "=f"(unused[0]), "=f"(unused[1]) : "r"(x), "r"(below), "r"(y), "f"(d[0]), "f"(d[1]), "f"(sums_below[0]), "f"(sums_below[1]))
    if constexpr (metal::is_same<A, half>::value) MSL_MMA("f16");
    else MSL_MMA("bf16");
#undef MSL_MMA
    return from_native(metal::vec<float, 2>{d0, d1});
  } else {
    const uint me = lane(), row = matrix_row(me), column = matrix_column(me);
    float sums[2] = {c[0], c[1]};
    for (uint k = 0; k < 8; ++k) {
      const float x0 = shuffle<by_index>(0xffffffffu, (float)a[0], matrix_lane(row, k));
      const float x1 = shuffle<by_index>(0xffffffffu, (float)a[1], matrix_lane(row, k));
      const float x = k % 2 ? x1 : x0;
      sums[0] = __builtin_fmaf(x, shuffle<by_index>(0xffffffffu, (float)b[0], matrix_lane(k, column)), sums[0]);
      sums[1] = __builtin_fmaf(x, shuffle<by_index>(0xffffffffu, (float)b[1], matrix_lane(k, column)), sums[1]);
    }
    return metal::vec<float, 2>{sums[0], sums[1]};
  }
}

// ---- copies of structures: nothing watches them here
MSL_INLINE void load_padded(void* to, const void* from, ulong size, ulong, const unsigned char*) { __builtin_memcpy(to, from, size); }
template <uint alignment> MSL_INLINE void check_alignment(const void*, ulong, uint) {}

// ---- atomics: relaxed, of the whole device (or group, in threadgroup memory)
template <class T> MSL_INLINE T atomic_load(const volatile T* p, int) { return *p; }
template <class T> MSL_INLINE void atomic_store(volatile T* p, T value, int) { *p = value; }
template <class T> MSL_INLINE bool atomic_compare_exchange(volatile T* p, T* expected, T desired, int) {
  typedef metal::conditional_t<sizeof(T) == 8, ulong, uint> bits;
  bits wanted = __builtin_bit_cast(bits, *expected);
  const bool equal = __atomic_compare_exchange_n((volatile bits*)p, &wanted, __builtin_bit_cast(bits, desired), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  *expected = __builtin_bit_cast(T, wanted);
  return equal;
}
template <class Operation, class T> MSL_INLINE T atomic_update(volatile T* p, T operand, int line) {
  if constexpr (__is_integral(T) && __is_same(Operation, sum)) return __atomic_fetch_add(p, operand, __ATOMIC_RELAXED);
  else if constexpr (__is_integral(T) && __is_same(Operation, least)) return __atomic_fetch_min(p, operand, __ATOMIC_RELAXED);
  else if constexpr (__is_integral(T) && __is_same(Operation, greatest)) return __atomic_fetch_max(p, operand, __ATOMIC_RELAXED);
  else {
    T before = *p;
    while (!atomic_compare_exchange(p, &before, Operation::template apply<T>(before, operand), line)) {}
    return before;
  }
}
}  // namespace target
}  // namespace msl
#include "msl/math_nvptx.h"
