// The CPU target: how compiled kernels reach the runtime (softmetal_abi.h), and which functions compute the transcendental ones.
// Another target is another file with the same names in namespace msl::target, and the same four macros.
#pragma once
#include "softmetal_abi.h"

extern "C" {
// convergent: no call may be made control-dependent on more conditions than the source makes it. nomerge: two calls in two branches
// stay two; the return address is what tells them apart.
#define MSL_MEETING __attribute__((convergent, nomerge))
MSL_MEETING void msl_rt_threadgroup_barrier(uint32_t flags, int line);
MSL_MEETING void msl_rt_simdgroup_barrier(uint32_t flags, int line);
MSL_MEETING const msl_simd_values* msl_rt_simd_exchange(uint32_t op, const void* value, uint32_t size, int line);
__attribute__((noreturn)) void msl_rt_missing_lane(uint32_t op, uint32_t lane, int line);

// float -> bfloat, round to nearest even: clang calls this where the CPU has no instruction for it.
__attribute__((used, no_sanitize("kernel-address"), visibility("hidden"))) inline bfloat __truncsfbf2(float value) {
  const uint bits = __builtin_bit_cast(uint, value);
  const uint rounded = (bits & 0x7fffffffu) > 0x7f800000u ? (bits | 0x400000u) : bits + 0x7fffu + ((bits >> 16) & 1u);
  return __builtin_bit_cast(bfloat, (ushort)(rounded >> 16));
}
}

// ---- entries: what the runtime looks up and calls ----------------------------------------------------------------------
#define MSL_PARAMETER(index, ...)
#define MSL_ENTRY(n, ...) \
  extern "C" __attribute__((used, visibility("default"), no_sanitize("kernel-address"))) void msl_kernel_##n(void* const* msl_buffers, const msl_thread* msl_position)
