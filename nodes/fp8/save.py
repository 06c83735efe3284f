"""A MODEL as a comfy_quant safetensors file, which any ComfyUI that knows FP8 loads.

What it holds is found out first (`contents`): a model that can't be written so that it is right is refused before there
is a file. Then it is written tensor by tensor. LoRAs on the model are in what is written; what is quantised already
keeps its bytes, so loading and saving again gives the same file.
"""
import os
from dataclasses import dataclass, field

import torch

from ..progress import Hooks
from . import contents as file
from .header import ModelFileError
from .quantize import encode
from .scales import SCALES
from .state import WIDE
from .writer import Writer

LOOKING = 0.4  # the part of the bar for finding out


@dataclass(frozen=True)
class Saved:
    """`layers` {format or dtype: number of weights}; `requantized` layers that had a scale for each row, `kept_rows`
    those that have them still; `unused` patterns that name no layer."""

    path: str
    size: int
    layers: dict
    requantized: list
    kept_rows: list = field(default_factory=list)
    unused: list = field(default_factory=list)


def save(model, path, options, hooks=None):
    """Write MODEL to `path` and return a `Saved`.

    options  `format` and `leave_alone` (see `plan.Options`).

    Raises ModelFileError for a model that can't be written so that it is right, before there is a file, and when the
    disk is too small; nothing is left then.
    """
    from comfy import model_management

    hooks = hooks or Hooks()
    _settle(model)
    device = model_management.get_torch_device()
    linears = _linears(model.model.diffusion_model)

    def state_dict():
        return {**model.state_dict_for_saving(), **_extra(model)}

    made = file.find(path, state_dict, linears, options, device, hooks.part(0.0, LOOKING))
    with Writer(path, made.shapes, file.METADATA) as writer:
        _write(writer, made, state_dict(), device, hooks.part(LOOKING, 1.0))
    requantized = list(made.requantized)
    return Saved(path, os.path.getsize(path), _counts(made.shapes), requantized, made.kept_rows, made.unused)


def _write(writer, made, state, device, hooks):
    for done, (name, tensor) in enumerate(state.items(), 1):
        hooks.tick()
        if name in made.encoded:
            layer, weight = name.removesuffix(".weight"), tensor.to("cpu")
            if layer in made.requantized:
                weight = file.dequantized(weight, made.requantized[layer])
            writer.put(name, encode(weight, made.made[f"{layer}.{SCALES[0]}"], made.shapes[name][0], device))
        elif name not in made.made:
            tensor = tensor.to("cpu")
            writer.put(name, tensor.to(WIDE) if name in made.widened else tensor)
        hooks.progress(done / len(state))
    for name, tensor in made.made.items():
        writer.put(name, tensor)


def _settle(model):
    """Let the weights be this MODEL's: with its LoRAs and the layers put into it, without those of a clone that ran
    before."""
    from comfy import model_management

    current = getattr(model.model, "current_weight_patches_uuid", None)
    if model.patches or model.object_patches or current not in (None, model.patches_uuid):
        try:
            model_management.load_models_gpu([model])
        except AttributeError as problem:  # of weights that are merged and are quantised in one model only
            raise ModelFileError(
                f"ComfyUI can't work out this MODEL's weights ({problem}): merge models of one format, or 16-bit ones. "
                "Nothing was written."
            ) from problem


def _extra(model):
    """What ComfyUI's own save adds for models whose noise schedule is not in their weights."""
    from comfy import model_sampling

    sampling = model.get_model_object("model_sampling")
    extra = {}
    if getattr(sampling, "zsnr", False):
        extra["ztsnr"] = torch.tensor([])
    if isinstance(sampling, model_sampling.ModelSamplingContinuousEDM) and isinstance(
        sampling, model_sampling.V_PREDICTION
    ):
        for name in "sigma_max", "sigma_min":
            extra[f"edm_vpred.{name}"] = torch.tensor(getattr(sampling, name)).float()
    return extra


def _linears(module):
    """The names of ComfyUI's Linear layers: those that load a weight with its scale."""
    marks = ("comfy_cast_weights", "in_features", "out_features")
    return {name for name, part in module.named_modules() if all(hasattr(part, mark) for mark in marks)}


def _counts(shapes):
    counts = {}
    for name, (dtype, _) in shapes.items():
        if name.endswith(".weight"):
            key = str(dtype).removeprefix("torch.")
            counts[key] = counts.get(key, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
