"""Rows of fp8: every value of the small types both ways, linear on FP8 weights, scaled_mm, and the hot shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from .. import library
from . import E4M3, E5M2, FLOATS

Case = library.Case
FORMATS = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
LAYOUTS = ("transposed", "sliced", "columns", "stepped", "offset", "channels_last", "expanded", "repeated")
# (M, N, K): chunks of 16, of 4, single bytes; tiles of 1, 4 and 16 rows; odd N; split sums; several groups.
PRODUCTS = (
    (1, 16, 512), (1, 1, 16), (1, 37, 1040), (2, 16, 64), (3, 5, 4096), (4, 33, 512), (5, 18, 528), (16, 17, 96),
    (16, 3, 2064), (1, 9, 36), (7, 9, 516), (1, 3, 2052), (1, 5, 33), (9, 7, 7), (16, 2, 1), (1, 1, 1),
)  # fmt: skip
HOT = ((4096, 4096), (18432, 3072), (3072, 12288))


def rows() -> Iterator[Case]:
    yield from _casts()
    for dtype in (E4M3, E5M2):
        yield from _linear(dtype)
        yield from _scaled_mm(dtype)


def _casts() -> Iterator[Case]:
    for dtype in FORMATS:
        for wide in FLOATS:
            yield Case("fp8_encode", dtype, (), options={"from": wide, "values": "every"})
            yield Case("fp8_decode", dtype, (), options={"to": wide})
        for other in FORMATS:
            if other is not dtype:
                yield Case("fp8_decode", dtype, (), options={"to": other})
    for dtype in (E4M3, E5M2):
        for layout in LAYOUTS:
            for wide in FLOATS:
                yield Case("fp8_encode", dtype, ((4, 6, 16),), layout, {"from": wide})
                yield Case("fp8_decode", dtype, ((4, 6, 16),), layout, {"to": wide})
        for length in (0, 1, 15, 16, 17, 4095, 4096, 4097, 8192):
            for layout in ("contiguous", "offset"):
                yield Case("fp8_encode", dtype, ((length,),), layout, {"from": torch.float32})
                yield Case("fp8_decode", dtype, ((length,),), layout, {"to": torch.bfloat16})
        yield Case("fp8_encode", dtype, ((2**16 + 1, 16),), options={"from": torch.bfloat16}, size="full")
        for sizes in HOT:
            yield Case("fp8_decode", dtype, (sizes,), options={"to": torch.bfloat16}, size="device")


def _linear(dtype: torch.dtype) -> Iterator[Case]:
    for rows, outputs, length in PRODUCTS:
        shapes = ((rows, length), (outputs, length))
        for wide in FLOATS:
            for options in ({}, {"bias": True}, {"scale": "tensor"}, {"scale": "row", "bias": True}):
                yield _layer(dtype, shapes, {"x": wide, **options})
    for layout in ("transposed", "sliced", "columns", "stepped", "offset", "repeated"):
        for rows in (1, 5, 40):
            yield Case("fp8_linear", dtype, ((rows, 84), (13, 84)), layout)
            yield Case("fp8_scaled_linear", dtype, ((rows, 84), (13, 84)), layout, {"scale": "row"})
            options = {"x": torch.bfloat16, "x_layout": layout}
            yield Case("fp8_linear", dtype, ((rows, 64), (6, 64)), "contiguous", options)
    for sizes in ((64,), (1, 64), (1, 1, 64), (2, 3, 64), (2, 1, 2, 1, 64), (0, 64), (2, 0, 64), (3, 0)):
        yield Case("fp8_linear", dtype, (sizes, (6, sizes[-1])), options={"bias": True})
    for wide in FLOATS:
        for options in ({}, {"bias": True}, {"scale": "tensor", "bias": True}, {"scale": "row"}):
            yield _layer(dtype, ((70, 96), (33, 96)), {"x": wide, **options})
        for rows in (3, 40):
            yield Case("fp8_linear_backward", dtype, ((rows, 96), (33, 96)), options={"x": wide})
            yield Case("fp8_linear_backward", dtype, ((2, rows, 48), (33, 48)), "transposed", {"x": wide})
    for rows, outputs, length in ((1, 8, 32768), (3, 4, 32768), (2, 2**16 + 1, 16), (1, 151936, 16)):
        size = "quick" if dtype is E4M3 and outputs < 10**5 else "full"
        yield Case("fp8_linear", dtype, ((rows, length), (outputs, length)), size=size)
    for outputs, length in HOT:
        for rows in (1, 2, 4, 16, 1024):
            shapes = ((rows, length), (outputs, length))
            yield Case("fp8_scaled_linear", dtype, shapes, options={"x": torch.bfloat16, "scale": "row"}, size="device")


def _layer(dtype: torch.dtype, shapes: tuple, options: dict) -> Case:
    return Case("fp8_scaled_linear" if "scale" in options else "fp8_linear", dtype, shapes, options=options)


def _scaled_mm(dtype: torch.dtype) -> Iterator[Case]:
    ops = ("scaled_mm", "scaled_mm_v2") if hasattr(F, "scaled_mm") else ("scaled_mm",)
    others = (E4M3, E5M2) if dtype is E4M3 else (E4M3,)
    for op in ops:
        for other in others:
            for rows in (1, 3, 16, 17, 40):
                for kinds in (("tensor", "tensor"), ("row", "row"), ("tensor", "row"), ("row", "tensor")):
                    for out in FLOATS:
                        options = {"b": other, "scales": kinds, "out": out, "bias": out is not torch.float16}
                        if op == "scaled_mm_v2" and out is torch.float32:
                            options["bias"] = False
                        yield Case(op, dtype, ((rows, 96), (96, 48)), options=options)
        for rows in (3, 20):
            for layout, a in (("transposed", "contiguous"), ("contiguous", "transposed"), ("columns", "sliced")):
                options = {"b": E4M3, "a": a, "out": torch.float32}
                yield Case(op, dtype, ((rows, 64), (64, 32)), layout, options)
        yield Case(op, dtype, ((0, 32), (32, 16)), options={"b": E4M3})
        yield Case(op, dtype, ((2, 32768), (32768, 16)), options={"b": E4M3}, size="full")
        yield Case(op, dtype, ((2**16 + 1, 16), (16, 16)), options={"b": E4M3}, size="full")
        for rows in (1, 1024):
            yield Case(op, dtype, ((rows, 4096), (4096, 4096)), options={"b": E4M3}, size="device")
