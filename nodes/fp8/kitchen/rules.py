"""Exactly which calls of comfy-kitchen's functions ours take, in comfy-kitchen's own words: its FunctionConstraints.

Eager's constraints on mps, and what our kernels ask beyond them. What a rule refuses goes on to the next backend,
which raises its own error for arguments that are wrong.
"""
import math
from dataclasses import replace

import torch

MX_BLOCK, NV_BLOCK = 32, 16
MPS = frozenset({"mps"})


def constraints_for(function, eager, ready, result):
    """FunctionConstraints of our `function`.

    eager   eager's own for it, from registry.get_constraints.
    ready   kwargs -> None or the reason why the kernel takes no call now; asked last.
    result  the class ValidationResult.
    """
    fits = FITS[function]

    def rule(kwargs):
        problem = fits(kwargs)
        if problem is None:
            problem = _with_reason("__backend__", ready(kwargs))
        return result.ok() if problem is None else result.fail(*problem)

    # A scale of one element may wait on the CPU, where eager's multiplication takes it too.
    params = {
        name: replace(param, devices=MPS | {"cpu"}) if name in ("scale", "per_tensor_scale") else param
        for name, param in eager.params.items()
    }
    return replace(eager, params=params, default_devices=MPS, call_rules=(*_rules(eager), rule))


def _rules(eager):
    return getattr(eager, "call_rules", ())


def _with_reason(name, reason):
    return None if reason is None else (name, reason)


def scale_fits(kwargs):
    """One scale, or one for each row of x, broadcast as eager broadcasts it."""
    x, scale = kwargs["x"], kwargs["scale"]
    if not isinstance(x, torch.Tensor) or not isinstance(scale, torch.Tensor):
        return "scale", "not a tensor"
    if not x.is_contiguous():
        return "x", "not contiguous"
    if scale.device != x.device and scale.dim():
        return "scale", f"on {scale.device}, not on {x.device}"
    if scale.numel() == 1 and scale.dim() <= x.dim():
        return None
    if x.dim() > 1 and tuple(scale.shape) == (x.shape[0], *(1,) * (x.dim() - 1)):
        return None
    return "scale", f"shape {list(scale.shape)} is neither one value nor one a row of {list(x.shape)}"


def random_fits(kwargs):
    x, random = kwargs["x"], kwargs["rng"]
    if random.shape != x.shape:
        return "rng", f"shape {list(random.shape)} is not that of x, {list(x.shape)}"
    return None


def blocks_fit(kwargs):
    columns = kwargs["x"].shape[1]
    if not kwargs.get("pad_32x", False) and columns % MX_BLOCK:
        return "x", f"{columns} columns are no multiple of {MX_BLOCK}"
    return None


def mx_scales_fit(kwargs):
    (rows, columns), scales = kwargs["qx"].shape, kwargs["block_scales"]
    if columns % MX_BLOCK:
        return "qx", f"{columns} columns are no multiple of {MX_BLOCK}"
    return _tiles("block_scales", scales, rows, columns // MX_BLOCK)


def nv_scales_fit(kwargs):
    (rows, columns), scales, scale = kwargs["qx"].shape, kwargs["block_scales"], kwargs["per_tensor_scale"]
    if columns * 2 % NV_BLOCK:
        return "qx", f"{columns * 2} values a row are no multiple of {NV_BLOCK}"
    if scale.numel() != 1 or (scale.dim() and scale.device.type != "mps") or scale.dim() > 2:
        return "per_tensor_scale", f"shape {list(scale.shape)} on {scale.device} is not one value"
    return _tiles("block_scales", scales, rows, columns * 2 // NV_BLOCK)


def _tiles(name, scales, rows, blocks):
    wanted = -(-rows // 128) * 128, -(-blocks // 4) * 4
    if scales.numel() != math.prod(wanted):
        return name, f"{scales.numel()} of them for {rows} rows of {blocks} blocks, to be {math.prod(wanted)}"
    return None


# Our functions, and the check of each. A function that is not here is not ours.
FITS = {
    "dequantize_per_tensor_fp8": scale_fits,
    "quantize_per_tensor_fp8": scale_fits,
    "stochastic_rounding_fp8": random_fits,
    "quantize_mxfp8": blocks_fit,
    "dequantize_mxfp8": mx_scales_fit,
    "dequantize_nvfp4": nv_scales_fit,
}
