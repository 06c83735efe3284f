"""What a scale is: which tensors of a file are called one, whose it is, and what its values have to be.

Nobody knows all the ways in which a file may scale its weights, but all of them call the factor a scale. So what is
called a scale (or the like), belongs to a weight, and is none that the weight's format is known to have, is refused.
"""
import torch

from . import farther
from .header import NAMES, ModelFileError

WIDE = frozenset(("BF16", "F16", "F32", "F64"))
SCALES = ("weight_scale", "scale_weight")  # today's name, the older one
INPUT_SCALES = ("input_scale", "scale_input")
BARE = ("scale", "scales", "scale_inv", "inv_scale", "scaling", "scaling_factor", "absmax", "amax")
LEAST = torch.finfo(torch.float32).tiny  # what is less is 0 on a GPU
LARGEST = {"F8_E5M2": 57344.0}  # of a format; times the scale it has to be a float32
# Dtypes of which a weight is seldom made without a scale.
NARROW = frozenset((
    "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "I8", "U8", "I16", "U16", "I32", "U32",
))  # fmt: skip


def first(header, layer, endings):
    """The name of the first of a layer's tensors with one of these endings; None without any."""
    return next((f"{layer}.{ending}" for ending in endings if f"{layer}.{ending}" in header.entries), None)


def check_pair(header, mapped, layer, endings):
    """Raises ModelFileError where a layer has a scale under both names, today's and the older one, and they differ."""
    names = [f"{layer}.{ending}" for ending in endings if f"{layer}.{ending}" in header.entries]
    if len(names) < 2:
        return
    for name in names:
        if header.entries[name].code not in WIDE:
            raise ModelFileError(
                f"{header.name}: {name} is {NAMES[header.entries[name].code]}: no floating-point dtype."
            )
    one, other = (mapped.tensor(name).double().flatten() for name in names)
    if one.shape != other.shape or not torch.equal(one, other):
        raise ModelFileError(f"{header.name} has two scales for {layer} that differ, {names[0]} and {names[1]}.")


def check_values(header, mapped, scale, weight=None):
    """Raises ModelFileError unless every value is positive in float32, in which ComfyUI computes with it, and times a
    weight's largest finite too.

    weight  the name of what it scales: where that is zero throughout, bit for bit but the sign, a scale may be 0.
    """
    stored = mapped.tensor(scale).double().flatten()
    values = stored.float()
    code = None if weight is None else header.entries[weight].code
    most = torch.finfo(torch.float32).max / LARGEST.get(code, 448.0)
    wrong = ~((values >= LEAST) & (values <= most))
    if weight is not None and bool((wrong & (stored == 0)).any()):
        wrong &= ~((stored == 0) & _zero(mapped.tensor(weight), values.numel()))
    if bool(wrong.any()):
        value = float(stored[wrong][0])
        none = not value > 0 or value == float("inf")
        why = "which is no scale" if none else "which float32 does not hold together with a weight's values"
        raise ModelFileError(f"{header.name}: the scale {scale} is {value}, {why}.")


def _zero(weight, parts):
    """Which of so many parts of a weight hold zeros only."""
    bits = weight.contiguous().view(torch.uint8).reshape(parts, -1)
    mask = {torch.int8: 0xFF, torch.uint8: 0x77}.get(weight.dtype, 0x7F)  # uint8: two values of four bits, signs first
    return ((bits & mask) == 0).all(dim=1)


def check_strays(header, mapped, used):
    """Raises ModelFileError for the first scale that is in `used` by no layer, and its weight therefore without it."""
    folders, narrow = {}, {}
    for name, entry in header.entries.items():
        folder, _, last = name.rpartition(".")
        folders.setdefault(folder, []).append(last)
        if last == "weight" and folder and entry.code in NARROW and len(entry.shape) >= 2:
            narrow[folder] = name
    scaled = {name.rpartition(".")[0] for name in used}
    for name, entry in header.entries.items():
        folder, _, last = name.rpartition(".")
        if name in used or last in ("scaled_fp8", "comfy_quant", *farther.PARAMETERS):
            continue
        owner = _owner(header, folder, last, folders[folder]) if farther.is_scale(last) else None
        owner = owner or farther.owner(name, narrow)
        if owner is None or _harmless(header.entries[owner], entry, last, mapped):
            continue
        layer = owner.removesuffix(".weight")
        if layer in scaled and farther.is_no_weights(name, layer):
            continue
        raise ModelFileError(
            f"{header.name}: {owner} is {NAMES[header.entries[owner].code]} and has a scale, {name}: how it is to be "
            "used is unknown, and without it the values would be wrong."
        )


def names_a_weight(header, name):
    """Whether a tensor is by its name the scale of a weight, and of none that the file holds."""
    folder, _, last = name.rpartition(".")
    if folder.endswith((".weight", "_weight")):
        return farther.is_scale(last) and folder not in header.entries
    said = last.lower()
    there = f"{folder}.weight" if folder else "weight"
    return said.startswith(("weight_scale", "scale_weight", "weight_scaling")) and there not in header.entries


def _owner(header, folder, last, siblings):
    """The name of the tensor that a scale is of; None for a parameter that is only called so.

    By its name (`weight_scale`, `weight_scale_inv`, `scale_weight`, `weight.scale`, `bias_scale`,
    `in_proj_weight_scale`, `down_proj_scales` of `down_proj_blocks`) a scale may be of a tensor in any dtype; by lying
    beside it (`scale`) of a narrow weight.
    """
    if folder in header.entries:
        return folder
    prefix, said = f"{folder}." if folder else "", last.lower()
    others = [other for other in siblings if not farther.is_scale(other) and other != "comfy_quant"]
    named = [name for name in others if said.startswith((f"{name}_".lower(), f"scale_{name}".lower()))
             or said.endswith(f"_{name}".lower())]  # fmt: skip
    if named:
        return prefix + max(named, key=len)
    narrow = [other for other in others if header.entries[prefix + other].code in NARROW]
    stem = said.partition("_scale")[0]
    beside = [other for other in narrow if "weight" in other.lower() or other.lower().startswith(f"{stem}_")]
    if not beside and ("weight" in said or said.strip("_") in BARE):
        beside = [other for other in narrow if len(header.entries[prefix + other].shape) >= 2]
    return prefix + beside[0] if beside else None


def _harmless(owner, scale, last, mapped):
    """Whether a weight is right without the scale beside it: it is wide, and the scale is its inputs', or 1 throughout,
    or of something that is no weight (`pos_embed_scale`, `scale_shift_table` of `shift_table`)."""
    if owner.code not in WIDE or last in INPUT_SCALES:
        return owner.code in WIDE
    called = owner.name.rpartition(".")[2].lower()
    of_weight = "weight" in called or "bias" in called
    of_weight |= called.endswith("proj") and last.lower().startswith(f"{called}_scale")
    if not of_weight and not last.endswith("scale_inv"):
        return True
    return scale.code in WIDE and bool((mapped.tensor(scale.name).double() == 1).all())
