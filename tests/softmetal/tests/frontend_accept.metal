// Valid Metal, in the forms in which kernels are written, declared and instantiated. test_frontend_accept.py compiles each part
// (from a line of four slashes and its name on) after <metal_stdlib> and `using namespace metal`.

//// plain kernel
kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }

//// attribute kernel
[[kernel]] void f(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }

//// void kernel
[[kernel]] [[max_total_threads_per_threadgroup(256)]] void f(device float* x) { x[0] = 1; }

//// attributes in one list
[[kernel, max_total_threads_per_threadgroup(256)]] void f(device float* x) { x[0] = 1; }

//// attribute after kernel
kernel [[max_total_threads_per_threadgroup(64)]] void f(device float* x) { x[0] = 1; }

//// host_name on a plain kernel
[[host_name("f")]] kernel void other(device float* x) { x[0] = 1; }

//// instantiation by decltype
template <typename T> [[kernel]] void g(device T* x) { x[0] = T(1); }
template [[host_name("f")]] [[kernel]] decltype(g<half>) g<half>;

//// instantiation by signature
template <typename T> [[kernel]] void g(device T* x [[buffer(0)]], constant uint& n [[buffer(1)]]) {
  x[n] = T(1);
}
template [[host_name("f")]] kernel void g<half>(device half* x [[buffer(0)]], constant uint& n [[buffer(1)]]);

//// instantiation with deduced arguments
template <typename T> kernel void g(device T* x, constant T& y) { x[0] = y; }
template [[host_name("f")]] kernel void g(device float* x, constant float& y);

//// instantiation by macro
template <typename T, int N> [[kernel]] void g(device T* x) { x[N] = T(1); }
#define MAKE(name, type, n) template [[host_name(#name)]] [[kernel]] decltype(g<type, n>) g<type, n>;
MAKE(f, float, 3)

//// host_name in two strings
template <typename T> [[kernel]] void g(device T* x) { x[0] = T(1); }
template [[host_name("" "f")]] [[kernel]] decltype(g<half>) g<half>;

//// kernel in a namespace
namespace a {
  namespace b {
    template <typename T> [[kernel]] void g(device T* x) {
      x[0] = T(1);
    }
  }
}
template [[host_name("f")]] [[kernel]] decltype(a::b::g<half>) a::b::g<half>;

//// template of a template argument
struct Add { float operator()(float a, float b) const { return a + b; } };
template <typename Op> [[kernel]] void g(device float* x) { x[0] = Op()(x[1], x[2]); }
template [[host_name("f")]] [[kernel]] decltype(g<Add>) g<Add>;

//// all positions
kernel void f(device uint* x, uint3 a [[thread_position_in_grid]], ushort3 b [[thread_position_in_threadgroup]],
    uint3 c [[threadgroup_position_in_grid]], uint3 d [[threadgroups_per_grid]], uint3 e [[threads_per_grid]],
    ushort3 g [[threads_per_threadgroup]], uint3 h [[dispatch_threads_per_threadgroup]],
    ushort i [[thread_index_in_threadgroup]], uint j [[thread_index_in_simdgroup]],
    ushort k [[simdgroup_index_in_threadgroup]], uint l [[simdgroups_per_threadgroup]],
    uint m [[dispatch_simdgroups_per_threadgroup]], uint n [[thread_execution_width]],
    uint o [[quadgroup_index_in_threadgroup]], ushort p [[thread_index_in_quadgroup]]) {
  x[0] = a.x + b.x + c.z + d.x + e.y + g.x + h.y + i + j + k + l + m + n + o + p;
}

//// positions as scalars of both widths
kernel void f(device uint* x, uint a [[thread_position_in_grid]], ushort b [[thread_position_in_threadgroup]],
    uint c [[threadgroup_position_in_grid]], ushort d [[threads_per_threadgroup]], uint e [[threads_per_simdgroup]]) {
  x[0] = a + b + c + d + e;
}

//// positions as pairs
kernel void f(device uint* x, uint2 a [[thread_position_in_grid]], ushort2 b [[threads_per_threadgroup]]) {
  x[0] = a.x + b.y;
}

//// overloads by address space
inline float g(const device float* p) { return p[0]; }
inline float g(const threadgroup float* p) { return p[1]; }
inline float g(constant float* p) { return p[2]; }
inline float g(const thread float* p) { return p[3]; }
kernel void f(device float* x, constant float* y) {
  threadgroup float s[4];
  float t[4] = {1, 2, 3, 4};
  s[1] = 1;
  x[0] = g(x) + g(s) + g(y) + g(t);
}

//// references
inline void g(device float& a, thread float& b, threadgroup float& c) { a = b = c; }
kernel void f(device float* x) {
  threadgroup float s;
  s = 2;
  float t;
  g(x[0], t, s);
  x[1] = t;
}

