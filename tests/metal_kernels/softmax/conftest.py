"""The softmax kernels, installed on the software device with torch 2.13's stock beneath it (on a Mac: on the GPU)."""

import pytest
import torch
from family import EPS, Family, installed


class Softmaxing(Family):
    """With the comparison with the CPU in float64."""

    @staticmethod
    def random(sizes, dtype=torch.float32, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
        """Scores such as an attention has them."""
        return (scale * torch.randn(sizes, generator=torch.Generator().manual_seed(seed))).to(dtype)

    def check(self, x: torch.Tensor, dim: int, *, form: str | None = None, half_to_float: bool = False) -> None:
        """All four kernels on `x`, as strided as it is, against the CPU in float64.

        Through torch, and none of them may go to stock; with `form` through host.compute(), whose form is forced.
        """
        what = (tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, dim, form)
        dtype = torch.float32 if half_to_float else x.dtype
        for name in ("softmax", "log_softmax"):
            expected, budget = REFERENCES[name](x, dim)
            y = self.run(name, (self.twin(x),), dim, dtype, form)
            assert_close(y, expected, budget, (name, *what))
            assert y.is_contiguous(), what
            # The gradient's layout is x's: strided in the same way.
            strides = x.stride() if not is_expanded(x) else expected.stride()
            output = torch.empty_strided(x.shape, strides, dtype=dtype).copy_(expected)
            grad = self.random(x.shape, dtype, seed=1)
            expected, budget = REFERENCES[f"{name}_backward"](grad, output, dim)
            gradient = self.run(f"{name}_backward", (self.twin(grad), self.twin(output)), dim, x.dtype, form)
            assert_close(gradient, expected, budget, (f"{name}_backward", *what))

    def run(self, name, inputs, dim, dtype, form=None):
        """The op through torch, or with `form` through host.compute()."""
        if form is not None:
            return self.modules.host.compute(name, inputs, dim, dtype, form=form)
        before = self.taken
        if len(inputs) == 1:
            result = getattr(torch, f"_{name}")(*inputs, dim, inputs[0].dtype != dtype)
        else:
            result = getattr(torch, f"_{name}_data")(*inputs, dim, dtype)
        assert self.taken == before + 1, ("went to stock", name, inputs[0].shape, inputs[0].stride(), dim)
        return result


def is_expanded(x):
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


# ---- the tolerance -----------------------------------------------------------------------------------------------
# Each reference is the CPU's in float64, with the error that float arithmetic may make on the way, before the result is
# rounded to the output's dtype: multiples of EPS of the terms that were rounded.


def roundings(n: int) -> float:
    """Of a sum of n terms in float, relative to the sum of their magnitudes: they mostly cancel."""
    return 4 + n**0.5 / 2


def _softmax(x, dim):
    x = x.double()
    y = torch.softmax(x, dim)
    # Rounding x - max moves exp(x - max) by as many EPS as it is large; exp itself, the sum and the quotient add a few.
    distance = (x.amax(dim, keepdim=True) - x).nan_to_num(0, 0, 0) if x.numel() else x
    return y, (2 * distance + roundings(x.shape[dim] if x.dim() else 1)) * EPS * y


def _log_softmax(x, dim):
    x = x.double()
    y = torch.log_softmax(x, dim)
    # x - max and log(sum) have the same sign, so both are below |y|; log(sum) also carries the roundings of the sum.
    return y, (4 * y.abs() + roundings(x.shape[dim] if x.dim() else 1)) * EPS


def _softmax_backward(grad, y, dim):
    g, y = grad.double(), y.double()
    # g - sum is off by the roundings of the sum's terms.
    terms = (g * y).abs().sum(dim, keepdim=True) if y.dim() else (g * y).abs()
    budget = y * (2 * g.abs() + roundings(y.shape[dim] if y.dim() else 1) * terms) * EPS
    return torch._softmax_backward_data(g, y, dim, torch.float64), budget


def _log_softmax_backward(grad, y, dim):
    g, y = grad.double(), y.double()
    terms = g.abs().sum(dim, keepdim=True) if y.dim() else g.abs()
    budget = (2 * g.abs() + y.exp() * (4 + roundings(y.shape[dim] if y.dim() else 1)) * terms) * EPS
    return torch._log_softmax_backward_data(g, y, dim, torch.float64), budget


REFERENCES = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": _log_softmax_backward,
}


def assert_close(actual, expected, budget, what) -> None:
    """Within one ulp of the output's dtype (its rounding, of a value that may lie beyond a tie) and the budget.

    What an Apple GPU flushes (float32 below its smallest normal) may be zero. NaN and infinities as expected.
    """
    assert actual.shape == expected.shape, what
    actual = actual.detach().cpu()
    finfo = torch.finfo(actual.dtype)
    got = actual.double()
    rounded = expected.to(actual.dtype).double()
    special = ~rounded.isfinite()
    assert torch.equal(got.isnan(), rounded.isnan()), (what, "NaN")
    assert torch.equal(got[special].nan_to_num(nan=0.5), rounded[special].nan_to_num(nan=0.5)), (what, "infinity")
    magnitude = expected.abs().clamp(min=finfo.tiny)
    ulp = torch.exp2(magnitude.log2().floor()) * finfo.eps
    allowed = ulp + budget.nan_to_num(0, 0, 0) + torch.finfo(torch.float32).tiny
    excess = ((got - expected).abs() / allowed)[~special]
    assert not excess.numel() or excess.max() <= 1, (what, f"{excess.max():.2f} times the tolerance")


@pytest.fixture(scope="module")
def softmaxing():
    with installed("softmax") as installation:
        yield Softmaxing(installation, "softmax", ("geometry", "host", "check", "bench"))
