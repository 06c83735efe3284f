"""`python -m metal_kernels selftest`: each kernel in each dtype against the CPU, as a table for an issue.

A line is a (kernel, dtype): the self-check of the first use, which runs every form of the kernel, then the compact
conformance table through torch, with the kernel on, whether this torch needs it or not. On a GPU the same cases run
once more with the kernel off: what stock makes of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from . import conformance, selfcheck
from .installation import Installation
from .kernel import Kernel
from .switches import OFF, ON


@dataclass(frozen=True)
class Line:
    """What is to be checked: a dtype of a kernel, and the cases of the compact table that are about it."""

    kernel: Kernel
    dtype: torch.dtype
    cases: tuple[conformance.Case, ...]

    @property
    def label(self) -> str:
        return f"{self.kernel.name} {selfcheck.name_of(self.dtype)}"


def lines(kernels: list[Kernel]) -> list[Line]:
    """The table's lines, in the kernels' order."""
    found = []
    for kernel in kernels:
        cases: dict[torch.dtype, list[conformance.Case]] = {dtype: [] for dtype in kernel.dtypes}
        for case in conformance.COMPACT:
            if conformance.OPERATIONS[case.op].kernel == kernel.name:
                cases.setdefault(case.dtype, []).append(case)
        found += [Line(kernel, dtype, tuple(own)) for dtype, own in cases.items()]
    return found


def run(installation: Installation, checked: Iterator[Line], compare_stock: bool) -> list[dict[str, object]]:
    """A JSON-serialisable result for each line; "worst" is the largest error as a share of what its case allows.
    compare_stock: run the cases on stock as well."""
    names = [switch.kernel.name for switch in installation.switches]
    states = {switch.kernel.name: switch.state[0] for switch in installation.switches}
    with ExitStack() as stack:
        stack.enter_context(installation.registered(*names))
        on = {switch.kernel.name: ON for switch in installation.switches if switch.registered}
        stack.enter_context(installation.switches.using(on))
        return [_check(installation, line, states[line.kernel.name], compare_stock) for line in checked]


def _check(installation: Installation, line: Line, state: str, compare_stock: bool) -> dict[str, object]:
    start, why, worst = time.perf_counter(), [], 0.0
    switch = installation.switches[line.kernel.name]
    if line.dtype in line.kernel.dtypes:
        try:
            selfcheck.run(switch, line.dtype)
        except Exception as error:  # whatever it is, the table has to say it
            why.append(f"{type(error).__name__}: {error}")
    if switch.registered:
        for case in line.cases:
            try:
                worst = max(worst, _judge(installation, case))
            except Exception as error:
                why.append(f"{type(error).__name__}: {error}")
    if switch.failure is not None:
        why.insert(0, switch.failure)
    result = {
        "kernel": line.kernel.name, "dtype": selfcheck.name_of(line.dtype),
        "state": "failed" if switch.failure is not None else state, "passed": not why, "cases": len(line.cases),
        "worst": worst if line.cases and switch.registered else None,
        "ms": (time.perf_counter() - start) * 1e3, "why": why[0] if why else "", "all": why,
    }  # fmt: skip
    if compare_stock:
        with installation.switches.using({line.kernel.name: OFF}):
            result["stock"] = stocks_answer(line.cases)
    return result


def _judge(installation: Installation, case: conformance.Case) -> float:
    """The worst error; raises if it is too large, or if another kernel than ours answered."""
    operation = conformance.OPERATIONS[case.op]
    before = installation.taken().get(operation.kernel, 0)
    worst = conformance.check(case, "mps")
    if installation.taken().get(operation.kernel, 0) - before < operation.takes:
        raise conformance.Mismatch(f"{case.id}: went to torch's own kernel")
    return worst


def percent(worst: float) -> str:
    """An error, of the tolerance; "exact" for none."""
    return "exact" if worst == 0 else f"{worst:.0%}" if worst >= 0.01 else "< 1%"


def stocks_answer(cases: tuple[conformance.Case, ...]) -> str:
    """In a few words what torch's own kernels make of the cases: "52%" of the tolerance, "wrong in 2 of 6"."""
    worst, wrong, refused, asked = 0.0, 0, 0, 0
    for case in cases:
        if not conformance.OPERATIONS[case.op].takes:
            continue  # a function of ours alone
        asked += 1
        try:
            worst = max(worst, conformance.check(case, "mps"))
        except conformance.Mismatch:
            wrong += 1
        except (RuntimeError, TypeError, ValueError):
            refused += 1
    if not asked:
        return ""
    words = [f"wrong in {wrong} of {asked}"] * (wrong > 0) + [f"refuses {refused} of {asked}"] * (refused > 0)
    return ", ".join(words) or percent(worst)
