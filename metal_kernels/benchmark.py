"""What `python -m metal_kernels bench` does for a line: times stock and patched, and sets them beside the least cost.

The least cost is cost.py's: the bytes that the operation must move, and the multiplications and additions of its
products. On a chip whose bandwidth is known the share of it says how far from done a kernel is. Whether patching pays
is asked of times on a GPU only: on software Metal they are a simulation's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from . import cost, selfcheck
from .installation import Installation
from .kernel import Case, Kernel
from .switches import AUTO, OFF, ON

REPEATS = 30  # of each call; fewer, but MINIMUM, when they would take longer than SECONDS
MINIMUM, SECONDS = 3, 2.0
GPU = "Apple GPU"  # environment.device
SIMULATED = (
    "Software Metal: every time here is a simulation's, on this computer's processor. None of them, and no ratio of "
    "two, says anything of a GPU. Bytes and operations are the calls' own."
)
PAYS, LOSES, STOCK = "pays", "does not pay", "left to stock"


def time_case(installation: Installation, kernel: Kernel, case: Case) -> dict[str, object]:
    """A line of the report, JSON-serialisable. None for what cannot be said.

    stock_ms, patched_ms   medians; None where the call is not possible (stock lacks the op or the dtype).
    bytes, flops           that the call must move and compute at least.
    bandwidth_share        of the chip's memory bandwidth, by the patched call's bytes; above 1 it ran from a cache.
    auto                   what mode auto does with the call on this torch, and whether that pays.
    """
    times = {}
    for name, mode in (("stock_ms", OFF), ("patched_ms", ON)):
        with installation.switches.using({kernel.name: mode}):
            times[name] = _median(case.call)
    least = _least(installation, kernel, case) if times["patched_ms"] is not None else None
    environment = installation.environment
    rate = cost.bandwidth(environment.chip) if environment.device == GPU else None
    known = least is not None and rate is not None
    return {
        "op": f"aten::{case.op}", "shape": case.shape, "dtype": selfcheck.name_of(case.dtype), **times,
        "bytes": least.bytes if least else None, "flops": least.flops if least else None,
        "bandwidth_share": least.share(times["patched_ms"] / 1e3, rate) if known else None,
        "auto": _auto(installation, kernel, case, times) if environment.device == GPU else None,
    }  # fmt: skip


def chip_note(installation: Installation) -> str:
    """What the shares of bandwidth are of, or why there are none."""
    environment = installation.environment
    if environment.device != GPU:
        return SIMULATED
    rate = cost.bandwidth(environment.chip)
    if rate is None:
        return f"No share of the bandwidth: that of {environment.chip or 'this chip'} is not in the table of cost.py."
    smaller = cost.SMALLER.get(environment.chip)
    less = f" (with the smaller of its two GPUs {smaller:g})" if smaller else ""
    return f"Share of the memory bandwidth of {environment.chip}: {rate / 1e9:g} GB/s{less}, as Apple states it."


def _least(installation: Installation, kernel: Kernel, case: Case) -> cost.Cost | None:
    """None for a case that does not say its arguments."""
    if not case.args:
        return None
    with installation.switches.using({kernel.name: ON}):
        result = case.call()
    return cost.operation(case.op, case.args, result if isinstance(result, (tuple, list)) else (result,))


def _auto(installation: Installation, kernel: Kernel, case: Case, times: dict[str, float | None]) -> str | None:
    stock, patched = times["stock_ms"], times["patched_ms"]
    if patched is None:
        return None
    before = installation.taken().get(kernel.name, 0)
    try:
        with installation.switches.using({kernel.name: AUTO}):
            case.call()
    except (RuntimeError, TypeError):  # left to a stock that cannot
        return STOCK
    if installation.taken().get(kernel.name, 0) == before:
        return STOCK
    return PAYS if stock is None or cost.pays(patched, stock) else LOSES


def _median(call: Callable[[], object]) -> float | None:
    """Milliseconds; None where the call is not possible (stock lacks the op or the dtype)."""
    try:
        _milliseconds(call)  # the first run compiles
        times = [_milliseconds(call) for _ in range(MINIMUM)]
        while len(times) < REPEATS and sum(times) < SECONDS * 1e3:
            times.append(_milliseconds(call))
    except (RuntimeError, TypeError):
        return None
    return statistics.median(times)


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    torch.mps.synchronize()
    return (time.perf_counter() - start) * 1e3
