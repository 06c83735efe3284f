"""Which weights of a file are quantised, in which format, and where their scales are.

Three kinds of file are in use: plain ones (FP8 values that are the weights themselves), `scaled_fp8` ones (a tensor of
that name, `.scale_weight` beside each weight), and `comfy_quant` ones (a JSON text a layer, as a tensor or all together
in the metadata, `.weight_scale` beside each weight). Whatever a file is called, an FP8 weight with a scale beside it is
taken times that scale, and one without is only believed where no weight of its model has a scale, or where it is an
embedding, which the tools that scale leave alone. A checkpoint holds several models, each of a kind of its own.
"""
from dataclasses import dataclass, field

from .farther import TREES
from .formats import FP8, check, no_matrix, scale_of, used
from .header import NAMES, ModelFileError, Unfamiliar, parsed
from .scales import INPUT_SCALES, SCALES, WIDE, check_pair, check_strays, first, names_a_weight

OTHER_FLOAT8 = ("F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0")  # which neither ComfyUI nor a Mac computes with
MARKER, CONFIG, METADATA = "scaled_fp8", "comfy_quant", "_quantization_metadata"
QUANTIZATION = "quantization_config"  # transformers' word, in the metadata
LONGEST = 1_000_000  # bytes of a comfy_quant text
# Embeddings of text encoders; the last two by that name only at the top of a model (a block may have a layer `shared`).
EMBEDDINGS = ("embed_tokens", "token_embedding", "position_embedding", "relative_attention_bias")
TOP_EMBEDDINGS = ("shared", "wte")
TOP = frozenset(("transformer", "model", "encoder", "decoder", "text_model", "language_model"))

# What the names of a checkpoint's models begin with; of some it holds several, told apart by what follows.
MODEL = "model.diffusion_model."
ENCODERS, SEVERAL_ENCODERS = ("cond_stage_model.",), ("text_encoders.", "conditioner.embedders.")
VAES = ("first_stage_model.", "vae.")


