// Small broken kernels, each beside its right twin (test_checks_planted.py launches both).
#include <metal_stdlib>
using namespace metal;

// ---- races ------------------------------------------------------------------------------------------------------

kernel void reverse_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                           uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[t] = x[i];
  y[i] = tile[63 - t];  // no barrier
}
kernel void reverse_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                          uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[t] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = tile[63 - t];
}

// The second round overwrites what slower threads of the first still read.
template <bool Fixed>
void two_rounds(device const float* x, device float* y, threadgroup float* tile, uint i, uint t) {
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    tile[t] = x[i] + round;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum += tile[63 - t];
    if (Fixed) threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  y[i] = sum;
}
kernel void rounds_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                          uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  two_rounds<false>(x, y, tile, i, t);
}
kernel void rounds_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                         uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  two_rounds<true>(x, y, tile, i, t);
}

kernel void exchange_broken(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                            uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  x[i] = float(t);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // orders threadgroup memory only
  y[i] = x[i - t + 63 - t];
}
kernel void exchange_fixed(device float* x [[buffer(0)]], device float* y [[buffer(1)]],
                           uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  x[i] = float(t);
  threadgroup_barrier(mem_flags::mem_device);
  y[i] = x[i - t + 63 - t];
}

kernel void wrong_flag_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                              uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[t] = x[i];
  threadgroup_barrier(mem_flags::mem_device);  // orders device memory only
  y[i] = tile[63 - t];
}
kernel void no_flag_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                           uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[t] = x[i];
  threadgroup_barrier(mem_flags::mem_none);  // orders nothing but execution
  y[i] = tile[63 - t];
}

// Right when a SIMD-group reads its own part, wrong across SIMD-groups.
kernel void simd_barrier_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[t] = x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = tile[63 - t];
}
kernel void simd_barrier_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                               uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[t] = x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = tile[t / 32 * 32 + 31 - t % 32];
}

// A collective is no barrier: lanes meet, their memory does not.
kernel void collective_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                              uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[t] = x[i];
  float sum = simd_sum(x[i]);
  y[i] = tile[t ^ 1] + sum;
}
kernel void collective_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
  y[i] = simd_shuffle_xor(x[i], 1) + simd_sum(x[i]);
}

kernel void same_value_broken(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  y[0] = 1;  // by all threads: the same value is still a race
}
kernel void same_value_fixed(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i == 0) y[0] = 1;
}

// Two threadgroups: the last element of one is the first of the other.
kernel void overlap_broken(device float* y [[buffer(0)]], uint g [[threadgroup_position_in_grid]],
                           uint t [[thread_position_in_threadgroup]]) {
  y[g * 31 + t] = 1;
}
kernel void overlap_fixed(device float* y [[buffer(0)]], uint g [[threadgroup_position_in_grid]],
                          uint t [[thread_position_in_threadgroup]]) {
  y[g * 32 + t] = 1;
}

// Neighbouring halves share a word; only whole words are read.
kernel void halves_broken(device half* y [[buffer(0)]], device uint* z [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = half(i);
  z[i] = ((device uint*)y)[i / 2];
}
kernel void halves_fixed(device half* y [[buffer(0)]], device uint* z [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = half(i);
  z[i] = as_type<ushort>(y[i]);
}

// ---- bounds -----------------------------------------------------------------------------------------------------

kernel void read_past_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
  y[i] = x[i + 1];
}
kernel void read_past_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                            uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  y[i] = x[min(i + 1, n - 1)];
}
kernel void read_before_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                               uint i [[thread_position_in_grid]]) {
  y[i] = x[int(i) - 1];
}
kernel void write_past_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                              uint i [[thread_position_in_grid]]) {
  y[i + 1] = x[i];
}
kernel void write_past_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
  y[i] = x[i];
}
kernel void write_const_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                               uint i [[thread_position_in_grid]]) {
  ((device float*)x)[i] = y[i];
}

