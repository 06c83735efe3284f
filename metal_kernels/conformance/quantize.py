"""Quantising to FP8 and back: per tensor, per row, per block of 32, NVFP4, and stochastic rounding. All bit for bit."""

from __future__ import annotations

import torch

from .. import fp8
from .case import Case, Expected, Operation, Tolerance, exactly
from .fp8 import random_fp8
from .inputs import Source

KITCHEN = Tolerance(0.0, "the steps of comfy-kitchen's eager function, each rounded as torch rounds it")
POWERS = Tolerance(0.0, "powers of two and FP8 values are exact")
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def tiled(scales: torch.Tensor) -> torch.Tensor:
    """Scales [rows, blocks] as they lie in tiles of 128 x 4; the rest zero."""
    rows, blocks = scales.shape
    shape = fp8.block_scales_shape(rows, blocks)
    padded = torch.zeros(shape, dtype=scales.dtype, device="cpu")
    padded[:rows, :blocks] = scales
    return padded.view(shape[0] // 128, 4, 32, shape[1] // 4, 4).permute(0, 3, 2, 1, 4).reshape(shape)


def _source_of(case: Case) -> tuple[Source, torch.Tensor]:
    source = Source(case)
    return source, source.normal(case.shapes[0], case.option("x", torch.float32), case.layout, scale=3.0)


def _make_quantize(case: Case) -> tuple:
    """options: x: the wide dtype; per; given: whether the scale is given; power: of block32's x, of two."""
    source, x = _source_of(case)
    per = case.option("per", "tensor")
    if per == "block32":
        x = x * torch.logspace(-4, 3, x.shape[0], device="cpu").to(x.dtype)[:, None] * 2.0 ** case.option("power", 0)
        x[:1, :32] = 0
    rows = x.shape[0] if per == "row" else 1
    return x, case.dtype, per, source.uniform((rows, 1) if per == "row" else ()) if case.option("given") else None


def _quantize(x, dtype, per, scale) -> tuple[torch.Tensor, torch.Tensor]:
    return fp8.quantize(x, dtype, per=per, scale=scale)


def quantize(x, dtype, per, scale) -> tuple[Expected, ...]:
    """Times the reciprocal of the scale in x's dtype, clamped, cast."""
    if per == "block32":
        return _quantize_blocks(x)
    most = torch.finfo(dtype).max
    count = x.shape[0] if per == "row" else 1
    rows = x.reshape(count, x.numel() // max(1, count))
    if scale is None:
        amax = rows.float().abs().amax(1, keepdim=True) if x.numel() else rows.new_zeros(len(rows), 1).float()
        scale = torch.where(amax == 0, 1.0, amax / most)
    else:
        scale = scale.view(-1, 1)
    values = (rows * (1.0 / scale).to(x.dtype)).clamp(-most, most).to(dtype)
    return exactly(values.contiguous().view(x.shape)), exactly(scale if per == "row" else scale.view(()))


def _quantize_blocks(x: torch.Tensor) -> tuple[Expected, ...]:
    """The scale of a block is the least power of two with which it fits, from 2^-127 on."""
    blocks = x.double().view(x.shape[0], x.shape[1] // 32, 32)
    amax = blocks.abs().amax(-1)
    mantissa, exponent = torch.frexp(amax / 448)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(min=-127)
    stored = torch.where(amax == 0, 0, (exponent + 127).clamp(0, 254)).to(torch.uint8)
    power = torch.where(amax == 0, 1.0, torch.exp2(exponent.double()))[..., None]
    values = (blocks / power).float().to(torch.float8_e4m3fn).view(x.shape)
    return exactly(values), exactly(tiled(stored).view(torch.float8_e8m0fnu))


def _make_dequantize(case: Case) -> tuple:
    """options: to: the wide dtype; per; exponents: of block scales, the lowest and one past the highest byte."""
    source, per = Source(case), case.option("per", "tensor")
    values = random_fp8(source, case.shapes[0], case.dtype, case.layout, scale=3.0)
    rows = case.shapes[0][0] if case.shapes[0] else 1
    if per == "block32":
        low, high = case.option("exponents", (100, 150))
        exponents = source.integers((rows, case.shapes[0][1] // 32), low, high, torch.uint8)
        return values, tiled(exponents).view(torch.float8_e8m0fnu), case.option("to", torch.bfloat16)
    return values, source.uniform((rows, 1) if per == "row" else ()), case.option("to", torch.bfloat16)


def dequantize(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> tuple[Expected, ...]:
    """The scale is rounded to the dtype, and the product once more."""
    if scale.dtype is torch.float8_e8m0fnu:
        rows, blocks = x.shape[0], x.shape[1] // 32
        flat = scale.view(torch.uint8).view(scale.shape[0] // 128, scale.shape[1] // 4, 32, 4, 4)
        exponents = flat.permute(0, 3, 2, 1, 4).reshape(scale.shape)[:rows, :blocks]
        power = torch.where(exponents == 255, torch.nan, torch.exp2(exponents.double() - 127))[..., None]
        values = (x.double().view(rows, blocks, 32) * power).to(dtype)
        # One NaN: which bits the CPU's cast to bfloat16 gives it depends on where it stands.
        return (exactly(values.masked_fill(values.isnan(), torch.nan).view(x.shape)),)
    factor = scale.to(dtype) if scale.numel() == 1 else scale.to(dtype).view(-1, *(1,) * (x.dim() - 1))
    return (exactly((x.to(dtype) * factor).contiguous()),)


def _make_nvfp4(case: Case) -> tuple:
    """shapes: the packed bytes [rows, columns]. options: to: the wide dtype; hi_first."""
    source, (rows, columns) = Source(case), case.shapes[0]
    packed = source.integers((rows, columns), 0, 256, torch.uint8)
    scales = random_fp8(source, (rows, columns // 8), torch.float8_e4m3fn, scale=9.0).float().abs()
    stored = tiled(scales.to(torch.float8_e4m3fn).view(torch.uint8)).view(torch.float8_e4m3fn)
    return packed, source.uniform(()), stored, case.option("to", torch.bfloat16), case.option("hi_first", True)


def nvfp4(packed, tensor_scale, stored, dtype, hi_first) -> tuple[Expected, ...]:
    """Two e2m1 values a byte, times the product of both scales in the dtype."""
    rows, blocks = packed.shape[0], packed.shape[1] // 8
    high, low = (packed >> 4).long(), (packed & 15).long()
    table = torch.tensor(E2M1, dtype=dtype, device="cpu")
    values = table[torch.stack([high, low] if hi_first else [low, high], -1)].view(rows, blocks, 16)
    flat = stored.view(torch.uint8).view(stored.shape[0] // 128, stored.shape[1] // 4, 32, 4, 4)
    scales = flat.permute(0, 3, 2, 1, 4).reshape(stored.shape)[:rows, :blocks].contiguous()
    factor = tensor_scale.to(dtype) * scales.view(torch.float8_e4m3fn).to(dtype)
    return (exactly((values * factor[..., None]).view(rows, 16 * blocks)),)


def _make_stochastic(case: Case) -> tuple:
    """options: x: the wide dtype."""
    source, x = _source_of(case)
    x = x * torch.logspace(-7, 5, x.shape[-1], device="cpu").to(x.dtype)
    return x, source.integers(tuple(x.shape), 0, 256, torch.uint8), case.dtype


def stochastic(x: torch.Tensor, random: torch.Tensor, dtype: torch.dtype) -> tuple[Expected, ...]:
    """The steps of comfy-kitchen's eager stochastic_rounding_fp8, each a half-precision op."""
    mantissa_bits, bias, top = (3, 7, 15) if dtype is torch.float8_e4m3fn else (2, 15, 31)
    x = x.half()
    magnitude = x.abs()
    exponent = (magnitude.log2().floor() + bias).clamp(0, top)
    subnormal = exponent == 0
    power, least = 2.0 ** (exponent - bias), 2.0 ** (1 - bias)
    steps = torch.where(
        subnormal, magnitude / (least / 2**mantissa_bits), (magnitude / power - 1.0) * 2**mantissa_bits
    )  # fmt: skip
    fraction = (steps + random.half() / 256).floor() / 2**mantissa_bits
    value = torch.where(subnormal, least * fraction, power * (1.0 + fraction)) * x.sign()
    most = torch.finfo(dtype).max
    value = torch.where(x == 0, torch.zeros_like(x), value).clamp(-most, most)
    return (exactly(value.masked_fill(value.isnan(), torch.nan).to(dtype).contiguous()),)  # its sign is the processor's


OPERATIONS = (
    Operation("fp8_quantize", "fp8", _make_quantize, _quantize, quantize, KITCHEN, takes=0),
    Operation("fp8_dequantize", "fp8", _make_dequantize, fp8.dequantize, dequantize, KITCHEN, takes=0),
    Operation("nvfp4_dequantize", "fp8", _make_nvfp4, fp8.dequantize_nvfp4, nvfp4, KITCHEN, takes=0),
    Operation(
        "fp8_stochastic_rounding", "fp8", _make_stochastic, fp8.stochastic_rounding, stochastic, KITCHEN, takes=0
    ),
)
