"""aten::linear on an FP8 weight, which stays at one byte a weight.

Up to 16 rows of x: fp8.metal's fused GEMV, which reads each byte of the weight once. More rows: the weight is decoded
in blocks into a bounded scratch, and torch's own matrix multiplication does the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..sharing import sharing
from .cast import cast, contiguous, decode
from .formats import (
    CODES,
    FP8,
    LIBRARY,
    MATRIX,
    NAMES,
    SCALE_NONE,
    SCALE_ROW,
    SCALE_TENSOR,
    WIDE,
    as_bytes,
    flat_scale,
)

MAX_ROWS = 16  # of x, for the fused GEMV
MAX_SCRATCH = 64 * 2**20  # bytes of decoded weight at a time
# Times as many where that is all of the weight (Flux's 12288 x 3072 is 72 MiB). Two blocks have their products beside
# them, to be copied together: from as many rows of x as K on they take more memory than one. And at 1,024 rows an H200
# takes 1.5 times as long as torch with the same weight in bf16, and 1.3 times with one block.
WHOLE = 1.5
EVEN_ROWS = 256  # a block has a multiple of so many: rows of the product that begin anywhere are slow to write
SIMDGROUPS = 4  # fp8.metal: gemv_simdgroups
# fp8.metal's instantiations of fp8_gemv: chunk -> rows of x -> rows of the weight that a SIMD-group may hold ->
# SIMD-groups that an H200 runs at once, for those sums' registers. Measured there (through NVPTX) among 1 to 4 rows,
# 1, 2 and 4 chunks in flight; registers hold no more than 32 sums.
TILES = {
    16: {1: {3: 4224, 2: 4224}, 2: {4: 2112}, 4: {4: 2112}, 8: {4: 1056}, 16: {2: 1056}},
    4: {1: {2: 4224}, 16: {2: 1056}},
}


@dataclass(frozen=True)
class Matrices:
    """An instantiation of fp8_matrices: `tiles` of eight rows of the weight for up to `rows` of x.

    cost      time a weight, the first one's being 1, and
    resident  SIMD-groups that a core runs at once, on an H200 (through NVPTX).
    """

    rows: int
    tiles: int
    cost: float
    resident: int


# Rows of x and of the weight from which on 8 x 8 matrices multiply them, if x is of two bytes.
MATRIX_LEAST = {3: 2048, 5: 1}
MATRICES = (
    Matrices(8, 4, 1.0, 16), Matrices(8, 1, 1.45, 32), Matrices(16, 4, 1.2, 13), Matrices(16, 2, 1.3, 16),
)  # fmt: skip
CORES = 132
MATRIX_SUMS = 128  # rows of x times SIMD-groups in a threadgroup, for which it has memory
STRIP = 64  # fp8.metal: strip_length
STRIPS_BESIDE = 2  # what a SIMD-group does besides its strips takes as long as so many

_OUT_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def supports_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Whether linear() takes this aten::linear. Refused, so that stock raises: other shapes, dtypes and devices."""
    tensors = [input, weight] if bias is None else [input, weight, bias]
    return (
        all(x.device.type == "mps" and x.layout is torch.strided for x in tensors)
        and weight.dtype in FP8
        and (input.dtype in WIDE or input.dtype == weight.dtype)
        and weight.dim() == 2
        and input.dim() >= 1
        and input.shape[-1] == weight.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
        and (bias is None or bias.dtype == input.dtype or (bias.dtype in FP8 and input.dtype in WIDE))
    )


def supports_backward(self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, mask: list[bool]) -> bool:
    """Whether linear_backward() takes this aten::linear_backward: x's and the bias's gradients, not the weight's."""
    return supports_linear(self, weight) and self.dtype in WIDE and grad_output.dtype == self.dtype and not mask[1]


def linear_backward(
    self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor | None, None, torch.Tensor | None]:
    """aten::linear_backward: the gradients of x and of the bias, where `mask` asks for them. What training a LoRA on an
    FP8 model needs; the weight is decoded in the same bounded blocks."""
    grad_bias = grad_output.reshape(self.shape[:-1].numel(), weight.shape[0]).sum(0) if mask[2] else None
    return linear_grad_input(grad_output, weight) if mask[0] else None, None, grad_bias


