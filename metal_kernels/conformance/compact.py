"""The compact table: each op in each dtype, in the forms that its kernels have. Seconds on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import pad
from ..fp8 import formats
from .case import Case

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
E8M0 = getattr(torch, "float8_e8m0fnu", None)


def _pad() -> Iterator[Case]:
    for dtype in pad.DTYPES:
        value = 1 if dtype is E8M0 else 0  # it has no zero
        yield Case("pad", dtype, ((2, 3, 19),), "sliced", {"pad": (1, 2, -1, 3), "value": value})
    for dtype in (*FLOATS, torch.uint8, torch.int64, torch.bool):
        yield Case("pad", dtype, ((1, 2, 3, 16, 24),), "contiguous", {"pad": (1, 1, 1, 1, 2, 0)})
    # pytorch #194922: past the threshold of 65536
    yield Case("pad", torch.float16, ((1, 1, 2, 256, 256),), "contiguous", {"pad": (0, 0, 0, 0, 2, 0)})


def _softmax() -> Iterator[Case]:
    for dtype in FLOATS:
        for op in ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward"):
            yield Case(op, dtype, ((9, 77),))
            yield Case(op, dtype, ((3, 4099),), "offset")
            yield Case(op, dtype, ((2, 40, 24),), "contiguous", {"dim": 1})
            yield Case(op, dtype, ((4, 130),), "contiguous", {"values": "some -inf"})
        yield Case("softmax", dtype, ((1, 40000),))


def _linear() -> Iterator[Case]:
    for dtype in FLOATS:
        for rows, layout in ((1, "contiguous"), (1, "transposed"), (5, "contiguous"), (16, "sliced")):
            yield Case("linear", dtype, ((rows, 520), (37, 520)), layout, {"bias": "contiguous"})
        yield Case("linear", dtype, ((2, 1, 301), (19, 301)), "offset", {"x": "stepped"})


def _grouped_mm() -> Iterator[Case]:
    ends = (0, 3, 9, 9, 37)
    for dtype in FLOATS:
        for layout in ("transposed", "contiguous"):
            yield Case("grouped_mm", dtype, ((40, 72), (5, 72, 64)), layout, {"ends": ends})
            yield Case("grouped_mm", dtype, ((4, 264), (5, 264, 40)), layout, {"ends": (0, 1, 1, 4, 4)})
        yield Case("grouped_mm", dtype, ((40, 45), (45, 72)), "contiguous", {"ends": ends, "a": "transposed"})
        yield Case("topk", dtype, ((5, 256),), "contiguous", {"k": 8, "values": "specials"})
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        options = {"bins": 50, "min": 0, "max": 99}
        yield Case("histc", dtype, ((300,),), "contiguous", options)
    for dtype in (torch.int32, torch.int64):
        yield Case("histc", dtype, ((37, 4),), "contiguous", {"bins": 256, "min": 0, "max": 255})


def _fp8() -> Iterator[Case]:
    for dtype in formats.CODES:
        for wide in FLOATS:
            yield Case("fp8_decode", dtype, (), options={"to": wide})
    for dtype in (E4M3, E5M2):
        for wide in FLOATS:
            yield Case("fp8_encode", dtype, (), options={"from": wide, "values": "every"})
            yield Case("fp8_linear", dtype, ((1, 520), (37, 520)), options={"x": wide, "bias": True})
            yield Case("fp8_scaled_linear", dtype, ((5, 36), (9, 36)), options={"x": wide, "scale": "row"})
            yield Case("fp8_quantize", dtype, ((7, 40),), options={"x": wide})
            yield Case("fp8_dequantize", dtype, ((7, 40),), options={"to": wide, "per": "row"})
        options = {"x": torch.bfloat16, "scale": "tensor"}
        yield Case("fp8_scaled_linear", dtype, ((40, 96), (33, 96)), options=options)
        yield Case("fp8_linear_backward", dtype, ((3, 48), (33, 48)))
        yield Case("fp8_stochastic_rounding", dtype, ((16, 65),))
        for rows in (3, 20):
            options = {"b": E4M3, "scales": ("row", "row"), "bias": True}
            yield Case("scaled_mm", dtype, ((rows, 96), (96, 48)), options=options)
    if E8M0 is not None:
        yield Case("fp8_quantize", E4M3, ((5, 96),), options={"per": "block32"})
        yield Case("fp8_dequantize", E4M3, ((5, 96),), options={"per": "block32"})
    yield Case("nvfp4_dequantize", E4M3, ((5, 24),))


COMPACT: tuple[Case, ...] = (*_pad(), *_softmax(), *_linear(), *_grouped_mm(), *_fp8())
