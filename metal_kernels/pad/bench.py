"""What `python -m metal_kernels bench` times for pad: the pads of a video VAE, and their backward."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..kernel import Case

# Wan VAE activations (N, C, T, H, W) before a causal Conv3d: the decoder's two largest at 480x832 and 1024x1024.
SHAPES = ((1, 96, 6, 240, 416), (1, 384, 6, 128, 128))
PADS = {
    "causal": (1, 1, 1, 1, 2, 0),  # diffusers' WanCausalConv3d: (W, W, H, H, T, 0)
    "temporal": (0, 0, 0, 0, 2, 0),  # the time axis alone: whole planes move
    "backward": (-1, -1, -1, -1, -2, 0),
}


def cases(device: str) -> Iterator[Case]:
    """Each shape with each pad, float16. A call allocates its output, as every real call does."""
    for sizes in SHAPES:
        x = torch.zeros(sizes, dtype=torch.float16, device=device)
        for what, pad in PADS.items():
            shape = f"{'x'.join(map(str, sizes))} {what}"
            yield Case("constant_pad_nd", shape, x.dtype, lambda x=x, pad=pad: torch.constant_pad_nd(x, pad), (x, pad))
