"""grouped_mm: aten::_grouped_mm in hand-written Metal, and the routing before it: topk, and histc of integers."""

from __future__ import annotations

from .. import environment
from ..kernel import Kernel, Need, Patch
from .bench import cases
from .check import selfcheck
from .host import DTYPES, grouped_mm, has_layout, output_of, run, supports
from .routing import INTEGERS, histc, run_histc, run_topk, supports_histc, supports_topk, topk

__all__ = [
    "KERNEL",
    "grouped_mm",
    "has_layout",
    "histc",
    "output_of",
    "supports",
    "supports_histc",
    "supports_topk",
    "topk",
]


def need(here: environment.Environment) -> Need:
    """Whether `auto` patches anything here. What of it, `_spare` says: no torch has histc of integers."""
    stock = here.stock("grouped_mm")
    if stock.good:
        return Need(True, f"histc of integers is missing; {stock.text}, which stay in use")
    return Need(True, stock.text)


def _spare(*_, **__) -> bool:
    return environment.stock("grouped_mm").good is True


KERNEL = Kernel(
    name="grouped_mm",
    title="Mixture of experts",
    patches=(
        Patch("_grouped_mm", supports, run, spare=_spare),
        Patch("topk", supports_topk, run_topk, spare=_spare),
        Patch("histc", supports_histc, run_histc),
    ),
    need=need,
    selfcheck=selfcheck,
    repairs=(
        "Stock multiplies a model's experts one by one and waits for the GPU before; these kernels take all experts at "
        "once, read only the weights of those that are used, and count the router's integers, which stock cannot."
    ),
    dtypes=(*DTYPES, *INTEGERS),
    bench=cases,
    doc="metal_kernels/grouped_mm/grouped_mm.metal",
)
