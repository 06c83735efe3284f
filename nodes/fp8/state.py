"""A plan carried out: the state dict that ComfyUI's own loaders take, views of the file wherever nothing changes."""
import json

import torch

from .layers import CONFIG
from .plan import KEEP, QUANTIZE
from .quantize import quantize
from .scales import SCALES

ALSO = ("weight_scale_2", "pre_quant_scale", "weight_s_rel", "weight_s_channel", "weight_codebook")
WIDE = torch.bfloat16  # holds every FP8 value exactly


def state_dict(mapped, plan, options, device, hooks):
    """({name: CPU tensor}, [layers that could not be quantised]) for a file's `Plan`.

    mapped  the file's tensors (`Mapped`).
    device  where quantising and scaling are done.
    hooks   `tick` raises to cancel, `progress` takes 0 to 1 (see `progress.Hooks`).

    A layer that holds NaN or infinity is not quantised. What is neither quantised nor cast is a view of the file.
    """
    state, failed, done = {}, [], 0
    total = sum(mapped.header.entries[step.source].nbytes for step in plan.steps) or 1
    for step in plan.steps:
        hooks.tick()
        tensor = mapped.tensor(step.source)
        if step.action == QUANTIZE:
            if not _add_quantized(state, step, tensor, options, device):
                failed.append(step.source.removesuffix(".weight"))
                state[step.target] = tensor
        elif step.action == KEEP:
            state[step.target] = tensor
        else:
            state[step.target] = _wide(tensor, step.scale and mapped.tensor(step.scale))
        done += mapped.header.entries[step.source].nbytes
        hooks.progress(done / total)
    for layer in plan.layers.values():
        _add_layer(state, layer)
    return state, failed


def config_tensor(config):
    """comfy_quant's tensor: uint8, the bytes of a JSON text."""
    return torch.tensor(list(json.dumps(config).encode()), dtype=torch.uint8)


def _wide(tensor, scale):
    """An FP8 tensor in bfloat16, times its scale if there is one."""
    return tensor.to(WIDE) if scale is None else tensor.float().mul_(scale.float()).to(WIDE)


def _add_quantized(state, step, tensor, options, device):
    made = quantize(tensor, getattr(torch, options.format), options.quantize, device)
    if made is None:
        return False
    name = step.target.removesuffix(".weight")
    state[step.target], state[f"{name}.{SCALES[0]}"] = made
    state[f"{name}.{CONFIG}"] = config_tensor({"format": options.format})
    return True


def _add_layer(state, layer):
    """What ComfyUI wants beside a quantised weight: a scale, also where it is 1, and the comfy_quant text."""
    scale = f"{layer.name}.{SCALES[0]}"
    if layer.scale is None and layer.format.startswith("float8"):
        state[scale] = torch.ones((), dtype=torch.float32)
    elif layer.scale is not None and layer.format.startswith("float8"):
        state[scale] = state[scale].float().reshape(() if state[scale].numel() == 1 else state[scale].shape)
    given = f"{layer.name}.input_scale"
    for name in [name for name in (scale, given, *(f"{layer.name}.{more}" for more in ALSO)) if name in state]:
        if state[name].dtype is torch.float64:
            state[name] = state[name].float()  # MPS has no float64
    if given in state and state[given].numel() == 1 and float(state[given]) == 1.0:
        del state[given]  # as ComfyUI does: 1 is no scale
    state[f"{layer.name}.{CONFIG}"] = config_tensor(layer.config)


