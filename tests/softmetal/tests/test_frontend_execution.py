"""What compiled kernels compute: vectors, swizzles, conversions, math, collectives, run by the checking runtime."""
import numpy as np
import pytest
import torch

from softmetal.tests.frontend_driver import run

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def evaluate(expressions, inputs=(), kind="float", helpers="", count=None):
    """The values of MSL expressions of type `kind` in one thread; `inputs` is bound as `device const float* in`."""
    dtype = {"float": np.float32, "uint": np.uint32, "int": np.int32, "ulong": np.uint64, "long": np.int64, "half": np.float16}[kind]
    lines = "".join(f"  out[{i}] = {kind}({e});\n" for i, e in enumerate(expressions))
    source = HEAD + helpers + f"kernel void f(device const float* in, device {kind}* out) {{\n{lines}}}\n"
    out = np.zeros(len(expressions), dtype)
    data = np.array(list(inputs) or [0.0], np.float32)
    assert run(source, "f", data, out, threads=1, group_size=1) == 0
    return out


CASES = [
    # vectors: constructors from mixed parts, swizzles as values and as targets, both letter sets
    ("float4(1, 2, 3, 4).w", 4), ("float4(float2(1, 2), 3, 4).y", 2), ("float4(1, float2(2, 3), 4).z", 3),
    ("float4(float3(1, 2, 3), 4).w", 4), ("float4(7).z", 7), ("float3(float4(1, 2, 3, 4).yzw).x", 2),
    ("float4(1, 2, 3, 4).rgba.g", 2), ("float4(1, 2, 3, 4).wzyx.x", 4), ("float2(1, 2).yx.x", 2),
    ("vec<float, 3>(1, 2, 3).z", 3), ("float4(int4(1, -2, 3, 4)).y", -2), ("float2(half2(0.5h, 1.5h)).y", 1.5),
    ("float4(uint4(1, 2, 3, 4000000000u)).w", 4e9), ("float(int4(float4(1.9, -1.9, 0, 0)).y)", -1),
    ("float(sizeof(float3))", 16), ("float(sizeof(packed_float3))", 12), ("float(alignof(packed_float3))", 4), ("float(sizeof(half4))", 8),
    ("float(sizeof(long4))", 32), ("float(alignof(float4))", 16), ("(float2(1, 2) * 3.0).y", 6), ("(2.0 * float2(1, 2)).y", 4),
    ("(float2(1, 2) + float2(3, 4)).x", 4), ("dot(float3(1, 2, 3), float3(4, 5, 6))", 32), ("length(float2(3, 4))", 5),
    ("cross(float3(1, 0, 0), float3(0, 1, 0)).z", 1), ("float(all(float2(1, 2) < float2(2, 3)))", 1),
    ("float(any(float2(1, 2) > float2(2, 3)))", 0), ("select(float2(1, 2), float2(3, 4), float2(0, 1) > 0.5).x", 1),
    ("select(float2(1, 2), float2(3, 4), float2(0, 1) > 0.5).y", 4), ("select(1.0, 2.0, true)", 2), ("select(float2(1, 2), float2(3, 4), bool2(true, false)).x", 3),
    ("float(packed_float3(1, 2, 3).y)", 2), ("float3(packed_float3(1, 2, 3)).z", 3), ("float(packed_float3(float3(4, 5, 6))[2])", 6),
    # bits
    ("float(as_type<uint>(1.0f))", 0x3F800000), ("as_type<float>(0x40000000u)", 2), ("float(as_type<ushort2>(0x00020001u).y)", 2),
    ("float(popcount(0xF0u))", 4), ("float(clz(1u))", 31), ("float(clz(ushort(1)))", 15), ("float(ctz(8))", 3), ("float(ctz(0u))", 32),
    ("float(clz(0))", 32), ("float(clz(char(-1)))", 0), ("float(popcount(char(-1)))", 8), ("float(reverse_bits(1u) >> 28)", 8),
    ("float(mulhi(0x80000000u, 4u))", 2), ("float(mulhi(-1, 1))", -1), ("float(mulhi(1ul << 63, 4ul))", 2), ("float(rotate(0x80000001u, 1u))", 3),
    ("float(extract_bits(0xABCDu, 4, 8))", 0xBC), ("float(insert_bits(0u, 3u, 4, 2))", 48), ("float(addsat(uchar(250), uchar(10)))", 255),
    ("float(subsat(char(-100), char(100)))", -128), ("float(hadd(0xFFFFFFFFu, 1u) >> 31)", 1), ("float(abs(-3))", 3), ("float(absdiff(2u, 5u))", 3),
    ("float(min(2u, 3u))", 2), ("float(clamp(9, 0, 5))", 5), ("float(max(short(2), short(3)))", 3),
    # common and math
    ("clamp(5.0, 0.0, 1.0)", 1), ("mix(1.0, 3.0, 0.5)", 2), ("step(2.0, 1.0)", 0), ("sign(-2.0)", -1), ("saturate(-1.0)", 0), ("fract(-0.25)", 0.75),
    ("smoothstep(0.0, 1.0, 0.5)", 0.5), ("fma(2.0, 3.0, 4.0)", 10), ("exp2(3.0)", 8), ("log2(8.0)", 3), ("sqrt(9.0)", 3), ("rsqrt(4.0)", 0.5),
    ("pow(2.0, 10.0)", 1024), ("floor(-1.5)", -2), ("ceil(-1.5)", -1), ("trunc(-1.5)", -1), ("rint(2.5)", 2), ("round(2.5)", 3), ("fmod(5.5, 2.0)", 1.5),
    ("copysign(1.0, -0.0)", -1), ("fmin(NAN, 1.0)", 1), ("max(1.0, NAN)", 1), ("float(isnan(NAN))", 1), ("float(isinf(-INFINITY))", 1),
    ("float(isfinite(1.0))", 1), ("float(signbit(-0.0))", 1), ("ldexp(1.0, 3)", 8), ("precise::exp(0.0)", 1), ("fast::log(1.0)", 0),
    ("metal::precise::divide(1.0, 4.0)", 0.25), ("max(float2(1, 5), 3.0).x", 3), ("clamp(float2(-1, 9), 0.0, 4.0).y", 4), ("float(max(1.0h, 2.0h))", 2),
    ("max3(1.0, 3.0, 2.0)", 3), ("median3(1.0, 3.0, 2.0)", 2), ("tanh(0.0)", 0), ("atan2(0.0, 1.0)", 0), ("sinpi(0.5)", 1), ("cospi(1.0)", -1),
    # literals are float; half and bfloat round after every operation
    ("1.0 / 3.0", np.float32(1) / np.float32(3)), ("16777216.0 + 1.0", 16777216), ("float(2048.0h + 1.0h)", 2048), ("float(half(65504.0) * 2.0h)", np.inf),
    ("float(bfloat(1.0) + bfloat(0.001))", 1), ("float(bfloat(3.14159))", 3.140625), ("float(half(bfloat(1.5)))", 1.5), ("float(bfloat(1.5h))", 1.5),
    ("float(1.5bf)", 1.5), ("float((half)0.1)", np.float32(np.float16(0.1))),
    # limits and traits
    ("numeric_limits<float>::max()", np.finfo(np.float32).max), ("float(numeric_limits<half>::max())", 65504), ("float(numeric_limits<int>::min())", -2147483648),
    ("numeric_limits<float>::infinity()", np.inf), ("float(numeric_limits<bfloat>::max())", 3.3895313892515355e38), ("float(is_same_v<float, float>)", 1),
    ("float(is_same<vec<float, 4>, float4>::value)", 1), ("float(is_floating_point<half2>::value)", 1), ("float(is_integral_v<uchar>)", 1),
    ("conditional_t<true, float, int>(1.5)", 1.5), ("float(is_same_v<remove_pointer_t<device float*>, device float>)", 1), ("float(is_signed_v<char>)", 1),
    ("float(sizeof(make_unsigned_t<short>))", 2), ("float(char(200))", -56), ("float(__METAL_VERSION__)", 310), ("M_PI_F", np.float32(np.pi)),
]


def test_expressions():
    got = evaluate([expression for expression, _ in CASES])
    wrong = [(e, v, g) for (e, v), g in zip(CASES, got, strict=True) if not np.array_equal(np.float32(v), g, equal_nan=True)]
    assert not wrong
