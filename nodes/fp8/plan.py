"""What becomes of each tensor of a file on its way into a model, and what the model will take.

A pattern names layers to leave alone when quantising: a shell pattern (`*`, `?`, `[...]`), in any case of letters, that
fits a layer's name or the end of one, cut at a dot. So `img_in` fits `model.diffusion_model.img_in`, and `*norm*` any
layer with `norm` in its name.
"""
import fnmatch
from dataclasses import dataclass, field

from ..given import described
from .formats import FP8
from .header import BITS, ModelFileError
from .layers import CONFIG, MARKER, VAES
from .scales import INPUT_SCALES, SCALES, WIDE

AS_STORED, PER_TENSOR, PER_ROW = "as stored", "per tensor", "per row"
CHOICES = (AS_STORED, PER_TENSOR, PER_ROW)
KEEP, CAST, QUANTIZE = "keep", "cast", "quantize"

# Norms, embedders, modulation and final layers, by the names that they have in Flux, Wan, Qwen-Image, Z-Image, SD3,
# SDXL, LTX, Hunyuan, Chroma, and in the text encoders.
LEAVE_ALONE = """\
*norm*
*embed*
img_in
txt_in
time_in.*
vector_in.*
guidance_in.*
time_projection.*
*patchify_proj
*caption_projection*
img_emb.*
label_emb.*
*emb_layers*
*_mod.*
*modulation*
*adaln*
distilled_guidance_layer.*
final_layer*
head.*
proj_out
out.*
lm_head
shared
*relative_attention_bias*
*text_projection*
"""

# Parts of a checkpoint that are no diffusion model and no text encoder.
_ELSEWHERE = (*VAES, "vocoder.", "audio_vae.", "model_ema.")


@dataclass(frozen=True)
class Options:
    """What the user asked for: `quantize` among CHOICES, `format` a float8 name, `leave_alone` patterns, one a line."""

    quantize: str = AS_STORED
    format: str = "float8_e4m3fn"
    leave_alone: str = LEAVE_ALONE

    def __post_init__(self):
        if self.quantize not in CHOICES:
            raise ModelFileError(f"quantize is {self.quantize!r}: it must be one of {', '.join(CHOICES)}.")
        if self.format not in FP8.values():
            raise ModelFileError(f"format is {self.format!r}: it must be one of {', '.join(FP8.values())}.")
        if not isinstance(self.leave_alone, str):
            said = described(self.leave_alone)
            raise ModelFileError(f"leave_alone is {said}: it must be a text, one pattern a line.")


@dataclass(frozen=True)
class Step:
    """One tensor: KEEP, CAST (to bfloat16, times `scale`) or QUANTIZE the entry `source`.

    target  its name for ComfyUI.
    scale   the entry with its scale, for an FP8 weight that ends up wide.
    """

    action: str
    source: str
    target: str
    scale: str | None = None


@dataclass
class Plan:
    """`steps` in the file's order; `layers` as `recognise` found them; `left_alone` the layers that a pattern named;
    `unused` the user's patterns that name no layer, where any are asked.

    resident  bytes that the model will take: an estimate, for what ComfyUI does to wide tensors is its own choice.
    """

    steps: list = field(default_factory=list)
    layers: dict = field(default_factory=dict)
    left_alone: list = field(default_factory=list)
    unused: list = field(default_factory=list)
    resident: int = 0

    @property
    def quantized(self):
        return [step.source.removesuffix(".weight") for step in self.steps if step.action == QUANTIZE]


