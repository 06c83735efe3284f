"""The FP8 formats: which dtypes there are, what fp8.metal calls them, and how this torch converts to them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from ..environment import stock
from ..shader import ShaderLibrary

LIBRARY = ShaderLibrary(Path(__file__).with_name("fp8.metal"))

CODES = {
    torch.float8_e4m3fn: 0,
    torch.float8_e5m2: 1,
    torch.float8_e4m3fnuz: 2,
    torch.float8_e5m2fnuz: 3,
    **({torch.float8_e8m0fnu: 4} if hasattr(torch, "float8_e8m0fnu") else {}),
}
FP8 = frozenset(CODES)

# The formats that weights and activations come in: matrices are multiplied in these, and values quantised to them.
MATRIX = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))
NAMES = {dtype: str(dtype).removeprefix("torch.float8_") for dtype in MATRIX}  # of kernels for one of them

# The wide types that fp8.metal reads and writes, and the endings of its kernels' names.
WIDE = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}

SCALE_NONE, SCALE_TENSOR, SCALE_ROW = 0, 1, 2  # fp8.metal: CastLaunch.scaling


def largest(dtype: torch.dtype) -> float:
    """The largest finite value of an FP8 dtype: 448 for e4m3fn, 57344 for e5m2."""
    return torch.finfo(dtype).max


@cache
def saturates() -> bool:
    """Whether this torch's CPU casts what is beyond e4m3fn's range to its largest value. Older releases make it NaN."""
    return not bool(torch.full((), 1e4, device="cpu").to(torch.float8_e4m3fn).float().isnan())


def flat_scale(scale: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A scale, or several, as kernels read them: float32, one after the other, of whatever strides they were."""
    return scale.to(device, torch.float32).reshape(-1).contiguous()


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8: every torch moves bytes, in any layout and across devices."""
    return x.view(torch.uint8) if x.dtype in FP8 else x


def stock_has(dtype: torch.dtype) -> bool:
    """Whether this torch itself knows the dtype on MPS."""
    feature = _FEATURES.get(dtype)
    return feature is not None and stock(feature).good


_FEATURES = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}  # in environment.TABLE
