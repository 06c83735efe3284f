"""FP8 files through ComfyUI's own loaders and this pack's: each crashes on stock MPS, and with the pack gives the CPU's
picture; with a LoRA, saved and loaded again too. What is run or loaded more than once: test_fp8_again.py."""
import pytest
import torch
from fp8.checkpoints import DTYPES, FAMILIES, KINDS, name, quantised, same
from fp8.harness import (
    KEEPING,
    LOADERS,
    adopt,
    bytes_in_fp8,
    cases,
    crashes,
    free,
    keep,
    load,
    psnr,
    reported,
    results,
    sampled,
    unet,
    with_lora,
)
from graphs import node
from safetensors.torch import load_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]


@pytest.mark.parametrize("faults, family, kind, dtype, loader", cases(
    ("2.13", "2.14"), FAMILIES, KINDS, DTYPES, LOADERS, quick={
    "2.13 flux quant e4m3fn default", "2.13 flux plain e5m2 forced", "2.13 flux scaled e4m3fn checkpoint",
    "2.13 wan quant e5m2 checkpoint", "2.13 wan plain e4m3fn default", "2.13 wan scaled e4m3fn forced",
    "2.13 flux scaled e5m2 default", "2.13 flux plain e4m3fn ours", "2.13 flux scaled e5m2 ours",
    "2.13 wan quant e5m2 ours", "2.13 wan plain e5m2 our checkpoint", "2.13 flux quant e4m3fn our checkpoint",
    "2.13 wan scaled e4m3fn our checkpoint", "2.14 flux scaled e4m3fn ours", "2.14 wan plain e5m2 default",
    "2.14 wan quant e4m3fn checkpoint", "2.14 flux quant e5m2 forced", "2.14 wan scaled e5m2 our checkpoint",
}))
def test_a_file_dropped_in_works(macs, on_the_cpu, faults, family, kind, dtype, loader):
    mac, file, tag = macs(faults), name(family, kind, dtype), f"{family} {kind} {dtype} {loader}"
    folder = mac.folder / "models" / ("checkpoints" if "checkpoint" in loader else "diffusion_models")
    graph = sampled(family, load(file, loader), tag)
    assert crashes(mac, graph) in ("KSampler", "CheckpointLoaderSimple", "MetalFP8LoadCheckpoint")
    graph["held"] = node("TestHeld", model=("model", 0), after=("sample", 0))
    entry = mac.run(graph, 300)
    held = entry["outputs"]["held"]["held"][0]
    assert held["loaded"] and held["load_device"] == "mps"
    source = load_file(mac.folder / "models" / "diffusion_models" / file).values()
    in_file = [value for value in source if value.dtype.itemsize == 1 and value.is_floating_point()]
    on_device = bytes_in_fp8(held)
    if loader.startswith("our"):
        text, disk, resident = reported(entry)
        assert disk == (folder / file).stat().st_size and resident <= 1.05 * disk and f"float8_{dtype}" in text, text
        assert on_device["mps"] == sum(value.numel() for value in in_file if value.ndim == 2)
    else:
        assert on_device["mps"] >= 0.9 * sum(value.numel() for value in in_file), "at one byte a weight"
    assert not on_device.get("cpu")
    stock = loader.replace("ours", "default").replace("our ", "")
    reference = f"{same(family, kind, dtype)} {stock}"
    expected = on_the_cpu(reference, sampled(family, load(same(family, kind, dtype), stock), reference))
    for actual, wanted in zip(results(mac, tag), expected, strict=True):
        assert psnr(actual, wanted) >= 40


def test_the_kernel_ran_it_without_a_copy_in_bf16(small_mac):
    free(small_mac)
    small_mac.post("/test/reset", {})
    small_mac.run(sampled("flux", unet(name("flux", "quant", "e4m3fn")), "counted"), 300)
    entries = small_mac.get("/test/status")["kernels"]["fp8"]["entries"]
    linear = entries["comfy_kitchen::linear on an FP8 layout"]
    layers = 13  # of the two blocks; and two sampler steps
    assert (linear["taken"], linear["passed"]) == (2 * layers, 0)
    assert entries["comfy_kitchen::dequantize_per_tensor_fp8"]["taken"] == 0


@pytest.mark.parametrize("family, kind, dtype, loader", cases(FAMILIES, KINDS, DTYPES, KEEPING, quick={
    "flux quant e4m3fn kept", "flux plain e4m3fn kept", "wan scaled e5m2 kept", "flux plain e5m2 ours",
    "wan scaled e4m3fn ours"}))
