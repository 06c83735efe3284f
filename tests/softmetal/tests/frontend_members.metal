// What the front end spells anew so that clang takes it, and the rest of the library that no kernel of the pack uses.
// test_frontend_members.py runs each part on one thread and compares with the values in its comment.

//// components of bool vectors: 1 0 1 1
kernel void f(device float* out) {
  bool3 a = bool3(true, false, true);
  a.y = a.x && !a.y;
  bool2 b;
  b.x = a.z;
  b.y = false;
  out[0] = a.y;
  out[1] = b.y;
  out[2] = b.r;
  out[3] = a.g;
}

//// elements of bool vectors by index: 1 0 1 1 0 1 0 1
inline bool4 mark(bool4 v, uint i, bool x) { v[i] = x; return v; }
kernel void f(device float* out, uint i [[thread_position_in_grid]]) {
  bool2 a;
  a[0] = out[0] == 0;
  a[i + 1] = out[1] > 0;
  threadgroup bool3 b;
  b = bool3(false);
  b[2 - i] |= a[0];
  b[i] = b[2] && !b[1];
  bool4 c = mark(mark(bool4(true), i + 2, false), 3, true);
  thread bool& last = a[1];
  out[0] = a[0];
  out[1] = a[1];
  out[2] = b[0];
  out[3] = b[2];
  out[4] = c[2];
  out[5] = c[3] && any(c);
  out[6] = all(c);
  last = true;
  out[7] = all(a);
}

//// compound assignments and swizzles of bool vectors: 10 101 101 110 110 110 1100 1
struct Flags { bool3 m; float f; };
inline float number(bool2 v) { return v.x * 10 + v.y; }
inline float number(bool3 v) { return v.x * 100 + number(v.yz); }
inline float number(bool4 v) { return v.x * 1000 + number(v.yzw); }
kernel void f(device float* out, uint i [[thread_position_in_grid]]) {
  bool4 a = bool4(true, false, true, false);
  a &= bool4(true, true, false, true);
  bool2 b = a.xw;
  b ^= a.yx;
  b[i] |= true;
  b.y &= false;
  out[0] = number(b);
  bool4 c = bool4(b, a.zw);
  c.wx = c.xw;
  c.yz |= c.wx;
  out[1] = number(bool3(c.g, c.ba));
  c.g = true;
  out[2] = number(c);
  threadgroup Flags shared;
  shared.m = bool3(true, false, false);
  shared.m |= bool3(false, false, true);
  shared.m.xy = shared.m.zz;
  shared.m.z = false;
  out[3] = number(shared.m);
  thread Flags own = {bool3(false, true, true), 2};
  own.m.zyx = own.m;
  out[4] = number(own.m.xyz);
  out[5] = number(own.m);
  out[6] = number(bool4(own.m, false));
  out[7] = sizeof(bool2) == 2 && sizeof(bool3) == 4 && sizeof(bool4) == 4 && alignof(bool3) == 4;
}

//// operators of bool vectors, and what compares to them: 1 0 1 0 1 3 2 1 1 0 1
union Word { bool4 b; uint u; };
kernel void f(device float* out, constant float& unused [[buffer(1)]]) {
  float4 x = float4(out[0], 1, 2, 3);
  bool4 small = x < 1.5f;
  const bool4 large = !small && (x != 0.0f);
  bool4 both = small || large;
  out[0] = all(both);
  both = x < 0.5f || x > 2.5f;
  out[1] = both.y;
  out[2] = both[3] && any(both == small);
  out[3] = all((small ^ large) & !(small | large));
  out[4] = all(select(both, !both, both) == false);
  out[5] = select(x, x + 1, both).w - 1;
  out[6] = int4(large).z + float4(both).w;
  vec<bool, 4> named = metal::vec<bool, 4>(0, 2, 0.5f, true);
  out[7] = all(named.yzw) && !named.x;
  constexpr bool2 known = bool2(true, false);
  static_assert(known.x && !known[1], "");
  Word word;
  word.b = bool4(true, false, true, false);
  out[8] = word.u == 0x00010001u;
  out[9] = isnan(x)[1];
  packed_bool3 packed = packed_bool3(small.xyz);
  out[10] = packed.x && packed[1] && !packed.z;
}