def linear_grad_input(
    grad_output: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """grad_output @ (weight * scale), [..., K] in grad_output's dtype: the gradient of linear()'s x.

    grad_output [..., N] fp32, fp16 or bf16; weight FP8 [N, K]; scale as for linear(). On mps.
    """
    rows, cols = weight.shape
    grad = grad_output.reshape(grad_output.shape[:-1].numel(), rows)  # -1 would not do for no rows of the weight
    if scale is not None:
        scale = flat_scale(scale, weight.device)
    total = None
    for first, block in decoded_blocks(weight, grad.dtype, scale) if rows and cols else ():
        part = torch.mm(grad[:, first : first + block.shape[0]], block)
        total = part if total is None else total.add_(part)
    if total is None:
        total = grad.new_zeros(grad.shape[0], cols)
    return total.view(*grad_output.shape[:-1], cols)


def linear_unscaled(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """aten::linear: the weight's scale is 1. Where x is FP8 as well, so is the result, as on the CPU: sums in float,
    cast as `.to` casts."""
    if input.dtype in WIDE:
        return linear(input, weight, None, bias)
    wide = linear(cast(input, torch.float32), weight, None, None if bias is None else cast(bias, torch.float32))
    return cast(wide, input.dtype)


def linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ (weight * scale).T + bias, in x's dtype.

    x       fp32, fp16 or bf16 [..., K] on mps.
    weight  FP8 [N, K] on mps, any strides.
    scale   float32, one element or N of them (any shape), or None for 1.
    bias    [N] in x's dtype or FP8, or None.

    Up to 16 rows of x: the sum in float, scaled there, rounded once. More: each weight times its scale is rounded to
    x's dtype before torch multiplies. Raises ValueError for other dtypes and shapes.
    """
    check_linear(x, weight, scale, bias)
    if bias is not None and bias.dtype in FP8:
        bias = cast(bias, x.dtype)
    rows, cols = weight.shape
    flat = x.reshape(-1, cols) if cols else x.new_zeros(x.shape[:-1].numel(), 1)
    if not cols:  # nothing to add up: zeros, and the bias
        weight = torch.zeros(rows, 1, dtype=torch.uint8, device=x.device).view(weight.dtype)
    if scale is not None:
        scale = flat_scale(scale, x.device)
    if not flat.shape[0] or not rows:
        out = x.new_empty(flat.shape[0], rows)
    elif flat.shape[0] <= MAX_ROWS:
        out = torch.empty(flat.shape[0], rows, dtype=x.dtype, device=x.device)
        gemv(out, flat, weight, scale, None, bias)
    else:
        out = _matmul(flat, weight, scale, bias)
    return out.view(*x.shape[:-1], rows)


def gemv(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None, x_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:  # fmt: skip
    """out[m, n] = sum over k of x[m, k] * weight[n, k], times x_scale[m] and scale[n], plus bias[n].

    out  contiguous [M, N], M <= 16, fp32, fp16 or bf16; bias in the same dtype. x [M, K], K > 0. Scales float32 of one
    element or of M and N.
    """
    batch, cols = x.shape
    x = _aligned(x)
    for first, block in _unit_stride_blocks(weight):
        chunk = _chunk(block, x)
        rows, simdgroups = block.shape[0], SIMDGROUPS
        header = [rows, cols, block.stride(0), batch, 1, CODES[weight.dtype], _scaling(scale), _scaling(x_scale),
                  bias is not None, _OUT_TYPES[out.dtype]]  # fmt: skip
        if chunk == 1:
            kernel, groups = f"fp8_gemv_1_{WIDE[x.dtype]}", -(-rows // simdgroups)
        elif chunk == 16 and x.dtype is not torch.float32 and _takes_matrices(batch, rows):
            form, simdgroups = matrix_form(batch, rows, cols)
            header[4], groups = simdgroups, -(-rows // (8 * form.tiles))
            kernel = f"fp8_matrices_{form.rows}x{form.tiles}_{WIDE[x.dtype]}_{NAMES[weight.dtype]}"
        else:
            tile, rows_each, header[4] = gemv_form(batch, rows, cols, chunk)
            kernel = f"fp8_gemv_{chunk}_{tile}x{rows_each}_{WIDE[x.dtype]}"
            groups = -(-rows // (rows_each * simdgroups // header[4]))
        whole = rows == weight.shape[0]
        part = out if whole else out.new_empty(batch, rows)
        end = first + rows
        LIBRARY.launch(
            kernel, as_bytes(block), x, part,
            _or_dummy(scale if _scaling(scale) != SCALE_ROW else scale[first:end], part), _or_dummy(x_scale, part),
            _or_dummy(bias if bias is None else bias[first:end].contiguous(), part), header,
            threads=groups * simdgroups * 32, group_size=simdgroups * 32,
        )  # fmt: skip
        if not whole:
            out[:, first:end].copy_(part)


def decoded_blocks(
    weight: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None = None, more: int = 0, whole: float = 1
) -> Iterator[tuple[int, torch.Tensor]]:
    """(first row, rows decoded) until all of `weight` [N, K] has been; the blocks share a scratch of bounded size, with
    the bytes of a block whose rows do not lie one after the other. more: bytes for each row, if the caller makes more.
    whole: up to so many times that size there is but one block.
    """
    rows, cols = weight.shape
    copied = 0 if weight.is_contiguous() else 1
    each = max(cols * (dtype.itemsize + copied), more)
    step = rows if rows * each <= whole * MAX_SCRATCH else max(1, MAX_SCRATCH // each)
    if step < rows and step > EVEN_ROWS:  # blocks of about one size: a small one leaves a GPU idle
        step -= step % EVEN_ROWS
        step = -(-rows // (-(-rows // step) * EVEN_ROWS)) * EVEN_ROWS
    scratch = torch.empty(step, cols, dtype=dtype, device=weight.device)
    for first in range(0, rows, step):
        block = contiguous(weight[first : first + step])
        part = scratch[: block.shape[0]]
        factor = scale[first : first + step] if _scaling(scale) == SCALE_ROW else scale
        decode(block, dtype, factor, out=part)
        yield first, part


def _matmul(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    out = None
    for first, block in decoded_blocks(weight, x.dtype, scale, whole=WHOLE):
        end = first + block.shape[0]
        part = torch.nn.functional.linear(x, block, None if bias is None else bias[first:end])
        if block.shape[0] == weight.shape[0]:
            return part
        out = x.new_empty(x.shape[0], weight.shape[0]) if out is None else out
        out[:, first:end].copy_(part)
    return out


def _unit_stride_blocks(weight: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(first row, rows whose bytes are adjacent): the weight itself, or bounded copies of a transposed one."""
    rows, cols = weight.shape
    if weight.stride(1) == 1 or cols == 1:
        yield 0, weight
        return
    step = max(1, MAX_SCRATCH // cols)
    for first in range(0, rows, step):
        yield first, contiguous(weight[first : first + step])


def _chunk(weight: torch.Tensor, x: torch.Tensor) -> int:
    """Weights that a thread reads at once: 16 or 4 where every row begins on such a boundary, else 1."""
    if weight.dtype not in MATRIX:
        return 1
    for chunk in TILES:
        if not any(n % chunk for n in (weight.shape[1], weight.stride(0), weight.storage_offset())):
            return chunk
    return 1


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x contiguous and on a 16-byte boundary. It is small."""
    skewed = x.storage_offset() * x.element_size() % 16
    return x.clone(memory_format=torch.contiguous_format) if skewed else x.contiguous()


def gemv_form(batch: int, rows: int, cols: int, chunk: int) -> tuple[int, int, int]:
    """(rows of x, rows of the weight in a SIMD-group, SIMD-groups that share them) of fp8_gemv's kernel."""
    tile, forms = next((m, forms) for m, forms in TILES[chunk].items() if m >= batch)
    steps = cols // (2 * 32 * chunk)  # of two chunks in each lane
    found = []
    for rows_each, resident in forms.items():
        tiles = -(-rows // rows_each)
        split = sharing(tiles, steps, resident, SIMDGROUPS)
        busy = tiles * split / (-(-tiles * split // resident) * resident)  # the last ones of too many run alone
        found.append((busy, rows_each, split))
    _, rows_each, split = max(found, key=lambda form: form[0])
    return tile, rows_each, split


def _takes_matrices(batch: int, rows: int) -> bool:
    return any(batch >= least and rows >= wanted for least, wanted in MATRIX_LEAST.items())


@lru_cache(maxsize=1024)
def matrix_form(batch: int, rows: int, cols: int) -> tuple[Matrices, int]:
    """The instantiation of fp8_matrices, and how many SIMD-groups share K: a threadgroup of so many has a tile's rows.
    What takes the least time, going by the instructions of a core that is full."""
    tile = next(form.rows for form in MATRICES if form.rows >= batch)
    found = []
    for form in (form for form in MATRICES if form.rows == tile):
        groups = -(-rows // (8 * form.tiles))
        for split in range(1, min(MATRIX_SUMS // tile, form.resident, -(-cols // STRIP)) + 1):
            turns = -(-groups // (CORES * (form.resident // split)))  # the last groups of too many run alone
            strips = -(-cols // (STRIP * split))  # of the SIMD-group with most; those of a core take turns
            time = turns * form.resident * (strips + STRIPS_BESIDE) * form.tiles * form.cost
            found.append((time, form, split))
    _, form, split = min(found, key=lambda choice: choice[0])
    return form, split


def _scaling(scale: torch.Tensor | None) -> int:
    return SCALE_NONE if scale is None else SCALE_TENSOR if scale.numel() == 1 else SCALE_ROW


def _or_dummy(tensor: torch.Tensor | None, dummy: torch.Tensor) -> torch.Tensor:
    return dummy if tensor is None else tensor  # a buffer must be bound; none is read


def check_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None) -> None:
    """Raises ValueError for what linear() does not take."""
    if not supports_linear(x, weight, bias):
        raise ValueError(
            f"fp8.linear takes x fp32, fp16 or bf16 [..., K], an FP8 weight [N, K] and a bias [N] of x's dtype or FP8, "
            f"on mps; not {x.dtype} {tuple(x.shape)}, {weight.dtype} {tuple(weight.shape)}"
            + ("" if bias is None else f", {bias.dtype} {tuple(bias.shape)}")
        )
    if scale is not None and scale.numel() not in (1, weight.shape[0]):
        raise ValueError(f"fp8.linear: {scale.numel()} scales for a weight of {weight.shape[0]} rows")
