"""fp8: the FP8 dtypes on MPS; casts, byte moves, scaled_mm, and linear on weights of one byte."""

from __future__ import annotations

from ..environment import Environment
from ..kernel import Kernel, Need, Patch
from . import scaled_mm as _scaled_mm
from .bench import cases
from .cast import cast, copy_, dtype_of_copy, stock_copies_well, supports_copy, touches_fp8
from .check import selfcheck
from .formats import CODES, FP8
from .linear import (
    check_linear,
    linear,
    linear_backward,
    linear_grad_input,
    linear_unscaled,
    supports_backward,
    supports_linear,
)
from .moves import patches as moves
from .quantize import block_scales_shape, check_blocks, dequantize, dequantize_nvfp4, quantize, stochastic_rounding
from .scaled_mm import scaled_mm

__all__ = [
    "FP8",
    "KERNEL",
    "block_scales_shape",
    "cast",
    "check_blocks",
    "check_linear",
    "copy_",
    "dequantize",
    "dequantize_nvfp4",
    "linear",
    "linear_grad_input",
    "quantize",
    "scaled_mm",
    "stochastic_rounding",
]


def need(environment: Environment) -> Need:
    """Whether `auto` patches here: wherever a part of FP8 is missing. What a torch has, the patches leave to it."""
    for feature in ("float8_e4m3fn", "float8_e5m2", "scaled_mm"):
        stock = environment.stock(feature)
        if not stock.good:
            return Need(True, stock.text)
    return Need(False, "this torch has the FP8 dtypes and their products on MPS")


def _weight_is_fp8(input, weight, bias=None) -> bool:
    return weight.dtype in FP8


def _weight_dtype(input, weight, bias=None):
    return weight.dtype


def _fp8_of_pair(self, mat2, *args, **kwargs):
    return self.dtype if self.dtype in FP8 else mat2.dtype


KERNEL = Kernel(
    name="fp8",
    title="FP8",
    patches=(
        Patch("copy_", supports_copy, copy_, guard=touches_fp8, dtype=dtype_of_copy, spare=stock_copies_well),
        *moves(),
        Patch("linear", supports_linear, linear_unscaled, guard=_weight_is_fp8, dtype=_weight_dtype),
        Patch(
            "linear_backward",
            supports_backward,
            linear_backward,
            guard=lambda self, grad_output, weight, mask: weight.dtype in FP8,
            dtype=lambda self, grad_output, weight, mask: weight.dtype,
        ),
        Patch("_scaled_mm", _scaled_mm.supports, _scaled_mm.run, dtype=_fp8_of_pair),
        Patch("_scaled_mm.out", _scaled_mm.supports, _scaled_mm.run_out, dtype=_fp8_of_pair),
        Patch("_scaled_mm_v2", _scaled_mm.supports_v2, _scaled_mm.run_v2, dtype=_fp8_of_pair),
    ),
    need=need,
    selfcheck=selfcheck,
    repairs=(
        "Stock stores FP8 but cannot cast, copy or multiply it; with this kernel FP8 models run at one byte a weight."
    ),
    dtypes=tuple(CODES),
    bench=cases,
    doc="https://github.com/comfyanonymous/ComfyUI/issues/16107",
)