//// vec<T, N> whose T is bool: 1 0 1 2 7
template <typename T, int N> struct Fragment {
  typedef metal::vec<T, N> type;
  using same = vec<T, N>;
  vec<T, N> held;
  static void fill(thread type& v, T x) { for (int i = 0; i < N; ++i) v[i] = i % 2 ? T(0) : x; }
};
template <typename T> T middle(T x) {
  vec<T, 4> v = vec<T, 4>(x, T(0), x, x);
  v[2] = v[1];
  return v[2];
}
kernel void f(device float* out) {
  Fragment<bool, 4>::type v;
  Fragment<bool, 4>::fill(v, true);
  Fragment<bool, 2>::same two = v.xy;
  Fragment<bool, 2> fragment = {two};
  Fragment<float, 4>::type w;
  Fragment<float, 4>::fill(w, 2);
  out[0] = v[2];
  out[1] = middle(true) + middle(3.0f);
  out[2] = fragment.held.x && !fragment.held[1];
  out[3] = w[2];
  out[4] = w[0] + sizeof(v) + sizeof(fragment.held[0]);
}

//// vectors declared with the arguments of a constructor: 3 7 4 9
kernel void f(device float* out, uint i [[thread_position_in_grid]]) {
  const int2 at((int(i) % 4 + 1) * 3, (7));
  short3 there(at, min(4, (5 + 2)));
  float2 last((at.x + (1 * 2)) - 5, 9);
  out[0] = at.x;
  out[1] = at.y;
  out[2] = there.z;
  out[3] = last.y + last.x;
}

//// arrays in every address space: 5 2 7 3 9
struct Arguments {
  array<float, 3> values [[id(0)]];
  float last [[id(3)]];
};
constant array<float, 2> fixed = {{5, 6}};
inline float second(array<float, 3> a) { a[1] += 1; return a[1]; }
kernel void f(device float* out) {
  threadgroup array<float, 4> shared;
  thread Arguments arguments = {{{1, 2, 3}}, 4};
  shared[2] = 7;
  out[0] = fixed[0];
  out[1] = second(arguments.values) - 1;
  out[2] = shared[2];
  out[3] = arguments.values.size();
  device array<float, 2>& there = *(device array<float, 2>*)(out + 4);
  there[0] = 9;
}

//// matrices: 1 4 14 32 30 36 -2 4 3 11
kernel void f(device float* out) {
  float2x3 m = float2x3(float3(1, 2, 3), float3(4, 5, 6));
  float2 product = float3(1, 2, 3) * m;
  float3 other = m * float2(2, 7);
  float2x2 square = float2x2(1, 2, 3, 4);
  float3x3 diagonal = float3x3(2.0);
  diagonal[1][1] = 3;
  threadgroup float2x2 shared;
  shared = square * float2x2(1);
  out[0] = m[0][0];
  out[1] = transpose(m)[0][1];
  out[2] = product.x;
  out[3] = product.y;
  out[4] = other[0];
  out[5] = other[1] - 3;
  out[6] = determinant(square);
  out[7] = determinant(diagonal) / 3;
  out[8] = shared[1].x;
  out[9] = (square + square * 2.0)[1][1] - (square == shared);
}

//// uniform: 6 2 1
kernel void f(device float* out) {
  constexpr const uniform<int> step = make_uniform(3);
  const uniform<int> count = make_uniform(7) / step;
  out[0] = count * step;
  out[1] = int(count);
  out[2] = count < step ? 1 : 0;
}