kernel void list_broken(device long* y [[buffer(0)]], constant long* sizes [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = sizes[i + 1];
}
kernel void list_fixed(device long* y [[buffer(0)]], constant long* sizes [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = sizes[i];
}

constant float weights[4] = {1, 2, 3, 4};
kernel void table_broken(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = weights[i + 1]; }
kernel void table_fixed(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = weights[i]; }

kernel void tile_read_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[32];
  tile[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = tile[t + 1];
}
kernel void tile_read_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[33];
  tile[t] = t;
  if (t == 0) tile[32] = 32;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = tile[t + 1];
}
kernel void tile_write_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[32];
  tile[t + 1] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = t == 0 ? 0.0f : tile[t];
}

struct Shape {
  long rows, columns, depth;
};
kernel void struct_broken(device long* y [[buffer(0)]], constant Shape& shape [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = shape.rows + shape.depth;
}
kernel void wide_int_broken(device long* y [[buffer(0)]], constant long2& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = n.x + n.y;
}
kernel void wide_int_fixed(device long* y [[buffer(0)]], constant long& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = n;
}

// One thread sums its threadgroup's 64 elements; the last threadgroup is not full.
kernel void tail_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                        uint g [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  if (t != 0) return;
  float sum = 0;
  for (uint k = 0; k < 64; ++k) sum += x[g * 64 + k];
  y[g] = sum;
}
kernel void tail_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                       uint g [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]],
                       uint size [[threads_per_threadgroup]]) {
  if (t != 0) return;
  float sum = 0;
  for (uint k = 0; k < size; ++k) sum += x[g * 64 + k];
  y[g] = sum;
}

kernel void vector_broken(device const float* x [[buffer(0)]], device float4* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = ((device const float4*)(x + 1))[i];
}
kernel void vector_fixed(device const float* x [[buffer(0)]], device float4* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = float4(x[i * 4 + 1], x[i * 4 + 2], x[i * 4 + 3], x[i * 4 + 4]);
}

// ---- vectors at half their alignment: 16 bytes at a multiple of 8 -----------------------------------------------

kernel void half_read_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  float4 v = *(device const float4*)(x + 4 * i + 2);
  y[i] = v.x + v.w;
}
kernel void half_read_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  float4 v = *(device const packed_float4*)(x + 4 * i + 2);
  y[i] = v.x + v.w;
}
kernel void half_write_broken(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  *(device float4*)(y + 4 * i + 2) = float4(i);
}
kernel void half_write_fixed(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  *(device packed_float4*)(y + 4 * i + 2) = packed_float4(float4(i));
}
kernel void half_tile_broken(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup half tile[72];
  *(threadgroup half4*)(tile + 4 * i + 2) = half4(i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = tile[4 * i + 5];
}
kernel void half_tile_fixed(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup half tile[72];
  *(threadgroup packed_half4*)(tile + 4 * i + 2) = packed_half4(half4(i));
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = tile[4 * i + 5];
}
kernel void half_long_broken(device const long* x [[buffer(0)]], device long* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = (*(device const long4*)(x + 4 * i + 2)).w;
}
kernel void half_long_fixed(device const long* x [[buffer(0)]], device long* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = (*(device const long4*)(x + 4 * i)).w;
}
struct aligned_pair {
  float4 a;
  float b;
};
kernel void half_struct_broken(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  aligned_pair pair = *(device const aligned_pair*)(x + 8 * i + 2);
  y[i] = pair.a.x + pair.b;
}
kernel void half_struct_fixed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  aligned_pair pair = *(device const aligned_pair*)(x + 8 * i);
  y[i] = pair.a.x + pair.b;
}
kernel void half_atomic_broken(device uchar* n [[buffer(0)]], device int* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = i + atomic_load_explicit((device atomic_int*)(n + 2), memory_order_relaxed);
}
kernel void half_atomic_fixed(device uchar* n [[buffer(0)]], device int* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = i + atomic_load_explicit((device atomic_int*)(n + 4), memory_order_relaxed);
}

// ---- atomic loads: reads, which no other atomic access disturbs -------------------------------------------------

