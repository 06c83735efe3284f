"""fp8: casts, linear on FP8 weights and its backward, scaled_mm."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..fp8 import linear as scaled_linear
from .case import EPS, Case, Expected, Operation, Tolerance, exactly, roundings
from .inputs import LAYOUTS, Source

CAST = Tolerance(0.0, "a cast rounds once, as the CPU of the installed torch does")
MAX_ROWS = 16  # up to which a product is the fused one

# Mantissas (23 bits) on both sides of every place where e4m3fn and e5m2 round, and a few in between.
_STEPS = [step << shift for shift in (19, 20, 21) for step in range(1 << (23 - shift))]
MANTISSAS = sorted({min(max(m + d, 0), 2**23 - 1) for m in _STEPS for d in (-1, 0, 1)} | {12345, 2**23 - 1})


def every_16_bits(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 values of float16 or bfloat16, [256, 256]."""
    return torch.arange(2**16, dtype=torch.int32, device="cpu").to(torch.int16).view(256, 256).view(dtype)


def every_exponent() -> torch.Tensor:
    """Every sign and exponent of float32 with MANTISSAS: zeros, subnormals, infinities and NaNs among them."""
    exponents = torch.arange(512, dtype=torch.int64, device="cpu") << 23
    bits = exponents[:, None] | torch.tensor(MANTISSAS, dtype=torch.int64, device="cpu")[None]
    return bits.to(torch.int32).view(torch.float32)


def every_byte(dtype: torch.dtype) -> torch.Tensor:
    """All 256 values of an FP8 dtype, [16, 16]."""
    return torch.arange(256, dtype=torch.int32, device="cpu").to(torch.uint8).view(16, 16).view(dtype)


def random_fp8(
    source: Source, sizes: tuple[int, ...], dtype: torch.dtype, layout: str = "contiguous", scale: float = 1.0
) -> torch.Tensor:
    """Normal values in an FP8 dtype. Laid out as bytes: torch cannot index every FP8 dtype."""
    return LAYOUTS[layout](lambda n: source.normal(n, torch.float32, scale=scale).to(dtype).view(torch.uint8),
                           tuple(sizes)).view(dtype)  # fmt: skip


def _make_encode(case: Case) -> tuple:
    """options: from: the wide dtype; values: "every" value of it (of float32 every exponent), else normal ones."""
    wide = case.option("from")
    if case.option("values") == "every":
        x = every_exponent() if wide is torch.float32 else every_16_bits(wide)
    else:
        x = Source(case).normal(case.shapes[0], wide, case.layout, scale=30.0)
    return x, case.dtype


def _make_decode(case: Case) -> tuple:
    """options: to: a dtype. Every byte, or with sizes normal values."""
    if not case.shapes:
        return every_byte(case.dtype), case.option("to")
    return random_fp8(Source(case), case.shapes[0], case.dtype, case.layout), case.option("to")


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype)


def cast(x: torch.Tensor, dtype: torch.dtype) -> tuple[Expected, ...]:
    """The CPU's, with the strides that it keeps."""
    return (exactly(x.to(dtype)),)


def _make_linear(case: Case) -> tuple:
    """shapes: x [..., K], weight [N, K]. options: x: dtype of x; scale (not in fp8_linear): None, "tensor",
    "row"; bias: bool."""
    source, outputs = Source(case), case.shapes[1][0]
    x = source.normal(case.shapes[0], case.option("x", torch.float32), case.option("x_layout", "contiguous"))
    weight = random_fp8(source, case.shapes[1], case.dtype, case.layout)
    scale = {None: None, "tensor": (1,), "row": (outputs, 1)}[case.option("scale")]
    bias = source.normal((outputs,), x.dtype) if case.option("bias") else None
    return x, weight, None if scale is None else source.uniform(scale), bias


def _linear(x, weight, scale, bias) -> torch.Tensor:
    """aten::linear has no place for a scale."""
    return F.linear(x, weight, bias)


