"""The formats that a comfy_quant text may name: what the weight, and the scales beside it, have to be in each.

From what ComfyUI reads (comfy/ops.py, comfy/quant_ops.py) and comfy-kitchen's layouts take. A format that ComfyUI knows
and this table does not is held to the dtype that ComfyUI stores it in.
"""
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .header import CODES, NAMES, ModelFileError
from .scales import INPUT_SCALES, SCALES, WIDE, check_values

FP8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}  # stored as -> the format's name in comfy_quant
FORMATS = tuple(FP8.values())


@dataclass(frozen=True)
class Format:
    """weight   the dtype that the weight is stored in.
    scales      endings of the scales that it can't be without.
    also        endings of what it may have besides.
    block       columns of the weight that share a scale; 0 where none do.
    packed      weights in a stored value.
    own         the shapes of its scales are a matter of its own, which ComfyUI checks.
    """

    weight: str
    scales: tuple = ("weight_scale",)
    also: tuple = ()
    block: int = 0
    packed: int = 1
    own: bool = False


TABLE = {
    "float8_e4m3fn": Format("F8_E4M3", also=INPUT_SCALES),
    "float8_e5m2": Format("F8_E5M2", also=INPUT_SCALES),
    "int8_tensorwise": Format("I8", also=INPUT_SCALES),
    "mxfp8": Format("F8_E4M3", also=INPUT_SCALES, block=32),
    "nvfp4": Format("U8", ("weight_scale", "weight_scale_2"), (*INPUT_SCALES, "pre_quant_scale"), block=16, packed=2),
    "convrot_w4a4": Format("I8", packed=2, own=True),
    "asym_w4a8_int8": Format("I8", ("weight_s_rel", "weight_s_channel"), ("weight_codebook",), packed=2, own=True),
}
# What a scale of a block is stored in: the dtype that ComfyUI takes its bytes for, and bytes.
BLOCK_SCALES = {"mxfp8": ("F8_E8M0", "U8"), "nvfp4": ("F8_E4M3", "U8")}


def used(header, layer, known):
    """The names of all tensors that ComfyUI reads as this layer's scales."""
    kind = TABLE.get(layer.format)
    if kind is None:
        listed = known[layer.format] if isinstance(known, Mapping) else None
        endings = listed.get("parameters", ()) if isinstance(listed, Mapping) else ()
    else:
        endings = (*kind.scales, *kind.also)
    endings = {*endings, *SCALES} if layer.format in FORMATS else endings
    return {f"{layer.name}.{ending}" for ending in endings} & header.entries.keys()


def check(header, mapped, entry, layer, known):
    """Raises ModelFileError unless the weight `entry` and its scales are what the format of `layer` asks for."""
    where, kind = f"{header.name}: {entry.name}", layer.format
    _check_text(header, layer)
    form = TABLE.get(kind)
    stored = form.weight if form else _stored(known, kind)
    if stored not in (None, entry.code):
        raise ModelFileError(f"{where} is {NAMES[entry.code]}, and its comfy_quant says {kind}.")
    if form is None:
        return
    stacked = len(entry.shape) == 3 and "num_experts" in layer.config and not (form.block or form.own)
    if len(entry.shape) != 2 and not stacked:
        raise no_matrix(where, entry)
    if kind in FORMATS:
        if layer.scale is None:
            if layer.declared:
                raise _missing(where, kind, f"{layer.name}.weight_scale")
            return
        names = [layer.scale]
    else:
        names = [f"{layer.name}.{ending}" for ending in form.scales]
        for name in names:
            if name not in header.entries:
                raise _missing(where, kind, name)
    if form.own:
        for name in names:
            _check_finite(header, mapped, header.entries[name])
    elif form.block:
        _check_blocks(header, mapped, entry, kind, form, header.entries[names[0]])
        for name in names[1:]:
            _check_single(header, mapped, header.entries[name], entry.name)
    else:
        _check_scale(where, header.entries[names[0]], entry.shape)
        check_values(header, mapped, names[0], entry.name)
    if layer.input_scale is not None:
        _check_single(header, mapped, header.entries[layer.input_scale])


