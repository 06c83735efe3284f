"""What `python -m metal_kernels bench` times for pad: the pads of a video VAE, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

# Wan VAE activations (N, C, T, H, W) before a causal Conv3d: the decoder's two largest at 480x832 and 1024x1024.
SHAPES = ((1, 96, 6, 240, 416), (1, 384, 6, 128, 128))
CAUSAL = (1, 1, 1, 1, 2, 0)  # diffusers' WanCausalConv3d: (W, W, H, H, T, 0)
TEMPORAL = (0, 0, 0, 0, 2, 0)  # the time axis only: whole planes move


def cases() -> Iterator[tuple[str, torch.dtype, Callable[[], object]]]:
    """(label, dtype, call) for each case; `call()` runs the op once on a fresh output."""
    for sizes in SHAPES:
        for what, pad in (("causal", CAUSAL), ("temporal", TEMPORAL), ("crop", tuple(-n for n in CAUSAL))):
            x = torch.zeros(sizes, dtype=torch.float16, device="mps")
            label = f"pad {what} {'x'.join(map(str, sizes))}"
            yield label, x.dtype, lambda x=x, pad=pad: torch.constant_pad_nd(x, pad)