//// additions to metal:: and functions of the same name: 3 8 2
namespace metal {
  inline float half_of(float x) { return x / 2; }
  inline bfloat max(bfloat a, bfloat b) { return a > b ? a : b; }
}
struct Pair { float a, b; };
inline Pair max(Pair x, Pair y) { Pair r = {max(x.a, y.a), max(x.b, y.b)}; return r; }
kernel void f(device float* out) {
  Pair x = {1, 8}, y = {3, 2};
  Pair z = max(x, y);
  out[0] = z.a;
  out[1] = z.b;
  out[2] = half_of(float(max(bfloat(3.0), bfloat(4.0))));
}

//// a kernel named as a function of metal::, which it calls: 4 7
kernel void clamp(device float* out) { out[0] = clamp(9.0, 1.0, 4.0); }
kernel void f(device float* out) {
  out[0] = clamp(9.0, 1.0, 4.0);
  out[1] = 7;
}

//// member functions by address space: 3 5 9
struct Box {
  float value;
  constexpr Box() thread : value(0) {}
  constexpr Box(float v) thread : value(v) {}
  constexpr Box(float v) threadgroup : value(v) {}
  constexpr Box(float v) constant : value(v) {}
  operator float() const thread { return value; }
  operator float() const device { return value; }
  float twice() const { return 2 * value; }
};
struct Table {
  static constexpr constant Box init = Box(5);
};
kernel void f(device float* out) {
  device Box& there = *(device Box*)out;
  there = Box(3);
  Box here = there;
  out[1] = float(Box(Table::init));
  out[2] = here.twice() + there;
}

//// vectors made where they are wanted: 6 10 4
inline float total(uint3 v, float scale) { return (v.x + v.y + v.z) * scale; }
template <typename T> inline T last(vec<T, 2> v) { return v.y; }
kernel void f(device float* out) {
  const uint one = 1;
  const int4 four(1, 2, 3, int(one) * 4);
  out[0] = total({one, 2 * one, 3 * one}, 1.0);
  out[1] = four.x + four.y + four.z + four.w;
  thread const float2 pair(1.0, 4.0);
  out[2] = last(pair);
}

//// pointers to functions as template arguments: 9 16
template <typename T> using Step = T (*)(T);
inline float square(float x) { return x * x; }
template <typename T, Step<T> step> inline T apply(T x) { return step(x); }
template <float (*step)(float)> inline float twice(float x) { return step(step(x)); }
kernel void f(device float* out) {
  out[0] = apply<float, square>(3);
  out[1] = twice<square>(2);
}

//// parameters written as arrays, and attributes that say nothing: 4 8
inline float pick(constant const float numbers[3], uint i [[thread_position_in_grid]]) { return numbers[i + 1]; }
inline float corner(threadgroup float table[2][2]) { return table[1][1]; }
constant float numbers[3] = {2, 4, 6};
kernel void f(device float* out) {
  threadgroup float table[2][2] = {0};
  table[1][1] = 8;
  out[0] = pick(numbers, 0);
  out[1] = corner(table);
}

//// the compiler's own functions: 3 2 1 0.5 -1 5
kernel void f(device float* out) {
  out[0] = __builtin_ctz(8u);
  out[1] = __metal_fmax(1.0, 2.0, __METAL_MAYBE_FAST_MATH__);
  out[2] = tanpi(0.25);
  out[3] = __metal_fma(0.25, 1.0, 0.25);
  out[4] = sign(tanpi(-0.5));
  out[5] = __metal_simd_sum(5.0);
}

//// text in constant memory: 97 0
struct Log {
  constant char* name;
};
constant Log log = {"a" "b"};
kernel void f(device float* out) {
  out[0] = log.name[0];
  out[1] = log.name[2];
}

//// values wanted of pointers: 1.5 3
kernel void f(device float* out) {
  half4 v = half4(1.5);
  thread half4* p = &v;
  const float4 wide = float4(*p);
  out[0] = wide.x;
  out[1] = (wide + float4(*p)).y;
}
