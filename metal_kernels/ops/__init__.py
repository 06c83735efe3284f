"""The kernels as plain functions and as torch custom ops, for use without patching anything.

    from metal_kernels import ops
    ops.softmax(x, -1)                      # a plain function
    torch.ops.metal_kernels.softmax(x, -1)  # the op behind it: torch.compile keeps it whole in its graph

Importing this module defines the custom ops; importing `metal_kernels` alone does not. The modes do not matter here,
but a kernel still runs its self-check at the first use of a dtype. What torch has a kernel for as well (pad, softmax,
linear, grouped_mm, topk, cast, scaled_mm) torch runs on other devices, for arguments that ours does not take, and
where ours has failed its self-check. The rest works on mps alone.

FP8 dtypes: e4m3fn, e5m2 (e4m3fnuz, e5m2fnuz and e8m0fnu are cast too). Wide dtypes: float32, float16, bfloat16.
Sums are in float32 and rounded once. Nothing here waits for the device. Where a docstring says "differentiable",
that is backward(); a forward-mode derivative raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import dense, experts, fp8
from .define import call

E4M3, BFLOAT16 = torch.float8_e4m3fn, torch.bfloat16

for _family in (dense, experts, fp8):
    _family.define_all()


def pad(x: torch.Tensor, pad: Sequence[int], value: complex = 0) -> torch.Tensor:
    """`x` with elements of `value` around it, as torch.nn.functional.pad's constant mode; exact and differentiable.

    x      any shape, strides and dtype.
    pad    (left, right) of the last dimension, then of the one before it, and so on; negative values crop.
    value  the fill, converted to x's dtype.

    Raises what torch.constant_pad_nd raises for arguments that it refuses.
    """
    return call("pad", x, list(pad), value)


def softmax(x: torch.Tensor, dim: int = -1, half_to_float: bool = False) -> torch.Tensor:
    """exp(x) / sum(exp(x)) along `dim`, contiguous, of x's shape and dtype; differentiable twice.

    x              any shape and strides, of a wide dtype.
    half_to_float  return float32 for a float16 or bfloat16 x, unrounded.

    A row with a NaN or +inf, or of -inf only, is NaN, as on the CPU. Raises IndexError for a dim that is not there,
    RuntimeError for other dtypes.
    """
    return call("softmax", x, dim, half_to_float)


def log_softmax(x: torch.Tensor, dim: int = -1, half_to_float: bool = False) -> torch.Tensor:
    """log(softmax(x, dim)) without its loss of small values; everything else as for softmax()."""
    return call("log_softmax", x, dim, half_to_float)


def softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int = -1, input_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The gradient of softmax's input: output * (grad_output - sum(grad_output * output)) along `dim`.

    grad_output, output   of one shape and dtype, any strides.
    input_dtype           of the result: theirs (None), or after half_to_float float16 or bfloat16.

    Raises RuntimeError for shapes or dtypes that differ, IndexError for a dim that is not there.
    """
    return call("softmax_backward", grad_output, output, dim, input_dtype or grad_output.dtype)


def log_softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int = -1, input_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The gradient of log_softmax's input: grad_output - exp(output) * sum(grad_output) along `dim`; else as above."""
    return call("log_softmax_backward", grad_output, output, dim, input_dtype or grad_output.dtype)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ weight.T + bias, contiguous [..., N] in x's dtype; differentiable.

    x       [..., K], of a wide dtype, any strides.
    weight  [N, K] of x's dtype, any strides; or FP8 on mps: x @ (weight * scale).T + bias, which reads one byte a
            weight with up to 16 rows of x, and decodes it with more: in blocks of at most 64 MiB, or
            at once where that takes no more than 96.
    bias    [N] of x's dtype, or None.
    scale   of an FP8 weight: float32, one element or N of them; None for 1.

    An FP8 weight has gradients of x and the bias; asking for its own raises RuntimeError. Raises RuntimeError for
    shapes that do not fit, as torch does; ValueError with an FP8 weight, or for a scale without one.
    """
    if weight.dtype in fp8._fp8.FP8:
        return call("fp8_linear", x, weight, scale, bias)
    if scale is not None:
        raise ValueError(f"linear: a scale belongs to an FP8 weight; this one is {weight.dtype}")
    return call("linear", x, weight, bias)


def grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None) -> torch.Tensor:
    """The products of groups of a and b, in a's dtype; differentiable.

    a [M, K], b [G, K, N]      rows of a in groups: row i is multiplied by b[g], offs[g - 1] <= i < offs[g]  -> [M, N]
    a [G, M, K], b [K, N]      columns of b in groups                                                       -> [M, N]
    a [M, K], b [K, N]         K in groups                                                                  -> [G, M, N]
    a [G, M, K], b [G, K, N]   no offs: a product for each                                                  -> [G, M, N]

    a, b   of one wide dtype. Of the last two dimensions one has stride 1, and the other's stride is a multiple of 16
           bytes. A b of experts [G, N, K], transposed, is read as it lies.
    offs   int32 [G]: where each group ends. Read on the device, clamped to [0, size]; groups may be empty. On mps, rows
           (columns) past the last end are 0.

    The rows of the result start on multiples of 16 bytes. Raises RuntimeError for anything else, as torch does.
    """
    return call("grouped_mm", a, b, offs)


def topk(x: torch.Tensor, k: int, largest: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, int64 indices) of the k largest or smallest along the last dimension, sorted, contiguous [..., k].

    The Metal kernel takes wide dtypes, k <= 32 and rows of up to 4096; NaN counts as the greatest value, and of equal
    values the one of the lower index comes first. Differentiable. Raises RuntimeError for a k that is out of range.
    """
    return call("topk", x, k, largest)


