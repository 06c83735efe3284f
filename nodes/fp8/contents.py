"""What a file of a MODEL will hold: found out, and checked, before the first byte of it is written.

Each tensor of the model is one of these:

* The weight of a Linear layer in 16 or 32 bits: becomes FP8 with one scale, unless a pattern leaves it alone.
* An FP8 weight with its comfy_quant text: its values stay. Scales for each row become one for the layer, for ComfyUI's
  CUDA kernels read no others, unless a pattern of the user's own leaves the layer alone.
* An FP8 weight of a Linear layer without a text, as ComfyUI holds them when it is asked for FP8: its values stay, and a
  text and the scale 1 say what they are.
* What else is in FP8 without a text: to ComfyUI no quantised weight. It becomes bfloat16, which holds it exactly.
* Anything else stays as it is.

Nothing in FP8 or beside it is NaN or infinite, and nothing is what the loaders refuse.
"""
import os
from dataclasses import dataclass, field

import torch

from . import found, layers, plan
from .formats import FORMATS
from .header import BITS, CODES, Entry, Header, ModelFileError
from .layers import CONFIG
from .quantize import PER_TENSOR, magnitudes, scale_of
from .scales import SCALES
from .state import WIDE, config_tensor

METADATA = {"format": "pt"}
FP8 = tuple(getattr(torch, name) for name in FORMATS)


@dataclass
class Contents:
    """`shapes` {name: (dtype, shape)} of the whole file. Of that, `made` {name: tensor} are texts and scales, new or
    read, `encoded` the weights to be made FP8 by the scale among `made`, `widened` what becomes bfloat16; the rest is
    the model's as it is.

    requantized  {layer: the scales for each row that it had}; `kept_rows` the layers that keep theirs.
    unused       the user's patterns that name no layer.
    """

    shapes: dict = field(default_factory=dict)
    made: dict = field(default_factory=dict)
    encoded: set = field(default_factory=set)
    widened: set = field(default_factory=set)
    requantized: dict = field(default_factory=dict)
    kept_rows: list = field(default_factory=list)
    unused: list = field(default_factory=list)


def find(path, state_dict, linears, options, device, hooks):
    """The `Contents` of a file at `path`.

    state_dict  gives the model's {name: tensor}, anew at each call: of ComfyUI's a tensor can be read once.
    linears     the names of ComfyUI's Linear layers, which load a weight with its scale.
    options     `format` and `leave_alone` (see `plan.Options`).
    device      where scales are computed.

    Raises ModelFileError, in a sentence that says what helps, for what can't be written so that it is right.
    """
    from comfy.quant_ops import QUANT_ALGOS

    state, contents = state_dict(), Contents()
    patterns = plan.lines(options.leave_alone)
    own, dtype = plan.own(patterns), getattr(torch, options.format)
    for done, (name, tensor) in enumerate(state.items(), 1):
        hooks.tick()
        hooks.progress(done / len(state))
        layer, _, kind = name.rpartition(".")
        known, linear = f"{layer}.{CONFIG}" in state, kind == "weight" and _is_linear(layer, linears)
        if name in contents.made:
            continue
        contents.shapes[name] = tensor.dtype, tuple(tensor.shape)
        beside = known and kind not in ("weight", "bias")
        if tensor.dtype in FP8 and kind == "weight" and (known or linear):
            _add_fp8(contents, state, layer, known, own, device)
        elif tensor.dtype in FP8 and not beside:
            contents.widened.add(name)
            contents.shapes[name] = WIDE, tuple(tensor.shape)
        elif beside:
            value = tensor.to("cpu")
            if tensor.dtype in FP8:
                _refuse_unless_finite(layer, magnitudes(value))
            _add(contents, name, value)
        elif linear and not known and _is_wide(tensor) and not plan.fits(layer, patterns):
            _add_scale(contents, layer, tensor.to("cpu"), dtype, device)
            _add(contents, f"{layer}.{CONFIG}", config_tensor({"format": options.format}))
    contents.unused = plan.unused(patterns, plan.layers_of(state))
    _check(path, contents, state_dict, QUANT_ALGOS)
    return contents


