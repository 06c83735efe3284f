"""The self-check of softmax: every form of the kernel, forward and backward, against the CPU in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..selfcheck import expect_close, generator
from .host import compute

# (what, form of geometry.plan(), sizes, dim). Lengths are no multiple of a vector; 2600 elements are several blocks.
CASES = (
    ("rows of a few lanes", "rows", (9, 23), 1),
    ("rows of a SIMD-group", "rows", (5, 203), 1),
    ("rows of a threadgroup", "rows", (3, 2601), 1),
    ("whole vectors of a threadgroup", "whole", (3, 2608), 1),
    ("whole vectors split over threadgroups", "whole_split", (2, 2608), 1),
    ("rows in a loop", "looped", (2, 2601), 1),
    ("rows split over threadgroups", "split", (2, 2601), 1),
    ("columns", "columns", (2, 37, 5), 1),
    ("wide columns", "columns", (2, 37, 16), 1),
)
# Of 1: twice the rounding of the output, which for float32 drowns in the few roundings on the way there.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def selfcheck(dtype: torch.dtype) -> None:
    """Every form for `dtype`. Raises SelfCheckFailure."""
    source = generator()
    for what, form, sizes, dim in CASES:
        x = 3 * torch.randn(sizes, dtype=torch.float64, device="cpu", generator=source).to(dtype)
        x[0, 3] = -torch.inf  # one element of a row, or one of each column
        x[1] = -torch.inf  # and whole ones, which are NaN
        grad = torch.randn(sizes, dtype=torch.float64, device="cpu", generator=source).to(dtype)
        for name, forward, backward in _functions():
            expected = forward(x.double(), dim)
            y = compute(name, (x.to("mps"),), dim, dtype, form=form)
            _expect(y, expected, dtype, f"{name}, {what}")
            y = expected.to(dtype)
            gradient = compute(f"{name}_backward", (grad.to("mps"), y.to("mps")), dim, dtype, form=form)
            _expect(gradient, backward(grad.double(), y.double(), dim), dtype, f"{name}_backward, {what}")


def _functions() -> tuple[tuple[str, Callable, Callable], ...]:
    return (
        ("softmax", torch.softmax, lambda g, y, dim: torch._softmax_backward_data(g, y, dim, g.dtype)),
        ("log_softmax", torch.log_softmax, lambda g, y, dim: torch._log_softmax_backward_data(g, y, dim, g.dtype)),
    )


def _expect(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    tolerance = TOLERANCE[dtype]
    expect_close(actual, expected.to(dtype), what, rtol=tolerance, atol=tolerance)
