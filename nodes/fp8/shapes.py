"""What the scales of a quantised weight have to be in each format: dtype, shape, values.

Every check raises ModelFileError with one sentence. A weight has two dimensions here, or three where it is a stack of
several experts' weights.
"""
import math
from dataclasses import dataclass

import torch

from .header import NAMES, Entry, Header, ModelFileError
from .scales import WIDE, check_values

TILE_ROWS, TILE_COLUMNS = 128, 4  # scales of blocks lie in such tiles, which are filled up


@dataclass(frozen=True)
class Place:
    """A quantised weight in its file; `layer` as `layers.recognise` knows it."""

    header: Header
    mapped: object
    entry: Entry
    layer: object

    @property
    def where(self):
        return f"{self.header.name}: {self.entry.name}"

    @property
    def stack(self):
        """How many weights lie one on the other: () or (experts,)."""
        return self.entry.shape[:-2]

    def setting(self, key, otherwise):
        """What the comfy_quant text says of `key`."""
        deeper = self.layer.config.get("params")
        return self.layer.config.get(key, deeper.get(key, otherwise) if isinstance(deeper, dict) else otherwise)


def one_or_rows(place, scale):
    """One value, or one for each row of the weight (each expert, or each row of each)."""
    shape = place.entry.shape
    if not place.stack:
        right = {(shape[0], 1)}
    else:
        right = {shape[:1], (shape[0], 1), (shape[0], 1, 1), (*shape[:2], 1)}
    single = scale.shape == () or scale.numel == 1 and len(scale.shape) <= len(shape) and place.stack in ((), (1,))
    _check_dtype(place, scale)
    if scale.shape not in right and not single:
        raise _shape(place, scale, f"one value is expected, or the shape {(shape[0], 1)}")
    check_values(place.header, place.mapped, scale.name, place.entry.name)


def rotated_rows(place, scale):
    """As above; the weight may be rotated in groups of columns."""
    one_or_rows(place, scale)
    if place.setting("convrot", False):
        _check_groups(place, place.entry.shape[-1], place.setting("convrot_groupsize", 256))


def rotated_rows_of_4_bits(place, scale):
    """A value for each row of a weight that is rotated, two of its values in a byte."""
    rows = (*place.stack, place.entry.shape[-2])
    _check_dtype(place, scale)
    if scale.shape not in (rows, (*rows, 1)):
        raise _shape(place, scale, f"the shape {rows} is expected")
    _check_groups(place, 2 * place.entry.shape[-1], place.setting("convrot_groupsize", 256))
    check_values(place.header, place.mapped, scale.name, place.entry.name)


