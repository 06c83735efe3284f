"""Which weights of a file are quantised, in which format, and where their scales are.

Three kinds of file are in use: plain ones (FP8 values that are the weights themselves), `scaled_fp8` ones (a tensor of
that name, `.scale_weight` beside each weight), and `comfy_quant` ones (a JSON text a layer, as a tensor or all together
in the metadata, `.weight_scale` beside each weight). Whatever a file is called, an FP8 weight with a scale beside it is
taken times that scale, and one without is only believed where no weight of its model has a scale, or where it is an
embedding, which the tools that scale leave alone. A checkpoint holds several models, each of a kind of its own.
"""
import json
import math
from dataclasses import dataclass, field

from .header import NAMES, ModelFileError, Unfamiliar

FP8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}  # stored as -> the format's name in comfy_quant
FORMATS = tuple(FP8.values())
WIDE = frozenset(("BF16", "F16", "F32", "F64"))
MARKER, CONFIG, METADATA = "scaled_fp8", "comfy_quant", "_quantization_metadata"
SCALES = ("weight_scale", "scale_weight")  # today's name, the older one
INPUT_SCALES = ("input_scale", "scale_input")
EMBEDDINGS = ("embed_tokens", "token_embedding", "position_embedding", "shared", "relative_attention_bias", "wte")

# What the names of a checkpoint's models begin with; of some it holds several, told apart by what follows.
MODEL = "model.diffusion_model."
ENCODERS, SEVERAL_ENCODERS = ("cond_stage_model.",), ("text_encoders.", "conditioner.embedders.")
VAES = ("first_stage_model.", "vae.")


@dataclass(frozen=True)
class Layer:
    """A quantised layer. `weight`, `scale`, `input_scale` are names in the file; no scale means that it is 1.

    config  what comfy_quant says of it; `format` is among that.
    """

    name: str
    weight: str
    scale: str | None = None
    input_scale: str | None = None
    config: dict = field(default_factory=dict)

    @property
    def format(self):
        return self.config["format"]


def part(name):
    """What the name of a tensor begins with in a checkpoint, as far as it says which model it belongs to; "" elsewhere.

    "text_encoders.t5xxl.transformer.shared.weight" -> "text_encoders.t5xxl."
    """
    for prefix in (MODEL, *ENCODERS, *VAES):
        if name.startswith(prefix):
            return prefix
    for prefix in SEVERAL_ENCODERS:
        if name.startswith(prefix):
            return prefix + name.removeprefix(prefix).split(".")[0] + "."
    return ""


def recognise(header, mapped, known, strict=True):
    """{layer name: Layer} of a file.

    mapped  the file's tensors (`Mapped`); only comfy_quant texts and scales are read.
    known   the names of the formats that this ComfyUI can run.
    strict  False: what is neither FP8 nor comfy_quant is passed over.

    Raises ModelFileError for an unknown format, for scales that are missing, of the wrong shape or no numbers, and for
    scaled FP8 where ComfyUI applies no scale (convolutions).
    """
    configs = _configs(header, mapped)
    markers = {name[: -len(MARKER)]: entry for name, entry in header.entries.items() if _is_marker(name)}
    weights = [entry for name, entry in header.entries.items() if name.endswith(".weight")]
    scaled = {part(name) for name in markers}
    scaled |= {part(entry.name) for entry in weights if entry.code in FP8 and _scale_of(header, entry)}
    found = {}
    for entry in weights:
        name = entry.name.removesuffix(".weight")
        config, scale = configs.get(name), _scale_of(header, entry)
        if config is None and (strict or entry.code in FP8):
            config = _implied(header, mapped, entry, scale, part(entry.name) in scaled, markers)
        if config is not None:
            layer = Layer(name, entry.name, scale, _first(header, name, INPUT_SCALES), config)
            _check(header, mapped, entry, layer, known)
            found[name] = layer
    return found


def _configs(header, mapped):
    """{layer name: what comfy_quant says}."""
    configs = {}
    if METADATA in header.metadata:
        try:
            configs.update(json.loads(header.metadata[METADATA])["layers"])
        except (ValueError, TypeError, KeyError) as problem:
            raise ModelFileError(f"{header.name}: its metadata's {METADATA} can't be read ({problem!r}).") from problem
    for name in header.entries:
        if name.endswith(f".{CONFIG}"):
            values = mapped.tensor(name).flatten().tolist()
            try:
                configs[name.removesuffix(f".{CONFIG}")] = json.loads(bytes(values))
            except (ValueError, TypeError) as problem:  # TypeError: numbers that are no bytes
                raise ModelFileError(f"{header.name}: {name} is no JSON text but {_start(values)}.") from problem
    return configs