def linear(x, weight, scale, bias) -> tuple[Expected, ...]:
    """Up to 16 rows: the sum in float, scaled there. More: each weight times its scale is rounded to x's dtype first,
    half an ulp of each product; torch's own matrix product has the sum, and rounds once more before it adds a bias."""
    w = weight.float().double() * (1.0 if scale is None else scale.double().view(-1, 1))
    left, bias64 = x.double(), None if bias is None else bias.double()
    y = F.linear(left, w, bias64)
    magnitude = F.linear(left.abs(), w.abs(), None if bias is None else bias64.abs())
    budget = roundings(x.shape[-1]) * EPS * magnitude
    if x.shape[:-1].numel() > MAX_ROWS:
        eps = torch.finfo(x.dtype).eps
        if scale is not None:
            budget = budget + eps / 2 * magnitude
        budget = budget + eps * y.abs()
    return (Expected(y, x.dtype, budget, strides=y.contiguous().stride()),)


def _make_backward(case: Case) -> tuple:
    source = Source(case)
    x = source.normal(case.shapes[0], case.option("x", torch.float32))
    weight = random_fp8(source, case.shapes[1], case.dtype, case.layout)
    return x, weight, source.normal((*case.shapes[0][:-1], case.shapes[1][0]), x.dtype)


def _backward(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of x, through autograd."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(F.linear(leaf, weight), leaf, grad)[0]


def linear_backward(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> tuple[Expected, ...]:
    """torch's own matrix product of x's dtype, one for each decoded block."""
    w, grad = weight.float().double(), grad.double()
    y = grad @ w
    budget = roundings(w.shape[0]) * EPS * (grad.abs() @ w.abs()) + torch.finfo(x.dtype).eps * y.abs()
    return (Expected(y, x.dtype, budget),)


def _make_scaled_mm(case: Case) -> tuple:
    """shapes: a [M, K], b [K, N]. options: b: its dtype; scales: "tensor" or "row" of a and of b; bias; out: dtype."""
    source, ((rows, _), (length, columns)) = Source(case), case.shapes
    out = case.option("out", torch.bfloat16)
    a = random_fp8(source, case.shapes[0], case.dtype, case.option("a", "contiguous"))
    b = random_fp8(source, (columns, length), case.option("b", case.dtype), case.layout).t()
    kinds = case.option("scales", ("tensor", "tensor"))
    scale_a = source.uniform((rows, 1) if kinds[0] == "row" else ())
    scale_b = source.uniform((1, columns) if kinds[1] == "row" else ())
    bias = source.normal((columns,), out) if case.option("bias") else None
    return a, b, scale_a, scale_b, bias, out


def _scaled_mm(a, b, scale_a, scale_b, bias, out) -> torch.Tensor:
    return torch._scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=out)


def _scaled_mm_v2(a, b, scale_a, scale_b, bias, out) -> torch.Tensor:
    recipes = [F.ScalingType.TensorWise if s.dim() == 0 else F.ScalingType.RowWise for s in (scale_a, scale_b)]
    return F.scaled_mm(a, b, scale_a, recipes[0], scale_b, recipes[1], bias=bias, output_dtype=out)


def scaled_mm(a, b, scale_a, scale_b, bias, out) -> tuple[Expected, ...]:
    """The sum, the scales and the bias in float, then one rounding."""
    a, b = a.float().double(), b.float().double()
    factor = scale_a.double() * scale_b.double()
    y, magnitude = a @ b * factor, a.abs() @ b.abs() * factor
    if bias is not None:
        y, magnitude = y + bias.double(), magnitude + bias.double().abs()
    return (Expected(y, out, (roundings(a.shape[1]) + 2) * EPS * magnitude, strides=y.stride()),)


PRODUCT = Tolerance(0.5, "FP8 values are exact in float; sums in float, one rounding to the output's dtype")
OPERATIONS = (
    Operation("fp8_encode", "fp8", _make_encode, _cast, cast, CAST),
    Operation("fp8_decode", "fp8", _make_decode, _cast, cast, CAST),
    Operation("fp8_linear", "fp8", _make_linear, _linear, linear, PRODUCT),
    Operation("fp8_scaled_linear", "fp8", _make_linear, scaled_linear, linear, PRODUCT, takes=0),
    Operation("fp8_linear_backward", "fp8", _make_backward, _backward, linear_backward, PRODUCT, takes=2),
    Operation("scaled_mm", "fp8", _make_scaled_mm, _scaled_mm, scaled_mm, PRODUCT),
    Operation("scaled_mm_v2", "fp8", _make_scaled_mm, _scaled_mm_v2, scaled_mm, PRODUCT),
)
