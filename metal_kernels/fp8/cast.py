"""aten::copy_ with an FP8 tensor on one side or both: casts on the device, moves as bytes.

`.to`, `clone`, `contiguous`, `reshape` and slice assignment all arrive here. Between two tensors of one dtype a copy is
a move of bytes, and stock moves bytes in any layout. Casts run in fp8.metal, bit for bit as the CPU casts; what
crosses to the host crosses as bytes, and the CPU kernel casts it there.
"""

from __future__ import annotations

import torch

from ..kernel import ArgumentError
from .formats import (
    CODES,
    FP8,
    LIBRARY,
    NAMES,
    SCALE_NONE,
    SCALE_ROW,
    SCALE_TENSOR,
    WIDE,
    as_bytes,
    saturates,
    stock_has,
)

LINE = 2**30  # threads of a row that one line of the grid numbers
# fp8.metal: values that a thread of the wide casts takes: 16 or 32 bytes of the wide type. With 64, neighbours
# would not fill memory's sectors together. Measured on an H200 (through NVPTX), over the copy of the same bytes: floats
# read by 8 take 1.05, by 4 1.35; written by 4 1.1; the two-byte types by 16 1.1 (decode) and 1.2 (encode; by 8 1.4).
WIDTHS = {"decode": {"float": 4, "half": 16, "bfloat": 16}, "encode": {"float": 8, "half": 16, "bfloat": 16}}


def touches_fp8(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> bool:
    """copy_'s guard. `src` can be a Python number."""
    return self.dtype in FP8 or getattr(src, "dtype", None) in FP8


def dtype_of_copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.dtype:
    """The FP8 dtype of the two; the target's where both are."""
    return self.dtype if self.dtype in FP8 else src.dtype


def supports_copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> bool:
    """Whether copy_() takes this call: strided tensors on mps or the CPU."""
    return isinstance(src, torch.Tensor) and all(
        x.layout is torch.strided and x.device.type in ("mps", "cpu") and not x.is_quantized for x in (self, src)
    )


def stock_copies_well(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> bool:
    """Whether this torch knows every FP8 dtype of the call."""
    return all(x.dtype not in FP8 or stock_has(x.dtype) for x in (self, src) if isinstance(x, torch.Tensor))


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`src` cast to self's dtype and written to `self`, broadcast to its shape; returns `self`.

    Any dtypes of which one or both are FP8; on mps, or one of them on the CPU.
    """
    if self.dtype == src.dtype:
        _move(self, src, non_blocking)
        return self
    if not src.numel() or not _expands(src.shape, self.shape):
        _move(self, torch.empty(src.shape, dtype=self.dtype, device=self.device))  # a shape that does not fit raises
        return self
    if self.device.type == "cpu":
        _to_cpu(self, src)
    elif src.device.type == "cpu":
        _from_cpu(self, src)
    elif self.shape == src.shape and self.dtype in _DIRECT and src.dtype in _DIRECT and _aligned(self, src):
        _launch(self, src)
    else:
        _move(self, cast(src, self.dtype))
    return self


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` as `dtype`, one of the two FP8: bit for bit the CPU's cast, in fresh memory, with the strides of a dense x.

    x      on mps, any shape and strides; fp32, fp16, bf16 or FP8. Other dtypes go by float32, as the CPU takes them.
    dtype  an FP8 dtype, or any dtype when x is FP8.

    Raises ValueError when neither is FP8, or x is not on mps.
    """
    if x.device.type != "mps" or not (x.dtype in FP8 or dtype in FP8):
        raise ValueError(f"fp8.cast takes FP8 to or from another dtype on mps, not {x.dtype} on {x.device} to {dtype}")
    if x.dtype == dtype:
        return as_bytes(x).clone().view(dtype)
    if dtype not in _DIRECT:
        return cast(x, torch.float32).to(dtype)
    if x.dtype not in _DIRECT:
        return cast(x.to(torch.float32), dtype)
    if not dense(x.shape, x.stride()):
        x = contiguous(x)
    out = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=x.device)
    _launch(out, x)
    return out


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """`x.contiguous()`, also where this torch can't copy FP8."""
    return as_bytes(x).contiguous().view(x.dtype)


def dense(sizes: torch.Size, strides: tuple[int, ...]) -> bool:
    """Whether the elements fill a stretch of memory without gaps or overlap, in any order of the dimensions."""
    reach = 1
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1):
        if stride != reach:
            return False
        reach *= size
    return True