#define MSL_BEGIN
#define MSL_BUFFER(index) msl_buffers[index]
#define MSL_POSITION(name) msl::target::name(msl_position)
// Guard room round a threadgroup variable, and its announcement by each thread that reaches it. Aligned to so much that clang leaves it
// alone: what its instrumentation of globals announces is taken for a constant.
#define MSL_THREADGROUP(type, name) \
  alignas(1024) static threadgroup unsigned char name##__storage[256 + (sizeof(type) + 255) / 256 * 256 + 256]; \
  threadgroup type& name = *(threadgroup type*)(name##__storage + 256); \
  msl_rt_threadgroup_variable((void*)(name##__storage + 256), sizeof(type), #name)

namespace msl {
struct coordinates { uint x, y, z; };
namespace target {
template <class T> MSL_INLINE T* bound(void* p) { return (T*)p; }
#define MSL_X(name) MSL_INLINE coordinates name(const msl_thread* t) { return {t->name[0], t->name[1], t->name[2]}; }
MSL_X(thread_position_in_grid) MSL_X(thread_position_in_threadgroup) MSL_X(threadgroup_position_in_grid)
MSL_X(threadgroups_per_grid) MSL_X(threads_per_grid) MSL_X(threads_per_threadgroup) MSL_X(dispatch_threads_per_threadgroup)
#undef MSL_X
#define MSL_X(name) MSL_INLINE coordinates name(const msl_thread* t) { return {t->name, 0, 0}; }
MSL_X(thread_index_in_threadgroup) MSL_X(thread_index_in_simdgroup) MSL_X(simdgroup_index_in_threadgroup)
MSL_X(simdgroups_per_threadgroup) MSL_X(dispatch_simdgroups_per_threadgroup) MSL_X(threads_per_simdgroup)
#undef MSL_X
MSL_INLINE coordinates thread_execution_width(const msl_thread* t) { return {t->threads_per_simdgroup, 0, 0}; }
MSL_INLINE coordinates quadgroup_index_in_threadgroup(const msl_thread* t) { return {t->thread_index_in_threadgroup / 4, 0, 0}; }
MSL_INLINE coordinates thread_index_in_quadgroup(const msl_thread* t) { return {t->thread_index_in_threadgroup % 4, 0, 0}; }

// Stands round a loop whose body holds a collective or a barrier (loops.py puts it there); next() at the start of the body.
struct loop {
  msl_loop state;
  MSL_INLINE explicit loop(uint line) : state{nullptr, line, 0} { msl_rt_loop_enter(&state); }
  MSL_INLINE ~loop() { msl_rt_loop_leave(&state); }
  MSL_INLINE void next() { ++state.iteration; }
};

MSL_INLINE uint lane() { return msl_rt_lane(); }
MSL_INLINE void threadgroup_barrier(uint flags, int line) { msl_rt_threadgroup_barrier(flags, line); }
MSL_INLINE void simdgroup_barrier(uint flags, int line) { msl_rt_simdgroup_barrier(flags, line); }

// ---- lanes: all values of a SIMD-group, through the runtime's one collective ------------------------------------------
// Not instrumented: what they read is the runtime's own memory. Not inlined, because clang does not mix the two kinds.
#define MSL_LANES __attribute__((noinline, convergent, nomerge, no_sanitize("kernel-address", "array-bounds"))) inline
#define MSL_UNSET __attribute__((uninitialized))

template <class T> MSL_INLINE T lane_value(const msl_simd_values* all, uint lane) {
  MSL_UNSET T value;
  __builtin_memcpy(&value, all->data + lane * all->stride, sizeof(T));
  return value;
}

// The values of the active lanes of [first, first + width) combined pairwise; `width` is a power of two.
template <class Operation, class T> MSL_LANES T reduce(uint op, T value, uint first, uint width, int line) {
  const msl_simd_values* all = msl_rt_simd_exchange(op, &value, sizeof(T), line);
  MSL_UNSET T values[32];
  MSL_UNSET bool present[32];
  for (uint i = 0; i < width; ++i) {
    present[i] = (all->active >> (first + i)) & 1;
    if (present[i]) values[i] = lane_value<T>(all, first + i);
  }
  for (uint half_width = width / 2; half_width; half_width /= 2)
    for (uint i = 0; i < half_width; ++i) {
      if (present[i] && present[i + half_width]) values[i] = Operation::apply(values[i], values[i + half_width]);
      else if (present[i + half_width]) values[i] = values[i + half_width];
      present[i] = present[i] || present[i + half_width];
    }
  return values[0];
}

// The values of active lanes before this one, combined in order; with this one's own when inclusive.
template <class Operation, class T> MSL_LANES T prefix(T value, T start, uint lane, bool inclusive, int line) {
  const msl_simd_values* all = msl_rt_simd_exchange(MSL_SIMD_PREFIX, &value, sizeof(T), line);
  T result = start;
  for (uint i = 0; i < lane + (inclusive ? 1 : 0); ++i)
    if ((all->active >> i) & 1) result = Operation::apply(result, lane_value<T>(all, i));
  return result;
}

// The value of lane `source`; it must take part.
template <class T> MSL_LANES T read_lane(uint op, T value, uint source, int line) {
  const msl_simd_values* all = msl_rt_simd_exchange(op, &value, sizeof(T), line);
  if (source >= 32 || !((all->active >> source) & 1)) msl_rt_missing_lane(op, source, line);
  return lane_value<T>(all, source);
}
// The value of lane `source`, or `other` where `source` lies outside [first, last).
template <class T> MSL_LANES T read_lane_or(uint op, T value, int source, int first, int last, T other, int line) {
  const msl_simd_values* all = msl_rt_simd_exchange(op, &value, sizeof(T), line);
  if (source < first || source >= last) return other;
  if (!((all->active >> source) & 1)) msl_rt_missing_lane(op, (uint)source, line);
  return lane_value<T>(all, (uint)source);
}
template <class T> MSL_LANES T read_first(uint op, T value, int line) {
  const msl_simd_values* all = msl_rt_simd_exchange(op, &value, sizeof(T), line);
  return lane_value<T>(all, (uint)__builtin_ctz(all->active));
}
MSL_LANES uint active(int line) { const uchar one = 1; return msl_rt_simd_exchange(MSL_SIMD_BALLOT, &one, 1, line)->active; }
MSL_LANES uint ballot(bool vote, int line) {
  const uchar mine = vote;
  const msl_simd_values* all = msl_rt_simd_exchange(MSL_SIMD_BALLOT, &mine, 1, line);
  uint votes = 0;
  for (uint i = 0; i < 32; ++i)
    if (((all->active >> i) & 1) && all->data[i * all->stride]) votes |= 1u << i;
  return votes;
}

// This lane's two elements of a * b + c (see simdgroup_matrix.h): row of a, two columns of b.
template <class A, class B> MSL_LANES metal::vec<float, 2> matrix_product(metal::vec<A, 2> a, metal::vec<B, 2> b, metal::vec<float, 2> c, int line) {
  struct pairs { A a[2]; B b[2]; } mine = {{a[0], a[1]}, {b[0], b[1]}};
  const msl_simd_values* all = msl_rt_simd_exchange(MSL_SIMD_MATRIX, &mine, sizeof(mine), line);
  const uint lane = msl_rt_lane();
  const uint row = ((lane / 4) & 4) + (lane / 2) % 4, column = ((lane / 4) & 2) * 2 + (lane % 2) * 2;
  float sums[2] = {c[0], c[1]};
  for (uint k = 0; k < 8; ++k) {
    const uint left = ((row & 4) << 2) | ((k / 2 & 2) << 2) | ((row & 3) << 1) | (k / 2 & 1);
    const uint right = ((k & 4) << 2) | ((column / 2 & 2) << 2) | ((k & 3) << 1) | (column / 2 & 1);
    if (!((all->active >> left) & (all->active >> right) & 1)) msl_rt_missing_lane(MSL_SIMD_MATRIX, (all->active >> left) & 1 ? right : left, line);
    const float x = (float)lane_value<pairs>(all, left).a[k % 2];
    const pairs y = lane_value<pairs>(all, right);
    sums[0] = __builtin_fmaf(x, (float)y.b[0], sums[0]);
    sums[1] = __builtin_fmaf(x, (float)y.b[1], sums[1]);
  }
  return metal::vec<float, 2>{sums[0], sums[1]};
}

// The places of a matrix's elements, as Apple's GPUs have them: row of a lane's two, column of the first, and the lane that
// holds (row, column & ~1).
MSL_INLINE uint matrix_row(uint lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
MSL_INLINE uint matrix_column(uint lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }
MSL_INLINE uint matrix_lane(uint row, uint column) {
  const uint pair = column / 2;
  return ((row & 4) << 2) | ((pair & 2) << 2) | ((row & 3) << 1) | (pair & 1);
}

// ---- copies of structures: memcpy's own check does not know what they are aligned to, nor which bytes are padding and may be
// unwritten. access: 1 read, 2 write. value: as msl_rt_load wants it.
MSL_INLINE void load_padded(void* to, const void* from, ulong size, ulong alignment, const unsigned char* value) {
  msl_rt_load(to, from, size, alignment, value);
}
template <uint alignment> MSL_INLINE void check_alignment(const void* p, ulong size, uint access) {
  if (alignment > 1) msl_rt_alignment(p, size, alignment, access);
}

// ---- atomics: a lane is not interrupted between two calls of the runtime, so reading and writing need no hardware's help ----
// The accesses themselves are not instrumented: msl_rt_atomic, called where the kernel stands, is what reports them.
#define MSL_UNCHECKED __attribute__((noinline, no_sanitize("kernel-address"))) inline
template <class T> MSL_UNCHECKED T raw_load(const volatile T* p) { return *p; }
template <class T> MSL_UNCHECKED void raw_store(volatile T* p, T value) { *p = value; }

template <class T> MSL_INLINE T atomic_load(const volatile T* p, int line) {
  msl_rt_atomic(p, sizeof(T), 1, line);
  return raw_load(p);
}
template <class T> MSL_INLINE void atomic_store(volatile T* p, T value, int line) {
  msl_rt_atomic(p, sizeof(T), 2, line);
  raw_store(p, value);
}
template <class Operation, class T> MSL_INLINE T atomic_update(volatile T* p, T operand, int line) {
  msl_rt_atomic(p, sizeof(T), 3, line);
  const T before = raw_load(p);
  raw_store(p, Operation::template apply<T>(before, operand));
  return before;
}
template <class T> MSL_INLINE bool atomic_compare_exchange(volatile T* p, T* expected, T desired, int line) {
  msl_rt_atomic(p, sizeof(T), 3, line);
  const T before = raw_load(p), wanted = *expected;
  const bool equal = __builtin_memcmp(&before, &wanted, sizeof(T)) == 0;  // by bits, as hardware compares
  if (equal) raw_store(p, desired);
  else *expected = before;
  return equal;
}

// ---- math: correctly rounded operations are instructions; the rest are the C library's float functions (libm is in the process)
#define MSL_X(name) MSL_INLINE float name(float x) { return __builtin_##name##f(x); }
MSL_X(exp) MSL_X(exp2) MSL_X(log) MSL_X(log2) MSL_X(log10) MSL_X(sin) MSL_X(cos) MSL_X(tan) MSL_X(asin) MSL_X(acos) MSL_X(atan)
MSL_X(sinh) MSL_X(cosh) MSL_X(tanh) MSL_X(asinh) MSL_X(acosh) MSL_X(atanh)
MSL_X(sqrt) MSL_X(floor) MSL_X(ceil) MSL_X(trunc) MSL_X(rint) MSL_X(round)
#undef MSL_X
MSL_INLINE float exp10(float x) { return __builtin_powf(10.0f, x); }
MSL_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MSL_INLINE float pow(float x, float y) { return __builtin_powf(x, y); }
MSL_INLINE float atan2(float y, float x) { return __builtin_atan2f(y, x); }
MSL_INLINE float fmod(float x, float y) { return __builtin_fmodf(x, y); }
MSL_INLINE float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
MSL_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_INLINE float fmin(float a, float b) { return __builtin_fminf(a, b); }
MSL_INLINE float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
MSL_INLINE float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
MSL_INLINE float sinpi(float x) { return (float)__builtin_sin(3.14159265358979323846 * (double)(x - 2.0f * rint(x * 0.5f))); }
MSL_INLINE float cospi(float x) { return (float)__builtin_cos(3.14159265358979323846 * (double)(x - 2.0f * rint(x * 0.5f))); }
namespace fast {
using namespace msl::target;  // the CPU has no faster ones
}
}  // namespace target
}  // namespace msl
