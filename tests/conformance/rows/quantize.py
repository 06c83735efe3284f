"""Rows of quantising to FP8 and back."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import library
from . import E4M3, E5M2, FLOATS

Case = library.Case
LAYOUTS = ("transposed", "sliced", "stepped", "offset", "repeated")


def rows() -> Iterator[Case]:
    for wide in FLOATS:
        for dtype in (E4M3, E5M2):
            for sizes in ((40, 96), (7, 5), (1,), (), (3, 1, 9), (70000,), (0, 5)):
                yield Case("fp8_quantize", dtype, (sizes,), options={"x": wide})
                yield Case("fp8_quantize", dtype, (sizes,), options={"x": wide, "given": True})
            for sizes in ((40, 96), (7, 5), (9, 1), (5, 3, 16), (0, 5)):
                yield Case("fp8_quantize", dtype, (sizes,), options={"x": wide, "per": "row"})
                yield Case("fp8_dequantize", dtype, (sizes,), options={"to": wide, "per": "row"})
                yield Case("fp8_dequantize", dtype, (sizes,), options={"to": wide})
            for layout in LAYOUTS:
                yield Case("fp8_quantize", dtype, ((9, 33),), layout, {"x": wide})
                yield Case("fp8_quantize", dtype, ((9, 33),), layout, {"x": wide, "per": "row"})
                yield Case("fp8_dequantize", dtype, ((9, 33),), layout, {"to": wide})
            for layout in ("contiguous", "transposed"):
                yield Case("fp8_stochastic_rounding", dtype, ((64, 65),), layout, {"x": wide})
        for sizes in ((1, 32), (5, 96), (130, 160), (33, 288), (0, 64)):
            yield Case("fp8_quantize", E4M3, (sizes,), options={"x": wide, "per": "block32"})
            yield Case("fp8_dequantize", E4M3, (sizes,), options={"to": wide, "per": "block32"})
        for exponents in ((0, 3), (250, 256)):
            options = {"to": wide, "per": "block32", "exponents": exponents}
            yield Case("fp8_dequantize", E4M3, ((6, 160),), options=options)
        for sizes in ((1, 8), (130, 40), (16, 128), (0, 16)):
            for hi_first in (True, False):
                yield Case("nvfp4_dequantize", E4M3, (sizes,), options={"to": wide, "hi_first": hi_first})
    for power in (-112, -118):  # the least scale of a block is 2^-127; whole numbers of float32 all the same
        yield Case("fp8_quantize", E4M3, ((40, 96),), options={"per": "block32", "power": power})
    yield Case("fp8_quantize", E4M3, ((2**16 + 1, 16),), options={"per": "row"}, size="full")
    yield Case("fp8_quantize", E4M3, ((2, 32768),), options={"per": "row"})
    yield Case("fp8_quantize", E4M3, ((4096, 4096),), options={"x": torch.bfloat16}, size="device")
