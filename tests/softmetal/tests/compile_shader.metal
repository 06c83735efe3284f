#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void copy(device T* y [[buffer(0)]], constant T* values [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = values[i];
}
template [[host_name("copy_long")]] [[kernel]] decltype(copy<long>) copy<long>;
template [[host_name("copy_int")]] [[kernel]] decltype(copy<int>) copy<int>;
template [[host_name("copy_short")]] [[kernel]] decltype(copy<short>) copy<short>;
template [[host_name("copy_char")]] [[kernel]] decltype(copy<char>) copy<char>;
template [[host_name("copy_uchar")]] [[kernel]] decltype(copy<uchar>) copy<uchar>;
template [[host_name("copy_float")]] [[kernel]] decltype(copy<float>) copy<float>;
template [[host_name("copy_half")]] [[kernel]] decltype(copy<half>) copy<half>;
template [[host_name("copy_bfloat")]] [[kernel]] decltype(copy<bfloat>) copy<bfloat>;

kernel void where_am_i(device uint* y [[buffer(0)]], uint3 p [[thread_position_in_grid]], uint3 n [[threads_per_grid]],
                       uint3 g [[threadgroup_position_in_grid]], uint3 size [[threads_per_threadgroup]],
                       uint3 whole [[dispatch_threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint3 groups [[threadgroups_per_grid]]) {
  device uint* mine = y + ((p.z * n.y + p.y) * n.x + p.x) * 8;
  mine[0] = g.x; mine[1] = g.y; mine[2] = g.z;
  mine[3] = size.x * size.y * size.z;
  mine[4] = whole.x * whole.y * whole.z;
  mine[5] = lane;
  mine[6] = groups.x * groups.y * groups.z;
  mine[7] = 1;
}

kernel void tile(device float* y [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[100];
  s[t] = t;
  y[t] = s[t];
}

[[max_total_threads_per_threadgroup(64)]]
kernel void limited(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = 1; }

kernel void negate(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = -x[i]; }
kernel void complain(device float* x [[buffer(0)]], device int* errors [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
  if (i == 0) errors[0] = 1;
  x[i] = 1;
}
