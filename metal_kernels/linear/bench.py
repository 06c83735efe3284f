"""What `python -m metal_kernels bench` times for linear: layers of public models at one row, and some at eight."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from ..kernel import Case

# (layer, N, K): of shapes.json, from the smallest to the largest
LAYERS = (
    ("Llama 3.2 1B k", 512, 2048),
    ("Qwen3 0.6B o", 1024, 2048),
    ("Llama 3 8B q", 4096, 4096),
    ("FLUX.1 modulation", 18432, 3072),
    ("Qwen3 8B down", 4096, 12288),
    ("Qwen3 0.6B lm_head", 151936, 1024),
)
ROWS = (1, 8)


def cases(device: str) -> Iterator[Case]:
    """bfloat16, as the models are, without bias. A call allocates its output, as every real call does."""
    for layer, outputs, length in LAYERS:
        weight = torch.zeros(outputs, length, dtype=torch.bfloat16, device=device)
        for rows in ROWS:
            x = torch.zeros(rows, length, dtype=torch.bfloat16, device=device)
            shape = f"{rows}x{length} to {outputs} {layer}"
            call = functools.partial(torch.nn.functional.linear, x, weight)
            yield Case("linear", shape, x.dtype, call, (x, weight))