def no_matrix(where, entry):
    return ModelFileError(
        f"{where} is {NAMES[entry.code]} with a scale and has {len(entry.shape)} dimensions, {entry.shape}: ComfyUI "
        "scales matrices only and would use it unscaled. Use a file in which it is bfloat16 or float16."
    )


def _missing(where, kind, scale):
    return ModelFileError(f"{where} is {kind} and its scale {scale} is missing.")


def _check_text(header, layer):
    """What else a comfy_quant text says, as far as it is computed with."""
    full, experts = layer.config.get("full_precision_matrix_mult", False), layer.config.get("num_experts", 1)
    for key, value, right, what in (
        ("full_precision_matrix_mult", full, isinstance(full, bool), "true or false"),
        ("num_experts", experts, type(experts) is int and experts > 0, "a whole number"),
    ):
        if not right:
            raise ModelFileError(
                f"{header.name}: comfy_quant says of {layer.name} that {key} is {value!r:.60}: {what} is expected."
            )


def _stored(known, kind):
    """The dtype, in the file's words, in which ComfyUI stores a format; None where it doesn't say."""
    listed = known[kind] if isinstance(known, Mapping) else None
    return CODES.get(listed.get("storage_t")) if isinstance(listed, Mapping) else None


def _check_scale(where, scale, shape):
    """One value, or one for each row of the weight (each expert and row of a stack of weights)."""
    per_row = {(shape[0], 1)} if len(shape) == 2 else {shape[:1], (shape[0], 1), (shape[0], 1, 1), (*shape[:2], 1)}
    if scale.code not in WIDE:
        raise ModelFileError(f"{where}: its scale {scale.name} is {NAMES[scale.code]}: no floating-point dtype.")
    if scale.shape not in per_row and not (scale.numel == 1 and len(scale.shape) <= len(shape)):
        raise ModelFileError(
            f"{where} has the shape {shape} and its scale {scale.name} {scale.shape}; one value is expected, or the "
            f"shape {(shape[0], 1)}."
        )


def _check_blocks(header, mapped, entry, kind, form, scale):
    """Scales of blocks, in tiles of 128 x 4 that are filled up."""
    rows, columns = entry.shape[0], entry.shape[1] * form.packed
    wanted = 128 * math.ceil(rows / 128) * 4 * math.ceil(columns / form.block / 4)
    where = f"{header.name}: {entry.name}"
    if columns % form.block:
        raise ModelFileError(f"{where} is {kind} and has {columns} columns, no multiple of {form.block}.")
    if scale.code not in BLOCK_SCALES[kind]:
        raise ModelFileError(f"{where}: its scale {scale.name} is {NAMES[scale.code]}; {kind} has "
                             f"{NAMES[BLOCK_SCALES[kind][0]]}.")  # fmt: skip
    if scale.numel != wanted or len(scale.shape) not in (1, 2):
        raise ModelFileError(
            f"{where} has the shape {entry.shape} and its scale {scale.name} {scale.shape}; {kind} has {wanted:,} "
            "values there."
        )
    bits = mapped.tensor(scale.name).contiguous().view(torch.uint8)
    wrong = bits == 0xFF if kind == "mxfp8" else ((bits & 0x7F) == 0x7F) | (bits > 0x80)
    if bool(wrong.any()):
        raise ModelFileError(f"{header.name}: the scale {scale.name} holds NaN or a negative value, which is no scale.")


def _check_single(header, mapped, scale, weight=None):
    if scale.code not in WIDE:
        raise ModelFileError(f"{header.name}: {scale.name} is {NAMES[scale.code]}: no floating-point dtype.")
    if scale.numel != 1:
        raise ModelFileError(f"{header.name}: {scale.name} has the shape {scale.shape}; one value is expected.")
    check_values(header, mapped, scale.name, weight)


def _check_finite(header, mapped, scale):
    """Scales of a layout that is ComfyUI's to check: no NaN and no infinity among them."""
    if scale.code in (*WIDE, "F8_E4M3") and not bool(torch.isfinite(mapped.tensor(scale.name).float()).all()):
        raise ModelFileError(f"{header.name}: the scale {scale.name} holds NaN or infinity, which is no scale.")