def make(header, layers, options, avoid=frozenset()):
    """The `Plan` for a file whose quantised layers are `layers`. Layers named in `avoid` end up wide."""
    plan = Plan(layers={name: layer for name, layer in layers.items() if name not in avoid})
    patterns = lines(options.leave_alone)
    by_source = _sources(plan.layers)
    widened = {layer.weight: layer for name, layer in layers.items() if name in avoid}
    gone = _sources({layer.name: layer for layer in widened.values()}).keys() - widened.keys()
    for entry in header.entries.values():
        name = entry.name
        if name in gone or _is_consumed(name, layers):
            continue
        if name not in by_source and _is_second(name, plan.layers):
            continue
        if name in by_source:
            step = Step(KEEP, name, by_source[name])
        elif name in widened:
            step = Step(CAST, name, name, widened[name].scale)
        else:
            step = Step(_wide(entry, options, patterns, avoid, plan), name, name)
        plan.steps.append(step)
        plan.resident += _bytes(entry, step.action, options)
    if options.quantize != AS_STORED:
        plan.unused = unused(patterns, layers_of(header.entries))
    return plan


def lines(text):
    """The patterns of a text, one a line; empty lines and what follows a # are left out."""
    return [line for line in (line.split("#")[0].strip().lower() for line in text.splitlines()) if line]


def fits(name, patterns):
    """Whether a layer's name, or an end of it cut at a dot, fits one of the patterns."""
    parts = name.lower().split(".")
    ends = [".".join(parts[at:]) for at in range(len(parts))]
    return any(fnmatch.fnmatchcase(end, pattern) for pattern in patterns for end in ends)


def own(patterns):
    """Those that are not in the list that the nodes come with, of which most name nothing in any one model."""
    given = set(lines(LEAVE_ALONE))
    return [pattern for pattern in patterns if pattern not in given]


def layers_of(names):
    """The layers of these tensors: what has a weight."""
    return [name.removesuffix(".weight") for name in names if name.endswith(".weight")]


def unused(patterns, names):
    """The user's own patterns that fit none of these layers: misspelt, or meant for another model."""
    return [pattern for pattern in own(patterns) if not any(fits(name, [pattern]) for name in names)]


def _wide(entry, options, patterns, avoid, plan):
    """The action for a tensor that the file doesn't call quantised."""
    owner = plan.layers.get(entry.name.rpartition(".")[0])
    if owner is not None and owner.format not in FP8.values():
        return KEEP  # scales of another format, which may be FP8 themselves
    if entry.code in FP8:
        return CAST
    name = entry.name.removesuffix(".weight")
    if options.quantize == AS_STORED or entry.code not in WIDE or len(entry.shape) != 2 or name == entry.name:
        return KEEP
    if name in avoid or not entry.numel or name.startswith(_ELSEWHERE):
        return KEEP
    if fits(name, patterns):
        plan.left_alone.append(name)
        return KEEP
    return QUANTIZE


def _sources(layers):
    """{name in the file: name for ComfyUI} of what belongs to quantised layers, their comfy_quant texts left out."""
    names = {}
    for layer in layers.values():
        names[layer.weight] = layer.weight
        if layer.scale is not None:
            old = layer.scale.removeprefix(f"{layer.name}.") in SCALES
            names[layer.scale] = f"{layer.name}.{SCALES[0]}" if old else layer.scale
        if layer.input_scale is not None:
            names[layer.input_scale] = f"{layer.name}.{INPUT_SCALES[0]}"
    return names


def _is_consumed(name, layers):
    """Markers and comfy_quant texts of known layers, which are written anew."""
    return name == MARKER or name.endswith(f".{MARKER}") or (
        name.endswith(f".{CONFIG}") and name.removesuffix(f".{CONFIG}") in layers
    )


def _is_second(name, layers):
    """The same scale once more, under its other name."""
    layer, _, ending = name.rpartition(".")
    return layer in layers and ending in (*SCALES, *INPUT_SCALES) and layers[layer].format in FP8.values()


def _bytes(entry, action, options):
    if action == KEEP:
        return min(entry.nbytes, 2 * entry.numel) if entry.code in WIDE else entry.nbytes
    if action == CAST:
        return 2 * entry.numel
    return entry.numel * BITS["F8_E4M3"] // 8 + 4 * (entry.shape[0] if options.quantize == PER_ROW else 1)
