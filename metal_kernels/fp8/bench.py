"""What `python -m metal_kernels bench` times for fp8: the casts and the products of an FP8 model."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from ..kernel import Case

E4M3 = torch.float8_e4m3fn
SHAPES = ((4096, 4096), (18432, 3072), (3072, 12288))  # N, K: a square one, and Flux's modulation and feed-forward


def cases(device: str) -> Iterator[Case]:
    """A cast to bf16 of each weight, and F.linear with 1, 4, 16 and 1024 rows of bf16 on it."""
    for rows, cols in SHAPES:
        weight = torch.zeros(rows, cols, dtype=torch.uint8, device=device).view(E4M3)
        out = torch.empty(rows, cols, dtype=torch.bfloat16, device=device)
        yield Case("copy_", f"{rows}x{cols}", E4M3, lambda weight=weight, out=out: out.copy_(weight), (out, weight))
        for batch in (1, 4, 16, 1024):
            x = torch.zeros(batch, cols, dtype=torch.bfloat16, device=device)
            shape = f"{batch}x{cols} on {rows}x{cols}"
            call = functools.partial(torch.nn.functional.linear, x, weight)
            yield Case("linear", shape, E4M3, call, (x, weight))
