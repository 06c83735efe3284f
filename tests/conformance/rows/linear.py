"""Rows of linear: rows x layouts of the weight, of x and of the bias, sizes at the edges, and layers of models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from .. import library
from . import FLOATS

Case = library.Case
LAYOUTS = ("contiguous", "transposed", "sliced", "columns", "stepped", "offset", "expanded", "repeated")
WEIGHTS = ((37, 64), (5, 301), (1, 24), (66, 1), (33, 2))
EMPTY = (((0, 8), 5), ((3, 0), 5), ((3, 8), 0), ((0,), 5), ((0, 0), 0), ((2, 0, 8), 5), ((2, 1, 0), 3), ((0, 3, 0), 4))
RANKS = ((), (1,), (7,), (1, 1), (2, 3), (3, 1), (1, 1, 1), (2, 2, 3), (2, 1, 3, 2), (1, 16, 1, 1))
# The layers of public models, one of each shape, with the model beside it.
LAYERS = json.loads((Path(__file__).parents[2] / "metal_kernels" / "linear" / "shapes.json").read_text())["layers"]


def rows() -> Iterator[Case]:
    for dtype in FLOATS:
        yield from _layouts(dtype)
        yield from _sizes(dtype)
    yield from _models()


def _layouts(dtype: torch.dtype) -> Iterator[Case]:
    for layout in LAYOUTS:
        for count in (1, 2, 3, 4, 7, 8, 9, 16):
            for weight in WEIGHTS:
                shapes = ((count, weight[1]), weight)
                for options in ({}, {"bias": "contiguous"}):
                    yield Case("linear", dtype, shapes, layout, options)
        for count in (1, 5):
            for length in (48, 35):
                shapes = ((count, length), (21, length))
                yield Case("linear", dtype, shapes, "contiguous", {"x": layout, "bias": "contiguous"})
                yield Case("linear", dtype, shapes, "transposed", {"x": layout, "bias": "contiguous"})
    for bias in ("stepped", "offset", "expanded", "sliced"):
        for count in (1, 6):
            for layout in ("contiguous", "transposed"):
                yield Case("linear", dtype, ((count, 32), (17, 32)), layout, {"bias": bias})


def _sizes(dtype: torch.dtype) -> Iterator[Case]:
    biased = {"bias": "contiguous"}
    for count in range(17):
        yield Case("linear", dtype, ((count, 40), (19, 40)), "contiguous", biased)
    for sizes in RANKS:
        for length in (32, 33):
            yield Case("linear", dtype, ((*sizes, length), (9, length)), "contiguous", biased)
    for sizes, outputs in EMPTY:
        for options in ({}, biased):
            yield Case("linear", dtype, (sizes, (outputs, sizes[-1])), "contiguous", options)
    for sizes in ((40,), (3, 40), (2, 2, 40)):
        yield Case("linear", dtype, (sizes, (40,)))
    for count, outputs, length in ((1, 3, 32768), (1, 2, 32767), (3, 2, 40000), (1, 1, 70001), (16, 33, 4096)):
        for layout in ("contiguous", "transposed"):
            yield Case("linear", dtype, ((count, length), (outputs, length)), layout, biased)
    for layout in ("contiguous", "transposed"):
        size = "quick" if dtype is torch.bfloat16 else "full"
        yield Case("linear", dtype, ((1, 16), (2**16 + 1, 16)), layout, biased, size)
        yield Case("linear", dtype, ((2, 7), (2**16 + 1, 7)), layout, biased, "full")


def _models() -> Iterator[Case]:
    bf16 = torch.bfloat16
    yield Case("linear", bf16, ((1, 8), (151936, 8)))
    for count in (1, 8):
        yield Case("linear", bf16, ((count, 1024), (151936, 1024)), size="full")
    # One of 16 outputs or so and a length that keeps its remainders by 2048: every K of the models, in its form.
    lengths: dict[int, int] = {}
    for layer in LAYERS:
        length = layer["K"] if layer["K"] <= 4096 else 2048 + layer["K"] % 2048
        lengths[length] = max(lengths.get(length, 0), layer["N"] % 16 + 3)
    for index, (length, outputs) in enumerate(sorted(lengths.items())):
        yield Case("linear", FLOATS[index % 3], (((1, 8)[index % 2], length), (outputs, length)))
    for layer in LAYERS:
        for count in (1, 8):
            yield Case("linear", bf16, ((count, layer["K"]), (layer["N"], layer["K"])), size="device")
