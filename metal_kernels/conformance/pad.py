"""pad: constant_pad_nd."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .case import Case, Expected, Operation, Tolerance, exactly
from .inputs import Source


def _make(case: Case) -> tuple:
    """options: pad, value."""
    x = Source(case).bytes_of(case.shapes[0], case.dtype, case.layout)
    return x, case.option("pad"), case.option("value", 0)


def pad(x: torch.Tensor, pad: Sequence[int], value: complex) -> tuple[Expected, ...]:
    """What the CPU kernel returns, strides too."""
    return (exactly(torch.constant_pad_nd(x, pad, value)),)


OPERATIONS = (
    Operation("pad", "pad", _make, torch.constant_pad_nd, pad, Tolerance(0.0, "bytes are moved")),
)  # fmt: skip
