"""The formats that a comfy_quant text may name: what the weight, and the scales beside it, have to be in each.

From what ComfyUI reads (comfy/ops.py, comfy/quant_ops.py) and comfy-kitchen's layouts take. A format that ComfyUI knows
and this table does not is held to the dtype that ComfyUI stores it in.
"""
from collections.abc import Mapping
from dataclasses import dataclass

from . import shapes
from .header import CODES, NAMES, ModelFileError
from .scales import INPUT_SCALES, SCALES

FP8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}  # stored as -> the format's name in comfy_quant
FORMATS = tuple(FP8.values())


@dataclass(frozen=True)
class Format:
    """weight   the dtype that the weight is stored in.
    check       holds the weight's scales to what the format asks for.
    scales      endings of the scales that it can't be without.
    also        endings of what it may have besides.
    stacks      whether the weights of several experts may lie one on the other.
    """

    weight: str
    check: object
    scales: tuple = ("weight_scale",)
    also: tuple = ()
    stacks: bool = True


TABLE = {
    "float8_e4m3fn": Format("F8_E4M3", shapes.one_or_rows, also=INPUT_SCALES),
    "float8_e5m2": Format("F8_E5M2", shapes.one_or_rows, also=INPUT_SCALES),
    "int8_tensorwise": Format("I8", shapes.rotated_rows, also=INPUT_SCALES),
    "mxfp8": Format("F8_E4M3", shapes.mxfp8, also=INPUT_SCALES),
    "nvfp4": Format("U8", shapes.nvfp4, ("weight_scale", "weight_scale_2"), (*INPUT_SCALES, "pre_quant_scale")),
    "convrot_w4a4": Format("I8", shapes.rotated_rows_of_4_bits),
    "asym_w4a8_int8": Format("I8", shapes.groups_of_4_bits, ("weight_s_rel", "weight_s_channel"),
                             ("weight_codebook",), stacks=False),
}  # fmt: skip


def scale_of(header, layer, config):
    """The name of a layer's first scale, in the format that its text names; None without any."""
    kind = TABLE.get(config["format"])
    endings = SCALES if kind is None or config["format"] in FORMATS else kind.scales
    return next((f"{layer}.{ending}" for ending in endings if f"{layer}.{ending}" in header.entries), None)


def used(header, layer, known):
    """The names of all tensors that ComfyUI reads as this layer's scales."""
    kind, listed = TABLE.get(layer.format), known[layer.format] if isinstance(known, Mapping) else None
    listed = listed.get("parameters", ()) if isinstance(listed, Mapping) else None
    if kind is None:
        endings = listed or ()
    else:
        also = [ending for ending in kind.also if listed is None or ending != "pre_quant_scale" or ending in listed]
        endings = (*kind.scales, *also, *(SCALES if layer.format in FORMATS else ()))
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
    stacked = len(entry.shape) == 3 and "num_experts" in layer.config and form.stacks
    if len(entry.shape) != 2 and not stacked:
        raise no_matrix(where, entry)
    if stacked and layer.config["num_experts"] != entry.shape[0]:
        raise ModelFileError(
            f"{where} holds {entry.shape[0]} weights, and its comfy_quant says num_experts "
            f"{layer.config['num_experts']}."
        )
    names = [f"{layer.name}.{ending}" for ending in form.scales]
    if kind in FORMATS:
        if layer.scale is None and not layer.declared:
            return
        names = [layer.scale or names[0]]
    for name in names:
        if name not in header.entries:
            raise ModelFileError(f"{where} is {kind} and its scale {name} is missing.")
    form.check(shapes.Place(header, mapped, entry, layer), *(header.entries[name] for name in names))
    if layer.input_scale is not None:
        shapes.check_single(header, mapped, header.entries[layer.input_scale])


def no_matrix(where, entry):
    return ModelFileError(
        f"{where} is {NAMES[entry.code]} with a scale and has {len(entry.shape)} dimensions, {entry.shape}: ComfyUI "
        "scales matrices only and would use it unscaled. Use a file in which it is bfloat16 or float16."
    )


def _check_text(header, layer):
    """What else a comfy_quant text says, as far as it is computed with; some of it may stand one level deeper."""
    deeper = layer.config.get("params")
    for said in (layer.config, deeper if isinstance(deeper, dict) else {}):
        for key, right, what in (
            ("full_precision_matrix_mult", _is_bool, "true or false"),
            ("convrot", _is_bool, "true or false"),
            ("num_experts", _is_count, "a whole number"),
            ("convrot_groupsize", _is_count, "a whole number"),
            ("group_size", _is_count, "a whole number"),
            ("linear_dtype", ("int4", "int8").__contains__, "int4 or int8"),
        ):
            if key in said and not right(said[key]):
                raise ModelFileError(
                    f"{header.name}: comfy_quant says of {layer.name} that {key} is {said[key]!r:.60}: {what} is "
                    "expected."
                )


def _is_bool(value):
    return isinstance(value, bool)


def _is_count(value):
    return type(value) is int and value > 0


def _stored(known, kind):
    """The dtype, in the file's words, in which ComfyUI stores a format; None where it doesn't say."""
    listed = known[kind] if isinstance(known, Mapping) else None
    return CODES.get(listed.get("storage_t")) if isinstance(listed, Mapping) else None