//// threadgroup variables
struct P {
  float a;
  int b[2];
};
template <typename T, int N> [[kernel]] void g(device T* x) {
  threadgroup T a[N], b, c[2][N + 1];
  threadgroup P p;
  threadgroup vec<T, 4> v[N];
  alignas(16) threadgroup float4 w;
  threadgroup alignas(32) uchar bytes[3];
  bytes[2] = 1;
  threadgroup T* q = a;
  threadgroup T& r = b;
  const threadgroup T* s = &c[1][0];
  threadgroup uint2 u[2], y;
  a[0] = x[0];
  b = a[0];
  c[1][N] = b;
  p.b[1] = 2;
  v[0].x = b;
  w = float4(1);
  q[1] = r;
  x[0] = s[0] + T(p.b[1]) + v[0].x;
  u[0] = y = uint2(1);
}
template [[host_name("f")]] [[kernel]] decltype(g<float, 8>) g<float, 8>;

//// threadgroup pointer parameters
template <typename T> void g(threadgroup T* s, const device T* x, uint n) {
  for (uint k = 0; k < n; ++k) s[k] = x[k];
}
kernel void f(device float* x) {
  threadgroup float s[4];
  g(s, x, 4);
  x[0] = s[3];
}

//// program-scope constants
struct P {
  float a;
  int b[2];
};
constant float t[3] = {1, 2, 3};
constant P p[2] = {{1, {2, 3}}, {4, {5, 6}}};
constant constexpr int N = 3;
constexpr constant uint M = 2u;
constant static const float pi = M_PI_F;
constant ulong big{1ul << 40};
kernel void f(device float* x, uint i [[thread_position_in_grid]]) {
  float v[N];
  v[0] = t[i] + p[i].b[1] + pi + M + big;
  x[i] = v[0];
}

//// structures
struct Dims {
  int64_t sizes[4];
  uint32_t n;
};
template <typename T> struct Pair {
  T a;
  T b;
  T sum() const {
    return a + b;
  }
};
kernel void f(device float* x, constant Dims& d, device Pair<float>* p) {
  Pair<float> q = p[d.n];
  q.a = float(d.sizes[1]);
  p[1] = q;
  p[2] = p[3];
  Pair<half> h{1.0h, 2.0h};
  x[0] = q.sum() + h.sum();
}

//// constructors and conversions
struct C {
  float r;
  C(float v) : r(v) {}
  operator float() const {
    return r;
  }
};
kernel void f(device float* x) { C c(x[0]); x[1] = c; }

//// enumerations, unions, aliases
enum class Mode : uint { a, b = 4 };
union U {
  float f;
  uint u;
};
using F = float;
typedef uint4 Wide;
template <typename T> using Vec = vec<T, 2>;
kernel void f(device F* x) {
  U u;
  u.f = x[0];
  Wide w = Wide(u.u);
  Vec<float> v = Vec<float>(F(1), 2);
  x[1] = F(w.x) + F(uint(Mode::b)) + v.y;
}

//// control flow
kernel void f(device int* x, uint i [[thread_position_in_grid]]) {
  int n = x[i];
  switch (n) {
    case 0: n = 3;
    [[fallthrough]];
    case 1: n += 1;
    break;
    default: n = -1;
  }
  do {
    n--;
  } while (n > 0);
  for (;;) {
    if (n < 0) [[unlikely]] break;
    else continue;
  }
  while (false) {}
  x[i] = n > 2 ? n : -n;
}

//// if constexpr
template <typename T> [[kernel]] void g(device T* x) {
  if constexpr (is_same_v<T, half>) x[0] = 1.0h;
  else x[0] = T(2);
}
template [[host_name("f")]] [[kernel]] decltype(g<half>) g<half>;
template [[host_name("h")]] [[kernel]] decltype(g<int>) g<int>;

//// enable_if
template <typename T, enable_if_t<is_integral_v<T>, bool> = true> T g(T v) { return v + T(1); }
template <typename T, enable_if_t<is_floating_point_v<T>, bool> = true> T g(T v) {
  return v * T(2);
}
kernel void f(device float* x) { x[0] = g(x[0]) + g(3); }

//// pragmas
#pragma METAL fp math_mode(safe)
#pragma clang diagnostic ignored "-Wunused"
#pragma mark - here
kernel void f(device float* x) {
#pragma clang loop unroll(full)
  for (int k = 0; k < 4; ++k) x[k] = 1;
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = 2;
}

//// bfloat
kernel void f(device bfloat* x, device float* y) {
  bfloat a = x[0];
  bfloat b = bfloat(y[0]);
  y[1] = float(a * b) + float(x[1]);
  x[2] = static_cast<bfloat>(y[2]);
  x[3] = a < b ? a : -b;
  x[4] = bfloat(half(1.5h));
  half h = half(x[4]);
  y[3] = h;
  x[5] += x[6];
  x[7] = bfloat(1);
  float c = (float)a;
  y[4] = c;
  bfloat4 v = bfloat4(a);
  float4 w = float4(v);
  y[5] = w.x;
}

