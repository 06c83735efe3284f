"""What ComfyUI's loaders want beside a scaled FP8 weight, put there where a file says it in other words.

They look for `.weight_scale` and for a comfy_quant text, which comfy.utils.convert_old_quants makes for `scaled_fp8`
files. It reads every such file as float8_e4m3fn, and makes no text where a file has the scales alone.
"""
import json

import torch

from .formats import FORMATS
from .header import ModelFileError
from .layers import CONFIG, MARKER
from .scales import INPUT_SCALES, SCALES
from .state import config_tensor

FP8 = {getattr(torch, name): name for name in FORMATS}
RENAMED = ((SCALES[1], SCALES[0]), (INPUT_SCALES[1], INPUT_SCALES[0]))  # older name, today's


def names(state):
    """The layers that have a comfy_quant text."""
    return {name.removesuffix(f".{CONFIG}") for name in state if name.endswith(f".{CONFIG}")}


def put_right(state, layers):
    """Of `layers`, whose texts were made for a `scaled_fp8` file: let each name the format that its weight is in.

    A weight that is not FP8 and whose scale is 1 is what it is, without a text. Raises ModelFileError where it isn't.
    """
    for layer in layers:
        weight, scale = state.get(f"{layer}.weight"), state.get(f"{layer}.{SCALES[0]}")
        if weight is None:
            continue
        if weight.dtype in FP8:
            said = json.loads(bytes(state[f"{layer}.{CONFIG}"].tolist()))
            state[f"{layer}.{CONFIG}"] = config_tensor({**said, "format": FP8[weight.dtype]})
        elif scale is None or bool((scale == 1).all()):
            for ending in (CONFIG, SCALES[0]):
                state.pop(f"{layer}.{ending}", None)
        else:
            kind = str(weight.dtype).removeprefix("torch.")
            raise ModelFileError(f"{layer}.weight is {kind} and has a scale: what it means is unknown.")


def complete(state):
    """Give every FP8 matrix that has a scale today's names, and a text where it has none.

    What lies below a marker that ComfyUI has yet to come to, a text encoder's in a checkpoint, is left to it.
    """
    later = tuple(name.removesuffix(MARKER) for name in state if name.endswith(f".{MARKER}"))
    marker = state.get(MARKER)
    for name in [name for name in state if name.endswith(".weight")]:
        layer = name.removesuffix(".weight")
        weight, text = state[name], state.get(f"{layer}.{CONFIG}")
        scaled = any(f"{layer}.{ending}" in state for ending in SCALES)
        if not scaled or weight.dtype not in FP8 or weight.dim() != 2 or (later and layer.startswith(later)):
            continue
        for old, new in RENAMED:
            if f"{layer}.{old}" in state:
                value = state.pop(f"{layer}.{old}")
                if new == SCALES[0] or bool((value != 1).any()):  # an input's scale of 1 is none
                    state.setdefault(f"{layer}.{new}", value)
        for _, ending in RENAMED:
            value = state.get(f"{layer}.{ending}")
            if value is not None and value.dtype is torch.float64:  # which no Mac's GPU has
                state[f"{layer}.{ending}"] = value.float()
        if text is None:
            config = {"format": FP8[weight.dtype]}
            if marker is not None and marker.numel() == 2:
                config["full_precision_matrix_mult"] = True
            state[f"{layer}.{CONFIG}"] = config_tensor(config)
