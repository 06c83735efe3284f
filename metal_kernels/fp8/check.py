"""The self-check of fp8: every cast of a format, a product, and a quantisation, against the CPU."""

from __future__ import annotations

import math

import torch

from ..kernel import SelfCheckFailure
from ..selfcheck import expect_close, expect_identical, generator
from .cast import cast
from .formats import FP8, MATRIX, WIDE, as_bytes
from .linear import linear
from .quantize import quantize

FLOAT = {"dtype": torch.float32, "device": "cpu"}  # whatever the defaults are

# Where rounding, overflow and subnormals meet, for every format.
EDGES = (
    0.0, -0.0, 1.0, -1.5, 0.0009765625, 0.00146484375, 0.0146484375, 0.015625, 1.0625, 1.1875, 17.0, 239.0, 240.0,
    247.0, 256.0, 447.0, 448.0, 463.0, 464.0, 466.0, 480.0, 57344.0, 61440.0, 65504.0, 1e-6, -3e-7, 1e-8, math.inf,
    -math.inf, math.nan,
)  # fmt: skip


def selfcheck(dtype: torch.dtype) -> None:
    """`dtype`, an FP8 one: all 256 bytes to the wide types, edges and random values back, and for e4m3fn and e5m2 a
    product and a quantisation. A wide dtype stands for the products alone. Raises SelfCheckFailure."""
    if dtype in FP8:
        check_casts(dtype)
    for fp8 in MATRIX & {dtype} if dtype in FP8 else MATRIX:
        check_linear(fp8, torch.float32 if dtype in FP8 else dtype)
    if dtype in MATRIX:
        check_quantize(dtype)


def check_casts(dtype: torch.dtype) -> None:
    """Both directions, in the vector form and (from the second element on) element by element."""
    every = torch.arange(256, dtype=torch.int32, device="cpu").to(torch.uint8)
    source = generator()
    for wide in WIDE:
        for first in (0, 1):
            actual = cast(every.to("mps")[first:].view(dtype), wide)
            expect_identical(_bits(actual), _bits(every[first:].view(dtype).to(wide)), f"{dtype} to {wide}")
            x = torch.randn(512, generator=source, **FLOAT) * torch.logspace(-6, 5, 512, **FLOAT)
            x = torch.cat([torch.tensor(EDGES, **FLOAT), x])[:512].to(wide)
            actual = cast(x.to("mps")[first:], dtype)
            expect_identical(as_bytes(actual), as_bytes(x[first:].to(dtype)), f"{wide} to {dtype}")


def check_linear(fp8: torch.dtype, wide: torch.dtype) -> None:
    """The GEMV in its three forms of loads, and matrices, with a scale and a bias."""
    source = generator(1)
    for rows, cols in ((1, 512), (5, 144), (3, 36), (2, 33)):
        weight = torch.randn(9, cols, generator=source, **FLOAT).to(fp8)
        x = torch.randn(rows, cols, generator=source, **FLOAT).to(wide)
        scale = torch.rand(9, generator=source, **FLOAT) + 0.5
        bias = torch.randn(9, generator=source, **FLOAT).to(wide)
        expected = (x.double() @ (weight.float() * scale[:, None]).double().t() + bias.double()).to(wide)
        actual = linear(x.to("mps"), as_bytes(weight).to("mps").view(fp8), scale.to("mps"), bias.to("mps"))
        error = 4 * torch.finfo(wide).eps
        expect_close(actual, expected, f"linear {rows}x{cols} on {fp8}", rtol=error, atol=error * cols**0.5)


def check_quantize(fp8: torch.dtype) -> None:
    """Per tensor: the scale, and the values that follow from it."""
    x = torch.randn(40, 96, generator=generator(2), **FLOAT)
    values, scale = quantize(x.to("mps"), fp8)
    most = torch.finfo(fp8).max
    expected = x.abs().amax() / most
    expect_close(scale, expected, f"scale for {fp8}", rtol=1e-6, atol=0.0)
    rounded = (x * (1.0 / scale.to("cpu"))).clamp(-most, most).to(fp8)
    if not torch.equal(as_bytes(values).to("cpu"), as_bytes(rounded)):
        raise SelfCheckFailure(f"values quantised to {fp8} differ")


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({4: torch.int32, 2: torch.int16}[x.element_size()])