def test_a_lora_on_top(small_mac, on_the_cpu, family, kind, dtype, loader):
    """Merged into the FP8 weights with stochastic rounding, which stock can't; taken out again, nothing is left."""
    free(small_mac)
    lora = with_lora(family)
    model, tag = keep(family, kind, dtype, loader), f"lora {family} {kind} {dtype} {loader}"
    save = {"save": node("ModelSave", model=("lora", 0), filename_prefix=f"merged_{tag.replace(' ', '_')}")}
    prefix = save["save"]["inputs"]["filename_prefix"]
    small_mac.run(sampled(family, model, "before"), 300)
    small_mac.run(sampled(family, model, tag, model=("lora", 0), more=lora | save), 300)
    small_mac.run(sampled(family, model, "after"), 300)
    before, merged, after = (results(small_mac, each)[0] for each in ("before", tag, "after"))
    assert torch.equal(before, after)
    stock = load(same(family, kind, dtype), "forced" if kind == "plain" else "default")
    expected, _ = on_the_cpu(tag, sampled(family, stock, tag, model=("lora", 0), more=lora | save))
    assert psnr(merged, expected) >= 40 > psnr(merged, before), "and it shows"
    ours, theirs, plain = (weights(load_file(file)) for file in (
        small_mac.folder / "output" / f"{prefix}_00001_.safetensors",
        on_the_cpu.server.folder / "output" / f"{prefix}_00001_.safetensors",
        small_mac.folder / "models" / "diffusion_models" / name(family, kind, dtype)))
    assert ours.keys() == theirs.keys() and ours
    for key, value in ours.items():
        # Two draws of a stochastic rounding lie about a twentieth apart, with e5m2's two bits a tenth.
        bound = 0.2 if dtype == "e5m2" else 0.1
        assert apart(value, theirs[key]) < bound * apart(plain[key], theirs[key]), key


def weights(tensors):
    """key -> float weight of the layers that the LoRA is for, whatever the file's format and prefix."""
    found, scales = {}, {}
    for key, value in tensors.items():
        key = key.removeprefix("model.diffusion_model.")
        if key.endswith((".weight_scale", ".scale_weight")):
            scales[key.rpartition(".")[0] + ".weight"] = value.float()
        elif quantised(key, value):
            found[key] = value.float()
    return {key: value * scales.get(key, 1.0) for key, value in found.items()}


def apart(one, other):
    return (one - other).norm().item()


@pytest.mark.parametrize("family, kind, dtype, loader", cases(FAMILIES, KINDS, DTYPES, KEEPING, quick={
    "flux quant e4m3fn kept", "wan scaled e5m2 kept", "flux scaled e4m3fn ours", "wan plain e5m2 ours"}))
def test_saved_and_loaded_again(small_mac, on_the_cpu, family, kind, dtype, loader):
    """By ComfyUI's own node and by ours: weights' bytes and scales come back as they were, here and elsewhere."""
    free(small_mac)
    file, saved = name(family, kind, dtype), f"saved_{family}_{kind}_{dtype}_{loader}"
    class_type = "MetalFP8SaveModel" if loader == "ours" else "ModelSave"
    small_mac.run(sampled(family, keep(family, kind, dtype, loader), "unsaved", more={
        "save": node(class_type, model=("model", 0), filename_prefix=f"diffusion_models/{saved}")}), 300)
    written = small_mac.folder / "output" / "diffusion_models" / f"{saved}_00001_.safetensors"
    source = load_file(small_mac.folder / "models" / "diffusion_models" / file)
    found = {key.removeprefix("model.diffusion_model."): value for key, value in load_file(written).items()}
    weights = [key for key, value in source.items() if value.dtype.itemsize == 1 and value.ndim == 2]
    assert weights
    for key in weights:
        assert found[key].dtype == source[key].dtype
        assert torch.equal(found[key].view(torch.uint8), source[key].view(torch.uint8)), key
        scale = source.get(f"{key}_scale", source.get(f"{key.removesuffix('.weight')}.scale_weight"))
        if scale is not None:
            assert torch.equal(found[f"{key}_scale"], scale)
    adopt((small_mac, on_the_cpu.server), written, "diffusion_models", f"{saved}.safetensors")
    again = unet(f"{saved}.safetensors", f"fp8_{dtype}" if kind == "plain" and loader != "ours" else "default")
    small_mac.run(sampled(family, again, "reloaded"), 300)
    for one, other in zip(results(small_mac, "unsaved"), results(small_mac, "reloaded"), strict=True):
        assert torch.equal(one, other)
    elsewhere = on_the_cpu(f"{saved} reloaded", sampled(family, again, f"{saved} reloaded"))
    for actual, expected in zip(results(small_mac, "reloaded"), elsewhere, strict=True):
        assert psnr(actual, expected) >= 40
