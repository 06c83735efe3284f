"""softmax: aten::_softmax and _log_softmax, and their backward, in hand-written Metal."""

from __future__ import annotations

import torch

from .. import environment
from ..kernel import Kernel, Need, Patch
from .bench import cases
from .check import selfcheck
from .host import (
    DTYPES,
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
    supports,
    supports_backward,
)

__all__ = [
    "KERNEL",
    "log_softmax",
    "log_softmax_backward",
    "softmax",
    "softmax_backward",
    "supports",
    "supports_backward",
]


def need(here: environment.Environment) -> Need:
    """Whether `auto` patches anything here. What of it, `_spare_forward` says."""
    forward, backward = here.stock("softmax"), here.stock("softmax_backward")
    if forward.good and not backward.good:
        return Need(True, f"{backward.text}; {forward.text}, which stays in use")
    return Need(not forward.good, forward.text)


def _spare_forward(x: torch.Tensor, dim: int, half_to_float: bool = False, **_) -> bool:
    return environment.stock("softmax").good is True and not half_to_float  # which stock refuses


KERNEL = Kernel(
    name="softmax",
    title="Softmax",
    # torch.softmax(x, dim) arrives at _softmax, with `out=` at _softmax.out: torch's structured kernels have both on
    # the MPS key.
    patches=(
        Patch("_softmax", supports, softmax, spare=_spare_forward),
        Patch("_softmax.out", supports, softmax, spare=_spare_forward),
        Patch("_log_softmax", supports, log_softmax, spare=_spare_forward),
        Patch("_log_softmax.out", supports, log_softmax, spare=_spare_forward),
        Patch("_softmax_backward_data", supports_backward, softmax_backward),
        Patch("_softmax_backward_data.out", supports_backward, softmax_backward),
        Patch("_log_softmax_backward_data", supports_backward, log_softmax_backward),
        Patch("_log_softmax_backward_data.out", supports_backward, log_softmax_backward),
    ),
    need=need,
    selfcheck=selfcheck,
    repairs=(
        "Stock softmax goes through MPSGraph, which is slow on few long rows and keeps a graph for each new shape; "
        "these kernels read a row once where it fits into registers, forward and backward."
    ),
    dtypes=DTYPES,
    bench=cases,
    doc="metal_kernels/softmax/softmax.metal",
)
