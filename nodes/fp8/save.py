"""A MODEL as a comfy_quant safetensors file, which any ComfyUI that knows FP8 loads.

What is quantised already is written as it is, so loading and saving again gives the same bytes. What isn't gets one
scale a tensor: a scale a row is not read by ComfyUI's CUDA kernels. LoRAs on the model are in what is written.
"""
import os
from dataclasses import dataclass

import torch

from ..progress import Hooks
from . import found, plan
from .formats import FORMATS
from .header import ModelFileError
from .layers import CONFIG
from .quantize import PER_TENSOR, quantize
from .scales import SCALES
from .state import config_tensor
from .writer import Writer

METADATA = {"format": "pt"}


@dataclass(frozen=True)
class Saved:
    """`layers` {format or dtype: number of weights}; `requantized` layers that had a scale for each row."""

    path: str
    size: int
    layers: dict
    requantized: list


def save(model, path, options, hooks=None):
    """Write MODEL to `path` and return a `Saved`.

    options  `format` and `leave_alone` (see `plan.Options`).

    Raises ModelFileError for a layer that holds NaN or infinity, and when the disk is too small; nothing is left then.
    """
    from comfy import model_management

    hooks = hooks or Hooks()
    _settle(model)
    state = {**model.state_dict_for_saving(), **_extra(model)}
    linears = _linears(model.model.diffusion_model)
    patterns, dtype = plan.lines(options.leave_alone), getattr(torch, options.format)
    device = model_management.get_torch_device()

    fresh, again, shapes = [], [], {}
    for name, tensor in state.items():
        layer = name.removesuffix(".weight")
        known = f"{layer}.{CONFIG}" in state
        shapes[name] = (tensor.dtype, tuple(tensor.shape))
        if layer == name:
            continue
        if known and _per_row(state, layer, tensor):
            again.append(name)
        elif not known and _is_linear(name, linears) and tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
            if not plan.fits(layer, patterns):
                fresh.append(name)
    for name in fresh:
        shapes[name] = (dtype, shapes[name][1])
    for name in (*fresh, *again):
        layer = name.removesuffix(".weight")
        shapes[f"{layer}.{SCALES[0]}"] = (torch.float32, ())
    texts = {f"{name.removesuffix('.weight')}.{CONFIG}": config_tensor({"format": options.format}) for name in fresh}
    shapes.update({name: (text.dtype, tuple(text.shape)) for name, text in texts.items()})

    with Writer(path, shapes, METADATA) as writer:
        work, replaced = {*fresh, *again}, {f"{name.removesuffix('.weight')}.{SCALES[0]}" for name in again}
        for done, (name, tensor) in enumerate(state.items(), 1):
            hooks.tick()
            if name in work:
                _put_quantized(writer, state, name, dtype if name in fresh else tensor.dtype, device)
            elif name not in replaced:
                writer.put(name, tensor.to("cpu"))
            hooks.progress(done / len(state))
        for name, text in texts.items():
            writer.put(name, text)
    return Saved(path, os.path.getsize(path), _counts(shapes), [name.removesuffix(".weight") for name in again])


def _put_quantized(writer, state, name, dtype, device):
    layer = name.removesuffix(".weight")
    weight, scale = state[name].to("cpu"), state.get(f"{layer}.{SCALES[0]}")
    if scale is not None:
        weight = weight.float() * scale.to("cpu").float()
    made = quantize(weight, dtype, PER_TENSOR, device)
    if made is None:
        raise ModelFileError(f"{layer} holds NaN or infinity: name it among the layers to leave alone.")
    writer.put(name, made[0])
    writer.put(f"{layer}.{SCALES[0]}", made[1])


def _settle(model):
    """Let the weights be this MODEL's: with its LoRAs in, and without those of a clone that ran before."""
    from comfy import model_management

    current = getattr(model.model, "current_weight_patches_uuid", None)
    if model.patches or current not in (None, model.patches_uuid):
        model_management.load_models_gpu([model])


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


def _is_linear(name, linears):
    return bool(found.without_prefix(name.removesuffix(".weight")) & linears)


def _per_row(state, layer, tensor):
    scale = state.get(f"{layer}.{SCALES[0]}")
    kind = str(tensor.dtype).removeprefix("torch.")
    rows = tuple(tensor.shape[:1]) + (1,)  # MXFP8 is e4m3fn too, with scales in another shape
    return kind in FORMATS and scale is not None and scale.numel() > 1 and tuple(scale.shape) == rows


def _counts(shapes):
    counts = {}
    for name, (dtype, _) in shapes.items():
        if name.endswith(".weight"):
            key = str(dtype).removeprefix("torch.")
            counts[key] = counts.get(key, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
