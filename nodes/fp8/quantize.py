"""A wide matrix as FP8 with a scale, row by row of the work on the device, in bounded memory.

Plain torch operations in float32: multiply, clamp, cast. On MPS the cast is this pack's kernel, with its self-check and
its switch; everywhere the result has the same bits.
"""
import logging

import torch

CHUNK = 4 * 2**20  # values at a time: 16 MiB of float32, of which a few copies are on the device
PER_TENSOR, PER_ROW = "per tensor", "per row"
log = logging.getLogger("metal_kernels")


def quantize(weight, dtype, per, device):
    """(values, scale) on the CPU with weight about values * scale; None when the weight holds NaN or infinity.

    weight  [rows, cols], floating point, on any device.
    dtype   torch.float8_e4m3fn or torch.float8_e5m2.
    per     "per tensor": scale [] float32, the largest magnitude over the format's largest value;
            "per row": scale [rows, 1] float32.
    device  where the work is done.

    A tensor or row of zeros, or of nothing, gets scale 1.
    """
    scale = scale_of(weight, dtype, per, device)
    return None if scale is None else (encode(weight, scale, dtype, device), scale)


def scale_of(weight, dtype, per, device):
    """The scale of `quantize` alone."""
    rows = weight.shape[0]
    amax = torch.zeros(rows, 1) if per == PER_ROW else torch.zeros(1)
    if weight.numel():
        amax = torch.cat([_amax(weight[chunk].to(device), per).cpu() for chunk in _chunks(weight)])
    if per == PER_TENSOR:
        amax = amax.max()
    if not bool(torch.isfinite(amax).all()):
        return None
    # Divided on the CPU, where the result doesn't depend on the device. A scale that underflows counts as zeros.
    scale = amax / torch.finfo(dtype).max
    return torch.where(scale >= torch.finfo(torch.float32).tiny, scale, torch.ones_like(scale))


def encode(weight, scale, dtype, device):
    """The values of `quantize` for a scale of `scale_of`."""
    values = torch.empty(weight.shape, dtype=dtype)
    for chunk in _chunks(weight):
        part = scale[chunk] if scale.dim() else scale
        values[chunk].copy_(_encode(weight[chunk], part, dtype, device))
    return values


def magnitudes(values):
    """float32 [rows, 1]: the largest magnitude in each row of FP8 values on the CPU; NaN for a row with a NaN."""
    if not values.numel():
        return torch.zeros(1, 1)
    bits = values.view(torch.uint8).reshape(values.shape[0] if values.dim() else 1, -1)
    # Without their signs FP8 values are ordered as their bits are, infinity and NaN above all numbers.
    largest = torch.cat([(bits[chunk] & 0x7F).amax(dim=1, keepdim=True) for chunk in _chunks(bits)])
    return largest.view(values.dtype).float()


def _chunks(matrix):
    """Slices of rows."""
    rows, cols = matrix.shape
    step = max(1, CHUNK // max(1, cols))
    return [slice(first, first + step) for first in range(0, rows, step)]


def _amax(chunk, per):
    """float32 [rows of the chunk, 1], or [1] for the whole."""
    magnitudes = chunk.float().abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    return magnitudes.amax(dim=1, keepdim=True) if per == PER_ROW else magnitudes.amax().reshape(1)


def _encode(chunk, scale, dtype, device):
    most = torch.finfo(dtype).max
    inverse = (1.0 / scale).to(device)
    try:
        return (chunk.to(device).float() * inverse).clamp_(-most, most).to(dtype).cpu()
    except (TypeError, RuntimeError) as problem:
        if torch.device(device).type != "mps" or "loat8" not in str(problem):
            raise
        # The kernel fp8 is switched off, and this torch has no FP8 on MPS.
        log.debug("Metal Kernels FP8: quantising on the CPU (%s)", problem)
        return _encode(chunk, scale, dtype, "cpu")
