"""What ComfyUI makes of the older scaled files, and how it changes a weight."""
import torch


def convert_old_quants(state_dict, model_prefix="", metadata=None):
    return state_dict, metadata


def set_attr_param(obj, attr, value):
    """ComfyUI clones the other way round too: what was made in inference mode and is put back outside."""
    if not torch.is_inference_mode_enabled() and value.is_inference():
        value = value.clone()
    setattr(obj, attr, torch.nn.Parameter(value, requires_grad=False))
