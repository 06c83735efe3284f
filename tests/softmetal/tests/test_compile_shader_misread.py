"""Scalars and lists that a kernel reads as another size than they were bound with."""

import re

import pytest
import softmetal
import torch

pytestmark = pytest.mark.kernel_faults


@pytest.fixture(autouse=True)
def device():
    softmetal.activate()


@pytest.mark.parametrize(
    ("declared", "value", "casts", "says"),
    [
        ("constant int*", [1, 2], None, "bound as int64 (8 bytes each) and read as int (4 bytes): pass arg_casts"),
        ("constant int&", 3, None, "arg_casts='int32' or read long"),
        ("constant float&", 3, None, "read as float (4 bytes): pass a float"),
        ("constant long&", 3.0, None, "bound as float32 (4 bytes each) and read as long (8 bytes): read float"),
        ("constant half&", 3.0, None, "read as half (2 bytes)"),
        ("constant long*", [1, 2], "int32", "bound as int32 (4 bytes each) and read as long (8 bytes): read int"),
        ("constant int2&", [1, 2], None, "read as int2"),
        ("device const uint*", [1, 2], None, "read as uint"),
        ("constant float&", torch.tensor(3), None, "bound as int64 (8 bytes each) and read as float (4 bytes): con"),
        ("constant long&", torch.tensor(3.0, dtype=torch.float64), None, "bound as float32 (4 bytes each)"),
        ("constant float&", torch.tensor(3.0, dtype=torch.float16), None, "bound as float16 (2 bytes each)"),
    ],
)
def test_values_that_the_kernel_would_misread(declared, value, casts, says):
    from softmetal import shader

    kernel = f"kernel void f({declared} v, device float* y, uint i [[thread_position_in_grid]]) {{ y[i] = 1; }}"
    library = torch.mps.compile_shader(f"#include <metal_stdlib>\n{kernel}")
    with pytest.raises(shader.KernelFault, match=re.escape(says)) as caught:
        library.f(value, torch.zeros(2, device="mps"), threads=2, arg_casts=casts)
    assert caught.value.kind == "argument" and caught.value.buffer == 0 and caught.value.name == "v"


@pytest.mark.parametrize(
    ("declared", "value", "casts"),
    [("constant long*", [1, 2], None), ("constant ulong2&", [1, 2], None), ("constant int*", [1, 2], "int32"),
     ("constant float&", 3.0, None), ("constant half4&", [1.0, 2.0, 3.0, 4.0], "fp16"), ("constant S&", [1, 2], None),
     ("constant uchar*", [1, 2], "uint8"), ("constant long&", torch.tensor(3), None),
     ("constant half&", torch.tensor(3, dtype=torch.float16), None), ("constant bool&", torch.tensor(True), None),
     ("constant float&", torch.tensor(3.0, dtype=torch.float64), None), ("constant float2&", torch.tensor(3j), None),
     ("constant float2&", torch.tensor(3j, dtype=torch.complex128), None)],
)  # fmt: skip
def test_values_that_the_kernel_reads_as_bound(declared, value, casts):
    kernel = f"kernel void f({declared} v, device float* y, uint i [[thread_position_in_grid]]) {{ y[i] = 1; }}"
    y = torch.zeros(2, device="mps")
    library = torch.mps.compile_shader(f"#include <metal_stdlib>\nstruct S {{ long a, b; }};\n{kernel}")
    library.f(value, y, threads=2, arg_casts=casts)
    assert y.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(0.1, dtype=torch.float64), [torch.tensor(0.1, dtype=torch.float32).item(), 0.0]),
        (torch.tensor([2.0, 1e300], dtype=torch.float64)[1], [float("inf"), 0.0]),  # not the first one
        (torch.tensor(complex(0.5, -2), dtype=torch.complex128), [0.5, -2.0]),
        (torch.tensor(complex(0.5, -2), dtype=torch.complex128).conj(), [0.5, -2.0]),  # bits as they lie
    ],
)
def test_doubles_of_a_0_dim_cpu_tensor_are_floats(value, expected):
    declared, used = ("float2", "v[i]") if value.is_complex() else ("float", "i ? 0.0f : v")
    head = f"kernel void f(constant {declared}& v, device float* y, uint i [[thread_position_in_grid]])"
    y = torch.zeros(2, device="mps")
    torch.mps.compile_shader(f"#include <metal_stdlib>\n{head} {{ y[i] = {used}; }}").f(value, y, threads=2)
    assert y.tolist() == expected
