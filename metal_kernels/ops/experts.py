"""The ops grouped_mm, topk and histc. Elsewhere than on mps torch's own kernels run, where it has them."""

from __future__ import annotations

import torch

from .. import grouped_mm as _family
from .define import define, healthy, wanted

OPS = torch.ops.metal_kernels


def grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None) -> torch.Tensor:
    if _family.supports(a, b, offs) and healthy("grouped_mm", a.dtype):
        return _family.grouped_mm(a, b, offs)
    return torch._grouped_mm(a, b, offs=offs)


def _grouped_fake(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None) -> torch.Tensor:
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(f"contraction dimension of {list(a.shape)} and {list(b.shape)} must match")
    if (offs is None) is not (a.dim() == b.dim() == 3):
        raise RuntimeError("offs must be given where one of the matrices has two dimensions, and only there")
    return _family.output_of(a, b, offs)


def _grouped_setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _grouped_backward(ctx, gradient: torch.Tensor):
    """Two grouped products of the other modes. A gradient that no kernel takes as it lies is laid out anew."""
    a, b, offs = ctx.saved_tensors
    gradient = _laid_out(gradient)
    grad_a = OPS.grouped_mm(gradient, _laid_out(b.mT), offs) if wanted(ctx, 0) else None
    grad_b = OPS.grouped_mm(_laid_out(a.mT), gradient, offs) if wanted(ctx, 1) else None
    return grad_a, grad_b, None


def _laid_out(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy whose rows start on multiples of 16 bytes."""
    if _family.has_layout(x):
        return x
    vector = 16 // x.element_size()
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % vector)).contiguous()[..., : x.shape[-1]]


def topk(x: torch.Tensor, k: int, largest: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    if _family.supports_topk(x, k, -1, largest) and healthy("grouped_mm", x.dtype):
        return _family.topk(x, k, -1, largest)
    values, indices = torch.topk(x, k, -1, largest)
    return values.contiguous(), indices.contiguous()


def _topk_fake(x: torch.Tensor, k: int, largest: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    if not 0 <= k <= (x.shape[-1] if x.dim() else 1):
        raise RuntimeError("selected index k out of range")
    sizes = (*x.shape[:-1], k) if x.dim() else ()
    return (torch.empty(sizes, dtype=x.dtype, device=x.device),
            torch.empty(sizes, dtype=torch.int64, device=x.device))  # fmt: skip


def _topk_setup(ctx, inputs, output) -> None:
    ctx.shape = inputs[0].shape
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _topk_backward(ctx, gradient: torch.Tensor, _) -> tuple[torch.Tensor, None, None]:
    (indices,) = ctx.saved_tensors
    return gradient.new_zeros(ctx.shape).scatter(-1, indices, gradient), None, None


def histc(x: torch.Tensor, bins: int = 100, min: int = 0, max: int = 0) -> torch.Tensor:
    if _family.supports_histc(x, bins, min, max) and healthy("grouped_mm", x.dtype):
        return _family.histc(x, bins, min, max)
    return torch.histc(x, bins, min, max)


def _histc_fake(x: torch.Tensor, bins: int = 100, min: int = 0, max: int = 0) -> torch.Tensor:
    if bins < 1:
        raise RuntimeError("bins must be > 0")
    return torch.empty(bins, dtype=x.dtype, device=x.device)


def define_all() -> None:
    define("grouped_mm", grouped_mm, _grouped_fake, setup=_grouped_setup, backward=_grouped_backward)
    define("topk", topk, _topk_fake, setup=_topk_setup, backward=_topk_backward)
    define("histc", histc, _histc_fake)
