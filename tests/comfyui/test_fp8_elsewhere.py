"""What MetalFP8SaveModel writes, in the same ComfyUI where there is neither this pack nor a Mac, real or simulated."""
import itertools

import pytest
import torch
from fp8.checkpoints import DTYPES, FAMILIES, KINDS, name
from fp8.harness import adopt, cases, free, load, psnr, results, sampled, unet, with_lora
from graphs import node
from safetensors.torch import load_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

# What is saved: a 16-bit model, which the node quantises; one that was quantised on load; each kind of FP8 file.
SOURCES = ("wide", "per tensor", "per row", *map(" ".join, itertools.product(KINDS, DTYPES)))


def source(family, chosen, wide):
    """The loader node of one of SOURCES."""
    if chosen == "wide":
        return unet(wide[family])
    if chosen.startswith("per"):
        return load(wide[family], "ours", quantize=chosen)
    return load(name(family, *chosen.split()), "ours")


def test_nothing_of_ours_is_there(elsewhere):
    assert not [each for each in elsewhere.get("/object_info") if each.startswith("Metal")]
    assert [each["type"] for each in elsewhere.get("/system_stats")["devices"]] == ["cpu"]
    assert "Metal Kernels" not in elsewhere.log and "Using device: mps" not in elsewhere.log


@pytest.mark.parametrize("family, chosen, format, lora", cases(
    FAMILIES, SOURCES, DTYPES, ("plain", "lora"), quick={"flux wide e4m3fn plain", "wan scaled e5m2 e5m2 lora"}))
def test_a_saved_model_loads_and_gives_the_same_picture(small_mac, on_the_cpu, elsewhere, wide, family, chosen, format,
                                                        lora):
    free(small_mac)
    tag = f"elsewhere_{family}_{chosen}_{format}_{lora}".replace(" ", "_")
    model, more = (("lora", 0), with_lora(family, 0.5)) if lora == "lora" else (("model", 0), {})
    save = node("MetalFP8SaveModel", model=model, filename_prefix=tag, format=f"float8_{format}")
    small_mac.run({"model": source(family, chosen, wide), "save": save, **more}, 300)
    written = small_mac.folder / "output" / f"{tag}_00001_.safetensors"
    fp8 = {value.dtype for key, value in load_file(written).items() if key.endswith(".weight") and value.ndim == 2}
    assert fp8 & {torch.float8_e4m3fn, torch.float8_e5m2}
    adopt((small_mac, on_the_cpu.server, elsewhere), written, "diffusion_models", f"{tag}.safetensors")
    graph = sampled(family, unet(f"{tag}.safetensors"), tag)
    for server in small_mac, elsewhere:
        server.run(graph, 300)
    reference = on_the_cpu(tag, graph)
    for there, here, wanted in zip(results(elsewhere, tag), results(small_mac, tag), reference, strict=True):
        assert torch.equal(there, wanted) and psnr(here, there) >= 40
