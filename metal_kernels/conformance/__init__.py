"""Conformance: one table of cases for all kernels, op x dtype x sizes x layout x options, and how each is judged.

    from metal_kernels import conformance
    for case in conformance.COMPACT:
        worst = conformance.check(case, "mps")      # of the tolerance; raises Mismatch

`COMPACT` is what `python -m metal_kernels selftest` runs. The whole table, with the same operations, is in
tests/conformance/.
"""

from __future__ import annotations

import torch

from . import fp8, grouped_mm, linear, pad, quantize, softmax
from .case import DEVICE, FULL, QUICK, Case, Expected, Mismatch, Operation, Tolerance, bits, compare
from .compact import COMPACT
from .grouped_mm import product
from .inputs import twin

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for family in (pad, softmax, linear, grouped_mm, fp8, quantize)
    for operation in family.OPERATIONS
}


def check(case: Case, device: str | torch.device) -> float:
    """Run `case` on `device` and compare with the CPU: the worst error, a share of the tolerance.

    Raises Mismatch, or what the op raises.
    """
    return judge(case.op, OPERATIONS[case.op].make(case), device, case.id)


def judge(op: str, arguments: tuple, device: str | torch.device, what: str) -> float:
    """The same for arguments that no case makes: CPU tensors, of any strides."""
    operation = OPERATIONS[op]
    actual = operation.call(*twin(arguments, device))
    return compare(actual, operation.reference(*arguments), operation.tolerance, what)


__all__ = [
    "COMPACT",
    "Case",
    "DEVICE",
    "Expected",
    "FULL",
    "Mismatch",
    "OPERATIONS",
    "Operation",
    "QUICK",
    "Tolerance",
    "bits",
    "check",
    "compare",
    "judge",
    "product",
    "twin",
]
