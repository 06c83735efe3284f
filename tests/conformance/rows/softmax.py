"""Rows of softmax: every layout and dim, lengths where another form begins, special values, and the hot shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import library
from . import FLOATS

Case = library.Case
OPS = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "channels_last", "expanded")
SIZES = ((37,), (6, 45), (4, 19, 24), (3, 5, 18, 16), (2, 3, 4, 17, 8))

# About the places where another form, another number of lanes or another number of vectors is chosen.
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 77, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024)
LENGTHS += (1025, 1027, 2048, 4096, 4099)

ATTENTION = ((2, 5, 1024), (2, 3, 4608), (1, 2, 20480), (8, 33, 77), (3, 4, 64, 257))
VOCABULARIES = (128256, 129280, 151936, 201088, 248320)
VALUES = ("some -inf", "all -inf", "+inf", "nan")

# At their real size: attention scores of ComfyUI's sub-quadratic attention, and vocabularies.
REAL = ((4096, 4096), (8, 1024, 4096), (24, 512, 4608), (8, 4096, 77), (512, 151936), (8, 248320), (4096, 256))


def rows() -> Iterator[Case]:
    for dtype in FLOATS:
        for op in OPS:
            yield from _small(op, dtype)
            yield from _hot(op, dtype)
    for dtype in FLOATS[1:]:
        for op in OPS:
            for sizes, dim in (((5, 20), 1), ((4, 333), 1), ((3, 2051), 1), ((3, 100, 16), 1), ((3, 100, 5), 1)):
                yield Case(op, dtype, (sizes,), "contiguous", {"dim": dim, "half_to_float": True})


def _small(op: str, dtype: torch.dtype) -> Iterator[Case]:
    for layout in LAYOUTS:
        for sizes in SIZES:
            for dim in range(-1, len(sizes) - 1):
                yield Case(op, dtype, (sizes,), layout, {"dim": dim})
    for length in LENGTHS:
        yield Case(op, dtype, ((3, length),), "contiguous", {"dim": -1})
        yield Case(op, dtype, ((length, 3),), "contiguous", {"dim": 0})
    for values in VALUES:
        for sizes in ((5, 40), (3, 2600), (2, 40000)):
            yield Case(op, dtype, (sizes,), "contiguous", {"values": values})
        yield Case(op, dtype, ((3, 60, 16),), "contiguous", {"values": values, "dim": 1})
    for sizes in ((0,), (0, 5), (5, 0), (3, 0, 2), (1,), (1, 1, 1), ()):
        yield Case(op, dtype, (sizes,), "contiguous", {"dim": 0})
    for scale in (1e-30, 1e-3, 30.0, 1e4):
        yield Case(op, dtype, ((4, 100),), "contiguous", {"scale": scale})


def _hot(op: str, dtype: torch.dtype) -> Iterator[Case]:
    for sizes in ATTENTION:
        yield Case(op, dtype, (sizes,))
    for index, length in enumerate(VOCABULARIES):
        # One dtype of each is enough every day: rows split over threadgroups are the same code for all.
        yield Case(op, dtype, ((1, length),), size="quick" if FLOATS[index % 3] is dtype else "full")
    yield Case(op, dtype, ((3, 151936),), size="full")
    yield Case(op, dtype, ((2, 32768),))
    yield Case(op, dtype, ((2**16 + 1, 5),), size="quick" if dtype is torch.float16 else "full")
    yield Case(op, dtype, ((2**16 + 1, 20),), size="full")
    yield Case(op, dtype, ((3, 2**16 + 1),), "contiguous", {"dim": 0}, size="full")
    yield Case(op, dtype, ((1, 19, 32, 33),), "contiguous", {"dim": 1})
    yield Case(op, dtype, ((2, 16, 32, 32),), "channels_last", {"dim": 1})
    for sizes in REAL:
        yield Case(op, dtype, (sizes,), size="device")