kernel void atomic_load_broken(device int* n [[buffer(0)]], device int* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  if (i == 3) n[0] = 1;
  y[i] = i + 0 * atomic_load_explicit((device atomic_int*)n, memory_order_relaxed);
}
kernel void atomic_load_fixed(device int* n [[buffer(0)]], device int* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  if (i == 3) atomic_store_explicit((device atomic_int*)n, 1, memory_order_relaxed);
  if (i == 5) atomic_fetch_add_explicit((device atomic_int*)n, 1, memory_order_relaxed);
  y[i] = i + 0 * atomic_load_explicit((device atomic_int*)n, memory_order_relaxed);
}
kernel void atomic_read_broken(device int* n [[buffer(0)]], device int* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  if (i == 3) atomic_store_explicit((device atomic_int*)n, 0, memory_order_relaxed);
  y[i] = i + n[0];
}
kernel void atomic_read_fixed(device int* n [[buffer(0)]], device int* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = i + n[0] + atomic_load_explicit((device atomic_int*)n, memory_order_relaxed);
}
kernel void atomic_tile_broken(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup atomic_int n;
  y[i] = atomic_load_explicit(&n, memory_order_relaxed);
}
kernel void atomic_tile_fixed(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup atomic_int n;
  if (i == 0) atomic_store_explicit(&n, 4, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = atomic_load_explicit(&n, memory_order_relaxed);
}

// ---- bytes that nobody wrote ------------------------------------------------------------------------------------

kernel void unset_tile_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[32];
  if (t < 31) tile[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = tile[t];
}
kernel void unset_tile_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[32];
  tile[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = tile[t];
}
// The padding of a structure is nobody's to write: whole copies read past it, the members count.
struct padded { float v; ushort i; };
kernel void padding_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup padded s[32];
  s[t].v = 32 - float(t);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  padded p = s[31 - t];  // i was never written
  y[t] = p.v + p.i;
}
kernel void padding_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup padded s[32];
  s[t].v = 32 - float(t);
  s[t].i = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t % 2 == 0 && s[t].v > s[t + 1].v) {
    padded p = s[t];
    s[t] = s[t + 1];
    s[t + 1] = p;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = s[t].v + s[t].i;
}
kernel void padding_device_broken(device padded* s [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  s[i].v = i;
  padded p = s[i];
  y[i] = p.v;
}
kernel void padding_device_fixed(device padded* s [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  s[i].v = i + 1;
  s[i].i = i;
  padded p = s[i];
  s[i] = p;
  p = s[i];
  y[i] = p.v + p.i;
}
kernel void fill_broken(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  if (i != 5) y[i] = 0;
}
kernel void fill_fixed(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) { y[i] = 0; }

kernel void private_array_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]], uint n [[threads_per_grid]]) {
  float a[4] = {1, 2, 3, 4};
  y[t] = a[(t + 1) % n];  // n is 5
}
kernel void private_array_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]], uint n [[threads_per_grid]]) {
  float a[4] = {1, 2, 3, 4};
  y[t] = a[(t + 1) % min(n, 4u)];
}
kernel void component_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float4 v = float4(1, 2, 3, 4);
  y[t] = v[t];
}
kernel void component_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float4 v = float4(1, 2, 3, 4);
  y[t] = v[t % 4];
}
constant float neighbours[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
constant float far_table[4] = {1, 2, 3, 4};
kernel void far_table_broken(device float* y [[buffer(0)]], constant long& n [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  y[t] = far_table[n] + neighbours[0][t];
}
kernel void far_table_fixed(device float* y [[buffer(0)]], constant long& n [[buffer(1)]], uint t [[thread_position_in_threadgroup]]) {
  y[t] = far_table[abs(n) % 4] + neighbours[0][2 * t];
}

// ---- lanes that are not where the others are --------------------------------------------------------------------

kernel void early_return_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (t >= 40) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = t;
}
kernel void early_return_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 40) y[t] = t;
}
kernel void two_barriers_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (t % 2 == 0) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = 0;
  } else {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = 1;
  }
}
kernel void collective_return_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (t == 7) return;
  y[t] = simd_sum(float(t));
}
kernel void collective_return_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  y[t] = simd_sum(t == 7 ? 0.0f : float(t));
}
kernel void two_collectives_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float v = t;
  if (t < 16) v = simd_sum(v);
  else v = simd_max(v);
  y[t] = v;
}
kernel void collective_or_barrier_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float v = t;
  if (t < 16) v = simd_sum(v);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = v;
}
// Lanes that meet on one line, and not in one call.
kernel void one_line_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (t < 16) y[t] = simd_sum(1.0f); else y[t] = simd_sum(2.0f);
}
kernel void one_line_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  y[t] = simd_sum(t < 16 ? 1.0f : 2.0f);
}
kernel void ternary_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  y[t] = t < 16 ? simd_max(float(t)) : simd_max(float(t));  // the same call twice is two calls
}
kernel void one_line_barrier_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (t < 40) threadgroup_barrier(mem_flags::mem_none); else threadgroup_barrier(mem_flags::mem_none);
  y[t] = 1;
}
inline float helper_sum(float v) { return simd_sum(v); }
template <typename T> T deeper_sum(T v) { return helper_sum(v) + T(1); }
kernel void helper_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (t < 16)
    y[t] = deeper_sum<float>(1);  // first way
  else
    y[t] = deeper_sum<float>(2);  // second way
}
kernel void helper_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]], uint n [[threads_per_grid]]) {
  if (n > 16) y[t] = deeper_sum<float>(t < 16 ? 1 : 2);
  else y[t] = deeper_sum<float>(0);
}
inline void helper_barrier() { threadgroup_barrier(mem_flags::mem_threadgroup); }
kernel void helper_barrier_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (t < 40) helper_barrier();
  else helper_barrier();
  y[t] = 1;
}
kernel void iteration_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float v = 0;
  for (uint i = 0; i < 2; ++i) {
    if ((t / 16 + i) % 2) v += simd_sum(float(i + 1));
  }
  y[t] = v;
}
kernel void iteration_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float v = 0;
  for (uint i = 0; i < 2; ++i) {
    const float sum = simd_sum(float(i + 1));
    if ((t / 16 + i) % 2) v += sum;
  }
  y[t] = v;
}
kernel void iteration_barrier_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  uint i = 0;
  do {
    if ((t / 32 + i) % 2 == 0) continue;
    helper_barrier();
  } while (++i < 2);
  y[t] = i;
}
kernel void nested_iteration_broken(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float v = 0;
  #pragma unroll
  for (uint i = 0; i < 2; ++i)
    #pragma unroll
    for (uint k = 0; k < 3; ++k)
      if ((t / 16 + i) % 2) v += simd_sum(float(k));
  y[t] = v;
}
// Right, in all the shapes that could be taken for the wrong ones.
kernel void loops_fixed(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  float v = float(t % 5);
  #pragma unroll
  for (ushort o = 16; o > 0; o /= 2) v += simd_shuffle_xor(v, o);
  for (uint i = 0; i < t; ++i) v += 1;  // trip counts of their own, before a barrier
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int round = 0;
  do {
    if (round % 2 == int(t) % 2) v += 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (round == int(t) % 3) continue;
    v += 2;
  } while (simd_any(++round < 4));
  for (uint i = 0; i < 4; ++i)
    if (i % 2) v += simd_sum(1.0f); else v -= simd_max(1.0f);
  switch (round) {
    case 4: while (true) { helper_barrier(); if (--round == 0) break; } break;
    default: helper_barrier();
  }
  for (;;) {
    v = simd_sum(v);
    if (v > 1e6f) { y[t] = v; return; }
  }
}
// A partial last threadgroup has a SIMD-group of fewer lanes: fine to sum over, not to read from.
kernel void tail_lane_broken(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = simd_shuffle_xor(float(i), 16); }
kernel void tail_lane_fixed(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = simd_sum(float(i)); }

// ---- never ending, dividing, overflowing ------------------------------------------------------------------------

kernel void forever_broken(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  volatile int n = 0;
  while (n >= 0) n = n / 2;
  y[i] = n;
}
kernel void empty_forever_broken(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  while (y[i] == 0) {}
}
kernel void odd_forever_broken(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  uint n = 1;
  while (n != 0) n *= 3;
  y[i] = 1;
}
kernel void spin_broken(device int* flag [[buffer(0)]], device int* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  if (i == 0) flag[0] = 1;
  else while (flag[0] == 0) {}
  y[i] = 1;
}
kernel void barriers_forever_broken(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  while (y[0] == 0) threadgroup_barrier(mem_flags::mem_device);
}
kernel void divide_broken(device int* y [[buffer(0)]], constant long& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = 7 / int(n);
}
kernel void stack_broken(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  volatile int large[100000];
  for (int k = 99999; k >= 0; --k) large[k] = k;
  y[i] = large[i];
}
