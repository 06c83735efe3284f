"""The self-check of pad, and the probe of stock's: small pads whose right answers the CPU knows."""

from __future__ import annotations

import torch

from ..selfcheck import expect_identical, generator, quiet
from .host import constant_pad_nd

# (what, sizes, pad): the last dimension's left pad decides how source and destination are shifted against each other.
CASES = (
    ("rows shifted by one element", (2, 3, 5, 37), (1, 2, 1, 0, 2, 0)),
    ("whole planes", (1, 2, 3, 8, 16), (0, 0, 0, 0, 2, 1)),
    ("rows shorter than a vector", (7, 5, 3), (1, 0, 0, 1)),
    ("cropped and padded", (3, 9, 40), (-3, 5, 2, -4)),
)


def selfcheck(dtype: torch.dtype) -> None:
    """Every path of pad.metal for `dtype`'s element size: dense and strided reads. Raises SelfCheckFailure."""
    source = generator()
    value = 1 if dtype is torch.float8_e8m0fnu else 0  # which has no zero
    for what, sizes, pad in CASES:
        x = random_bits(sizes, dtype, source)
        on_device = _to_mps(x)
        expected = torch.constant_pad_nd(x, pad, value)
        expect_identical(_as_bytes(constant_pad_nd(on_device, pad, value)), _as_bytes(expected), what)
        x, on_device = x.transpose(0, -1), on_device.transpose(0, -1)
        expected = torch.constant_pad_nd(x, pad, value)
        expect_identical(_as_bytes(constant_pad_nd(on_device, pad, value)), _as_bytes(expected), f"{what}, transposed")


def random_bits(sizes: tuple[int, ...], dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    """A contiguous CPU tensor whose bytes are random: NaNs, subnormals and all. bool has only its two."""
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (*sizes, dtype.itemsize), dtype=torch.uint8, device="cpu", generator=source)
    return raw.view(dtype).squeeze(-1)


def stock_is_right() -> bool:
    """Whether torch's own kernel pads as the CPU does where MPSGraph's does not: an empty list (#161066), rank 5
    with an
    inner extent of 65536 (#194922), one dimension of 2^17 (#121961). For a torch that the table cannot tell about.
    """
    with quiet():
        try:
            for sizes, pad in (((1,), ()), ((1, 1, 1, 256, 256), (0, 0, 0, 0, 1, 0)), ((2**17,), (1, 1))):
                x = torch.ones(sizes, dtype=torch.uint8, device="cpu")
                if not torch.equal(torch.constant_pad_nd(x.to("mps"), pad).cpu(), torch.constant_pad_nd(x, pad)):
                    return False
        except RuntimeError:
            return False
    return True


def _as_bytes(x: torch.Tensor) -> torch.Tensor:
    # Before it leaves the device: older torch moves float8 only as bytes. All outputs here are contiguous.
    return x.unsqueeze(-1).view(torch.uint8)


def _to_mps(x: torch.Tensor) -> torch.Tensor:
    return _as_bytes(x).to("mps").view(x.dtype).squeeze(-1)