def decode(
    x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """FP8 `x` as fp32, fp16 or bf16, times a scale of all of it or of each row, rounded once.

    x      FP8 on mps, contiguous.
    scale  float32 on mps, of one element or of x.shape[0]; None for no scale.
    out    contiguous memory of x's shape and `dtype` to write to.
    """
    out = torch.empty(x.shape, dtype=dtype, device=x.device) if out is None else out
    if x.numel():
        _cast_rows("decode", WIDE[dtype], x, out, scale, CODES[x.dtype])
    return out


def encode(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor) -> torch.Tensor:
    """`x` over a scale of all of it or of each row, clamped to the format's range, as e4m3fn or e5m2.

    x      fp32, fp16 or bf16 on mps, contiguous.
    scale  float32 on mps, of one element or of x.shape[0]. x is multiplied with its reciprocal in x's dtype, as
           comfy-kitchen's quantize_per_tensor_fp8 does.
    """
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel():
        _cast_rows("encode", WIDE[x.dtype], x, out, scale, CODES[dtype])
    return out


def grid(cols: int, rows: int, width: int) -> tuple[int, int, tuple[int, int]]:
    """(threads of a line, lines of a row, threads) for `rows` rows whose columns threads take `width` at a time."""
    threads = -(-cols // width)
    line = min(threads, LINE)
    lines = -(-threads // line)
    return line, lines, (line, lines * rows)


_DIRECT = FP8 | frozenset(WIDE)


def _launch(out: torch.Tensor, x: torch.Tensor) -> None:
    """The cast of `x` to out's dtype, element for element in memory order: both dense, with the same strides."""
    if not x.numel():
        return
    flat_out, flat = out.as_strided((out.numel(),), (1,)), x.as_strided((x.numel(),), (1,))
    if x.dtype in FP8 and out.dtype in FP8:
        line, lines, threads = grid(x.numel(), 1, 1)
        launch = [x.numel(), line, lines, CODES[x.dtype], SCALE_NONE, saturates(), CODES[out.dtype]]
        LIBRARY.launch("fp8_recode", as_bytes(flat), as_bytes(flat_out), launch, threads=threads, group_size=(256, 1))
    elif x.dtype in FP8:
        _cast_rows("decode", WIDE[out.dtype], flat, flat_out, None, CODES[x.dtype])
    else:
        _cast_rows("encode", WIDE[x.dtype], flat, flat_out, None, CODES[out.dtype])


def _cast_rows(
    direction: str, wide: str, x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor | None, code: int
) -> None:
    scaling, rows, cols = SCALE_NONE, 1, x.numel()
    if scale is not None:
        scaling = SCALE_TENSOR
        if scale.numel() != 1:
            scaling, rows, cols = SCALE_ROW, x.shape[0], x.numel() // x.shape[0]
    width = WIDTHS[direction][wide]
    skewed = any(t.storage_offset() * t.element_size() % min(16, width * t.element_size()) for t in (x, out))
    if skewed or cols % width:
        width = 1
    line, lines, threads = grid(cols, rows, width)
    fast = {CODES[dtype]: f"_{name}" for dtype, name in NAMES.items()}
    suffix = fast.get(code, "") if width > 1 else ""
    LIBRARY.launch(
        f"fp8_{direction}_{width}_{wide}{suffix}", as_bytes(x), as_bytes(out), out if scale is None else scale,
        [cols, line, lines, code, scaling, saturates(), 0],
        threads=threads, group_size=(256, 1),
    )  # fmt: skip


def _expands(sizes: torch.Size, target: torch.Size) -> bool:
    """Whether a tensor of `sizes` is broadcast to `target`."""
    if sizes == target:
        return True
    ends = zip(reversed(sizes), reversed(target), strict=False)
    return len(sizes) <= len(target) and all(size in (1, wanted) for size, wanted in ends)


def _aligned(self: torch.Tensor, src: torch.Tensor) -> bool:
    return self.stride() == src.stride() and dense(self.shape, self.stride())


def _move(self: torch.Tensor, values: torch.Tensor, non_blocking: bool = False) -> None:
    """`values` of self's dtype to `self`: stock's copy, its broadcasting and its words for shapes that don't fit."""
    try:
        as_bytes(self).copy_(as_bytes(values), non_blocking)
    except RuntimeError as error:
        raise ArgumentError(error) from None


def _to_cpu(self: torch.Tensor, src: torch.Tensor) -> None:
    if src.dtype in FP8:
        self.copy_(as_bytes(src).to("cpu").view(src.dtype))
    else:
        _move(self, cast(src, self.dtype))


def _from_cpu(self: torch.Tensor, src: torch.Tensor) -> None:
    if src.dtype in FP8 or src.dtype in WIDE:
        _move(self, cast(as_bytes(src).to("mps").view(src.dtype), self.dtype))
    else:
        _move(self, src.to(self.dtype))  # float64 and others that the device lacks or the CPU takes by double
