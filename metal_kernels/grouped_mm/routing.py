"""What a router needs before its experts: topk of few candidates, histc of integers. Nothing waits for the device."""

from __future__ import annotations

import math

import torch

from .host import LIBRARY, NAMES

MAX_K = 32  # grouped_mm.metal: topk_most; a lane keeps a winner
SLICE = 512  # grouped_mm.metal: topk_slice; candidates in the registers of a SIMD-group
MAX_SLICES = 8  # grouped_mm.metal: topk_simdgroups
MAX_CANDIDATES = SLICE * MAX_SLICES
MAX_ROWS = 2**24  # so that the threads of a launch can be numbered
TOPK_THREADS = 32 * MAX_SLICES

GROUP_BINS = 4096  # grouped_mm.metal: histc_bins; counts in threadgroup memory, 16 KiB
GROUP_ELEMENTS = 2**16  # which one threadgroup counts alone, in one launch
GROUP_THREADS = 256  # more may be refused: the division of 64 bits takes registers
MANY_THREADS = 2**16
MAX_BINS = 2**31 - 1
MAX_ELEMENTS = 2**32 - 1  # a count is 32 bits wide

# dtypes of histc -> their name in grouped_mm.metal
INTEGERS = {
    torch.uint8: "uchar", torch.int8: "char", torch.int16: "short", torch.int32: "int", torch.int64: "long",
}  # fmt: skip


def topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, int64 indices) of the k largest or smallest along the last dimension, [..., k], contiguous.

    x   float32, float16 or bfloat16 [..., N] on mps, any strides, N <= 4096; k <= 32 and k <= N.

    Always sorted. NaN counts as the greatest value, as on the CPU. Of equal values (0 and -0 are) the one of the lower
    index comes first; which one the CPU takes depends on its C++ library. Raises ValueError for anything else.
    """
    if not supports_topk(x, k, dim, largest, sorted):
        raise ValueError(
            "topk takes float32, float16 or bfloat16 on mps, the last dimension of at most "
            f"{MAX_CANDIDATES} and k of at most {MAX_K}; not {_described(x)}, {k=}, {dim=}"
        )
    return run_topk(x, k, dim, largest, sorted)


def supports_topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> bool:
    """Whether run_topk() takes this call. Refused, so that stock raises: a k that is negative or over the size."""
    if not (isinstance(x, torch.Tensor) and x.is_mps and x.layout is torch.strided and x.dtype in NAMES):
        return False
    if not x.dim() or dim not in (-1, x.dim() - 1) or x.is_neg():
        return False
    return 0 <= k <= min(x.shape[-1], MAX_K) and x.shape[-1] <= MAX_CANDIDATES and x.numel() <= MAX_ROWS * x.shape[-1]


def run_topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::topk, for arguments that supports_topk() has accepted."""
    sizes = (*x.shape[:-1], k)
    values = torch.empty(sizes, dtype=x.dtype, device=x.device)
    indices = torch.empty(sizes, dtype=torch.int64, device=x.device)
    if not values.numel():
        return values, indices
    candidates = x.shape[-1]
    if x.dim() != 2:
        x = x.reshape(-1, candidates)
    rows = x.shape[0]
    slices = 1 if candidates <= SLICE else MAX_SLICES
    groups = rows if slices > 1 else -(-rows // MAX_SLICES)
    LIBRARY.launch(
        f"topk_{NAMES[x.dtype]}", x, values, indices,
        (rows, candidates, k, x.stride(0), x.stride(1), int(largest), slices),
        threads=groups * TOPK_THREADS, group_size=TOPK_THREADS,
    )  # fmt: skip
    return values, indices


def histc(x: torch.Tensor, bins: int = 100, min: int = 0, max: int = 0) -> torch.Tensor:
    """How many elements fall into each of `bins` equal bins between min and max, [bins] in x's dtype.

    x          uint8 to int64, any shape and strides, on mps.
    min, max   whole numbers in x's range. Both the same: the least and the greatest element; if these are the same too,
               one less and one more.

    An element's bin is floor((element - min) * bins / (max - min)), exactly; max itself is in the last one; elements
    outside are not counted. Counts wrap as x's dtype does. Raises ValueError for anything else.
    """
    if not supports_histc(x, bins, min, max):
        raise ValueError(
            "histc takes integers on mps, at least one bin, and min <= max of x's range; not "
            f"{_described(x)}, {bins=}, {min=}, {max=}"
        )
    return run_histc(x, bins, min, max)


def supports_histc(x: torch.Tensor, bins: int = 100, min: int = 0, max: int = 0) -> bool:
    """Whether run_histc() takes this call. Refused, so that stock does it or raises: floats, no bins, min above max."""
    if not (isinstance(x, torch.Tensor) and x.is_mps and x.layout is torch.strided and x.dtype in INTEGERS):
        return False
    if not (0 < bins <= MAX_BINS and x.numel() <= MAX_ELEMENTS and math.isfinite(min) and math.isfinite(max)):
        return False
    info = torch.iinfo(x.dtype)
    return info.min <= int(min) <= int(max) <= info.max


def run_histc(x: torch.Tensor, bins: int = 100, min: int = 0, max: int = 0) -> torch.Tensor:
    """aten::histc, for arguments that supports_histc() has accepted."""
    low, high = int(min), int(max)
    elements, name = x.numel(), INTEGERS[x.dtype]
    if not elements:
        return torch.zeros(bins, dtype=x.dtype, device=x.device)
    if low != high:
        edges = (low, high)
    else:
        edges = torch.stack((x.amin(), x.amax())).to(torch.int64)
    x = x.contiguous()
    header = (elements, bins)
    if bins <= GROUP_BINS and elements <= GROUP_ELEMENTS:
        counts = torch.empty(bins, dtype=x.dtype, device=x.device)
        LIBRARY.launch(
            f"histc_group_{name}", x, edges, counts, header, threads=GROUP_THREADS, group_size=GROUP_THREADS
        )
        return counts
    counts = torch.zeros(bins, dtype=torch.int32, device=x.device)
    threads = MANY_THREADS if elements > MANY_THREADS else elements
    LIBRARY.launch(f"histc_many_{name}", x, edges, counts, header, threads=threads, group_size=256)
    return counts.to(x.dtype)


def _described(x: object) -> str:
    return f"{tuple(x.shape)} {x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else str(x)