//// half and float
kernel void f(device half* x, device float* y) {
  half a = y[0];
  float b = x[0];
  y[1] = a * b;
  x[1] = a * 2;
  x[2] = b;
  half4 v = half4(float4(1));
  y[2] = dot(v, v);
}

//// collectives
kernel void f(device float* x, uint i [[thread_position_in_grid]]) {
  float v = x[i];
  v = simd_sum(v) + simd_max(v) + simd_min(v) + simd_product(v);
  v += simd_shuffle(v, 3) + simd_shuffle_xor(v, 1) + simd_shuffle_up(v, 1) + simd_shuffle_down(v, 1);
  v += simd_broadcast(v, 0) + simd_broadcast_first(v);
  uint u = simd_and(i) | simd_or(i) | simd_xor(i);
  bool b = simd_any(i > 3) && simd_all(i < 9) && simd_is_first();
  simd_vote m = simd_ballot(b);
  v += simd_prefix_inclusive_sum(v) + simd_prefix_exclusive_sum(v) + quad_sum(v);
  v += quad_broadcast(v, 1) + simd_sum(float2(v)).y;
  x[i] = v + u + uint(ulong(m));
}

//// includes
#include <metal_simdgroup>
#include <metal_math>
#include <metal_atomic>
#include <metal_simdgroup_matrix>
#include <metal_type_traits>
#include <metal_limits>
kernel void f(device float* x) { x[0] = metal::exp(x[0]); }

//// metal:: without using
kernel void f(device float* x) {
  metal::float4 v = metal::float4(1);
  x[0] = metal::max(v.x, x[1]);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup | metal::mem_flags::mem_device);
}

//// macros
#define N 4
#define SQUARE(x) ((x) * (x))
#ifdef __METAL_VERSION__
#if __METAL_VERSION__ >= 310
kernel void f(device float* x) {
  for (int k = 0; k < N; ++k) x[k] = SQUARE(x[k]);
}
#endif
#endif

//// static_assert
static_assert(sizeof(float3) == 16, "padded");
kernel void f(device float* x) { static_assert(is_same_v<float, float>); x[0] = 1; }

//// void pointers and casts
kernel void f(device void* x, const device uchar* y) {
  device float* p = (device float*)x;
  device const uint4* q = reinterpret_cast<device const uint4*>(y);
  p[0] = q[0].x;
}

//// const in every place
kernel void f(const device float* const a, device const float* b, constant const float& c, device float* out) {
  out[0] = a[0] + b[0] + c;
}

//// array in a constant argument
kernel void f(device float* x, constant int64_t* s [[buffer(1)]]) { x[s[0]] = s[1]; }

//// fused attributes of a parameter
kernel void f(device float* x [[ buffer( 0 ) ]], uint i [[ thread_position_in_grid ]]) { x[i] = 1; }

//// no kernel
inline float g(float x) { return x; }

//// comparisons of vectors
template <typename T> [[kernel]] void g(device T* x) {
  x[0] = select(x[1], x[2], (x[1] < x[2]) && !(x[1] == x[3]));
  if (any(x[0] > T(1)) || metal::all(x[0].xy <= x[1].xy)) x[1] = T(0);
  bool equal = all((x[2] != x[3]) | (x[1] >= x[2]));
  x[4] = equal ? x[5] : x[6];
}
template [[host_name("f")]] [[kernel]] decltype(g<float4>) g<float4>;
template [[host_name("h")]] [[kernel]] decltype(g<half4>) g<half4>;
template [[host_name("i")]] [[kernel]] decltype(g<uint4>) g<uint4>;

//// program-scope constants of vectors
constant float4 k[2] = {float4(1, 2, 3, 4), float4(float2(1, 2), 3, half(4))};
constant half2 h = half2(0.5);
constant bfloat b = bfloat(1.5);
constant uint3 u = uint3(float3(1, 2, 3));
constant float lut[3] = {1.0 / 3, 2.0 * 2, -1};
struct S { packed_float3 p; ushort n; };
constant S s[1] = {{packed_float3(1, 2, 3), 4}};
kernel void f(device float* x, uint i [[thread_position_in_grid]]) {
  x[i] = k[i].x + h.x + float(b) + u.z + lut[i] + s[i].n;
}

//// tests of float vectors, and where a scalar stands for a vector
kernel void f(device float4* x, device half4* h, device float3* z) {
  if (any(isnan(x[0])) || all(isfinite(z[0])) || any(signbit(h[0]))) x[1] = select(x[2], x[3], isinf(x[4]));
  const bool4 n = isnan(h[1]);
  x[5] = n[0] ? float4(isnan(x[6])) : step(0.5f, x[7]) + smoothstep(0.0f, 1.0f, x[8]);
  const simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8>(0.0f);
  (void)m;
}
