"""What `python -m metal_kernels bench` times for grouped_mm: the experts of public models, one token and a prompt."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from ..kernel import Case

# (model, experts, experts of a token, outputs, K)
EXPERTS = (
    ("Qwen3.6-35B-A3B gate and up", 256, 8, 1024, 2048),
    ("Qwen3.6-35B-A3B down", 256, 8, 2048, 512),
    ("LFM2.5-8B-A1B gate and up", 32, 4, 3584, 2048),
    ("LFM2.5-8B-A1B down", 32, 4, 2048, 1792),
    ("gpt-oss-20b gate and up", 32, 4, 5760, 2880),
)
TOKENS = (1, 512)


def cases(device: str) -> Iterator[Case]:
    """bfloat16, as the models are, rows spread evenly over the experts; then a router's topk and histc."""
    for model, experts, active, outputs, length in EXPERTS:
        weight = torch.zeros(experts, outputs, length, dtype=torch.bfloat16, device=device).mT
        for tokens in TOKENS:
            rows = tokens * active
            x = torch.zeros(rows, length, dtype=torch.bfloat16, device=device)
            ends = [rows * (expert + 1) // experts for expert in range(experts)]
            offs = torch.tensor(ends, dtype=torch.int32, device=device)
            shape = f"{rows}x{length} by {experts}x{outputs} {model}"
            call = functools.partial(torch._grouped_mm, x, weight, offs=offs)
            yield Case("_grouped_mm", shape, x.dtype, call, (x, weight, offs))
    for rows, experts, k in ((1, 256, 8), (4096, 256, 8), (1, 4096, 32)):
        x = torch.zeros(rows, experts, device=device)
        yield Case("topk", f"{rows}x{experts} top-{k}", x.dtype, functools.partial(torch.topk, x, k), (x, k))
