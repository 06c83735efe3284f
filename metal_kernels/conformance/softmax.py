"""softmax and log_softmax, forward and backward."""

from __future__ import annotations

import torch

from .case import EPS, Case, Expected, Operation, Tolerance, roundings
from .inputs import Source

SCORES = 3.0  # the standard deviation of an attention's scores, about

ONE_ROUNDING = Tolerance(0.5, "float arithmetic, then one rounding to the output's dtype")


def _specials(x: torch.Tensor, dim: int, kind: object) -> torch.Tensor:
    """Puts -inf, +inf or NaN into rows of a contiguous x along its last dimension."""
    if kind is None:
        return x
    rows = x.transpose(dim, -1)
    inf, nan = torch.inf, torch.nan
    first = rows.select(0, 0) if rows.dim() > 1 else rows
    if kind == "some -inf":
        first[..., ::2] = -inf
    elif kind == "all -inf":
        first.fill_(-inf)
    elif kind == "+inf":
        first[..., -1] = inf
    elif kind == "nan":
        first[..., rows.shape[-1] // 2] = nan
    return x


def _scores(case: Case, source: Source) -> torch.Tensor:
    dim = case.option("dim", -1)
    x = source.normal(case.shapes[0], case.dtype, case.layout, case.option("scale", SCORES))
    return _specials(x, dim, case.option("values"))


def _make_forward(case: Case) -> tuple:
    return _scores(case, Source(case)), case.option("dim", -1), case.option("half_to_float", False)


def _make_backward(forward):
    def make(case: Case) -> tuple:
        source, dim = Source(case), case.option("dim", -1)
        x = _scores(case, source)
        wide = torch.float32 if case.option("half_to_float", False) else case.dtype
        y = forward(x.double(), dim)
        is_repeated = any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))
        strides = y.contiguous().stride() if is_repeated else x.stride()
        output = torch.empty_strided(x.shape, strides, dtype=wide, device="cpu").copy_(y)
        return source.normal(x.shape, wide), output, dim, case.dtype

    return make


def _length(x: torch.Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> tuple[Expected, ...]:
    """Rounding x - max moves exp(x - max) by as many EPS as it is large; exp, the sum and the quotient add a few."""
    dtype, x = torch.float32 if half_to_float else x.dtype, x.double()
    y = torch.softmax(x, dim)
    distance = (x.amax(dim, keepdim=True) - x).nan_to_num(0, 0, 0) if x.numel() else x
    budget = (2 * distance + roundings(_length(x, dim))) * EPS * y
    return (Expected(y, dtype, budget, strides=torch.empty(x.shape, device="meta").stride()),)


def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> tuple[Expected, ...]:
    """x - max and log(sum) have one sign, so both are below |y|; log(sum) also carries the roundings of the sum."""
    dtype, x = torch.float32 if half_to_float else x.dtype, x.double()
    y = torch.log_softmax(x, dim)
    budget = (4 * y.abs() + roundings(_length(x, dim))) * EPS
    return (Expected(y, dtype, budget, strides=torch.empty(x.shape, device="meta").stride()),)


def softmax_backward(grad: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype) -> tuple[Expected, ...]:
    """grad - sum is off by the roundings of the sum's terms."""
    g, y = grad.double(), y.double()
    terms = (g * y).abs().sum(dim, keepdim=True) if y.dim() else (g * y).abs()
    budget = y * (2 * g.abs() + roundings(_length(y, dim)) * terms) * EPS
    return (Expected(torch._softmax_backward_data(g, y, dim, torch.float64), dtype, budget),)


def log_softmax_backward(grad: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype) -> tuple[Expected, ...]:
    """The sum's terms are the gradients; exp(y) multiplies their roundings."""
    g, y = grad.double(), y.double()
    terms = g.abs().sum(dim, keepdim=True) if y.dim() else g.abs()
    budget = (2 * g.abs() + y.exp() * (4 + roundings(_length(y, dim))) * terms) * EPS
    return (Expected(torch._log_softmax_backward_data(g, y, dim, torch.float64), dtype, budget),)


OPERATIONS = (
    Operation("softmax", "softmax", _make_forward, torch._softmax, softmax, ONE_ROUNDING),
    Operation("log_softmax", "softmax", _make_forward, torch._log_softmax, log_softmax, ONE_ROUNDING),
    Operation(
        "softmax_backward", "softmax", _make_backward(torch.softmax), torch._softmax_backward_data, softmax_backward,
        ONE_ROUNDING,
    ),
    Operation(
        "log_softmax_backward", "softmax", _make_backward(torch.log_softmax), torch._log_softmax_backward_data,
        log_softmax_backward, ONE_ROUNDING,
    ),
)  # fmt: skip
