"""The FP8 ops. cast and scaled_mm run torch's own kernels elsewhere than on mps; the others are on mps alone."""

from __future__ import annotations

import torch

from .. import fp8 as _fp8
from .define import define, healthy, must_be_healthy, rows_of, wanted

OPS = torch.ops.metal_kernels
E8M0 = getattr(torch, "float8_e8m0fnu", None)


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty_like(x, dtype=dtype)
    about = dtype if dtype in _fp8.FP8 else x.dtype
    if x.device.type == "mps" and about in _fp8.FP8 and healthy("fp8", about):
        return _fp8.copy_(out, x)
    return out.copy_(x)


def _cast_fake(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype)


def _cast_setup(ctx, inputs, output) -> None:
    ctx.dtype = inputs[0].dtype


def _cast_backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return OPS.cast(gradient, ctx.dtype), None


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    _fp8.check_linear(x, weight, scale, bias)
    must_be_healthy("fp8", weight.dtype)
    return _fp8.linear(x, weight, scale, bias)


def _fp8_linear_fake(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if weight.dim() != 2 or not x.dim() or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"fp8.linear takes x [..., K] and a weight [N, K], not {list(x.shape)}, {list(weight.shape)}")
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)


def fp8_linear_backward(
    grad_output: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None
) -> torch.Tensor:
    must_be_healthy("fp8", weight.dtype)
    return _fp8.linear_grad_input(grad_output, weight, scale)


def _fp8_linear_backward_fake(
    grad_output: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None
) -> torch.Tensor:
    sizes = (*grad_output.shape[:-1], weight.shape[1])
    return torch.empty(sizes, dtype=grad_output.dtype, device=grad_output.device)


def _fp8_linear_setup(ctx, inputs, output) -> None:
    _, weight, scale, _ = inputs
    ctx.save_for_backward(weight, scale)


def _fp8_linear_grads(ctx, gradient: torch.Tensor):
    """Of x and the bias: what training a LoRA on an FP8 model needs. An FP8 weight has no gradient of its own."""
    weight, scale = ctx.saved_tensors
    if wanted(ctx, 1) or wanted(ctx, 2):
        raise RuntimeError("linear on an FP8 weight has gradients of x and the bias, not of the weight and its scale")
    grad_x = OPS.fp8_linear_backward(gradient, weight, scale) if wanted(ctx, 0) else None
    grad_bias = rows_of(gradient).sum(0) if wanted(ctx, 3) else None
    return grad_x, None, None, grad_bias


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if a.device.type == "mps" and a.dtype in _fp8.FP8 and healthy("fp8", a.dtype):
        return _fp8.scaled_mm(a, b, scale_a, scale_b, bias, out_dtype)
    return torch._scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=out_dtype)


def _scaled_mm_fake(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({list(a.shape)} and {list(b.shape)})")
    return torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype, device=a.device)


def quantize_fp8(
    x: torch.Tensor, dtype: torch.dtype, per: str = "tensor", scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    must_be_healthy("fp8", dtype if dtype in _fp8.FP8 else torch.float8_e4m3fn)
    values, used = _fp8.quantize(x, dtype, per, scale)
    return values, used.clone() if used is scale or (scale is not None and _shares(used, scale)) else used


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they are the same memory: an op must not hand back its input."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _quantize_fake(
    x: torch.Tensor, dtype: torch.dtype, per: str = "tensor", scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    if per == "block32":
        _fp8.check_blocks(x)
        shape = _fp8.block_scales_shape(x.shape[0], x.shape[1] // 32)
        return values, torch.empty(shape, dtype=E8M0, device=x.device)
    return values, torch.empty((x.shape[0], 1) if per == "row" else (), dtype=torch.float32, device=x.device)


def dequantize_fp8(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    must_be_healthy("fp8", x.dtype if x.dtype in _fp8.FP8 else torch.float8_e4m3fn)
    return _fp8.dequantize(x, scale, dtype)


def _dequantize_fake(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def dequantize_nvfp4(
    x: torch.Tensor,
    tensor_scale: torch.Tensor,
    block_scales: torch.Tensor,
    dtype: torch.dtype,
    hi_first: bool = True,
) -> torch.Tensor:
    must_be_healthy("fp8", torch.float8_e4m3fn)
    return _fp8.dequantize_nvfp4(x, tensor_scale, block_scales, dtype, hi_first)


def _nvfp4_fake(
    x: torch.Tensor,
    tensor_scale: torch.Tensor,
    block_scales: torch.Tensor,
    dtype: torch.dtype,
    hi_first: bool = True,
) -> torch.Tensor:
    return torch.empty((x.shape[0], 2 * x.shape[1]), dtype=dtype, device=x.device)


def stochastic_rounding(x: torch.Tensor, random: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    must_be_healthy("fp8", dtype if dtype in _fp8.FP8 else torch.float8_e4m3fn)
    return _fp8.stochastic_rounding(x, random, dtype)


def _stochastic_fake(x: torch.Tensor, random: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def define_all() -> None:
    define("cast", cast, _cast_fake, setup=_cast_setup, backward=_cast_backward)
    define("fp8_linear", fp8_linear, _fp8_linear_fake, setup=_fp8_linear_setup, backward=_fp8_linear_grads)
    define("fp8_linear_backward", fp8_linear_backward, _fp8_linear_backward_fake)
    define("scaled_mm", scaled_mm, _scaled_mm_fake)
    define("quantize_fp8", quantize_fp8, _quantize_fake)
    define("dequantize_fp8", dequantize_fp8, _dequantize_fake)
    define("dequantize_nvfp4", dequantize_nvfp4, _nvfp4_fake)
    define("stochastic_rounding", stochastic_rounding, _stochastic_fake)
