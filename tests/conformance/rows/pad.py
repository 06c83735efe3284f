"""Rows of pad: every dtype x rank x kind of pad x layout, and the hot shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import library

Case = library.Case
LAYOUTS = ("contiguous", "transposed", "sliced", "channels_last", "expanded", "offset")
DTYPES = tuple(
    getattr(torch, name)
    for name in (
        "float32 float16 bfloat16 complex64 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
        "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
    ).split()
)
# By kind, a pad for each rank: (left, right) of the last dimension first.
PADS = {
    "positive": lambda rank: (1, 2) * rank,
    "mixed": lambda rank: ((-1, 3) + (2, -2)) * (rank // 2) + (-2, 1) * (rank % 2),
    "asymmetric": lambda rank: ((0, 5) + (3, 0) + (0, 1))[: 2 * rank],
}
SIZES = ((37,), (4, 37), (4, 5, 37), (2, 4, 5, 19), (3, 2, 4, 5, 19))


def rows() -> Iterator[Case]:
    for dtype in DTYPES:
        for sizes in SIZES:
            for layout in LAYOUTS:
                for pads in PADS.values():
                    yield Case("pad", dtype, (sizes,), layout, {"pad": pads(len(sizes))})
    for dtype in (torch.float16, torch.float32):
        # pytorch #194922 and the reports: rank 5, on both sides of the threshold of 65536
        for sizes in ((1, 1, 4, 256, 256), (1, 1, 4, 64, 1023), (1, 8, 1, 256, 384)):
            yield Case("pad", dtype, (sizes,), "contiguous", {"pad": (0, 0, 0, 0, 2, 0)})
        yield Case("pad", dtype, ((2**17,),), "contiguous", {"pad": (1, 1)})  # #121961
        yield Case("pad", dtype, ((3, 4),), "contiguous", {"pad": ()})  # #161066
        yield Case("pad", dtype, ((2**16 + 1, 3),), "contiguous", {"pad": (1, 0)})
    for sizes in ((1, 96, 6, 240, 416), (1, 384, 6, 128, 128)):
        yield Case("pad", torch.float16, (sizes,), "contiguous", {"pad": (1, 1, 1, 1, 2, 0)}, size="device")
