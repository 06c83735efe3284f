"""The backend "metal" at the ends of what can be written: NaN, infinities, the first and last scales of MXFP8.

FUNCTIONS.md names where it is not eager's result bit for bit; here are the values of both.
"""
import pytest
import torch
from kitchen_toys import same, to_mps

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WIDE = torch.float32, torch.float16, torch.bfloat16


def tiled(scales):
    """Block scales [rows, blocks] as bytes in the tiles that the functions want, with e8m0's dtype."""
    from comfy_kitchen.float_utils import to_blocked

    return to_blocked(scales, flatten=False).view(torch.float8_e8m0fnu)


def both(kitchen, name, **kwargs):
    """(ours, eager's) on the CPU; parts of a tuple one after the other."""
    mine, theirs = getattr(kitchen.package, name)(**on_mps(kwargs)), getattr(kitchen.eager, name)(**kwargs)
    assert kitchen.function_counts(name)[0] > 0
    mine, theirs = (each if isinstance(each, tuple) else (each,) for each in (mine, theirs))
    return [to_cpu(value) for value in mine], list(theirs)


def on_mps(kwargs):
    return {name: to_mps(value) if isinstance(value, torch.Tensor) else value for name, value in kwargs.items()}


def to_cpu(value):
    return value.cpu() if value.element_size() > 1 else value.view(torch.uint8).cpu().view(value.dtype)


@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_every_scale_of_mxfp8(kitchen, wide):
    """Under all 256 bytes every value is eager's, but for the first byte and the last, which are as the format has
    them."""
    values = torch.arange(256, dtype=torch.uint8)[None].repeat(128, 1).view(E4M3)
    for first in range(0, 256, 8):
        bytes_ = torch.arange(first, first + 8, dtype=torch.uint8)[None].repeat(128, 1)
        (mine,), (theirs,) = both(kitchen, "dequantize_mxfp8", qx=values, block_scales=tiled(bytes_), output_type=wide)
        mine, theirs = mine.view(128, 8, 32), theirs.view(128, 8, 32)
        stored = values.float().view(128, 8, 32)
        for block, byte in enumerate(range(first, first + 8)):
            here = theirs[:, block]
            if byte == 0:
                here = (stored[:, block].double() * 2.0**-127).to(wide)
                assert (theirs[:, block][stored[:, block].isfinite()] == 0).all(), "eager's"
            elif byte == 255:
                here = torch.full_like(here, float("nan"))
                assert theirs[:, block].isinf().any(), "eager's"
            torch.testing.assert_close(mine[:, block], here, rtol=0, atol=0, equal_nan=True)


SMALLEST = 2.0**-127  # byte 0


@pytest.mark.parametrize("wide", WIDE[::2], ids=str)
@pytest.mark.parametrize("value", [1e-40, 1e-39, 1e-38, 1e-37, 1e-36, 2.6e-36])
def test_tiny_blocks_of_mxfp8(kitchen, wide, value):
    """The nearest values under the smallest scale. Eager, dividing by zero, writes 448 for all that is not 0."""
    x = torch.zeros(32, 32)
    x[0, :4] = torch.tensor([value, -value / 3, value / 7, 0.0])
    x = x.to(wide)
    (mine, mine_scales), (theirs, their_scales) = both(kitchen, "quantize_mxfp8", x=x)
    assert mine_scales.view(torch.uint8).flatten()[0] == their_scales.view(torch.uint8).flatten()[0] == 0
    wanted = (x.double() / SMALLEST).float().to(E4M3)
    assert torch.equal(mine.float(), wanted.float())
    if value > 1e-39:
        assert theirs[0, :2].float().tolist() == [448.0, -448.0], "eager's"
    back = kitchen.package.dequantize_mxfp8(to_mps(mine), to_mps(mine_scales), torch.float32).cpu()
    assert (back.double() - x.double()).abs().max() <= max(value / 16, SMALLEST * 2.0**-10)


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_blocks_of_mxfp8_with_an_infinity(kitchen, wide, value):
    x = torch.ones(32, 32)
    x[0, 0] = value
    (mine, mine_scales), (theirs, their_scales) = both(kitchen, "quantize_mxfp8", x=x.to(wide))
    assert mine_scales.view(torch.uint8).flatten()[0] == 247 and their_scales.view(torch.uint8).flatten()[0] == 0
    sign = 1.0 if value > 0 else -1.0
    assert mine[0].float().tolist() == [448.0 * sign] + [0.0] * 31
    assert theirs[0].float().tolist() == [448.0 * sign] + [448.0] * 31, "eager's"
    same(mine[1:], theirs[1:])
    same(mine_scales.view(torch.uint8).flatten()[1:], their_scales.view(torch.uint8).flatten()[1:])
    back = kitchen.package.dequantize_mxfp8(to_mps(mine), to_mps(mine_scales), torch.float32)
    assert back[0, 0].item() == value


@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_blocks_of_mxfp8_with_a_nan(kitchen, wide):
    x = torch.ones(32, 32)
    x[0, 0] = float("nan")
    (mine, mine_scales), (theirs, their_scales) = both(kitchen, "quantize_mxfp8", x=x.to(wide))
    same(mine_scales.view(torch.uint8), their_scales.view(torch.uint8))
    torch.testing.assert_close(mine.float(), theirs.float(), rtol=0, atol=0, equal_nan=True)


SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 448.0, 464.0, 465.0, 1e-8, 57344.0, 61440.0, 1e38,
           -1e38]  # fmt: skip


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=str)
def test_infinities_and_nan(kitchen, wide, fp8):
    """NaN where eager's is, of whatever bits; all else to the bit."""
    x, every = torch.tensor(SPECIAL).to(wide), torch.arange(256, dtype=torch.uint8).view(fp8)
    draws = [torch.full(x.shape, at, dtype=torch.uint8) for at in (0, 1, 127, 255)]
    made = [both(kitchen, "stochastic_rounding_fp8", x=x, rng=draw, output_type=fp8) for draw in draws]
    for scale in (1.0, 0.0, -1.0, 1e-45, 1e-40, 3e-39, 1e30, 1e38, float("inf"), float("nan")):
        scale = torch.tensor(scale)
        made.append(both(kitchen, "quantize_per_tensor_fp8", x=x, scale=scale, output_type=fp8))
        made.append(both(kitchen, "dequantize_per_tensor_fp8", x=every, scale=scale, output_type=wide))
    for mine, theirs in made:
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one.float().isnan(), other.float().isnan())
            number = ~other.float().isnan()
            same(one[number], other[number])


@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_every_scale_of_nvfp4(kitchen, wide):
    values = torch.arange(256, dtype=torch.uint8)[None].repeat(128, 1)
    for first in range(0, 256, 32):
        scales = tiled(torch.arange(first, first + 32, dtype=torch.uint8)[None].repeat(128, 1)).view(E4M3)
        for scale in (1.0, 0.0, -1.0, 1e-45, 1e38, float("inf"), float("nan")):
            (mine,), (theirs,) = both(kitchen, "dequantize_nvfp4", qx=values, per_tensor_scale=torch.tensor(scale),
                                      block_scales=scales, output_type=wide)
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
