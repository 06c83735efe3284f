"""What `python -m metal_kernels bench` times for softmax: attention scores and vocabularies, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from ..kernel import Case

# (what, sizes, dim, dtype)
SHAPES = (
    # ComfyUI's sub-quadratic attention: (heads, queries of a chunk, keys)
    ("attention", (8, 1024, 4096), -1, torch.float16),
    ("attention", (24, 512, 4608), -1, torch.bfloat16),
    ("attention", (4096, 4096), -1, torch.float32),
    ("attention, 77 text tokens", (8, 4096, 77), -1, torch.float16),
    # The logits of one token, of a few, and of a training step: Llama 3, Qwen3, Qwen3.5
    ("vocabulary", (1, 128256), -1, torch.float32),
    ("vocabulary", (1, 151936), -1, torch.bfloat16),
    ("vocabulary", (8, 248320), -1, torch.float32),
    ("vocabulary", (512, 151936), -1, torch.float16),
    ("router of 256 experts", (4096, 256), -1, torch.float32),
    ("channels", (1, 64, 256, 256), 1, torch.float16),
)


def cases(device: str) -> Iterator[Case]:
    """Each shape forward, attention and training backward too. A call allocates its output, as every real call does."""
    for what, sizes, dim, dtype in SHAPES:
        x = torch.zeros(sizes, dtype=dtype, device=device)
        shape = f"{'x'.join(map(str, sizes))} {what}"
        trains = what in ("attention", "vocabulary") and sizes[0] > 1
        name = "_log_softmax" if what == "vocabulary" and trains else "_softmax"  # a loss takes the logarithm
        op, backward = getattr(torch, name), getattr(torch, f"{name}_backward_data")
        yield Case(name, shape, dtype, functools.partial(op, x, dim, False), (x,))
        if trains:
            grad = torch.zeros(sizes, dtype=dtype, device=device)
            call = functools.partial(backward, grad, x, dim, dtype)
            yield Case(f"{name}_backward_data", shape, dtype, call, (grad, x))
