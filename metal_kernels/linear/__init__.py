"""linear: aten::linear with 1 to 16 rows in hand-written Metal, and its repair where stock is wrong with more."""

from __future__ import annotations

import torch

from .. import environment
from ..kernel import Kernel, Need, Patch
from .bench import cases
from .check import selfcheck
from .host import DTYPES, is_one_row, linear, run, supports

__all__ = ["KERNEL", "linear", "run", "supports"]


def need(here: environment.Environment) -> Need:
    """Whether `auto` patches anything here. What of it, `_spare` says."""
    one, few = here.stock("linear_one_row"), here.stock("linear_few_rows")
    if one.good and not few.good:
        return Need(True, f"{few.text}; {one.text}, which stays in use")
    return Need(not (one.good and few.good), few.text if one.good else one.text)


def _spare(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    return is_one_row(input, weight) and environment.stock("linear_one_row").good is True


KERNEL = Kernel(
    name="linear",
    title="Linear layers",
    patches=(Patch("linear", supports, run, spare=_spare),),
    need=need,
    selfcheck=selfcheck,
    repairs=(
        "Stock is slow with 1 to 16 rows (one token, a modulation layer, an embedder): these kernels read the weight "
        "once for all rows. On torch before 2.14 the bias that stock loses in large batches is kept too."
    ),
    dtypes=DTYPES,
    bench=cases,
    doc="metal_kernels/linear/linear.metal",
)