def groups_of_4_bits(place, relative, channel):
    """Scales of groups of columns, relative to one of each row; two of the weight's values in a byte."""
    rows, columns = place.entry.shape[0], 2 * place.entry.shape[1]
    group = place.setting("group_size", 16)
    _check_groups(place, columns, group)
    _check_groups(place, columns, place.setting("convrot_groupsize", 256))
    expected = {relative: (rows, columns // group), channel: (rows,)}
    codebook = place.header.entries.get(f"{place.layer.name}.weight_codebook")
    if codebook is not None:
        expected[codebook] = (16,)
    for scale, shape in expected.items():
        if scale.shape != shape:
            raise _shape(place, scale, f"the shape {shape} is expected")
        values = place.mapped.tensor(scale.name)
        if scale.code == "U8" and scale is relative:
            values = values.view(torch.float8_e4m3fn)
        elif not (scale.code == "F8_E4M3" and scale is relative):
            _check_dtype(place, scale)
        values = values.float()
        right = torch.isfinite(values) & ((values >= 0) if scale is not codebook else True)
        if not bool(right.all()):
            raise ModelFileError(f"{place.header.name}: {scale.name} holds NaN, infinity or a negative value.")


def mxfp8(place, scale):
    """A power of two for each 32 columns of a row: e8m0, whose byte 255 is NaN."""
    bits = _blocks(place, scale, 32, place.entry.shape[-1], ("F8_E8M0", "U8"))
    if bool((bits == 0xFF).any()):
        raise ModelFileError(f"{place.header.name}: the scale {scale.name} holds NaN, which is no scale.")


def nvfp4(place, scale, whole):
    """An e4m3fn for each 16 columns of a row, and one value for all; two of the weight's values in a byte.

    A scale of 0 is right: what a block of values too small for it is rounded to.
    """
    columns = 2 * place.entry.shape[-1]
    bits = _blocks(place, scale, 16, columns, ("F8_E4M3", "U8"))
    if bool((((bits & 0x7F) == 0x7F) | (bits > 0x80)).any()):
        raise ModelFileError(f"{place.header.name}: the scale {scale.name} holds NaN or a negative value.")
    if math.prod(place.stack) > 1 and whole.shape != ():
        if whole.shape != place.stack:
            raise _shape(place, whole, f"one value is expected, or the shape {place.stack}")
        _check_dtype(place, whole)
        check_values(place.header, place.mapped, whole.name, place.entry.name)
    else:
        check_single(place.header, place.mapped, whole, place.entry.name)
    inputs = place.header.entries.get(f"{place.layer.name}.pre_quant_scale")
    if inputs is not None:
        _check_dtype(place, inputs)
        fits = inputs.numel == 1 or columns - 16 < inputs.numel <= columns  # what the model has, the weight filled up
        if not fits or inputs.shape not in ((), (inputs.numel,), (1, inputs.numel)):
            raise _shape(place, inputs, f"one value is expected, or the shape {(columns,)}")
        check_values(place.header, place.mapped, inputs.name)


def check_single(header, mapped, scale, weight=None):
    """One positive value; `weight` is the name of what it scales."""
    if scale.code not in WIDE:
        raise ModelFileError(f"{header.name}: {scale.name} is {NAMES[scale.code]}: no floating-point dtype.")
    if scale.numel != 1 or len(scale.shape) > 2:
        raise ModelFileError(f"{header.name}: {scale.name} has the shape {scale.shape}; one value is expected.")
    check_values(header, mapped, scale.name, weight)


def _blocks(place, scale, block, columns, codes):
    """The bits of the scales of a weight's blocks as they belong to them: (weights, rows, blocks)."""
    kind, rows = place.layer.format, place.entry.shape[-2]
    if columns % block:
        raise ModelFileError(f"{place.where} is {kind} and has {columns} columns, no multiple of {block}.")
    if scale.code not in codes:
        raise ModelFileError(
            f"{place.where}: its scale {scale.name} is {NAMES[scale.code]}; {kind} has {NAMES[codes[0]]}."
        )
    down, across = math.ceil(rows / TILE_ROWS), math.ceil(columns / block / TILE_COLUMNS)
    wanted = math.prod(place.stack) * down * TILE_ROWS * across * TILE_COLUMNS
    right = range(1, 3) if not place.stack else (2, 3)
    if scale.numel != wanted or len(scale.shape) not in right or scale.shape[: len(place.stack)] != place.stack:
        raise _shape(place, scale, f"{kind} has {wanted:,} values there")
    bits = place.mapped.tensor(scale.name).contiguous().view(torch.uint8)
    # Within a tile of 128 x 4 a row of 16 bytes holds rows r, r + 32, r + 64 and r + 96, 4 columns of each.
    bits = bits.reshape(-1, down, across, 32, 4, TILE_COLUMNS).permute(0, 1, 4, 3, 2, 5)
    return bits.reshape(-1, down * TILE_ROWS, across * TILE_COLUMNS)[:, :rows, : columns // block]


def _check_groups(place, columns, group):
    if columns % group:
        raise ModelFileError(f"{place.where} has {columns} columns, no multiple of {group}, as its comfy_quant says.")


def _check_dtype(place, scale):
    if scale.code not in WIDE:
        raise ModelFileError(f"{place.where}: its scale {scale.name} is {NAMES[scale.code]}: no floating-point dtype.")


def _shape(place, scale, expected):
    return ModelFileError(
        f"{place.where} has the shape {place.entry.shape} and its scale {scale.name} {scale.shape}; {expected}."
    )
