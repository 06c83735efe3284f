"""linear with many rows, where stock has the speed but not always the right result: put so that stock is right.

Each fault stands in environment.TABLE with the releases that show it; other torches are left alone.

    linear_many_batches    over 65536 batches of a 3-D input: the bias is lost past them (pytorch #189495)
    linear_vector_bias     [B, 1, K]: the bias is dropped (pytorch #188438, macOS 26); it was also several times slower
    linear_strided_weight  a weight that is not contiguous is read as if it were (pytorch #162730)

The first two live in the batched form of MPSNDArray's product, so the input is handed over as a matrix, which for a
contiguous one is a view. For the third, `w.t()` of a contiguous w is what addmm takes as it is; other views are copied.
"""

from __future__ import annotations

import torch

from .. import environment

MAX_BATCHES = 2**16


def misread(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether stock's aten::linear of these arguments is wrong on this torch. Cheap for those it is not asked about."""
    return (bias is not None and x.dim() > 2 and _loses_bias(x.shape)) or (
        not weight.is_contiguous() and _is_wrong("linear_strided_weight")
    )


def reread(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """aten::linear through stock in a form without these faults: x [..., K], weight [N, K] or [K], bias [N] or None."""
    flat = x.reshape(x.shape[:-1].numel(), x.shape[-1])  # -1 would not do for an empty last dimension
    if weight.dim() == 2 and weight.t().is_contiguous():
        matrix = weight.t()
        y = flat.mm(matrix) if bias is None else torch.addmm(bias, flat, matrix)
    else:
        y = torch.nn.functional.linear(flat, weight.contiguous(), bias)
    return y.view(*x.shape[:-1], *weight.shape[:-1])


def _loses_bias(shape: torch.Size) -> bool:
    if shape[-2] == 1:
        return _is_wrong("linear_vector_bias")
    return shape[:-2].numel() > MAX_BATCHES and _is_wrong("linear_many_batches")


def _is_wrong(feature: str) -> bool:
    return environment.stock(feature).good is False
