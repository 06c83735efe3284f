// Kernels of the kinds that the families of this project need: the front end's tests compile and run them.
#include <metal_stdlib>
using namespace metal;
#define MEMBER_CONSTANT static constant constexpr const
struct Limits {
  static constexpr constant float lowest = -INFINITY;
  MEMBER_CONSTANT short rows = 8;
};
template <typename T> struct Acc { using type = float; };
template <> struct Acc<int> { typedef long type; };
template <typename T> using acc_t = typename Acc<T>::type;
template <typename U> struct Sum { 
  static constexpr constant U init = U(0);
  U operator()(U a, U b) const { return a + b; }
  template <typename T> T simd_reduce(T v) { return simd_sum(v); }
};
template <typename T, int N> METAL_FUNC void load(thread T (&values)[N], const device T* p) {
#pragma clang loop unroll(full)
  for (int i = 0; i < N; ++i) values[i] = p[i];
}
template <typename T, int N = 4>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax_row(
    const device T* in [[buffer(0)]], device T* out [[buffer(1)]], constant int& axis_size [[buffer(2)]],
    uint gid [[threadgroup_position_in_grid]], uint lid [[thread_position_in_threadgroup]],
    uint simd_lane_id [[thread_index_in_simdgroup]], uint simd_group_id [[simdgroup_index_in_threadgroup]]) {
  using A = acc_t<T>;
  constexpr int SIMD = 32;
  threadgroup A local_max[SIMD];
  threadgroup A local_sum[SIMD];
  A ld[N];
  in += size_t(gid) * axis_size + lid * N;
  if (lid * N + N <= uint(axis_size)) {
    for (int i = 0; i < N; i++) ld[i] = A(in[i]);
  } else {
    for (int i = 0; i < N; i++) ld[i] = (lid * N + i) < uint(axis_size) ? A(in[i]) : A(Limits::lowest);
  }
  if (simd_group_id == 0) {
    local_max[simd_lane_id] = Limits::lowest;
    local_sum[simd_lane_id] = 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  A maxval = Limits::lowest;
  for (int i = 0; i < N; i++) maxval = (maxval < ld[i]) ? ld[i] : maxval;
  maxval = simd_max(maxval);
  if (simd_lane_id == 0) local_max[simd_group_id] = maxval;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  maxval = simd_max(local_max[simd_lane_id]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lid == 0) local_max[0] = maxval;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  maxval = local_max[0];
  A normalizer = 0;
  for (int i = 0; i < N; i++) {
    ld[i] = fast::exp(ld[i] - maxval);
    normalizer += ld[i];
  }
  normalizer = Sum<A>().simd_reduce(normalizer);
  if (simd_lane_id == 0) local_sum[simd_group_id] = normalizer;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  normalizer = simd_sum(local_sum[simd_lane_id]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lid == 0) local_sum[0] = normalizer;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  normalizer = 1 / local_sum[0];
  out += size_t(gid) * axis_size + lid * N;
  for (int i = 0; i < N; i++) if (lid * N + i < uint(axis_size)) out[i] = T(ld[i] * normalizer);
}
#define INST(n, t) template [[host_name("softmax_" #n)]] [[kernel]] decltype(softmax_row<t>) softmax_row<t>;
INST(float, float) INST(half, half) INST(bfloat, bfloat)

inline float e4m3_decode(uchar b) {
  ushort h = ushort((b & 0x80u) << 8) | ushort((b & 0x7Fu) << 7);
  return float(as_type<half>(h)) * 256.0f;
}
template <typename T>
[[kernel]] void gemv_fp8(const device uchar* w [[buffer(0)]], const device T* x [[buffer(1)]],
                              device T* y [[buffer(2)]],
                              constant uint2& nk [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
                              ushort lane [[thread_index_in_simdgroup]]) {
  const device uchar4* wr = (const device uchar4*)(w + size_t(row) * nk.y);
  const device vec<T, 4>* xv = reinterpret_cast<const device vec<T, 4>*>(x);
  float4 acc = 0;
  for (uint k = lane; k < nk.y / 4; k += 32) {
    const uchar4 q = wr[k];
    float4 f = float4(e4m3_decode(q.x), e4m3_decode(q.y), e4m3_decode(q[2]), e4m3_decode(q.w));
    acc = fma(f, float4(xv[k]), acc);
  }
  float s = simd_sum(acc.x + acc.y + acc.z + acc.w);
  if (lane == 0) y[row] = static_cast<T>(s);
}
template [[host_name("gemv_fp8_half")]] [[kernel]] decltype(gemv_fp8<half>) gemv_fp8<half>;
template [[host_name("gemv_fp8_bfloat")]] kernel void gemv_fp8<bfloat>(
    const device uchar*, const device bfloat*, device bfloat*, constant uint2&, uint, ushort);
struct Shape { int64_t sizes[16]; int64_t strides[16]; int ndim; };
kernel void strided(device int* out, const device int* in, constant Shape& s, uint3 p [[thread_position_in_grid]],
                    uint3 n [[threads_per_grid]]) {
  ulong index = p.x + ulong(n.x) * (p.y + ulong(n.y) * p.z);
  long offset = 0;
  ulong rest = index;
  for (int d = s.ndim - 1; d >= 0; --d) {
    ulong quotient = rest / ulong(s.sizes[d]);
    offset += long(rest - quotient * ulong(s.sizes[d])) * s.strides[d];
    rest = quotient;
  }
  out[index] = in[offset];
}

kernel void arrays(device float* x) {
  float v[4];
  load(v, x);
  int zeros[3] = {};
  uint4 bits = as_type<uint4>(float4(v[0], v[1], v[2], v[3]));
  x[4] = as_type<float4>(bits).w + zeros[1];
}
