"""linear with few rows on MPS: what is taken, the output, and the launch.

Which kernel runs is geometry.py's choice, the arithmetic is linear.metal's, in float. Nothing here waits for the
device. A call is one allocation and one launch; where only x's layout keeps a weight from being read in vectors, x is
copied first: it is small.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from ..shader import ShaderLibrary
from .geometry import MAX_LENGTH, MAX_OUTPUTS, MAX_ROWS, VECTOR_BYTES, has_vectors, plan
from .repair import misread, reread

LIBRARY = ShaderLibrary(Path(__file__).with_name("linear.metal"))

# dtypes -> their name in linear.metal
_NAMES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}
DTYPES = tuple(_NAMES)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias, a new contiguous tensor [..., N] in x's dtype; sums in float, rounded once.

    x       float32, float16 or bfloat16 [..., K] on mps, any strides.
    weight  [N, K], or [K] for a result [...] (without bias); x's dtype, any strides.
    bias    [N] in x's dtype, or None.

    Up to 16 rows of x are this module's kernels; more go to torch's linear, in a form that it computes rightly. Not
    differentiable by itself: autograd lies above the dispatcher's MPS key. Raises ValueError for anything else.
    """
    if not _fits(x, weight, bias):
        raise ValueError(
            "linear takes x [..., K] in float32, float16 or bfloat16 on mps, with a weight [N, K] and a bias [N] of "
            f"that dtype there; not {_described(x)}, {_described(weight)}, {_described(bias)}"
        )
    if _is_few(x, weight):
        return compute(x, weight, bias)
    if misread(x, weight, bias):
        return reread(x, weight, bias)
    return torch.nn.functional.linear(x, weight, bias)


def supports(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether run() takes this aten::linear: up to 16 rows, or more if this torch's own kernel is wrong there.

    Refused, so that stock raises: other dtypes, and shapes, dtypes or devices that do not belong together.
    """
    # The calls with many rows of a diffusion model come first: they must leave fast.
    if not _is_few(input, weight) and not misread(input, weight, bias):
        return False
    return _fits(input, weight, bias)


def run(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """aten::linear, for arguments that supports() has accepted."""
    return compute(input, weight, bias) if _is_few(input, weight) else reread(input, weight, bias)


def is_one_row(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether the arguments of an aten::linear are those of a GEMV."""
    return weight.dim() > 0 and input.numel() == weight.shape[-1]


def _is_few(x: torch.Tensor, weight: torch.Tensor) -> bool:
    length = weight.shape[-1] if weight.dim() else 1
    return x.numel() <= MAX_ROWS * length if length else math.prod(x.shape[:-1]) <= MAX_ROWS


def _fits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    dtype = x.dtype
    if dtype not in _NAMES or weight.dtype is not dtype or not (_is_plain(x) and _is_plain(weight)):
        return False
    if not x.dim() or weight.dim() not in (1, 2) or x.shape[-1] != weight.shape[-1] or x.shape[-1] > MAX_LENGTH:
        return False
    if bias is None:
        return weight.dim() == 1 or weight.shape[0] <= MAX_OUTPUTS
    return (
        weight.dim() == 2
        and weight.shape[0] <= MAX_OUTPUTS
        and bias.dtype is dtype
        and _is_plain(bias)
        and bias.shape == weight.shape[:1]
    )


def _is_plain(x: torch.Tensor) -> bool:
    return x.is_mps and x.layout is torch.strided and not x.is_neg()


def _described(x: object) -> str:
    return f"{tuple(x.shape)} {x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else str(x)


def compute(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, form: str | None = None
) -> torch.Tensor:
    """linear() of at most 16 rows, arguments unchecked. form: see geometry.plan()."""
    sizes = x.shape[:-1]
    if weight.dim() == 1:
        weight = weight.unsqueeze(0)
    else:
        sizes += weight.shape[:1]
    outputs, length = weight.shape
    y = torch.empty(sizes, dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    if not length:  # nothing to add up
        return y.zero_() if bias is None else y.copy_(bias.expand_as(y))
    if x.dim() != 2:
        x = x.reshape(-1, length)
    rows, itemsize = x.shape[0], x.element_size()
    vector = VECTOR_BYTES // itemsize
    weight_strides = weight.stride()
    aligned = weight.storage_offset() % vector == 0
    if aligned and has_vectors(outputs, length, weight_strides, vector):
        # The weight decides; x is small enough to be copied into the same form.
        if x.storage_offset() % vector or not has_vectors(rows, length, x.stride(), vector):
            x = x.clone(memory_format=torch.contiguous_format)
    launch = plan(
        rows, outputs, length, x.stride(), weight_strides, None if bias is None else bias.stride(0),
        aligned and x.storage_offset() % vector == 0, vector, form,
    )  # fmt: skip
    tile = f"{launch.tile.rows}x{launch.tile.outputs}"
    LIBRARY.launch(
        f"linear_{launch.form}_{_NAMES[x.dtype]}_{tile}", x, weight, y if bias is None else bias, y,
        launch.header, threads=launch.groups * launch.group_threads, group_size=launch.group_threads,
    )  # fmt: skip
    return y
