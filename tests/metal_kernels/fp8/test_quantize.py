"""Quantising and back. The references are torch on the CPU; comfy-kitchen itself too, where it is installed."""

import importlib
import importlib.util

import pytest
import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WIDE = (torch.float32, torch.float16, torch.bfloat16)


def randn(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def rounded_by_division(x, scale, dtype):
    """What comfy-kitchen's quantize_per_tensor_fp8 computes: times the reciprocal in x's dtype, clamped, cast."""
    most = torch.finfo(dtype).max
    return (x * (1.0 / scale).to(x.dtype)).clamp(-most, most).to(dtype)


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_per_tensor(fp8, no_faults, wide, dtype):
    for sizes in ((40, 96), (7, 5), (1,), (), (3, 1, 9), (70000,)):
        x = (randn(*sizes) * 3).to(wide)
        values, scale = fp8.family.quantize(x.to("mps"), dtype)
        assert (scale.shape, scale.dtype, values.shape) == ((), torch.float32, x.shape)
        assert torch.equal(scale.cpu(), x.float().abs().amax() / torch.finfo(dtype).max)
        fp8.assert_same(values, rounded_by_division(x, scale.cpu(), dtype))
        back = fp8.family.dequantize(values, scale, wide)
        assert torch.equal(back.cpu(), values_of(values, wide) * scale.cpu().to(wide))
        given = torch.tensor(0.0123)
        fp8.assert_same(fp8.family.quantize(x.to("mps"), dtype, scale=given)[0], rounded_by_division(x, given, dtype))


def values_of(values, wide):
    return values.view(torch.uint8).cpu().view(values.dtype).to(wide)


@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_per_row(fp8, no_faults, wide):
    for sizes in ((40, 96), (7, 5), (9, 1), (5, 3, 16)):
        x = randn(*sizes).to(wide)
        x[2] = 0
        values, scale = fp8.family.quantize(x.to("mps"), E4M3, per="row")
        rows = x.reshape(sizes[0], -1)
        amax = rows.float().abs().amax(1, keepdim=True)
        assert torch.equal(scale.cpu(), torch.where(amax == 0, 1.0, amax / 448))
        fp8.assert_same(values.view(sizes[0], -1), rounded_by_division(rows, scale.cpu(), E4M3))
        back = fp8.family.dequantize(values, scale, wide).cpu().view(sizes[0], -1)
        assert torch.equal(back, values_of(values, wide).view(sizes[0], -1) * scale.cpu().to(wide))


def test_layouts_and_special_values(fp8, no_faults):
    for x in (randn(9, 33).t(), randn(9, 33)[:, 1:], randn(400)[3:].view(-1, 1), randn(1, 8).expand(5, 8)):
        values, scale = fp8.family.quantize(fp8.twin(x))
        fp8.assert_same(values, rounded_by_division(x, scale.cpu(), E4M3).contiguous())
    zeros, scale = fp8.family.quantize(torch.zeros(4, 4, device="mps"))
    assert scale.item() == 1.0 and not zeros.view(torch.uint8).cpu().any()
    for value in (float("nan"), float("inf")):
        x = torch.tensor([1.0, value, -2.0])
        values, scale = fp8.family.quantize(x.to("mps"))
        assert torch.equal(scale.cpu(), x.abs().amax() / 448) or (scale.isnan() and x.abs().amax().isnan())
        assert torch.equal(values_of(values, torch.float32).isnan(), (x / scale.cpu()).isnan())
    empty, scale = fp8.family.quantize(torch.zeros(0, 5, device="mps"))
    assert empty.shape == (0, 5) and scale.item() == 1.0


def tiled(scales):
    """Scales [rows, blocks] as they lie in tiles of 128 x 4; the rest zero."""
    rows, blocks = scales.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-blocks // 4) * 4, dtype=scales.dtype)
    padded[:rows, :blocks] = scales
    parts = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return parts.permute(0, 3, 2, 1, 4).reshape(padded.shape)


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("sizes", ((1, 32), (5, 96), (130, 160), (33, 288)), ids=str)
def test_blocks_of_32(fp8, no_faults, wide, sizes):
    """Against exact powers of two: the least one with which the block fits."""
    x = (randn(*sizes) * torch.logspace(-4, 3, sizes[0])[:, None]).to(wide)
    x[0, :32] = 0
    values, scales = fp8.family.quantize(x.to("mps"), per="block32")
    blocks = x.double().view(sizes[0], -1, 32)
    amax = blocks.abs().amax(-1)
    mantissa, exponent = torch.frexp(amax / 448)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)  # of the power of two at or above
    stored = torch.where(amax == 0, 0, (exponent + 127).clamp(0, 254)).to(torch.uint8)
    assert scales.dtype is torch.float8_e8m0fnu
    assert torch.equal(scales.view(torch.uint8).cpu(), tiled(stored))
    power = torch.where(amax == 0, 1.0, torch.exp2(exponent.double()))[..., None]
    expected = (blocks / power).float().to(E4M3).view(sizes)
    fp8.assert_same(values, expected)
    back = fp8.family.dequantize(values, scales, wide).cpu()
    assert torch.equal(back, (expected.double().view(sizes[0], -1, 32) * power).to(wide).view(sizes))


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("hi_first", (True, False))
def test_nvfp4(fp8, no_faults, wide, hi_first):
    for rows, blocks in ((1, 1), (130, 5), (16, 16)):
        packed = torch.randint(
            0, 256, (rows, blocks * 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
        )
        block_scales = (randn(rows, blocks).abs() * 9).to(E4M3)
        tensor_scale = torch.tensor(0.0123)
        high, low = (packed >> 4).long(), (packed & 15).long()
        values = E2M1.to(wide)[torch.stack([high, low] if hi_first else [low, high], -1)].view(rows, blocks, 16)
        expected = (values * (tensor_scale.to(wide) * block_scales.to(wide))[..., None]).view(rows, -1)
        stored = tiled(block_scales.view(torch.uint8)).view(E4M3)
        actual = fp8.family.dequantize_nvfp4(packed.to("mps"), tensor_scale.to("mps"), fp8.twin(stored), wide, hi_first)
        fp8.assert_same(actual, expected)


def stochastic_reference(x, random, dtype):
    """The steps of comfy-kitchen's eager stochastic_rounding_fp8, each a half-precision torch op on the CPU."""
    mantissa_bits, bias, top = (3, 7, 15) if dtype is E4M3 else (2, 15, 31)
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
    return torch.where(x == 0, torch.zeros_like(x), value).clamp(-most, most).to(dtype)


def assert_same_but_for_the_sign_of_nan(fp8, actual, expected):
    """Which sign an invalid operation's NaN has is the processor's choice."""
    a, b = fp8.bits(actual), fp8.bits(expected)
    nan = expected.float().isnan()
    assert torch.equal(values_of(actual, torch.float32).isnan(), nan)
    assert torch.equal(a[~nan], b[~nan])


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_stochastic_rounding(fp8, no_faults, dtype):
    """Every half, with the bytes that decide and random ones; float32 and bfloat16 by way of half."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    generator = torch.Generator().manual_seed(0)
    for byte in (0, 1, 128, 255, None):
        random = torch.randint(0, 256, every.shape, generator=generator, dtype=torch.uint8)
        random = random if byte is None else torch.full_like(random, byte)
        actual = fp8.family.stochastic_rounding(every.to("mps"), random.to("mps"), dtype)
        assert_same_but_for_the_sign_of_nan(fp8, actual, stochastic_reference(every, random, dtype))
    for wide in (torch.float32, torch.bfloat16):
        x = (randn(64, 65) * torch.logspace(-7, 5, 65)).to(wide)
        random = torch.randint(0, 256, x.shape, generator=generator, dtype=torch.uint8)
        actual = fp8.family.stochastic_rounding(x.to("mps").t(), random.to("mps").t(), dtype)
        fp8.assert_same(
            actual.t().view(torch.uint8).contiguous(), stochastic_reference(x, random, dtype).view(torch.uint8)
        )


def test_stochastic_rounding_is_fair(fp8, no_faults):
    """1.03 lies 0.24 of the way from 1 to 1.125."""
    random = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    x = torch.full((256,), 1.03, device="mps")
    values = values_of(fp8.family.stochastic_rounding(x, random.to("mps")), torch.float32)
    assert set(values.tolist()) == {1.0, 1.125}
    assert abs(float((values > 1).float().mean()) - 0.24) < 0.01


def test_against_comfy_kitchen(fp8):
    eager = importlib.import_module("comfy_kitchen.backends.eager.quantization")
    x, scale = randn(70, 192), torch.tensor(0.0123)
    for dtype in (E4M3, E5M2):
        random = torch.randint(0, 256, x.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        expected = eager.stochastic_rounding_fp8(x.clone(), random, dtype)
        fp8.assert_same(fp8.family.stochastic_rounding(x.to("mps"), random.to("mps"), dtype), expected)
        for wide in WIDE:
            expected = eager.quantize_per_tensor_fp8(x.to(wide), scale, dtype)
            fp8.assert_same(fp8.family.quantize(x.to(wide).to("mps"), dtype, scale=scale)[0], expected)
            back = eager.dequantize_per_tensor_fp8(expected, scale, wide)
            fp8.assert_same(fp8.family.dequantize(fp8.twin(expected), scale, wide), back)
    for wide in WIDE:
        values, scales = eager.quantize_mxfp8(x.to(wide))
        ours, our_scales = fp8.family.quantize(x.to(wide).to("mps"), per="block32")
        fp8.assert_same(ours, values)
        fp8.assert_same(our_scales, scales)
        fp8.assert_same(fp8.family.dequantize(ours, our_scales, wide), eager.dequantize_mxfp8(values, scales, wide))
        packed, block_scales = eager.quantize_nvfp4(x, torch.tensor(0.002))
        expected = eager.dequantize_nvfp4(packed, torch.tensor(0.002), block_scales, wide)
        actual = fp8.family.dequantize_nvfp4(packed.to("mps"), torch.tensor(0.002), fp8.twin(block_scales), wide)
        fp8.assert_same(actual, expected)


def test_nothing_waits(fp8, no_faults, host_copies):
    x = torch.ones(64, 64, device="mps")
    random = torch.zeros(64, 64, dtype=torch.uint8, device="mps")
    before = host_copies()
    for per in ("tensor", "row", "block32"):
        values, scale = fp8.family.quantize(x, per=per)
        fp8.family.dequantize(values, scale)
    fp8.family.stochastic_rounding(x, random)
    assert host_copies() == before


def test_wrong_arguments(fp8):
    f, x = fp8.family, torch.zeros(4, 64, device="mps")
    values = x.to(E4M3)
    wrong = {
        "on mps": lambda: f.quantize(torch.zeros(4)),
        "fp32, fp16 or bf16": lambda: f.quantize(x.int()),
        "dtype is float8": lambda: f.quantize(x, torch.float16),
        "per is": lambda: f.quantize(x, per="column"),
        "no rows": lambda: f.quantize(x.sum(), per="row"),
        "3 scales for 4 rows": lambda: f.quantize(x, per="row", scale=torch.ones(3)),
        "multiple of 32": lambda: f.quantize(x[:, :33], per="block32"),
        "makes float8_e4m3fn": lambda: f.quantize(x, E5M2, per="block32"),
        "takes FP8": lambda: f.dequantize(x, torch.ones(1)),
        "5 scales for 4 rows": lambda: f.dequantize(values, torch.ones(5)),
        "block scales for 4 rows of 2 blocks have 512": lambda: f.dequantize(
            values, torch.zeros(9, dtype=torch.uint8, device="mps").view(torch.float8_e8m0fnu)
        ),
        "takes uint8": lambda: f.dequantize_nvfp4(x, torch.ones(1), values),
        "random is": lambda: f.stochastic_rounding(x, torch.zeros(4, 64, dtype=torch.uint8)),
        "dtype is float8_e4m3fn or": lambda: f.stochastic_rounding(x, x, torch.float16),
    }
    for words, call in wrong.items():
        with pytest.raises(ValueError, match=words):
            call()
