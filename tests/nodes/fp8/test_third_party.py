"""Custom nodes with an FP8 Linear of their own: the common kinds crash on stock and are right with the pack."""
import pytest
import torch
import torch.nn.functional as F
from kitchen_toys import randn, to_mps
from torch import nn

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)


class Held(nn.Module):
    """Weight and bias kept in FP8."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(randn(24, 48).to(dtype), requires_grad=False)
        self.bias = nn.Parameter(randn(24, seed=1).to(dtype), requires_grad=False)
        self.register_buffer("scale_weight", torch.tensor(0.25))


class CastsInPython(Held):
    """`.to()` before the product, as video wrappers do."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class CastsToTheInput(Held):
    """`.to(x)`: dtype and device at once."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x), self.bias.to(x))


class CastsWithAScale(Held):
    """A scale a layer, multiplied into the decoded weight."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scale_weight.to(x.dtype), self.bias.to(x.dtype))


class CastsAtOnce(Held):
    """Weight and bias through copy_ into buffers kept for it."""

    def forward(self, x):
        weight, bias = torch.empty(24, 48, dtype=x.dtype, device=x.device), x.new_empty(24)
        return F.linear(x, weight.copy_(self.weight), bias.copy_(self.bias))


class GivesItRaw(Held):
    """F.linear with the FP8 tensors themselves: torch promotes inside C++."""

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class GivesItRawAndScalesAfter(Held):
    """The same without a bias, the scale on the result."""

    def forward(self, x):
        return F.linear(x, self.weight) * self.scale_weight.to(x.dtype) + self.bias.to(x.dtype)


class MultipliesScaled(Held):
    """torch._scaled_mm on a quantised input, as the `fast` modes do."""

    def forward(self, x):
        rows = x.reshape(-1, 48).clamp(-448, 448).to(torch.float8_e4m3fn)
        one = torch.ones((), device=x.device)
        out = torch._scaled_mm(F.pad(rows.view(torch.uint8), (0, 0, 0, -len(rows) % 16)).view(rows.dtype),
                               F.pad(self.weight.view(torch.uint8), (0, 0, 0, 8)).view(self.weight.dtype).t(),
                               one, self.scale_weight, out_dtype=x.dtype)
        return out[: len(rows), :24].reshape(*x.shape[:-1], 24) + self.bias.to(x.dtype)


KINDS = (CastsInPython, CastsToTheInput, CastsWithAScale, CastsAtOnce, GivesItRaw, GivesItRawAndScalesAfter,
         MultipliesScaled)
KNOWN = r"Undefined type Float8_e|_scaled_mm|does not support linear|expected .*dtype|same dtype"


def on_the_device(layer):
    for name, value in (*layer.named_parameters(), *layer.named_buffers()):
        if isinstance(value, nn.Parameter):
            setattr(layer, name, nn.Parameter(to_mps(value.data), requires_grad=False))
        else:
            setattr(layer, name, to_mps(value))
    return layer


@pytest.mark.parametrize("rows", [(1,), (2, 20)], ids=["one row", "forty rows"])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_works(package, kind, dtype, rows):
    x = randn(*rows, 48, seed=2).bfloat16()
    held = Held(dtype)
    weight, bias = held.weight.double(), held.bias.double()
    scale = 0.25 if kind in (CastsWithAScale, GivesItRawAndScalesAfter, MultipliesScaled) else 1.0
    left = x.to(torch.float8_e4m3fn).double() if kind is MultipliesScaled else x.double()
    expected = left @ (weight * scale).t() + bias
    with torch.inference_mode():
        actual = on_the_device(kind(dtype))(x.to("mps"))
    assert actual.dtype is x.dtype and actual.device.type == "mps"
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=2e-2, atol=0.15)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_crashes_on_stock(package, kind, dtype):
    layer, x = on_the_device(kind(dtype)), randn(1, 48).bfloat16().to("mps")
    with package.kernels.using(fp8="off"), pytest.raises((RuntimeError, NotImplementedError), match=KNOWN):
        layer(x)
