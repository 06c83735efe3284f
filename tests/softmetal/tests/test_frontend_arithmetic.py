"""What compiled kernels compute with numbers: expressions, rounding, conversions, math functions."""

import numpy as np
import pytest
import torch
from softmetal.tests.frontend_driver import HEAD, evaluate, run

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
    run(ROUND, "to_half", x, y, threads=len(x), group_size=256, checked=checked)
    assert same_bits(torch.from_numpy(y), torch.from_numpy(x).half())
    z = np.zeros(len(x), np.int16)
    run(ROUND, "to_bfloat", x, z, threads=len(x), group_size=256, checked=checked)
    assert same_bits(torch.from_numpy(z).view(torch.bfloat16), torch.from_numpy(x).bfloat16())


def test_widening_is_exact():
    bits = np.arange(65536, dtype=np.uint16)
    y = np.zeros(65536, np.float32)
    run(ROUND, "from_half", bits, y, threads=65536, group_size=256)
    assert np.array_equal(y, bits.view(np.float16).astype(np.float32), equal_nan=True)
    run(ROUND, "from_bfloat", bits, y, threads=65536, group_size=256)
    assert np.array_equal(y, (bits.astype(np.uint32) << 16).view(np.float32), equal_nan=True)


@pytest.mark.parametrize("checked", [True, False])
def test_half_and_bfloat_round_after_every_operation(checked):
    bits = np.arange(65536, dtype=np.uint16)
    x = torch.from_numpy(bits.view(np.int16))
    for kind, dtype in (("half", torch.float16), ("bfloat", torch.bfloat16)):
        y = np.zeros(65536, np.int16)
        values = x.view(dtype)
        run(ROUND, f"{kind}_arithmetic", bits, y, threads=65536, group_size=256, checked=checked)
        want = values * torch.tensor(1.3, dtype=dtype) + torch.tensor(0.7, dtype=dtype)
        assert same_bits(torch.from_numpy(y).view(dtype), want), kind
        run(ROUND, f"{kind}_vector", bits, y, threads=16384, group_size=256, checked=checked)
        assert same_bits(torch.from_numpy(y).view(dtype), want), kind


def test_tests_of_vectors():
    """isnan and its kin, element by element, of both widths."""
    for kind in ("float4", "half4"):
        v = f"{kind}(NAN, -INFINITY, -0.0f, 1.0f)"
        wanted = {"isnan": [1, 0, 0, 0], "isinf": [0, 1, 0, 0], "isfinite": [0, 0, 1, 1]}
        for name, values in wanted.items():
            assert evaluate([f"{name}({v})[{i}] ? 1 : 0" for i in range(4)]).tolist() == values, (kind, name)
        assert evaluate([f"signbit({v})[{i}] ? 1 : 0" for i in (1, 2, 3)]).tolist() == [1, 1, 0], kind
    assert evaluate([f"step(2.0f, float4(1, 2, 3, NAN))[{i}]" for i in range(3)]).tolist() == [0, 1, 1]


def test_safe_math_does_not_contract():
    a, b = np.float32(1 + 2**-12), np.float32(-(1 + 2**-11))
    assert evaluate(["in[0] * in[0] + in[1]", "fma(in[0], in[0], in[1])"], [a, b]).tolist() == [0.0, 2.0**-24]


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
        run(source, f"k_{name}", x, y, z, threads=500, group_size=100, checked=checked)
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
        run(source, "f", x, y, n, threads=1, group_size=1, checked=checked)
        results.append(y[0])
    want = np.float32(0)
    for v in x:
        want = np.float32(want + np.float32(v * v))
    assert results == [want, want]
