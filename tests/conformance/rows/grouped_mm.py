"""Rows of grouped_mm, topk and histc: modes x layouts x ends, the models' experts, and the sizes at the edges."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import library
from . import FLOATS

Case = library.Case
LAYOUTS = ("transposed", "contiguous", "sliced", "repeated")
# Of 45 rows; the names say what is special.
ENDS = {
    "even": (15, 30, 45),
    "ragged": (1, 34, 45),
    "empty groups": (0, 0, 7, 7, 45, 45),
    "rows past the end": (3, 20),
    "no rows at all": (0, 0, 0),
    "one group": (45,),
    "beyond the rows": (10, 60, 70),
    "negative": (-5, 4, 40),
    "descending": (20, 5, 30),
    "many groups": tuple(min(i, 45) for i in range(70)),
}
# (rows, experts, outputs, K) of a token or a prompt, a fortieth or so of the real ones; K decides the form, and stays
MODELS = (
    (8, 256, 16, 2048), (8, 256, 32, 512), (600, 256, 16, 64),  # Qwen3.6-35B-A3B: gate and up, down, a prompt
    (4, 32, 56, 2048), (4, 32, 32, 1792),  # LFM2.5-8B-A1B
    (4, 32, 24, 2880), (200, 32, 96, 288),  # gpt-oss-20b, and a prompt
)  # fmt: skip
REAL = ((256, 8, 1024, 2048), (256, 8, 2048, 512), (32, 4, 3584, 2048), (32, 4, 2048, 1792), (32, 4, 5760, 2880))
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def rows() -> Iterator[Case]:
    for dtype in FLOATS:
        yield from _modes(dtype)
        yield from _edges(dtype)
        yield from _topk(dtype)
    yield from _models()
    for dtype in INTEGERS:
        yield from _histc(dtype)


def _modes(dtype: torch.dtype) -> Iterator[Case]:
    for name, ends in ENDS.items():
        groups = len(ends)
        for layout in LAYOUTS:
            for count in (9, 45):
                yield Case("grouped_mm", dtype, ((count, 48), (groups, 48, 40)), layout, {"ends": ends})
        # offs over K: groups begin anywhere between the vectors
        for a, b in (("contiguous", "contiguous"), ("transposed", "contiguous"), ("transposed", "transposed")):
            yield Case("grouped_mm", dtype, ((48, 45), (45, 72)), b, {"ends": ends, "a": a})
        if name in ("ragged", "empty groups", "rows past the end", "descending"):
            for columns in (8, 56):
                for a, b in (("contiguous", "contiguous"), ("contiguous", "transposed"), ("transposed", "contiguous")):
                    shapes = ((groups, 24, 40), (40, columns))
                    yield Case("grouped_mm", dtype, shapes, b, {"ends": ends, "a": a})
    for groups, count, length, outputs in ((3, 40, 72, 64), (1, 8, 8, 8), (5, 1, 32, 16)):
        for layout in LAYOUTS:
            for a in ("contiguous", "transposed"):
                yield Case("grouped_mm", dtype, ((groups, count, length), (groups, length, outputs)), layout, {"a": a})


def _edges(dtype: torch.dtype) -> Iterator[Case]:
    ends = (2, 2, 9)
    for length in (1, 7, 8, 31, 33, 100):
        for layout, outputs in (("transposed", 5), ("contiguous", 5), ("contiguous", 300)):
            yield Case("grouped_mm", dtype, ((11, length), (3, length, outputs)), layout, {"ends": ends})
    for count in (5, 40):
        for layout in ("transposed", "offset"):
            options = {"ends": (1, 3, 38), "a": "offset"}
            yield Case("grouped_mm", dtype, ((count, 16), (3, 16, 8)), layout, options)
    for shapes, ends in (
        (((0, 16), (3, 16, 8)), (0, 1, 2)), (((4, 16), (0, 16, 8)), ()), (((3, 0, 16), (3, 16, 8)), None),
        (((0, 4, 16), (0, 16, 8)), None),
    ):  # fmt: skip
        yield Case("grouped_mm", dtype, shapes, "contiguous", {"ends": ends})
    for count, length, outputs in ((2**16 + 1, 8, 8), (3, 32768, 8), (33, 32768, 8), (1, 8, 151936)):
        size = "quick" if dtype is torch.float16 and count not in (1, 33) else "full"
        options = {"ends": (1, max(count - 1, 1))}
        yield Case("grouped_mm", dtype, ((count, length), (2, length, outputs)), "transposed", options, size)


def _models() -> Iterator[Case]:
    bf16 = torch.bfloat16
    for count, experts, outputs, length in MODELS:
        shapes = ((count, length), (experts, length, outputs))
        yield Case("grouped_mm", bf16, shapes, "transposed", {"experts": experts})
    for experts, active, outputs, length in REAL:
        for tokens in (1, 8, 512):
            shapes = ((tokens * active, length), (experts, length, outputs))
            yield Case("grouped_mm", bf16, shapes, "transposed", {"experts": experts}, size="device")


def _topk(dtype: torch.dtype) -> Iterator[Case]:
    for largest in (True, False):
        for count, candidates, k in (
            (1, 1, 1), (3, 8, 2), (20, 32, 4), (9, 60, 6), (2, 64, 32), (17, 128, 8), (4, 256, 8), (3, 512, 32),
            (2, 513, 32), (3, 1000, 1), (2, 4096, 32), (1, 4095, 10), (0, 8, 2), (3, 8, 0), (40, 32, 32),
        ):  # fmt: skip
            yield Case("topk", dtype, ((count, candidates),), "contiguous", {"k": k, "largest": largest})
        for candidates in (100, 1200):
            for values in ("ties", "specials"):
                options = {"k": 30, "largest": largest, "values": values}
                yield Case("topk", dtype, ((6, candidates),), "contiguous", options)
    for layout in ("transposed", "sliced", "stepped", "offset", "channels_last", "repeated"):
        yield Case("topk", dtype, ((6, 5, 40),), layout, {"k": 3})
    yield Case("topk", dtype, ((2**16 + 1, 3),), "contiguous", {"k": 1}, "quick" if dtype is torch.bfloat16 else "full")


def _histc(dtype: torch.dtype) -> Iterator[Case]:
    for bins, low, high in ((100, 0, 99), (10, 0, 0), (7, 20, 60), (100, 3, 3), (1, 0, 99), (5000, 0, 99), (64, 0, 63)):
        for layout in ("contiguous", "stepped"):
            yield Case("histc", dtype, ((500,),), layout, {"bins": bins, "min": low, "max": high})
    for sizes in ((0,), (1,), ()):
        yield Case("histc", dtype, (sizes,), "contiguous", {"bins": 5, "max": 9})
    if dtype in (torch.int32, torch.int64):
        for experts in (8, 32, 128, 256):
            options = {"bins": experts, "min": 0, "max": experts - 1, "high": experts}
            yield Case("histc", dtype, ((37, 4),), "contiguous", options)
        options = {"bins": 1000, "min": 0, "max": 999, "high": 1000}
        yield Case("histc", dtype, ((2**16 + 5,),), "contiguous", options)
