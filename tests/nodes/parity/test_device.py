"""On the software Metal device: a real video VAE, wrong with stock's pads and right with the pack's."""
from importlib import import_module

import pytest
import torch
from demo.workload import Workload
from pack import NAME, load

load()
vae_parity = import_module(f"{NAME}.nodes.parity.vae")
Tolerances = import_module(f"{NAME}.nodes.parity.verdict").Tolerances


class WanVAE:
    """diffusers' AutoencoderKLWan with the surface of a ComfyUI VAE, as third parties wrap it."""

    latent_channels, latent_dim, upscale_ratio, downscale_ratio = 4, 3, 8, 8

    def __init__(self, device):
        self.device, self.vae_dtype = device, torch.float32
        self.first_stage_model, self.latent = Workload(latent=(1, 4, 1, 32, 32)).build(device)

    def decode(self, latent):
        video = self.first_stage_model.decode(latent.to(self.device), return_dict=False)[0]
        return video.cpu().movedim(1, -1).add(1).div(2).clamp(0, 1)

    def encode(self, pixels):
        video = (pixels.movedim(-1, 0)[None] * 2 - 1).to(self.device)
        return self.first_stage_model.encode(video).latent_dist.sample().cpu()


@pytest.fixture
def faulty(mps):
    """The device with the faults of torch 2.13 and the pack's kernels installed; both taken back."""
    import softmetal

    pack = load()
    softmetal.activate(faults="2.13")
    pack.metal_kernels.install()
    yield pack
    pack.metal_kernels.uninstall()
    softmetal.activate()


@torch.inference_mode()
def test_a_faulty_device_is_found_and_the_repair_too(faulty):
    vae = WanVAE(torch.device("mps"))
    request = vae_parity.Request("decode")
    latent = {"samples": vae.latent.cpu()}
    results = {}
    for pad in ("off", "on"):
        with faulty.metal_kernels.using(pad=pad):
            results[pad] = vae_parity.parity(vae, latent, request, Tolerances(min_psnr=40))
    stock, repaired = results["off"], results["on"]
    assert not stock.comparison.passed and stock.comparison.metrics.psnr < 20
    assert repaired.comparison.passed and repaired.comparison.metrics.psnr > 60
    assert torch.equal(stock.cpu.tensors[0], repaired.cpu.tensors[0])
    assert stock.data["vae"]["kernels"].get("pad", {}).get("taken", 0) == 0
    assert repaired.data["vae"]["kernels"] == {"pad": {"taken": 25, "passed": 0}}
    assert repaired.data["vae"]["device"] == "mps float32" and "device side: mps float32" in repaired.text
    assert "This VAE runs on the CPU" not in repaired.text
    assert {w.device.type for w in vae.first_stage_model.parameters()} == {"mps"}


@torch.inference_mode()
def test_a_sampled_posterior_draws_the_same_on_both_sides(faulty):
    vae = WanVAE(torch.device("mps"))
    picture = torch.rand(1, 32, 32, 3, generator=torch.Generator().manual_seed(0))
    done = vae_parity.parity(vae, picture, vae_parity.Request("encode"), Tolerances())
    assert done.comparison.metrics.psnr > 60


@torch.inference_mode()
def test_the_copy_takes_no_memory_of_the_device(mps):
    import softmetal

    vae = WanVAE(mps)
    before = softmetal.counters.memory_peaks
    cpu_copy = import_module(f"{NAME}.nodes.parity.cpu_copy")
    softmetal.counters.reset()
    start = torch.mps.current_allocated_memory()
    with cpu_copy.CpuCopy(vae) as twin:
        assert {w.device.type for w in twin.first_stage_model.parameters()} == {"cpu"}
        assert before()["current"] == start == torch.mps.current_allocated_memory()


@pytest.mark.parametrize("shape", [(4, 6), (7,), (3, 300)])
def test_fp8_on_the_device_is_compared_on_the_cpu(mps, shape):
    compare = import_module(f"{NAME}.nodes.parity.compare").compare
    reference = torch.randn(shape).to(torch.float8_e4m3fn)
    on_the_device = reference.view(torch.uint8).to(mps).view(torch.float8_e4m3fn)
    done = compare(on_the_device, reference, Tolerances(exact=True))
    assert done.passed and "TENSOR" in done.text and "float8_e4m3fn on mps" in done.text


def test_a_result_that_comes_from_the_device_is_no_cpu_side(mps):
    """No weight of the copy takes part, and no parameter of another module that could be seen."""
    values = import_module(f"{NAME}.nodes.parity.values")
    vae = WanVAE(mps)
    pictures = torch.rand(1, 256, 256, 3, device=mps)
    vae.decode = lambda latent: pictures
    with pytest.raises(values.ParityError, match="runs weights that are not among its attributes"):
        vae_parity.parity(vae, {"samples": vae.latent.cpu()}, vae_parity.Request("decode"), Tolerances())


def test_values_on_the_device_are_compared_on_the_cpu(mps):
    compare = import_module(f"{NAME}.nodes.parity.compare").compare
    picture = torch.rand(1, 8, 8, 3)
    done = compare(picture.to(mps), picture, Tolerances(exact=True))
    assert done.passed and "on mps" in done.text
