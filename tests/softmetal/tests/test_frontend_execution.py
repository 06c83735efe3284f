"""What compiled kernels compute: vectors, swizzles, conversions, math, collectives, run by the checking runtime."""

from pathlib import Path

import numpy as np
import pytest
import torch
from softmetal.tests.frontend_driver import run

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def evaluate(expressions, inputs=(), kind="float", helpers="", count=None):
    """The values of MSL expressions of type `kind` in one thread; `inputs` is bound as `device const float* in`."""
    dtype = {
        "float": np.float32,
        "uint": np.uint32,
        "int": np.int32,
        "ulong": np.uint64,
        "long": np.int64,
        "half": np.float16,
    }[kind]
    lines = "".join(f"  out[{i}] = {kind}({e});\n" for i, e in enumerate(expressions))
    source = HEAD + helpers + f"kernel void f(device const float* in, device {kind}* out) {{\n{lines}}}\n"
    out = np.zeros(len(expressions), dtype)
    data = np.array(list(inputs) or [0.0], np.float32)
    assert run(source, "f", data, out, threads=1, group_size=1) == 0
    return out


CASES = [
    # vectors: constructors from mixed parts, swizzles as values and as targets, both letter sets
    ("float4(1, 2, 3, 4).w", 4),
    ("float4(float2(1, 2), 3, 4).y", 2),
    ("float4(1, float2(2, 3), 4).z", 3),
    ("float4(float3(1, 2, 3), 4).w", 4),
    ("float4(7).z", 7),
    ("float3(float4(1, 2, 3, 4).yzw).x", 2),
    ("float4(1, 2, 3, 4).rgba.g", 2),
    ("float4(1, 2, 3, 4).wzyx.x", 4),
    ("float2(1, 2).yx.x", 2),
    ("vec<float, 3>(1, 2, 3).z", 3),
    ("float4(int4(1, -2, 3, 4)).y", -2),
    ("float2(half2(0.5h, 1.5h)).y", 1.5),
    ("float4(uint4(1, 2, 3, 4000000000u)).w", 4e9),
    ("float(int4(float4(1.9, -1.9, 0, 0)).y)", -1),
    ("float(sizeof(float3))", 16),
    ("float(sizeof(packed_float3))", 12),
    ("float(alignof(packed_float3))", 4),
    ("float(sizeof(half4))", 8),
    ("float(sizeof(long4))", 32),
    ("float(alignof(float4))", 16),
    ("(float2(1, 2) * 3.0).y", 6),
    ("(2.0 * float2(1, 2)).y", 4),
    ("(float2(1, 2) + float2(3, 4)).x", 4),
    ("dot(float3(1, 2, 3), float3(4, 5, 6))", 32),
    ("length(float2(3, 4))", 5),
    ("cross(float3(1, 0, 0), float3(0, 1, 0)).z", 1),
    ("float(all(float2(1, 2) < float2(2, 3)))", 1),
    ("float(any(float2(1, 2) > float2(2, 3)))", 0),
    ("select(float2(1, 2), float2(3, 4), float2(0, 1) > 0.5).x", 1),
    ("select(float2(1, 2), float2(3, 4), float2(0, 1) > 0.5).y", 4),
    ("select(1.0, 2.0, true)", 2),
    ("select(float2(1, 2), float2(3, 4), bool2(true, false)).x", 3),
    ("float(packed_float3(1, 2, 3).y)", 2),
    ("float3(packed_float3(1, 2, 3)).z", 3),
    ("float(packed_float3(float3(4, 5, 6))[2])", 6),
    # bits
    ("float(as_type<uint>(1.0f))", 0x3F800000),
    ("as_type<float>(0x40000000u)", 2),
    ("float(as_type<ushort2>(0x00020001u).y)", 2),
    ("float(popcount(0xF0u))", 4),
    ("float(clz(1u))", 31),
    ("float(clz(ushort(1)))", 15),
    ("float(ctz(8))", 3),
    ("float(ctz(0u))", 32),
    ("float(clz(0))", 32),
    ("float(clz(char(-1)))", 0),
    ("float(popcount(char(-1)))", 8),
    ("float(reverse_bits(1u) >> 28)", 8),
    ("float(mulhi(0x80000000u, 4u))", 2),
    ("float(mulhi(-1, 1))", -1),
    ("float(mulhi(1ul << 63, 4ul))", 2),
    ("float(rotate(0x80000001u, 1u))", 3),
    ("float(extract_bits(0xABCDu, 4, 8))", 0xBC),
    ("float(insert_bits(0u, 3u, 4, 2))", 48),
    ("float(addsat(uchar(250), uchar(10)))", 255),
    ("float(subsat(char(-100), char(100)))", -128),
    ("float(hadd(0xFFFFFFFFu, 1u) >> 31)", 1),
    ("float(abs(-3))", 3),
    ("float(absdiff(2u, 5u))", 3),
    ("float(min(2u, 3u))", 2),
    ("float(clamp(9, 0, 5))", 5),
    ("float(max(short(2), short(3)))", 3),
    # common and math
    ("clamp(5.0, 0.0, 1.0)", 1),
    ("mix(1.0, 3.0, 0.5)", 2),
    ("step(2.0, 1.0)", 0),
    ("sign(-2.0)", -1),
    ("saturate(-1.0)", 0),
    ("fract(-0.25)", 0.75),
    ("smoothstep(0.0, 1.0, 0.5)", 0.5),
    ("fma(2.0, 3.0, 4.0)", 10),
    ("exp2(3.0)", 8),
    ("log2(8.0)", 3),
    ("sqrt(9.0)", 3),
    ("rsqrt(4.0)", 0.5),
    ("pow(2.0, 10.0)", 1024),
    ("floor(-1.5)", -2),
    ("ceil(-1.5)", -1),
    ("trunc(-1.5)", -1),
    ("rint(2.5)", 2),
    ("round(2.5)", 3),
    ("fmod(5.5, 2.0)", 1.5),
    ("copysign(1.0, -0.0)", -1),
    ("fmin(NAN, 1.0)", 1),
    ("max(1.0, NAN)", 1),
    ("float(isnan(NAN))", 1),
    ("float(isinf(-INFINITY))", 1),
    ("float(isfinite(1.0))", 1),
    ("float(signbit(-0.0))", 1),
    ("ldexp(1.0, 3)", 8),
    ("precise::exp(0.0)", 1),
    ("fast::log(1.0)", 0),
    ("metal::precise::divide(1.0, 4.0)", 0.25),
    ("max(float2(1, 5), 3.0).x", 3),
    ("clamp(float2(-1, 9), 0.0, 4.0).y", 4),
    ("float(max(1.0h, 2.0h))", 2),
    ("max3(1.0, 3.0, 2.0)", 3),
    ("median3(1.0, 3.0, 2.0)", 2),
    ("tanh(0.0)", 0),
    ("atan2(0.0, 1.0)", 0),
    ("sinpi(0.5)", 1),
    ("cospi(1.0)", -1),
    # literals are float; half and bfloat round after every operation
    ("1.0 / 3.0", np.float32(1) / np.float32(3)),
    ("16777216.0 + 1.0", 16777216),
    ("float(2048.0h + 1.0h)", 2048),
    ("float(half(65504.0) * 2.0h)", np.inf),
    ("float(bfloat(1.0) + bfloat(0.001))", 1),
    ("float(bfloat(3.14159))", 3.140625),
    ("float(half(bfloat(1.5)))", 1.5),
    ("float(bfloat(1.5h))", 1.5),
    ("float(1.5bf)", 1.5),
    ("float((half)0.1)", np.float32(np.float16(0.1))),
    # limits and traits
    ("numeric_limits<float>::max()", np.finfo(np.float32).max),
    ("float(numeric_limits<half>::max())", 65504),
    ("float(numeric_limits<int>::min())", -2147483648),
    ("numeric_limits<float>::infinity()", np.inf),
    ("float(numeric_limits<bfloat>::max())", 3.3895313892515355e38),
    ("float(is_same_v<float, float>)", 1),
    ("float(is_same<vec<float, 4>, float4>::value)", 1),
    ("float(is_floating_point<half2>::value)", 1),
    ("float(is_integral_v<uchar>)", 1),
    ("conditional_t<true, float, int>(1.5)", 1.5),
    ("float(is_same_v<remove_pointer_t<device float*>, device float>)", 1),
    ("float(is_signed_v<char>)", 1),
    ("float(sizeof(make_unsigned_t<short>))", 2),
    ("float(char(200))", -56),
    ("float(__METAL_VERSION__)", 310),
    ("M_PI_F", np.float32(np.pi)),
]


