"""linear with few rows: F.linear."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import EPS, Case, Expected, Operation, Tolerance, roundings
from .inputs import Source


def _make(case: Case) -> tuple:
    """shapes: x [..., K], weight [N, K] or [K]. options: bias, x: layouts; absent for no bias, a contiguous x."""
    source = Source(case)
    x = source.normal(case.shapes[0], case.dtype, case.option("x", "contiguous"))
    weight = source.normal(case.shapes[1], case.dtype, case.layout)
    bias = case.option("bias")
    return x, weight, None if bias is None else source.normal(case.shapes[1][:1], case.dtype, bias)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> tuple[Expected, ...]:
    """A sum of K products in float."""
    doubles = [None if t is None else t.double() for t in (x, weight, bias)]
    magnitude = F.linear(*(None if t is None else t.abs() for t in doubles))
    y = F.linear(*doubles)
    budget = roundings(x.shape[-1]) * EPS * magnitude
    return (Expected(y, x.dtype, budget, strides=y.contiguous().stride()),)


OPERATIONS = (
    Operation("linear", "linear", _make, F.linear, linear,
              Tolerance(0.5, "sums in float, one rounding to the output's dtype, which the bias shares")),
)  # fmt: skip
