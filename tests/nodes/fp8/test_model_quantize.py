"""Quantising a weight: near the original, the same bits on the CPU and on the device, in bounded memory."""
import pytest
import torch
from model_files import part, random

FORMATS = [(torch.float8_e4m3fn, 448.0, 2**-4), (torch.float8_e5m2, 57344.0, 2**-3)]


@pytest.fixture
def quantize(comfy_api, monkeypatch):
    module = part("quantize")
    monkeypatch.setattr(module, "CHUNK", 64)  # several chunks of these small tensors
    return module.quantize


@pytest.mark.parametrize("dtype, most, half_step", FORMATS, ids=["e4m3fn", "e5m2"])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("per", ["per tensor", "per row"])
def test_every_value_is_within_half_a_step(quantize, dtype, most, half_step, source, per):
    weight = (random(33, 20) * torch.logspace(-2, 1, 33)[:, None]).to(source)
    values, scale = quantize(weight, dtype, per, "cpu")
    assert values.dtype is dtype and scale.dtype is torch.float32
    assert scale.shape == (() if per == "per tensor" else (33, 1))
    amax = weight.float().abs().amax() if per == "per tensor" else weight.float().abs().amax(1, keepdim=True)
    torch.testing.assert_close(scale, amax / most, rtol=1e-6, atol=0)
    got = values.double() * scale.double()
    smallest = torch.finfo(dtype).smallest_normal * scale.double()
    error = (got - weight.double()).abs()
    assert (error <= half_step * 1.01 * torch.maximum(weight.double().abs(), smallest)).all()


@pytest.mark.parametrize("per", ["per tensor", "per row"])
def test_rows_are_nearer_than_the_tensor_and_zeros_stay_zeros(quantize, per):
    weight = random(16, 32) * torch.logspace(-4, 1, 16)[:, None]
    weight[5] = 0
    values, scale = quantize(weight, torch.float8_e4m3fn, per, "cpu")
    assert (values[5].float() == 0).all()
    if per == "per row":
        assert scale[5].item() == 1.0
        coarse, one = quantize(weight, torch.float8_e4m3fn, "per tensor", "cpu")
        error = (values.float() * scale - weight).norm()
        assert error <= (coarse.float() * one - weight).norm()


def test_values_too_small_for_a_scale_count_as_zeros(quantize):
    values, scale = quantize(torch.full((2, 4), 1e-44), torch.float8_e4m3fn, "per row", "cpu")
    assert scale.tolist() == [[1.0], [1.0]] and (values.float() == 0).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_quantised(quantize, wrong):
    weight = random(16, 32)
    weight[9, 3] = wrong
    assert quantize(weight, torch.float8_e4m3fn, "per tensor", "cpu") is None
    assert quantize(weight, torch.float8_e4m3fn, "per row", "cpu") is None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("per", ["per tensor", "per row"])
@pytest.mark.parametrize("faults", [None, "2.13", "2.9"])
def test_the_device_makes_the_cpus_bits(quantize, loaded, dtype, source, per, faults):
    """On a stock without FP8 casts too: the cast is the pack's kernel."""
    import softmetal

    with softmetal.profile(faults=faults):
        loaded[0].metal_kernels.uninstall()
        loaded[0].metal_kernels.install()
        weight = (random(33, 20) * 3).to(source)
        values, scale = quantize(weight, dtype, per, "mps")
    wanted, wanted_scale = quantize(weight, dtype, per, "cpu")
    assert values.device.type == scale.device.type == "cpu"
    assert torch.equal(scale, wanted_scale) and torch.equal(values.view(torch.uint8), wanted.view(torch.uint8))


def test_without_the_kernel_the_cpu_does_it(quantize, loaded):
    import softmetal

    weight = random(33, 20)
    with softmetal.profile(faults="2.13"):
        loaded[0].metal_kernels.uninstall()
        values, scale = quantize(weight, torch.float8_e4m3fn, "per row", "mps")
        with pytest.raises((TypeError, RuntimeError), match="loat8"):
            weight.to("mps").to(torch.float8_e4m3fn)
    wanted, _ = quantize(weight, torch.float8_e4m3fn, "per row", "cpu")
    assert torch.equal(values.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize("per", ["per tensor", "per row"])
def test_a_weight_of_nothing(quantize, shape, per):
    values, scale = quantize(torch.zeros(shape), torch.float8_e5m2, per, "cpu")
    assert values.shape == shape and values.dtype is torch.float8_e5m2
    assert scale.shape == (() if per == "per tensor" else (shape[0], 1)) and (scale == 1).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_largest_magnitudes(quantize, dtype):
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    made = part("quantize").magnitudes(every[:, None])
    assert torch.equal(made.isnan(), every.float()[:, None].isnan())
    assert torch.equal(made.nan_to_num(-1.0), every.float()[:, None].abs().nan_to_num(-1.0))
    rows = torch.tensor([[1.0, -3.0], [0.0, -0.0], [2.0, torch.nan]]).to(dtype)
    assert part("quantize").magnitudes(rows)[:2].tolist() == [[3.0], [0.0]]
    assert part("quantize").magnitudes(rows)[2].isnan().all()