def test_expressions():
    got = evaluate([expression for expression, _ in CASES])
    wrong = [
        (e, v, g) for (e, v), g in zip(CASES, got, strict=True) if not np.array_equal(np.float32(v), g, equal_nan=True)
    ]
    assert not wrong


def all_halves():
    return np.arange(65536, dtype=np.uint16).view(np.float16)


ROUND = (
    HEAD
    + """
#define AT uint i [[thread_position_in_grid]]
kernel void to_half(device const float* x, device half* y, AT) { y[i] = half(x[i]); }
kernel void to_bfloat(device const float* x, device bfloat* y, AT) { y[i] = bfloat(x[i]); }
kernel void from_half(device const half* x, device float* y, AT) { y[i] = float(x[i]); }
kernel void from_bfloat(device const bfloat* x, device float* y, AT) { y[i] = float(x[i]); }
kernel void half_arithmetic(device const half* x, device half* y, AT) { y[i] = x[i] * 1.3h + 0.7h; }
kernel void bfloat_arithmetic(device const bfloat* x, device bfloat* y, AT) {
  y[i] = x[i] * bfloat(1.3f) + bfloat(0.7f);
}
kernel void half_vector(device const half4* x, device half4* y, AT) { y[i] = x[i] * 1.3h + 0.7h; }
kernel void bfloat_vector(device const bfloat4* x, device bfloat4* y, AT) {
  y[i] = x[i] * bfloat(1.3f) + bfloat(0.7f);
}
"""
)


