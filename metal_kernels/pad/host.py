"""aten::constant_pad_nd on MPS: what is taken, the output, and the launches.

Shapes and launches are worked out in geometry.py, the bytes are moved by pad.metal. Nothing here waits for the device:
the fill value's bytes are made on the CPU, and a call is one allocation and (below 2^30 elements) one launch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from ..shader import ShaderLibrary
from .geometry import VECTOR, Crop, crop, is_channels_last, plan

LIBRARY = ShaderLibrary(Path(__file__).with_name("pad.metal"))

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def supports(self: torch.Tensor, pad: Sequence[int], value: complex = 0) -> bool:
    """Whether constant_pad_nd() takes this call: every call that the CPU kernel takes, for a strided tensor on mps.

    Refused, so that stock raises: an odd or too long `pad`, a crop beyond what is there, a `value` that the dtype
    cannot hold (nothing added, it is not looked at), a dtype that the CPU kernel cannot fill (quantised and sub-byte
    ones).
    """
    return (
        isinstance(self, torch.Tensor)
        and self.device.type == "mps"
        and self.layout is torch.strided
        and (cut := crop(self.shape, self.stride(), tuple(pad))) is not None
        and fill_bits(self.dtype, value if cut.grows else 1, alone=max(cut.out_sizes, default=1) == 1) is not None
        and (0 not in cut.out_sizes or _cpu_takes(tuple(self.shape), tuple(pad)))
    )


def constant_pad_nd(self: torch.Tensor, pad: Sequence[int], value: complex = 0) -> torch.Tensor:
    """`self` with `pad` elements of `value` around it, bit for bit and stride for stride what the CPU kernel returns.

    self   any shape, strides and dtype, on mps.
    pad    (left, right) of the last dimension, then of the one before it, and so on; negative values crop.
    value  converted to the dtype as the CPU does.

    Only for arguments that supports() accepts. Not differentiable by itself: autograd lies above the dispatcher's
    MPS key.
    """
    self = self.resolve_conj().resolve_neg()  # a view whose bits are not its values must not be moved as bits
    pad = tuple(pad)
    out = _empty_output(self, crop(self.shape, self.stride(), pad))
    if out.numel():
        itemsize = self.element_size()
        fill = fill_bits(self.dtype, value, alone=out.numel() == 1) or (0, 0)  # none where nothing is added
        launches = plan(self.shape, self.stride(), pad, out.stride(), itemsize, _skew(self), _skew(out))
        source = self if self.numel() else out  # no bytes to bind; and none are read
        for launch in launches:
            LIBRARY.launch(
                launch.kernel, source, out, [*launch.header, *fill], [*launch.dims],
                threads=launch.threads, group_size=launch.group_size,
            )  # fmt: skip
    return out


def fill_bits(dtype: torch.dtype, value: complex, alone: bool = False) -> tuple[int, int] | None:
    """Sixteen bytes of `value` in `dtype`, as two int64s; None where the CPU's fill_ refuses the value or the dtype.

    Scalar conversion has rules of its own (wrapping negative values of unsigned types, saturating or overflowing
    float8, truncating): the CPU is asked, once for each value. alone: the output is this one element, which the CPU
    fills by another way, with other overflows (float8 saturates, complex32 raises).
    """
    if isinstance(value, float):
        return _fill_bits(dtype, "d", struct.pack("d", value), alone)  # as bytes, since -0.0 == 0.0 and nan != nan
    if isinstance(value, complex):
        return _fill_bits(dtype, "dd", struct.pack("dd", value.real, value.imag), alone)
    return _fill_bits(dtype, "", value, alone)


@lru_cache(maxsize=256, typed=True)
def _fill_bits(dtype: torch.dtype, packing: str, packed: bytes | int, alone: bool) -> tuple[int, int] | None:
    value = packed
    if packing:
        parts = struct.unpack(packing, packed)
        value = complex(*parts) if len(parts) == 2 else parts[0]
    try:
        vector = torch.zeros(VECTOR // dtype.itemsize, dtype=dtype, device="cpu")
        (vector[:1] if alone else vector).fill_(value)
        return tuple(vector.view(torch.int64).tolist())
    except (RuntimeError, TypeError, OverflowError):  # NotImplementedError is a RuntimeError
        return None


@lru_cache(maxsize=256)
def _cpu_takes(sizes: tuple[int, ...], pad: tuple[int, ...]) -> bool:
    """Whether the CPU pads these sizes to nothing. Up to torch 2.9 it refuses, later it returns an empty tensor."""
    try:
        torch.constant_pad_nd(torch.zeros((), dtype=torch.uint8, device="cpu").expand(sizes), pad)
    except RuntimeError:
        return False
    return True


def _empty_output(self: torch.Tensor, cut: Crop) -> torch.Tensor:
    if not cut.grows:  # the CPU kernel returns a clone of the cropped view
        view = self.as_strided(cut.sizes, self.stride(), self.storage_offset() + cut.offset)
        return torch.empty_like(view, memory_format=torch.preserve_format)
    channels_last = is_channels_last(self.shape, self.stride())
    return torch.empty(
        cut.out_sizes,
        dtype=self.dtype,
        device=self.device,
        memory_format=_CHANNELS_LAST[self.dim()] if channels_last else torch.contiguous_format,
    )


def _skew(tensor: torch.Tensor) -> int:
    """Bytes by which its first element lies past a 16-byte boundary: Metal buffers begin on one."""
    return tensor.storage_offset() * tensor.element_size() % VECTOR