def histc(x: torch.Tensor, bins: int = 100, min: int = 0, max: int = 0) -> torch.Tensor:
    """How many elements fall into each of `bins` equal bins between min and max, [bins] in x's dtype.

    x          uint8 to int64, any shape and strides, on mps; elsewhere, and for floats, what torch.histc takes.
    min, max   both the same: the least and the greatest element.

    Counts of integers are exact, and wrap as x's dtype does. Raises what torch.histc raises.
    """
    return call("histc", x, bins, min, max)


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x.to(dtype) in fresh memory, FP8 on either side or both, bit for bit the CPU's cast; keeps the strides that
    `.to` keeps. The gradient is cast back.
    """
    return call("cast", x, dtype)


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(a * scale_a) @ (b * scale_b) + bias, contiguous [M, N]. Not differentiable.

    a, b               [M, K] and [K, N], float8_e4m3fn or one of them e5m2, any strides; K and N multiples of 16.
    scale_a, scale_b   float32, each one element, or one a row of a, a column of b: [M, 1] and [1, N].
    bias               [N] or None; of out_dtype, or bf16 where that is FP8.
    out_dtype          a wide dtype or FP8; None: a's dtype.

    Raises what torch._scaled_mm raises: RuntimeError for shapes and dtypes, ValueError for scales.
    """
    return call("scaled_mm", a, b, scale_a, scale_b, bias, out_dtype)


def quantize_fp8(
    x: torch.Tensor, dtype: torch.dtype = E4M3, per: str = "tensor", scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, scale) with x about values * scale. Not differentiable.

    x      of a wide dtype, on mps; at least 1-D for "row" (the first dimension counts rows), 2-D for "block32".
    dtype  float8_e4m3fn or float8_e5m2; e4m3fn for "block32".
    per    "tensor": scale [] float32, the largest magnitude over the format's largest value (448, 57344);
           "row": scale [rows, 1] float32;
           "block32": MXFP8, scale float8_e8m0fnu in tiles of 128 x 4; columns a multiple of 32.
    scale  "tensor" and "row": one to use instead; bit-equal to comfy-kitchen's eager quantize_per_tensor_fp8.

    A row (or tensor) of zeros gets scale 1. Raises ValueError for anything else.
    """
    return call("quantize_fp8", x, dtype, per, scale)


def dequantize_fp8(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = BFLOAT16) -> torch.Tensor:
    """FP8 values times their scale, as a wide `dtype`; the scale is rounded to `dtype` first. Not differentiable.

    x      FP8 on mps, any shape.
    scale  one element, or one for each row of x (its first dimension): any shape and float dtype. float8_e8m0fnu: the
           block scales that quantize_fp8(..., per="block32") makes.

    Raises ValueError for anything else.
    """
    return call("dequantize_fp8", x, scale, dtype)


def dequantize_nvfp4(
    x: torch.Tensor,
    tensor_scale: torch.Tensor,
    block_scales: torch.Tensor,
    dtype: torch.dtype = BFLOAT16,
    hi_first: bool = True,
) -> torch.Tensor:
    """NVFP4 as a wide `dtype`, [rows, 2 * columns]; bit-equal to comfy-kitchen's eager dequantize_nvfp4.

    x             uint8 [rows, columns] on mps, two e2m1 values a byte, the first in the high bits if hi_first.
    tensor_scale  float32, one element.
    block_scales  float8_e4m3fn in tiles of 128 x 4, one for each 16 values.

    Not differentiable. Raises ValueError for anything else.
    """
    return call("dequantize_nvfp4", x, tensor_scale, block_scales, dtype, hi_first)


def stochastic_rounding(x: torch.Tensor, random: torch.Tensor, dtype: torch.dtype = E4M3) -> torch.Tensor:
    """`x` rounded up or down to FP8 by chance; bit-equal to comfy-kitchen's eager stochastic_rounding_fp8.

    x       of a wide dtype, on mps, any shape; taken as float16.
    random  uint8 of x's shape, uniform in 0..255.
    dtype   float8_e4m3fn or float8_e5m2.

    Beyond the range: the largest value. NaN stays NaN, -0 becomes 0. Not differentiable. Raises ValueError for anything
    else.
    """
    return call("stochastic_rounding", x, random, dtype)


__all__ = [
    "cast",
    "dequantize_fp8",
    "dequantize_nvfp4",
    "grouped_mm",
    "histc",
    "linear",
    "log_softmax",
    "log_softmax_backward",
    "pad",
    "quantize_fp8",
    "scaled_mm",
    "softmax",
    "softmax_backward",
    "stochastic_rounding",
    "topk",
]