def halfway_floats():
    """Floats at, just below and just above the middle between neighbouring bfloats; subnormals, infinities, NaN."""
    upper = np.arange(0, 65536, 7, dtype=np.uint32) << 16
    bits = np.concatenate([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    return bits.view(np.float32)


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    both_nan = got.isnan() & want.isnan()
    return bool(((got.view(torch.int16) == want.view(torch.int16)) | both_nan).all())


@pytest.mark.parametrize("checked", [True, False])
def test_narrowing_rounds_to_nearest_even(checked):
    x = np.concatenate([halfway_floats(), np.random.default_rng(0).normal(size=5000).astype(np.float32)])
    # Halfway points of half: every half and its upper neighbour, in the middle and next to it.
    h = all_halves()[:0x7BFF].astype(np.float32)
    middle = (h[:-1].astype(np.float64) + h[1:]) / 2
    x = np.concatenate(
        [
            x,
            middle.astype(np.float32),
            np.nextafter(middle.astype(np.float32), np.float32(0)),
            -middle.astype(np.float32),
        ]
    )
    y = np.zeros(len(x), np.float16)
    assert run(ROUND, "to_half", x, y, threads=len(x), group_size=256, checked=checked) == 0
    assert same_bits(torch.from_numpy(y), torch.from_numpy(x).half())
    z = np.zeros(len(x), np.int16)
    assert run(ROUND, "to_bfloat", x, z, threads=len(x), group_size=256, checked=checked) == 0
    assert same_bits(torch.from_numpy(z).view(torch.bfloat16), torch.from_numpy(x).bfloat16())


def test_widening_is_exact():
    bits = np.arange(65536, dtype=np.uint16)
    y = np.zeros(65536, np.float32)
    assert run(ROUND, "from_half", bits, y, threads=65536, group_size=256) == 0
    assert np.array_equal(y, bits.view(np.float16).astype(np.float32), equal_nan=True)
    assert run(ROUND, "from_bfloat", bits, y, threads=65536, group_size=256) == 0
    assert np.array_equal(y, (bits.astype(np.uint32) << 16).view(np.float32), equal_nan=True)


@pytest.mark.parametrize("checked", [True, False])
def test_half_and_bfloat_round_after_every_operation(checked):
    bits = np.arange(65536, dtype=np.uint16)
    x = torch.from_numpy(bits.view(np.int16))
    for kind, dtype in (("half", torch.float16), ("bfloat", torch.bfloat16)):
        y = np.zeros(65536, np.int16)
        values = x.view(dtype)
        assert run(ROUND, f"{kind}_arithmetic", bits, y, threads=65536, group_size=256, checked=checked) == 0
        want = values * torch.tensor(1.3, dtype=dtype) + torch.tensor(0.7, dtype=dtype)
        assert same_bits(torch.from_numpy(y).view(dtype), want), kind
        assert run(ROUND, f"{kind}_vector", bits, y, threads=16384, group_size=256, checked=checked) == 0
        assert same_bits(torch.from_numpy(y).view(dtype), want), kind


def test_safe_math_does_not_contract():
    a, b = np.float32(1 + 2**-12), np.float32(-(1 + 2**-11))
    assert evaluate(["in[0] * in[0] + in[1]", "fma(in[0], in[0], in[1])"], [a, b]).tolist() == [0.0, 2.0**-24]


def test_swizzles_as_targets():
    helpers = """
inline float4 g(float4 v) {
  v.xz = v.yw;
  v.w += 1;
  v.yx *= float2(2, 3);
  v.b = 9;
  float4 u = v;
  u.xyz = float3(u.z, u.y, u.x);
  return u;
}
"""
    got = evaluate([f"g(float4(1, 2, 3, 4))[{i}]" for i in range(4)], helpers=helpers)
    assert got.tolist() == [9, 4, 6, 5]  # v: (2, 2, 4, 4), w 5, yx (6, 4), b 9


def test_positions():
    names = [
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
        "threadgroups_per_grid",
        "threads_per_grid",
        "threads_per_threadgroup",
        "dispatch_threads_per_threadgroup",
    ]
    indices = [
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
        "simdgroups_per_threadgroup",
        "dispatch_simdgroups_per_threadgroup",
        "threads_per_simdgroup",
        "thread_execution_width",
        "quadgroup_index_in_threadgroup",
        "thread_index_in_quadgroup",
    ]
    declared = [f"uint3 p{i} [[{n}]]" for i, n in enumerate(names)] + [
        f"ushort i{i} [[{n}]]" for i, n in enumerate(indices)
    ]
    writes = [f"o[{3 * i + a}] = p{i}.{'xyz'[a]};" for i in range(7) for a in range(3)] + [
        f"o[{21 + i}] = i{i};" for i in range(9)
    ]
    source = HEAD + (
        f"kernel void f(device uint* out, {', '.join(declared)}) {{\n"
        f"device uint* o = out + 30 * ((p0.z * p4.y + p0.y) * p4.x + p0.x); {' '.join(writes)} }}\n"
    )
    grid, group = (11, 5, 3), (8, 3, 2)
    out = np.zeros((3, 5, 11, 30), np.uint32)
    assert run(source, "f", out, threads=grid, group_size=group) == 0
    for z, y, x in np.ndindex(3, 5, 11):
        at, row = (x, y, z), out[z, y, x].tolist()
        groups = [-(-n // g) for n, g in zip(grid, group, strict=True)]
        number = [p // g for p, g in zip(at, group, strict=True)]
        inside = [p % g for p, g in zip(at, group, strict=True)]
        size = [min(g, n - k * g) for n, g, k in zip(grid, group, number, strict=True)]
        index = inside[0] + size[0] * (inside[1] + size[1] * inside[2])
        threads = size[0] * size[1] * size[2]
        want = [
            *at,
            *inside,
            *number,
            *groups,
            *grid,
            *size,
            *group,
            index,
            index % 32,
            index // 32,
            -(-threads // 32),
            2,
            32,
            32,
            index // 4,
            index % 4,
        ]
        assert row == want, at


def test_structures_move_between_address_spaces():
    source = (
        HEAD
        + """
struct S { float a; int b[2]; packed_float3 c; };
constant S fixed[2] = {{1, {2, 3}, packed_float3(4, 5, 6)}, {7, {8, 9}, packed_float3(10, 11, 12)}};
inline S twice(S s) { s.a *= 2; s.b[1] *= 2; return s; }
kernel void f(device S* x, constant S& y, uint i [[thread_position_in_grid]]) {
  threadgroup S shared[2];
  if (i == 0) {
    shared[0] = x[0];
    shared[1] = twice(shared[0]);
    S local = y;
    local.c = shared[1].c;
    float3 v = local.c;
    local.c = packed_float3(v * 2.0);
    x[1] = local;
    x[2] = shared[1];
    x[3] = fixed[int(x[0].a)];
    x[4] = x[3];
    x[4].c = x[2].c;
  }
}
"""
    )
    kind = np.dtype([("a", "f4"), ("b", "i4", 2), ("c", "f4", 3)])
    x = np.zeros(5, kind)
    x[0] = (1, [2, 3], [4, 5, 6])
    y = np.array([(10, [20, 30], [40, 50, 60])], kind)
    assert run(source, "f", x, y, threads=1, group_size=1) == 0
    assert x[1] == np.array((10, [20, 30], [8, 10, 12]), kind)
    assert x[2] == np.array((2, [2, 6], [4, 5, 6]), kind)
    assert x[3] == np.array((7, [8, 9], [10, 11, 12]), kind)
    assert x[4] == np.array((7, [8, 9], [4, 5, 6]), kind)


def test_overloads_by_address_space():
    source = (
        HEAD
        + """
inline float g(const device float* p) { return p[0] + 1000; }
inline float g(const threadgroup float* p) { return p[0] + 2000; }
inline float g(constant float* p) { return p[0] + 3000; }
inline float g(const thread float* p) { return p[0] + 4000; }
constant float fixed[1] = {5};
kernel void f(device float* x, constant float* y) {
  threadgroup float s[1];
  s[0] = 2;
  float t[1] = {3};
  x[1] = g(x); x[2] = g(s); x[3] = g(y); x[4] = g(t); x[5] = g(fixed);
}
"""
    )
    x, y = np.ones(6, np.float32), np.full(1, 4, np.float32)
    assert run(source, "f", x, y, threads=1, group_size=1) == 0
    assert x.tolist() == [1, 1001, 2002, 3004, 4003, 3005]


def test_threadgroup_variables_are_shared_and_apart():
    source = (
        HEAD
        + """
template <typename T, int N>
[[kernel]] void reverse(device T* x, uint i [[thread_position_in_threadgroup]],
                        uint g [[threadgroup_position_in_grid]]) {
  threadgroup T a[N], first;
  threadgroup T b[2][N];
  a[i] = x[g * N + i];
  b[1][i] = a[i] + T(1);
  if (i == 0) first = a[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[g * N + i] = a[N - 1 - i] + b[1][i] + first;
}
template [[host_name("reverse_64")]] [[kernel]] decltype(reverse<float, 64>) reverse<float, 64>;
template [[host_name("reverse_half")]] [[kernel]] decltype(reverse<half, 32>) reverse<half, 32>;
"""
    )
    x = np.arange(192, dtype=np.float32)
    want = (x.reshape(3, 64)[:, ::-1] + x.reshape(3, 64) + 1 + x.reshape(3, 64)[:, :1]).reshape(-1)
    assert run(source, "reverse_64", x, threads=192, group_size=64) == 0
    assert x.tolist() == want.tolist()


def collectives(expressions, values, kind="float"):
    """What each expression of v, this lane's value, is in every lane of one threadgroup with a thread a value."""
    source = HEAD + "".join(
        f"kernel void f{n}(device const {kind}* in, device {kind}* out, uint lane [[thread_index_in_simdgroup]], "
        f"uint i [[thread_position_in_grid]]) {{ {kind} v = in[i]; out[i] = {kind}({e}); }}\n"
        for n, e in enumerate(expressions)
    )
    values = np.asarray(values, {"float": np.float32, "uint": np.uint32, "int": np.int32, "half": np.float16}[kind])
    results = []
    for n in range(len(expressions)):
        out = np.zeros_like(values)
        assert run(source, f"f{n}", values, out, threads=len(values), group_size=len(values)) == 0
        results.append(out)
    return results


def test_collectives():
    x = np.arange(1, 33, dtype=np.float32)
    lanes = np.arange(32)
    rows = {
        "simd_sum(v)": np.full(32, 528),
        "simd_max(v)": np.full(32, 32),
        "simd_min(v)": np.full(32, 1),
        "simd_product(v > 3 ? 1.0 : v)": np.full(32, 6),
        "simd_shuffle(v, 5)": np.full(32, 6),
        "simd_shuffle(v, ushort(31 - lane))": x[::-1],
        "simd_shuffle_xor(v, 3)": x[lanes ^ 3],
        "simd_shuffle_up(v, 2)": np.where(lanes < 2, x, np.roll(x, 2)),
        "simd_shuffle_down(v, 2)": np.where(lanes > 29, x, np.roll(x, -2)),
        "simd_shuffle_rotate_up(v, 3)": np.roll(x, 3),
        "simd_shuffle_rotate_down(v, 3)": np.roll(x, -3),
        "simd_shuffle_and_fill_up(v, -v, 2)": np.where(lanes < 2, -np.roll(x, 2), np.roll(x, 2)),
        "simd_shuffle_and_fill_down(v, -v, 2)": np.where(lanes > 29, -np.roll(x, -2), np.roll(x, -2)),
        "simd_broadcast(v, 7)": np.full(32, 8),
        "simd_broadcast_first(v)": np.full(32, 1),
        "simd_prefix_inclusive_sum(v)": np.cumsum(x),
        "simd_prefix_exclusive_sum(v)": np.cumsum(x) - x,
        "simd_is_first()": lanes == 0,
        "simd_any(v > 31)": np.ones(32),
        "simd_all(v > 1)": np.zeros(32),
        "simd_all(v > 0)": np.ones(32),
        "popcount(uint(ulong(simd_ballot(v > 16))))": np.full(32, 16),
        "simd_sum(float2(v, 1)).y": np.full(32, 32),
        "quad_sum(v)": x.reshape(8, 4).sum(1).repeat(4),
        "quad_max(v)": x.reshape(8, 4).max(1).repeat(4),
        "quad_broadcast(v, 2)": x.reshape(8, 4)[:, 2].repeat(4),
        "quad_shuffle_xor(v, 1)": x[lanes ^ 1],
    }
    for (expression, want), got in zip(rows.items(), collectives(list(rows), x), strict=True):
        assert got.tolist() == np.asarray(want, np.float32).tolist(), expression
    bits = np.arange(32, dtype=np.uint32) + 64
    got = collectives(["simd_and(v)", "simd_or(v)", "simd_xor(v)"], bits, "uint")
    assert [set(values.tolist()) for values in got] == [{64}, {95}, {np.bitwise_xor.reduce(bits)}]
    assert set(collectives(["simd_sum(v)"], x, "half")[0]) == {528}
    assert set(collectives(["simd_max(v)"], -x, "int")[0]) == {-1}


def test_collectives_of_a_partial_simdgroup():
    x = np.arange(1, 41, dtype=np.float32)
    got = collectives(["simd_sum(v)"], x)[0]
    assert got[:32].tolist() == [528] * 32 and got[32:].tolist() == [sum(range(33, 41))] * 8


def test_atomics():
    source = (
        HEAD
        + """
kernel void f(device atomic_uint* n, device atomic_float* s, device int* out, uint i [[thread_position_in_grid]]) {
  threadgroup atomic_int t;
  if (i == 0) atomic_store_explicit(&t, 7, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint before = atomic_fetch_add_explicit(n, 2u, memory_order_relaxed);
  atomic_fetch_add_explicit(s, 0.5, memory_order_relaxed);
  atomic_fetch_max_explicit(&t, int(i), memory_order_relaxed);
  atomic_fetch_or_explicit(&n[1], 1u << (i % 8), memory_order_relaxed);
  uint expected = 0;
  bool mine = atomic_compare_exchange_weak_explicit(&n[2], &expected, i + 1, memory_order_relaxed,
                                                    memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = mine ? -1 : atomic_load_explicit(&t, memory_order_relaxed);
  out[64 + before / 2] = 1;
}
"""
    )
    n, s, out = np.zeros(3, np.uint32), np.zeros(1, np.float32), np.zeros(128, np.int32)
    assert run(source, "f", n, s, out, threads=64, group_size=64) == 0
    assert n[0] == 128 and n[1] == 255 and s[0] == 32
    assert sorted(out[:64].tolist()) == [-1] + [63] * 63 and out[n[2] - 1] == -1
    assert out[64:].tolist() == [1] * 64  # each thread saw another value


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float", torch.float32), ("half", torch.float16), ("bfloat", torch.bfloat16)]
)
def test_simdgroup_matrix(kind, dtype):
    source = (
        HEAD
        + f"""
#include <metal_simdgroup_matrix>
kernel void f(device const {kind}* a, device const {kind}* b, device float* c) {{
  simdgroup_matrix<{kind}, 8, 8> A, B;
  simdgroup_float8x8 C = simdgroup_float8x8(2.0f);
  simdgroup_load(A, a, 16, ulong2(8, 0));
  simdgroup_load(B, b, 8, ulong2(0, 0), true);
  simdgroup_multiply_accumulate(C, A, B, C);
  simdgroup_store(C, c, 8);
  simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(3.0f), c + 64, 8);
}}
"""
    )
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, n, generator=generator).to(dtype) for n in (16, 8))
    c = np.zeros((2, 8, 8), np.float32)
    raw = [t.view(torch.int16).numpy() if t.element_size() == 2 else t.numpy() for t in (a, b)]
    assert run(source, "f", *raw, c, threads=32, group_size=32) == 0
    want = a.double()[:, 8:] @ b.double().T + 2 * torch.eye(8, dtype=torch.float64)
    assert np.allclose(c[0], want.numpy(), rtol=1e-5, atol=1e-5) and (c[1] == 3).all()


MATH = [
    "exp",
    "exp2",
    "log",
    "log2",
    "log10",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "sqrt",
    "rsqrt",
    "exp10",
]


@pytest.mark.parametrize("checked", [True, False])
def test_math_is_within_two_ulp(checked):
    x = np.random.default_rng(1).uniform(0.01, 0.99, 500).astype(np.float32)
    source = HEAD + "".join(
        f"kernel void k_{f}(device const float* x, device float* y, device half* z, uint i [[thread_position_in_grid]])"
        f"{{ y[i] = {f}(x[i]); z[i] = precise::{f}(half(x[i])); }}\n"
        for f in MATH
    )
    for name in MATH:
        y, z = np.zeros_like(x), np.zeros(len(x), np.float16)
        assert run(source, f"k_{name}", x, y, z, threads=500, group_size=100, checked=checked) == 0
        exact = {
            "rsqrt": lambda v: v**-0.5,
            "exp10": lambda v: 10.0**v,
            "asin": np.arcsin,
            "acos": np.arccos,
            "atan": np.arctan,
        }.get(name) or getattr(np, name)
        want = exact(x.astype(np.float64))
        assert np.all(np.abs(y - want) <= 2 * np.spacing(np.abs(want).astype(np.float32))), name
        want = exact(x.astype(np.float16).astype(np.float64))
        assert np.all(np.abs(z - want) <= np.spacing(np.abs(want).astype(np.float16))), name


def test_reading_past_a_program_scope_constant_is_caught():
    source = HEAD + (
        "constant float a[3] = {1, 2, 3};\nconstant float b[3] = {4, 5, 6};\n"
        "kernel void f(device float* x, constant uint& n) { x[0] = a[n] + b[0]; }\n"
    )
    for index, fault in ((2, False), (3, True), (6, True)):
        x, n = np.zeros(1, np.float32), np.array([index], np.uint32)
        assert bool(run(source, "f", x, n, threads=1, group_size=1)) == fault, index


def test_unchecked_is_the_same_arithmetic():
    source = (
        HEAD
        + "kernel void f(device const float* x, device float* y, constant uint& n) {\n"
        + "  float s = 0;\n  for (uint k = 0; k < n; ++k) s += x[k] * x[k];\n  y[0] = s;\n}\n"
    )
    x, n = np.random.default_rng(2).normal(size=1000).astype(np.float32), np.array([1000], np.uint32)
    results = []
    for checked in (True, False):
        y = np.zeros(1, np.float32)
        assert run(source, "f", x, y, n, threads=1, group_size=1, checked=checked) == 0
        results.append(y[0])
    want = np.float32(0)
    for v in x:
        want = np.float32(want + np.float32(v * v))
    assert results == [want, want]


KERNELS = Path(__file__).with_name("frontend_kernels.metal").read_text()


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [("float", torch.float32, 1e-6), ("half", torch.float16, 1e-3), ("bfloat", torch.bfloat16, 8e-3)],
)
def test_softmax_of_rows(name, dtype, tolerance):
    rows, length = 3, 1001  # 251 threads of 4 elements: a partial SIMD-group and a partial last thread
    x = torch.randn(rows, length, generator=torch.Generator().manual_seed(0)).to(dtype)
    raw = x.numpy() if dtype == torch.float32 else x.view(torch.int16).numpy()
    y, n = np.zeros_like(raw), np.array([length], np.int32)
    assert run(KERNELS, f"softmax_{name}", raw, y, n, threads=rows * 256, group_size=256) == 0
    got = torch.from_numpy(y).view(dtype).float()
    assert torch.allclose(got, x.float().softmax(-1), rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bfloat", torch.bfloat16)])
def test_fp8_weights(name, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    codes[[0x7F, 0xFF]] = 0  # the two NaN
    w = codes.repeat(4, 1)
    for row in range(4):
        w[row] = w[row].roll(row)
    x = torch.ones(256, dtype=dtype)
    x[::2] = -2
    y = np.zeros(4, np.int16)
    raw = [w.numpy(), x.view(torch.int16).numpy(), y, np.array([4, 256], np.uint32)]
    assert run(KERNELS, f"gemv_fp8_{name}", *raw, threads=4 * 32, group_size=32) == 0
    want = w.view(torch.float8_e4m3fn).double() @ x.double()
    assert torch.equal(torch.from_numpy(y).view(dtype), want.to(dtype))


def test_strided_copy_with_a_structure_of_sizes():
    x = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    view = x.permute(2, 0, 1)
    shape = np.zeros(33, np.int64)
    shape[:3], shape[16:19], shape[32] = view.shape, view.stride(), 3
    y = np.zeros(24, np.int32)
    assert run(KERNELS, "strided", y, x.numpy().reshape(-1), shape, threads=(6, 2, 2), group_size=(4, 2, 1)) == 0
    assert y.tolist() == view.reshape(-1).tolist()


def test_arrays_by_reference():
    x = np.arange(5, dtype=np.float32)
    assert run(KERNELS, "arrays", x, threads=1, group_size=1) == 0
    assert x[4] == 3
