"""To FP8 and back with scales: of the whole tensor, of each row, of blocks of 32 (MXFP8), and NVFP4 back.

Everything stays on the device and nothing waits for it: the largest magnitude becomes a scale there. The layouts are
comfy-kitchen's, which are those of NVIDIA's libraries.
"""

from __future__ import annotations

import math

import torch

from .cast import contiguous, decode, encode, grid
from .formats import CODES, FP8, LIBRARY, MATRIX, WIDE, as_bytes, flat_scale, largest, saturates

BLOCK_MX, BLOCK_NV = 32, 16  # values under one scale
AMAX_THREADS = 256  # fp8.metal: amax_threads
# Threadgroups of one row of fp8_amax: enough to fill the largest GPU, and each with some thousand elements.
AMAX_STRIPES, AMAX_ELEMENTS = 512, 8192
TILE_ROWS, TILE_BLOCKS = 128, 4  # of block scales


def quantize(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, per: str = "tensor", scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, scale) with x about values * scale.

    x      fp32, fp16 or bf16 on mps; at least 1-D for "row" (the first dimension counts rows), 2-D for "block32".
    dtype  float8_e4m3fn or float8_e5m2; e4m3fn for "block32".
    per    "tensor": scale [] float32, the largest magnitude over the format's largest value (448, 57344);
           "row": scale [rows, 1] float32;
           "block32": MXFP8, scale float8_e8m0fnu in tiles, see `block_scales_shape`; columns a multiple of 32.
    scale  "tensor" and "row": one to use instead. Bit-equal to comfy-kitchen's eager quantize_per_tensor_fp8.

    A row (or tensor) of zeros gets scale 1. Raises ValueError for anything else.
    """
    _check_wide(x, "quantize")
    if per == "block32":
        return _quantize_mx(x, dtype, scale)
    if per not in ("tensor", "row"):
        raise ValueError(f'fp8.quantize: per is "tensor", "row" or "block32", not {per!r}')
    if dtype not in MATRIX:
        raise ValueError(f"fp8.quantize: dtype is float8_e4m3fn or float8_e5m2, not {dtype}")
    if per == "row" and not x.dim():
        raise ValueError("fp8.quantize: a 0-dim tensor has no rows")
    x = x.contiguous()
    rows = x.shape[0] if per == "row" else 1
    shape = (rows, 1) if per == "row" else ()
    if scale is None:
        scale = _scales(x, rows, largest(dtype)).view(shape)
    elif scale.numel() != rows:
        raise ValueError(f"fp8.quantize: {scale.numel()} scales for {rows} rows")
    else:
        scale = flat_scale(scale, x.device).view(shape)
    return encode(x.view(rows, -1) if x.numel() else x, dtype, scale).view(x.shape), scale


def dequantize(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """FP8 values times their scale, as `dtype` (fp32, fp16, bf16); the scale is rounded to `dtype` first.

    x      FP8 on mps, any shape.
    scale  one element, or one for each row of x (its first dimension): any shape and float dtype. float8_e8m0fnu: block
           scales as `quantize(..., per="block32")` makes them.

    One scale: bit-equal to comfy-kitchen's eager dequantize_per_tensor_fp8. Raises ValueError for anything else.
    """
    _check_fp8(x, dtype, "dequantize")
    if scale.dtype is getattr(torch, "float8_e8m0fnu", None):
        return _dequantize_mx(x, scale, dtype)
    rows = x.shape[0] if x.dim() else 1
    if scale.numel() not in (1, rows):
        raise ValueError(f"fp8.dequantize: {scale.numel()} scales for {rows} rows")
    scale = flat_scale(scale.to(dtype), x.device)
    return decode(contiguous(x), dtype, scale)


def dequantize_nvfp4(
    x: torch.Tensor,
    tensor_scale: torch.Tensor,
    block_scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    hi_first: bool = True,
) -> torch.Tensor:
    """NVFP4 as `dtype` (fp32, fp16, bf16), [rows, 2 * columns]; bit-equal to comfy-kitchen's eager dequantize_nvfp4.

    x             uint8 [rows, columns] on mps, two e2m1 values a byte, the first in the high bits if hi_first.
    tensor_scale  float32, one element.
    block_scales  float8_e4m3fn in tiles, one for each 16 values: see `block_scales_shape`.

    Raises ValueError for other dtypes and shapes.
    """
    if x.dim() != 2 or x.dtype is not torch.uint8 or x.shape[1] % (BLOCK_NV // 2):
        raise ValueError(f"fp8.dequantize_nvfp4 takes uint8 [rows, multiple of 8], not {x.dtype} {tuple(x.shape)}")
    if x.device.type != "mps" or dtype not in WIDE or block_scales.dtype is not torch.float8_e4m3fn:
        raise ValueError(
            "fp8.dequantize_nvfp4 takes mps tensors, float8_e4m3fn block scales, and gives fp32, fp16 or bf16"
        )
    if tensor_scale.numel() != 1:
        raise ValueError(f"fp8.dequantize_nvfp4: the scale of the tensor has {tensor_scale.numel()} elements")
    rows, blocks = x.shape[0], x.shape[1] // (BLOCK_NV // 2)
    _check_block_scales(block_scales, rows, blocks)
    out = torch.empty(rows, 2 * x.shape[1], dtype=dtype, device=x.device)
    if out.numel():
        LIBRARY.launch(
            f"fp8_dequantize_nv_{WIDE[dtype]}", x.contiguous(), as_bytes(block_scales).contiguous(), out,
            tensor_scale.to(x.device, torch.float32), _block_launch(blocks, hi_first),
            threads=(blocks, rows), group_size=_block_group(blocks),
        )  # fmt: skip
    return out


def stochastic_rounding(
    x: torch.Tensor, random: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> torch.Tensor:
    """`x` rounded up or down to `dtype` by chance; bit-equal to comfy-kitchen's eager stochastic_rounding_fp8.

    x       fp32, fp16 or bf16 on mps, any shape; taken as fp16.
    random  uint8 of x's shape, uniform in 0..255.
    dtype   float8_e4m3fn or float8_e5m2.

    Beyond the range: the largest value. NaN stays NaN, -0 becomes 0. Raises ValueError for anything else.
    """
    _check_wide(x, "stochastic_rounding")
    if dtype not in MATRIX:
        raise ValueError(f"fp8.stochastic_rounding: dtype is float8_e4m3fn or float8_e5m2, not {dtype}")
    if random.shape != x.shape or random.dtype is not torch.uint8 or random.device != x.device:
        raise ValueError(
            f"fp8.stochastic_rounding: random is {random.dtype} {tuple(random.shape)} on {random.device}, to be uint8 "
            f"{tuple(x.shape)} on {x.device}"
        )
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel():
        line, _, threads = grid(x.numel(), 1, 1)
        LIBRARY.launch(
            f"fp8_stochastic_{WIDE[x.dtype]}", x.contiguous(), random.contiguous(), as_bytes(out),
            [x.numel(), line, CODES[dtype], saturates()], threads=threads, group_size=(256, 1),
        )  # fmt: skip
    return out


def block_scales_shape(rows: int, blocks: int) -> tuple[int, int]:
    """The shape of block scales in tiles: rows rounded up to 128, blocks of a row to 4.

    A tile of 128 x 4 lies in 512 adjacent bytes: row r, block b at (r % 32) * 16 + (r // 32) * 4 + b.
    """
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-blocks // TILE_BLOCKS) * TILE_BLOCKS


def check_blocks(x: torch.Tensor) -> None:
    """Raises ValueError unless x is made of blocks of 32."""
    if x.dim() != 2 or x.shape[1] % BLOCK_MX:
        raise ValueError(f"fp8.quantize per block32 takes [rows, multiple of {BLOCK_MX}], not {tuple(x.shape)}")


def _scales(x: torch.Tensor, rows: int, most: float) -> torch.Tensor:
    """float32 [rows]: what makes the largest magnitude of each row `most`; 1 for zeros. x is contiguous."""
    if not x.numel():
        return torch.ones(rows, dtype=torch.float32, device=x.device)
    cols = x.numel() // rows
    stripes = min(AMAX_STRIPES, -(-cols // AMAX_ELEMENTS))
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if stripes == 1:
        _amax(x, scales, rows, cols, 1, True, most)
    else:
        partial = torch.empty(rows * stripes, dtype=torch.float32, device=x.device)
        _amax(x, partial, rows, cols, stripes, False, most)
        _amax(partial, scales, rows, stripes, 1, True, most)
    return scales


def _amax(x: torch.Tensor, out: torch.Tensor, rows: int, cols: int, stripes: int, final: bool, most: float) -> None:
    vectors = cols * x.element_size() % 16 == 0 and x.storage_offset() * x.element_size() % 16 == 0
    LIBRARY.launch(
        f"fp8_amax_{WIDE[x.dtype]}", x, out, [cols, stripes, final, vectors], float(most),
        threads=rows * stripes * AMAX_THREADS, group_size=AMAX_THREADS,
    )  # fmt: skip


def _quantize_mx(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    if dtype is not torch.float8_e4m3fn or scale is not None:
        raise ValueError("fp8.quantize per block32 makes float8_e4m3fn, and the scales itself")
    check_blocks(x)
    rows, blocks = x.shape[0], x.shape[1] // BLOCK_MX
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.zeros(block_scales_shape(rows, blocks), dtype=torch.uint8, device=x.device)
    if x.numel():
        LIBRARY.launch(
            f"fp8_quantize_mx_{WIDE[x.dtype]}", x.contiguous(), as_bytes(out), scales, _block_launch(blocks),
            threads=(blocks, rows), group_size=_block_group(blocks),
        )  # fmt: skip
    return out, scales.view(torch.float8_e8m0fnu)


def _dequantize_mx(x: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.dim() != 2 or x.shape[1] % BLOCK_MX:
        raise ValueError(f"fp8.dequantize with block scales takes [rows, multiple of {BLOCK_MX}], not {tuple(x.shape)}")
    rows, blocks = x.shape[0], x.shape[1] // BLOCK_MX
    _check_block_scales(scales, rows, blocks)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel():
        LIBRARY.launch(
            f"fp8_dequantize_mx_{WIDE[dtype]}", as_bytes(x).contiguous(), as_bytes(scales).contiguous(), out,
            _block_launch(blocks), CODES[x.dtype], threads=(blocks, rows), group_size=_block_group(blocks),
        )  # fmt: skip
    return out


def _block_launch(blocks: int, hi_first: bool = False) -> list[int]:
    return [blocks, -(-blocks // TILE_BLOCKS), saturates(), hi_first]


def _block_group(blocks: int) -> tuple[int, int]:
    """A threadgroup of about 256 blocks, of several rows where those are short."""
    width = min(blocks, 256)
    return width, 256 // width


def _check_block_scales(scales: torch.Tensor, rows: int, blocks: int) -> None:
    needed = math.prod(block_scales_shape(rows, blocks))
    if scales.numel() != needed or scales.device.type != "mps":
        raise ValueError(
            f"fp8: block scales for {rows} rows of {blocks} blocks have {needed} elements on mps, these "
            f"{scales.numel()} on {scales.device}"
        )


def _check_wide(x: torch.Tensor, what: str) -> None:
    if x.device.type != "mps" or x.dtype not in WIDE:
        raise ValueError(f"fp8.{what} takes fp32, fp16 or bf16 on mps, not {x.dtype} on {x.device}")


def _check_fp8(x: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    if x.device.type != "mps" or x.dtype not in FP8 or dtype not in WIDE:
        raise ValueError(
            f"fp8.{what} takes FP8 on mps and gives fp32, fp16 or bf16, not {x.dtype} on {x.device} to {dtype}"
        )