def _implied(header, mapped, entry, scale, scaled, markers):
    """The config of a weight that has none, None for one that isn't quantised."""
    where = f"{header.name}: {entry.name}"
    if entry.code not in FP8:
        if len(entry.shape) == 2 and entry.code in ("I8", "U8", "F4"):
            raise Unfamiliar(f"{where} is {NAMES[entry.code]}, and nothing in the file says in which format.")
        if scale is not None and entry.code in WIDE and _values(mapped, scale) != [1.0]:
            raise Unfamiliar(f"{where} is {NAMES[entry.code]} and has a scale ({scale}): what it means is unknown.")
        return None
    if len(entry.shape) != 2 and scale is not None:
        raise _no_matrix(where, entry)
    if len(entry.shape) < 2:
        return None  # a norm's
    if scale is None and scaled:
        if entry.name.removesuffix(".weight").endswith(EMBEDDINGS):
            return None
        raise ModelFileError(
            f"{where} is {NAMES[entry.code]} and its scale is missing, while other weights of the file have one."
        )
    if len(entry.shape) != 2:
        return None
    config = {"format": FP8[entry.code]}
    # A marker of two elements: the model was made for products in full precision.
    marker = next((markers[prefix] for prefix in sorted(markers, key=len, reverse=True)
                   if entry.name.startswith(prefix)), None)  # fmt: skip
    if marker is not None and marker.numel == 2:
        config["full_precision_matrix_mult"] = True
    return config


def _check(header, mapped, entry, layer, known):
    where = f"{header.name}: {entry.name}"
    kind = layer.config.get("format") if isinstance(layer.config, dict) else None
    if kind not in known:
        raise ModelFileError(
            f"{header.name}: the layer {layer.name} is in the format {kind!r}, which this ComfyUI doesn't know; it "
            f"knows {', '.join(sorted(known))}."
        )
    if kind not in FORMATS:
        needed = {"nvfp4": ("weight_scale", "weight_scale_2"), "mxfp8": ("weight_scale",)}.get(kind, ())
        for scale in needed:
            if f"{layer.name}.{scale}" not in header.entries:
                raise ModelFileError(f"{where} is {kind} and its scale {layer.name}.{scale} is missing.")
        return
    if FP8.get(entry.code) != kind:
        raise ModelFileError(f"{where} is {NAMES[entry.code]}, and its comfy_quant says {kind}.")
    if len(entry.shape) not in (2, 3) or (len(entry.shape) == 3 and "num_experts" not in layer.config):
        raise _no_matrix(where, entry)
    if layer.scale is None:
        if f"{layer.name}.{CONFIG}" in header.entries or METADATA in header.metadata:
            raise ModelFileError(f"{where} is {kind} and its scale {layer.name}.weight_scale is missing.")
        return
    _check_scale(where, header.entries[layer.scale], entry.shape)
    _check_values(header, mapped, layer.scale)
    if layer.input_scale is not None:
        _check_input_scale(header, mapped, header.entries[layer.input_scale])


def _check_scale(where, scale, shape):
    """One value, or one for each row of the weight (each expert and row of a stack of weights)."""
    per_row = {(shape[0], 1)} if len(shape) == 2 else {shape[:1], (shape[0], 1), (shape[0], 1, 1), (*shape[:2], 1)}
    if scale.code not in WIDE:
        raise ModelFileError(f"{where}: its scale {scale.name} is {NAMES[scale.code]}: no floating-point dtype.")
    if scale.numel != 1 and scale.shape not in per_row:
        raise ModelFileError(
            f"{where} has the shape {shape} and its scale {scale.name} {scale.shape}; one value is expected, or the "
            f"shape {(shape[0], 1)}."
        )


def _check_input_scale(header, mapped, scale):
    if scale.code not in WIDE:
        raise ModelFileError(f"{header.name}: {scale.name} is {NAMES[scale.code]}: no floating-point dtype.")
    if scale.numel != 1:
        raise ModelFileError(f"{header.name}: {scale.name} has the shape {scale.shape}; one value is expected.")
    _check_values(header, mapped, scale.name)


def _check_values(header, mapped, scale):
    wrong = [value for value in _values(mapped, scale) if not (math.isfinite(value) and value >= 0)]
    if wrong:
        raise ModelFileError(f"{header.name}: the scale {scale} is {wrong[0]}, which is no scale.")


def _start(values):
    """What a text that is none begins with: bytes as such, else numbers."""
    try:
        return repr(bytes(values[:60]))
    except (ValueError, TypeError):
        return f"{values[:8]}"


def _values(mapped, name):
    return mapped.tensor(name).double().flatten().tolist()


def _no_matrix(where, entry):
    return ModelFileError(
        f"{where} is {NAMES[entry.code]} with a scale and has {len(entry.shape)} dimensions, {entry.shape}: ComfyUI "
        "scales matrices only and would use it unscaled. Use a file in which it is bfloat16 or float16."
    )


def _scale_of(header, entry):
    return _first(header, entry.name.removesuffix(".weight"), SCALES)


def _first(header, layer, endings):
    return next((f"{layer}.{ending}" for ending in endings if f"{layer}.{ending}" in header.entries), None)


def _is_marker(name):
    return name == MARKER or name.endswith(f".{MARKER}")
