"""The library installed on a torch of the software device's, and many cases judged at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch

from . import library, metal_kernels
from .rows.fp8 import FORMATS


@contextlib.contextmanager
def installed(faults: str | None, mode: str = "auto") -> Iterator[None]:
    """The stock of torch `faults` ("2.13") beneath, every kernel in `mode`. On a Mac the GPU and the torch that is."""
    with contextlib.ExitStack() as stack:
        if sys.platform != "darwin":
            import softmetal

            stack.enter_context(softmetal.profile(faults=faults))
        metal_kernels.uninstall()
        metal_kernels._installation._environment = None
        metal_kernels.set_mode(mode)
        metal_kernels.install()
        metal_kernels.reset_counters()
        try:
            yield
            states = {name: kernel["state"] for name, kernel in metal_kernels.status()["kernels"].items()}
            assert "failed" not in states.values(), metal_kernels.status()["text"]
        finally:
            metal_kernels.uninstall()
            metal_kernels.set_mode("auto")
            metal_kernels._installation._environment = None


def left_to_stock(case: library.Case) -> bool:
    """Whether auto leaves this case to torch 2.15, which does it well. It keeps e5m2 and the other formats, both
    scaled_mm (of v2 the GEMM is slow), the backward of softmax, linear with 2 to 16 rows, histc of integers."""
    if case.op == "linear":
        return torch.Size(case.shapes[0]).numel() == case.shapes[1][-1]
    if case.op in ("fp8_encode", "fp8_decode"):
        formats = {case.dtype, case.option("from"), case.option("to")} & set(FORMATS)
        return formats == {torch.float8_e4m3fn}
    if case.option("half_to_float"):
        return False
    return case.op in ("pad", "softmax", "log_softmax", "grouped_mm", "topk")


def judge_all(cases: Iterable[library.Case], stocks: Callable[[library.Case], bool] = lambda case: False) -> float:
    """Every case against the CPU; the worst error, of the tolerance. Fails with all that are wrong, or of which
    another kernel ran than ought to: ours, but stock for those that are `stocks`, whose values are then none of ours.
    """
    worst, wrong = 0.0, []
    for case in cases:
        operation = library.OPERATIONS[case.op]
        before = metal_kernels.taken().get(operation.kernel, 0)
        try:
            arguments = operation.make(case)
            actual = operation.call(*library.twin(arguments, "mps"))
            taken = metal_kernels.taken().get(operation.kernel, 0) - before
            if stocks(case):
                if taken:
                    wrong.append(f"{case.id}: was not left to stock")
                continue
            if taken < operation.takes:
                wrong.append(f"{case.id}: went to stock")
            worst = max(worst, library.compare(actual, operation.reference(*arguments), operation.tolerance, case.id))
        except Exception as error:  # whatever it is, it is this case's result
            wrong.append(f"{case.id}: {type(error).__name__}: {error}")
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} cases are wrong:", *wrong[:20]]))
    return worst