def _add_fp8(contents, state, layer, known, own, device):
    """A layer whose weight is FP8: `known` where it has its comfy_quant text."""
    values, scale, beside = state[f"{layer}.weight"].to("cpu"), None, f"{layer}.{SCALES[0]}"
    if not known:
        scale = torch.ones(())
        _add(contents, f"{layer}.{CONFIG}", config_tensor({"format": str(values.dtype).removeprefix("torch.")}))
        _add(contents, beside, scale)
    elif beside in state:
        scale = contents.made[beside] if beside in contents.made else state[beside].to("cpu")
        _add(contents, beside, scale)
    wide = scale is not None and scale.dtype.is_floating_point and scale.dtype.itemsize > 1  # MXFP8's are bytes
    per_row = wide and values.dim() == 2 and scale.numel() > 1 and tuple(scale.shape) == (values.shape[0], 1)
    _refuse_unless_finite(layer, _largest(values, scale.float() if wide else None))
    if per_row and values.numel() and plan.fits(layer, own):
        contents.kept_rows.append(layer)
    elif per_row and values.numel():
        contents.requantized[layer] = scale
        _add_scale(contents, layer, dequantized(values, scale), values.dtype, device)


def _largest(values, scale):
    """float32 [rows, 1]: the largest magnitude in each row. scale: one, one a row, or of a stack [experts, rows,
    columns] one an expert or one a row; of another form it is the loaders' check that refuses it."""
    largest = magnitudes(values.flatten(0, -2) if values.dim() > 1 else values)
    if scale is None or not values.numel():
        return largest
    if scale.numel() == 1:
        return largest * scale.reshape(1, 1)
    rows = (*values.shape[:-1], 1)
    if scale.numel() == values.shape[0]:
        scale = scale.reshape(-1, *(1,) * (values.dim() - 1))
    fits = scale.dim() == len(rows) and all(own in (1, whole) for own, whole in zip(scale.shape, rows, strict=True))
    return largest * scale.expand(rows).reshape(-1, 1) if fits else largest


def _finite(largest):
    """In bfloat16 too: with no wider ones ComfyUI multiplies."""
    return bool(torch.isfinite(largest.to(WIDE)).all())


def _refuse_unless_finite(layer, largest):
    if not _finite(largest):
        raise ModelFileError(
            f"{layer} is FP8 and holds NaN or infinity, which leaving it alone would keep: take off the LoRA that "
            "brings them, or load the model from another file. Nothing was written."
        )


def dequantized(values, scale):
    """float32 [rows, columns] of FP8 values and the scales of their rows."""
    return values.float() * scale.float()


def _add(contents, name, tensor):
    contents.made[name], contents.shapes[name] = tensor, (tensor.dtype, tuple(tensor.shape))


def _add_scale(contents, layer, weight, dtype, device):
    """The weight becomes FP8."""
    scale = scale_of(weight, dtype, PER_TENSOR, device)
    if scale is None or not _finite(scale * torch.finfo(dtype).max):
        raise ModelFileError(
            f"{layer} holds NaN or infinity: name it among the layers to leave alone. Nothing was written."
        )
    _add(contents, f"{layer}.{SCALES[0]}", scale)
    contents.encoded.add(f"{layer}.weight")
    contents.shapes[f"{layer}.weight"] = dtype, tuple(weight.shape)


def _is_linear(layer, linears):
    return bool(found.without_prefix(layer) & linears)


def _is_wide(tensor):
    return tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1 and tensor.dim() == 2 and tensor.numel() > 0


class _Unwritten:
    """The file as the loaders will see it (see `mapped.Mapped`)."""

    def __init__(self, header, made, state_dict):
        self.header, self._made, self._state_dict = header, made, state_dict

    def tensor(self, name):
        return self._made[name] if name in self._made else self._state_dict()[name].to("cpu")


def _check(path, contents, state_dict, known):
    """That the loaders take it: by the very function with which they look at a file."""
    entries = {}
    for name, (dtype, shape) in contents.shapes.items():
        if CODES.get(dtype) in layers.OTHER_FLOAT8 and f"{name.rpartition('.')[0]}.{CONFIG}" not in contents.shapes:
            raise ModelFileError(f"{name} is {dtype}, which no loader of FP8 files takes. Nothing was written.")
        if dtype not in CODES:
            raise ModelFileError(f"{name} is {dtype}, which no safetensors file can hold. Nothing was written.")
        entries[name] = Entry(name, CODES[dtype], shape, 0, torch.Size(shape).numel() * BITS[CODES[dtype]] // 8)
    header = Header(path, os.path.basename(path), 0, entries, METADATA)
    try:
        layers.recognise(header, _Unwritten(header, contents.made, state_dict), known, strict=False)
    except ModelFileError as problem:
        raise ModelFileError(
            f"This model makes no file that a loader would take. {problem} Nothing was written."
        ) from problem
