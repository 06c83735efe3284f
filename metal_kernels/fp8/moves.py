"""The ops that only move elements, on FP8 tensors: the same op on the same memory as uint8, and the result viewed back.
And `equal`, which reads them.

One mechanism for all that move. What an op here refuses (other dtypes among its tensors, accumulation) stock gets, and
raises at.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..kernel import ArgumentError, Patch
from .cast import cast, copy_
from .formats import FP8, as_bytes, stock_has

COMPARED = 2**24  # values at a time, of which two copies in float16 are made

# op -> positions of the tensors (or lists of them) whose elements move; the first one decides. In-place ops return it.
# (stack is made of views and cat.)
MOVES: dict[str, tuple[int, ...]] = {
    "cat": (0,),
    "index_select": (0,),
    "gather": (0,),
    "index.Tensor": (0,),
    "_index_put_impl_": (0, 2),
    "masked_select": (0,),
    "where.self": (1, 2),
    "flip": (0,),
    "roll": (0,),
    "repeat": (0,),
    "zero_": (0,),
}


def patches() -> tuple[Patch, ...]:
    """One patch for each op that moves, fills or reads FP8 elements."""
    return (
        *(_moving(op, positions) for op, positions in MOVES.items()),
        _filling("fill_.Scalar", fill_scalar_, lambda self, value: True),
        _filling(
            "fill_.Tensor", fill_tensor_, lambda self, value: isinstance(value, torch.Tensor)
        ),
        _filling("constant_pad_nd", constant_pad_nd, lambda self, pad, value=0: True),
        _filling("_local_scalar_dense", item, lambda self: True),
        Patch("equal", supports_equal, equal, guard=_GUARDS[0]),
    )


def fill_scalar_(self: torch.Tensor, value: complex) -> torch.Tensor:
    """`self` filled with the byte that the CPU makes of `value`."""
    as_bytes(self).fill_(_byte(value, self.dtype))
    return self


def fill_tensor_(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`self` filled with `value`, a 0-dim tensor; one on mps is not waited for."""
    if value.dim():
        try:
            torch.empty(0, device="cpu").fill_(torch.empty(value.shape, device="cpu"))
        except RuntimeError as error:
            raise ArgumentError(error) from None
    return copy_(self, value)


def constant_pad_nd(self: torch.Tensor, pad: list[int], value: complex = 0) -> torch.Tensor:
    """`self` with `pad` elements of `value` around it; stock pads the bytes. Kernel pad, where it runs, comes first."""
    byte = _byte(value, self.dtype) if any(n > 0 for n in pad) else 0  # the CPU looks at no value that it does not use
    return torch.constant_pad_nd(as_bytes(self), pad, byte).view(self.dtype)


def item(self: torch.Tensor) -> float:
    """The value of a tensor of one element. Waits for the device, as item() does."""
    byte = torch.ops.aten._local_scalar_dense(as_bytes(self))
    return torch.tensor(byte, dtype=torch.uint8, device="cpu").view(self.dtype).item()


def supports_equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether equal() takes these: two FP8 tensors of one dtype on mps. Others stock refuses, as the CPU does."""
    return self.dtype == other.dtype and self.device.type == other.device.type == "mps"


def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether shapes and values are the same: -0 is 0, NaN is nothing. Waits for the device, as torch.equal does."""
    if self.shape != other.shape:
        return False
    pairs = zip(self.reshape(-1).split(COMPARED), other.reshape(-1).split(COMPARED), strict=True)
    return all(torch.equal(cast(one, torch.float16), cast(two, torch.float16)) for one, two in pairs)


def _byte(value: complex, dtype: torch.dtype) -> int:
    """The byte of `value`. The CPU is asked: scalar conversion has rules of its own."""
    try:
        # Two elements: filling one, torch converts by looser rules.
        return int(torch.empty(2, dtype=dtype, device="cpu").fill_(value).view(torch.uint8)[0])
    except (RuntimeError, TypeError) as error:  # it does not fit
        raise ArgumentError(error) from None


def _moving(op: str, positions: tuple[int, ...]) -> Patch:
    base, _, overload = op.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    call = getattr(packet, overload or "default") if packet is not None else None
    first, in_place = positions[0], base.endswith("_")
    guard = _GUARDS["list" if base == "cat" else first]

    def leading(args: tuple) -> torch.Tensor:
        value = args[first]
        return value[0] if isinstance(value, (list, tuple)) else value

    def supports(*args, **kwargs) -> bool:
        dtype = leading(args).dtype
        if base == "_index_put_impl_" and (kwargs.get("accumulate") or True in args[3:4]):
            return False  # adds
        return all(x.dtype == dtype and x.device.type == "mps" for i in positions for x in _tensors(args[i]))

    def run(*args, **kwargs):
        dtype = leading(args).dtype
        moved = [_all_as_bytes(value) if i in positions else value for i, value in enumerate(args)]
        try:
            result = call(*moved, **kwargs)
        except Exception as error:  # what stock finds wrong with these arguments; on FP8 it would name the dtype alone
            raise ArgumentError(error) from None
        return args[0] if in_place else result.view(dtype)

    return Patch(
        op, supports, run, guard=guard,
        dtype=lambda *args, **kwargs: leading(args).dtype,
        spare=lambda *args, **kwargs: stock_has(leading(args).dtype),
    )  # fmt: skip


# By the place of the first tensor whose elements move. Every call of the op on mps pays for these.
_GUARDS: dict[int | str, Callable[..., bool]] = {
    0: lambda self, *args, **kwargs: self.dtype in FP8,
    1: lambda other, self, *args, **kwargs: getattr(self, "dtype", None) in FP8,
    "list": lambda tensors, *args, **kwargs: bool(tensors) and tensors[0].dtype in FP8,
}


def _filling(op: str, run: Callable[..., object], supports: Callable[..., bool]) -> Patch:
    return Patch(
        op, supports, run,
        guard=_GUARDS[0],
        spare=lambda self, *args, **kwargs: stock_has(self.dtype),
    )  # fmt: skip


def _tensors(value: object) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _all_as_bytes(value: object) -> object:
    return [as_bytes(x) for x in value] if isinstance(value, (list, tuple)) else as_bytes(value)
