"""Quantising and back. The references are torch on the CPU; comfy-kitchen itself too, where it is installed."""

import importlib
import importlib.util

import pytest
import torch
from conformance import library

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WIDE = (torch.float32, torch.float16, torch.bfloat16)


def randn(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def rounded_by_division(x, scale, dtype):
    """What comfy-kitchen's quantize_per_tensor_fp8 computes: times the reciprocal in x's dtype, clamped, cast."""
    most = torch.finfo(dtype).max
    return (x * (1.0 / scale).to(x.dtype)).clamp(-most, most).to(dtype)


def values_of(values, wide):
    return values.view(torch.uint8).cpu().view(values.dtype).to(wide)


def test_layouts_and_special_values(fp8):
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


@pytest.mark.parametrize("scale", (2.0**121, 2.0**127, float("inf")))
def test_scales_near_the_end_of_float(fp8, scale):
    """A value's halves are 256 times smaller, but 256 times the scale is no float32."""
    x = torch.tensor([0.0, 1.0, -0.25, 2.0**-9, 448.0] * 8).to(E4M3)
    actual = fp8.family.dequantize(fp8.twin(x), torch.tensor(scale).to("mps"), torch.float32)
    torch.testing.assert_close(actual.cpu(), x.float() * scale, rtol=0.0, atol=0.0, equal_nan=True)


def stochastic_reference(x, random, dtype):
    (expected,) = library.quantize.stochastic(x, random, dtype)
    return expected.value


def assert_same_but_for_the_sign_of_nan(fp8, actual, expected):
    """Which sign an invalid operation's NaN has is the processor's choice."""
    a, b = fp8.bits(actual), fp8.bits(expected)
    nan = expected.float().isnan()
    assert torch.equal(values_of(actual, torch.float32).isnan(), nan)
    assert torch.equal(a[~nan], b[~nan])


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_stochastic_rounding(fp8, dtype):
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


def test_stochastic_rounding_is_fair(fp8):
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


def test_nothing_waits(fp8, host_copies):
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
