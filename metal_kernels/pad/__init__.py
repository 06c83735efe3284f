"""pad: aten::constant_pad_nd as a byte move in hand-written Metal."""

from __future__ import annotations

import torch

from ..environment import Environment
from ..kernel import Kernel, Need, Patch
from .bench import cases
from .check import selfcheck, stock_is_right
from .host import constant_pad_nd, supports

__all__ = ["KERNEL", "constant_pad_nd"]

# Every dtype of this torch that its CPU kernel can fill and MPS can hold.
_NAMES = (
    "float32 float16 bfloat16 complex64 complex32 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
DTYPES = tuple(getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name))


def need(environment: Environment) -> Need:
    """Whether `auto` patches here. Where the table of torch releases cannot tell, stock is asked at the first call."""
    stock = environment.stock("pad")
    if stock.good is None:
        return Need(True, stock.text, probe=probe)
    return Need(not stock.good, stock.text)


def probe() -> Need:
    """What stock itself shows."""
    if stock_is_right():
        return Need(False, "probed: this torch pads as the CPU does")
    return Need(True, "probed: this torch's pad is wrong where MPSGraph's is")


KERNEL = Kernel(
    name="pad",
    title="Padding",
    patches=(Patch("constant_pad_nd", supports, constant_pad_nd),),
    need=need,
    selfcheck=selfcheck,
    repairs=(
        "Stock pads of rank 5 and more overwrite the picture with the fill value and every new shape keeps driver "
        "memory; this kernel moves the bytes and keeps nothing."
    ),
    dtypes=DTYPES,
    bench=cases,
    doc="https://github.com/pytorch/pytorch/issues/194922",
)
