"""What an operation must move and compute at least, and how long that takes on a given GPU.

    cost = operation("linear", (x, weight), (torch.nn.functional.linear(x, weight),))
    cost.bytes, cost.flops, cost.seconds(bandwidth("Apple M2 Max"))

Bytes are each input read once and each result written once, but for a mixture of experts, of whose weights those of the
experts in use are read. What passes through caches, or again, is the kernel's own loss and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves

# Unified memory, GB/s as Apple states it (10^9 bytes): its newsroom's announcement of each chip, and for chips with two
# memory systems the technical specifications of the Macs that have them, by GPU cores. What a kernel can reach of it is
# some 80 to 90%.
APPLE_BANDWIDTH = {
    "Apple M1": 68.25, "Apple M1 Pro": 200.0, "Apple M1 Max": 400.0, "Apple M1 Ultra": 800.0,
    "Apple M2": 100.0, "Apple M2 Pro": 200.0, "Apple M2 Max": 400.0, "Apple M2 Ultra": 800.0,
    "Apple M3": 100.0, "Apple M3 Pro": 150.0, "Apple M3 Max": 400.0, "Apple M3 Ultra": 819.0,
    "Apple M4": 120.0, "Apple M4 Pro": 273.0, "Apple M4 Max": 546.0,
    "Apple M5": 153.0, "Apple M5 Pro": 307.0, "Apple M5 Max": 614.0,
}  # fmt: skip
# The smaller GPU of a chip that comes with two: 30 cores of the M3 Max, 32 of the M4 Max.
SMALLER = {"Apple M3 Max": 300.0, "Apple M4 Max": 410.0}


def bandwidth(chip: str) -> float | None:
    """Bytes a second of the GPU's memory, the larger where there are two; None for a chip not in the table."""
    gigabytes = APPLE_BANDWIDTH.get(chip.strip())
    return None if gigabytes is None else gigabytes * 1e9


@dataclass(frozen=True)
class Cost:
    """Of one call: bytes of memory that it must move, and multiplications and additions of its products."""

    bytes: int
    flops: int = 0

    def seconds(self, bytes_per_second: float) -> float:
        """The least time for its bytes."""
        return self.bytes / bytes_per_second

    def share(self, seconds: float, bytes_per_second: float) -> float:
        """How much of the bandwidth a call of so many seconds used, 0 to about 1; above 1 it ran from a cache."""
        return self.seconds(bytes_per_second) / seconds if seconds else 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.flops + other.flops)


def pays(ours: float, stock: float) -> bool:
    """Whether a kernel of `ours` seconds is worth patching where stock takes `stock`: faster, beyond the noise."""
    return ours < 0.97 * stock


def operation(name: str, args: Sequence, results: Sequence[torch.Tensor], active: int | None = None) -> Cost:
    """The cost of an operation by its ATen name, its arguments and what it returned.

    active   of a mixture of experts: the experts in use. None: as many as rows or experts, whichever are fewer.
    """
    tensors = [leaf for leaf in tree_leaves(list(args)) if isinstance(leaf, torch.Tensor)]
    written = sum(map(_bytes, results))
    flops, read = 0, sum(map(_bytes, tensors))
    if name in ("linear", "mm", "addmm", "_scaled_mm", "_scaled_mm_v2"):
        flops = 2 * results[0].numel() * tensors[-2 if name == "addmm" else 0].shape[-1]
    elif name == "_grouped_mm":
        a, b = tensors[:2]
        flops = 2 * results[0].numel() * a.shape[-1]
        if a.dim() == 2 and b.dim() == 3:
            used = min(b.shape[0], a.shape[0]) if active is None else active
            read -= _bytes(b) - _bytes(b) // max(1, b.shape[0]) * used
    elif name in ("copy_", "fill_", "zero_"):
        read = sum(map(_bytes, tensors[1:]))
        written = _bytes(tensors[0])
    return Cost(read + written, flops)


def _bytes(tensor: torch.Tensor) -> int:
    """Of its elements, those that a stride of 0 repeats once."""
    own = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return own * tensor.element_size() if tensor.numel() else 0
