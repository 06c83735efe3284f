"""The ops pad, softmax, log_softmax with their backward, and linear. Elsewhere than on mps torch's own kernels run."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .. import linear as _linear
from .. import pad as _pad
from .. import softmax as _softmax
from .define import define, healthy, rows_of, wanted

OPS = torch.ops.metal_kernels


def pad(x: torch.Tensor, pad: list[int], value: torch.types.Number = 0) -> torch.Tensor:
    (patch,) = _pad.KERNEL.patches
    if x.device.type == "mps" and patch.supports(x, pad, value) and healthy("pad", x.dtype):
        return patch.run(x, pad, value)
    return torch.constant_pad_nd(x, pad, value)


def _pad_fake(x: torch.Tensor, pad: list[int], value: torch.types.Number = 0) -> torch.Tensor:
    return torch.constant_pad_nd(x, pad, value)


def _pad_setup(ctx, inputs, output) -> None:
    ctx.pad = inputs[1]


def _pad_backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return OPS.pad(gradient, [-extent for extent in ctx.pad], 0), None, None


def _pad_vmap(info, in_dims, x: torch.Tensor, pad: list[int], value: torch.types.Number = 0):
    return OPS.pad(x.movedim(in_dims[0], 0), pad, value), 0  # `pad` counts from the last dimension


def _forward(name: str):
    """(run, fake) of softmax or log_softmax."""
    ours, stock = getattr(_softmax, name), getattr(torch, f"_{name}")

    def run(x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
        if _softmax.supports(x, dim, half_to_float) and healthy("softmax", x.dtype):
            return ours(x, dim, half_to_float)
        if half_to_float and x.device.type == "cpu":
            _check_half(x)
            return stock(x.float(), dim, False)  # the CPU has no such kernel
        return stock(x, dim, half_to_float)

    def fake(x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
        rank = max(x.dim(), 1)
        if not -rank <= dim < rank:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
            )
        if half_to_float:
            _check_half(x)
        return torch.empty(x.shape, dtype=torch.float32 if half_to_float else x.dtype, device=x.device)

    return run, fake


def _check_half(x: torch.Tensor) -> None:
    if x.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"conversion to float32 is supported for float16 and bfloat16 only, not {x.dtype}")


def _check_shapes(grad_output: torch.Tensor, output: torch.Tensor) -> None:
    if grad_output.shape != output.shape:
        raise RuntimeError(f"grad_output {list(grad_output.shape)} and output {list(output.shape)} differ in shape")


def _gradient(name: str):
    """(run, fake) of the backward of softmax or log_softmax."""
    ours, stock = getattr(_softmax, f"{name}_backward"), getattr(torch, f"_{name}_backward_data")

    def run(grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
        if name == "log_softmax":
            _check_shapes(grad_output, output)  # torch's own kernel does not look
        is_ours = _softmax.supports_backward(grad_output, output, dim, input_dtype)
        if is_ours and healthy("softmax", grad_output.dtype):
            return ours(grad_output, output, dim, input_dtype)
        if input_dtype != grad_output.dtype and grad_output.device.type == "cpu":
            return stock(grad_output, output, dim, grad_output.dtype).to(input_dtype)
        return stock(grad_output, output, dim, input_dtype)

    def fake(grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
        _check_shapes(grad_output, output)
        return torch.empty(output.shape, dtype=input_dtype, device=output.device)

    return run, fake


def _autograd(name: str, second):
    """The rules of `name` and of its backward, which `second` differentiates again."""

    def setup(ctx, inputs, output) -> None:
        x, ctx.dim, _ = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(output)

    def backward(ctx, gradient: torch.Tensor):
        (output,) = ctx.saved_tensors
        return getattr(OPS, f"{name}_backward")(gradient, output, ctx.dim, ctx.dtype), None, None

    def setup_again(ctx, inputs, output) -> None:
        grad_output, result, ctx.dim, _ = inputs
        ctx.save_for_backward(grad_output, result)

    def backward_again(ctx, gradient: torch.Tensor):
        grad_output, output = ctx.saved_tensors
        return *second(gradient.to(output.dtype), grad_output, output, ctx.dim), None, None

    return setup, backward, setup_again, backward_again


def _softmax_again(gg: torch.Tensor, g: torch.Tensor, y: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of y * (g - sum(g y)): with respect to g, and to y."""
    inner = (gg * y).sum(dim, keepdim=True)
    return y * (gg - inner), gg * (g - (g * y).sum(dim, keepdim=True)) - g * inner


def _log_softmax_again(
    gg: torch.Tensor, g: torch.Tensor, y: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of g - exp(y) * sum(g): with respect to g, and to y."""
    p = y.exp()
    return gg - (gg * p).sum(dim, keepdim=True), -gg * p * g.sum(dim, keepdim=True)


def _softmax_vmap(name: str):
    def vmap(info, in_dims, x: torch.Tensor, dim: int, half_to_float: bool = False):
        x = x.movedim(in_dims[0], 0)
        if x.dim() == 1:  # of single numbers
            return getattr(OPS, name)(x.unsqueeze(-1), -1, half_to_float).squeeze(-1), 0
        return getattr(OPS, name)(x, dim if dim < 0 else dim + 1, half_to_float), 0

    return vmap


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if _linear.supports(x, weight, bias) and healthy("linear", x.dtype):
        return _linear.run(x, weight, bias)
    return F.linear(x, weight, bias).contiguous()


def _linear_fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    y = F.linear(x, weight, bias)  # torch checks the shapes
    return torch.empty(y.shape, dtype=y.dtype, device=y.device)


def _linear_setup(ctx, inputs, output) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _linear_backward(ctx, gradient: torch.Tensor):
    """In torch's own differentiable products: with as many rows as training has, stock is good at them."""
    x, weight = ctx.saved_tensors
    grad_x = grad_weight = grad_bias = None
    if weight.dim() == 1:  # a vector as weight makes a result without outputs
        gradient, weight_2d = gradient.unsqueeze(-1), weight.unsqueeze(0)
    else:
        weight_2d = weight
    flat = rows_of(gradient)
    if wanted(ctx, 0):
        grad_x = (flat @ weight_2d).view(x.shape)
    if wanted(ctx, 1):
        grad_weight = (flat.t() @ rows_of(x)).view(weight.shape)
    if wanted(ctx, 2):
        grad_bias = flat.sum(0)
    return grad_x, grad_weight, grad_bias


def define_all() -> None:
    define("pad", pad, _pad_fake, setup=_pad_setup, backward=_pad_backward, vmap=_pad_vmap)
    for name, second in (("softmax", _softmax_again), ("log_softmax", _log_softmax_again)):
        setup, backward, setup_again, backward_again = _autograd(name, second)
        define(name, *_forward(name), setup=setup, backward=backward, vmap=_softmax_vmap(name))
        define(f"{name}_backward", *_gradient(name), setup=setup_again, backward=backward_again)
    define("linear", linear, _linear_fake, setup=_linear_setup, backward=_linear_backward)