@dataclass(frozen=True)
class Layer:
    """A quantised layer. `weight`, `scale`, `input_scale` are names in the file; no scale means that it is 1.

    config    what comfy_quant says of it; `format` is among that.
    declared  whether the file says so itself.
    """

    name: str
    weight: str
    scale: str | None = None
    input_scale: str | None = None
    config: dict = field(default_factory=dict)
    declared: bool = False

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

    mapped  the file's tensors (`Mapped`); only comfy_quant texts and scales are read, and weights with a scale of 0.
    known   the names of the formats that this ComfyUI can run, or a mapping from them to what it says of each.
    strict  False: what has no scale and is neither FP8 nor comfy_quant is passed over.

    Raises ModelFileError for an unknown format, for scales that are missing, of the wrong shape or no numbers, for a
    scale of which is not known how it is to be used, and for scaled FP8 where ComfyUI applies no scale (convolutions).
    """
    configs = _configs(header, mapped)
    markers = {name[: -len(MARKER)]: entry for name, entry in header.entries.items() if _is_marker(name)}
    weights = [entry for name, entry in header.entries.items() if name.endswith(".weight")]
    scaled = _scaled(header, weights, markers, configs)
    found, taken = {}, set()
    for entry in weights:
        name = entry.name.removesuffix(".weight")
        config, declared = configs.get(name), name in configs
        if not declared:
            config = _implied(header, entry, scaled, markers)
        if declared or config is not None:
            _check_format(header, name, config, known)
            scale = scale_of(header, name, config)
            layer = Layer(name, entry.name, scale, first(header, name, INPUT_SCALES), config, declared)
            for endings in SCALES, INPUT_SCALES:
                check_pair(header, mapped, name, endings)
            check(header, mapped, entry, layer, known)
            found[name] = layer
            taken |= used(header, layer, known)
    check_strays(header, mapped, taken)
    rest = [entry for name, entry in header.entries.items() if name.removesuffix(".weight") not in found]
    _check_others(header, rest, scaled)
    if strict:
        _check_familiar(header, rest)
    return found


def _scaled(header, weights, markers, configs):
    """{part of the file: how it is known that its FP8 weights have scales}."""
    there = {entry.name for entry in weights}
    scaled = {part(layer): "the file's comfy_quant names a layer that it does not hold"
              for layer in configs if f"{layer}.weight" not in there}  # fmt: skip
    scaled |= {part(name): "the file holds scales of weights that it does not hold"
               for name in header.entries if names_a_weight(header, name)}  # fmt: skip
    said = [key for key in header.metadata if key in (QUANTIZATION, *TREES)]
    if said:
        scaled[""] = f"the file's metadata has {said[0]}"
    scaled |= {part(name): "the file's scaled_fp8 says that it has one" for name in markers}
    return scaled | {part(entry.name): "other weights of the file have one"
                     for entry in weights if entry.code in FP8 and _has_scale(header, entry)}  # fmt: skip


def _configs(header, mapped):
    """{layer name: what comfy_quant says}."""
    configs = {}
    if METADATA in header.metadata:
        try:
            configs.update(parsed(header.metadata[METADATA])["layers"].items())
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise ModelFileError(f"{header.name}: its metadata's {METADATA} can't be read ({problem!r}).") from problem
    for name in header.entries:
        if name.endswith(f".{CONFIG}"):
            entry, layer = header.entries[name], name.removesuffix(f".{CONFIG}")
            if entry.numel > LONGEST:
                raise ModelFileError(f"{header.name}: {name} is no JSON text but {entry.numel:,} values.")
            try:
                values = mapped.tensor(name).flatten().tolist()
            except RuntimeError as problem:  # dtypes that torch only stores
                raise ModelFileError(f"{header.name}: {name} is no JSON text but {NAMES[entry.code]}.") from problem
            try:
                config = parsed(bytes(values))
            except (ValueError, TypeError) as problem:  # TypeError: numbers that are no bytes
                raise ModelFileError(f"{header.name}: {name} is no JSON text but {_start(values)}.") from problem
            said = configs.setdefault(layer, config)
            if said != config:
                raise ModelFileError(
                    f"{header.name} contradicts itself: its metadata says {said!r:.80} of {layer}, and {name} "
                    f"{config!r:.80}."
                )
    return configs


def _check_format(header, layer, config, known):
    kind = config.get("format") if isinstance(config, dict) else config
    if not isinstance(config, dict) or not isinstance(kind, str) or kind not in known:
        raise ModelFileError(
            f"{header.name}: the layer {layer} is in the format {kind!r:.60}, which this ComfyUI doesn't know; it "
            f"knows {', '.join(sorted(known))}."
        )


def _implied(header, entry, scaled, markers):
    """The config of a weight that has none, None for one that isn't quantised."""
    where, scale = f"{header.name}: {entry.name}", first(header, entry.name.removesuffix(".weight"), SCALES)
    if entry.code not in FP8:
        return None
    if len(entry.shape) != 2 and scale is not None:
        raise no_matrix(where, entry)
    if len(entry.shape) < 2:
        return None  # a norm's
    why = scaled.get(part(entry.name), scaled.get(""))
    if scale is None and why:
        if len(entry.shape) == 2 and first(header, entry.name.removesuffix(".weight"), INPUT_SCALES) is None:
            if _is_embedding(entry.name.removesuffix(".weight")):
                return None
        raise _missing(where, entry, why)
    if len(entry.shape) != 2:
        return None
    config = {"format": FP8[entry.code]}
    # A marker of two elements: the model was made for products in full precision.
    marker = next((markers[prefix] for prefix in sorted(markers, key=len, reverse=True)
                   if entry.name.startswith(prefix)), None)  # fmt: skip
    if marker is not None and marker.numel == 2:
        config["full_precision_matrix_mult"] = True
    return config


def _check_others(header, entries, scaled):
    """No FP8 without a scale that is no layer's weight, but computed with like one, where the others have scales."""
    for entry in entries:
        last, why = entry.name.rpartition(".")[2], scaled.get(part(entry.name), scaled.get(""))
        fp8 = entry.code in OTHER_FLOAT8 or (
            entry.code in FP8 and last != "weight" and ("weight" in last.lower() or last.endswith("proj")))
        if fp8 and len(entry.shape) >= 2 and why:
            raise _missing(f"{header.name}: {entry.name}", entry, why)


def _check_familiar(header, entries):
    """No matrices in dtypes that only ever hold quantised values, where nothing says how."""
    for entry in entries:
        narrow = entry.name.endswith(".weight") and entry.code not in (*FP8, *WIDE)
        if len(entry.shape) >= 2 and (narrow or entry.code in OTHER_FLOAT8):
            raise Unfamiliar(
                f"{header.name}: {entry.name} is {NAMES[entry.code]}, and nothing in the file says in which format."
            )


def _missing(where, entry, scaled):
    return ModelFileError(f"{where} is {NAMES[entry.code]} and its scale is missing, while {scaled}.")


def _is_embedding(layer):
    above, _, last = layer.removeprefix(part(layer)).rpartition(".")
    return last in EMBEDDINGS or (last in TOP_EMBEDDINGS and set(above.split(".")) - {""} <= TOP)


def _start(values):
    """What a text that is none begins with: bytes as such, else numbers."""
    try:
        return repr(bytes(values[:60]))
    except (ValueError, TypeError):
        return f"{values[:8]}"


def _has_scale(header, entry):
    return first(header, entry.name.removesuffix(".weight"), (*SCALES, *INPUT_SCALES)) is not None


def _is_marker(name):
    return name == MARKER or name.endswith(f".{MARKER}")
