"""FP8 files through ComfyUI's own loaders: each crashes on stock MPS, and with the pack gives the CPU's picture."""
import itertools

import pytest
import torch
from fp8.checkpoints import DTYPES, FAMILIES, KINDS, name, quantised
from fp8.harness import failure, free, pack_off, psnr, results, sampled, unet
from graphs import node
from safetensors.torch import load_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

LOADERS = ("default", "forced", "checkpoint")
QUICK = {("flux", "quant", "e4m3fn", "default"), ("flux", "plain", "e5m2", "forced"),
         ("flux", "scaled", "e4m3fn", "checkpoint"), ("wan", "quant", "e5m2", "checkpoint"),
         ("wan", "plain", "e4m3fn", "default"), ("wan", "scaled", "e4m3fn", "forced")}
CASES = [pytest.param(*case, id="-".join(case), marks=() if case in QUICK else pytest.mark.full)
         for case in itertools.product(FAMILIES, KINDS, DTYPES, LOADERS)]


def load(file, loader):
    """The loader node: as a user leaves it, with FP8 asked for, or of a whole checkpoint."""
    if loader == "checkpoint":
        return node("CheckpointLoaderSimple", ckpt_name=file)
    dtype = "e5m2" if "e5m2" in file else "e4m3fn"
    return unet(file, "default" if loader == "default" else f"fp8_{dtype}")


def crashed_as_known(message, where):
    """What people report of FP8 on MPS; while a module's weights are copied, inside torch's own sentence about it."""
    return "Undefined type Float8_e" in message and where in ("KSampler", "CheckpointLoaderSimple")


@pytest.mark.parametrize("family, kind, dtype, loader", CASES)
def test_a_file_dropped_in_works(small_mac, on_the_cpu, family, kind, dtype, loader):
    file = name(family, kind, dtype)
    tag = f"{family} {kind} {dtype} {loader}"
    graph = sampled(family, load(file, loader), tag)
    with pack_off(small_mac):
        message, where = failure(small_mac, graph)
        assert crashed_as_known(message, where), (message, where)
    graph["held"] = node("TestHeld", model=("model", 0), after=("sample", 0))
    held = small_mac.run(graph, 300)["outputs"]["held"]["held"][0]
    assert held["loaded"] and held["load_device"] == "mps"
    source = load_file(small_mac.folder / "models" / "diffusion_models" / file)
    in_file = sum(value.numel() for value in source.values() if value.dtype.itemsize == 1 and value.is_floating_point())
    on_device = sum(size for held_as, size in held["bytes"]["mps"].items() if held_as.startswith("float8"))
    assert on_device >= 0.9 * in_file, "at one byte a weight"
    for actual, expected in zip(results(small_mac, tag), on_the_cpu(tag, graph), strict=True):
        assert psnr(actual, expected) >= 40


def test_the_kernel_ran_it_without_a_copy_in_bf16(small_mac):
    free(small_mac)
    small_mac.post("/test/reset", {})
    small_mac.run(sampled("flux", unet(name("flux", "quant", "e4m3fn")), "counted"), 300)
    entries = small_mac.get("/test/status")["kernels"]["fp8"]["entries"]
    linear = entries["comfy_kitchen::linear on an FP8 layout"]
    layers = 13  # of the two blocks; and two sampler steps
    assert (linear["taken"], linear["passed"]) == (2 * layers, 0)
    assert entries["comfy_kitchen::dequantize_per_tensor_fp8"]["taken"] == 0


@pytest.mark.parametrize("family, kind, dtype", [
    ("flux", "quant", "e4m3fn"), ("wan", "plain", "e5m2"),
    *(pytest.param(*case, marks=pytest.mark.full) for case in itertools.product(FAMILIES, KINDS, DTYPES)
      if case not in {("flux", "quant", "e4m3fn"), ("wan", "plain", "e5m2")}),
])
def test_run_twice_unloaded_and_reloaded(small_mac, family, kind, dtype):
    """The same bits each time, from the cache of models, after an unload, and after a load from the file."""
    free(small_mac)
    loader, found = unet(name(family, kind, dtype), f"fp8_{dtype}" if kind == "plain" else "default"), []
    held = {"held": node("TestHeld", model=("model", 0), after=("sample", 0))}
    for number in range(3):
        small_mac.run(sampled(family, loader, f"again {number}", more=held), 300)
        found.append(results(small_mac, f"again {number}"))
        if number == 1:
            small_mac.post("/free", {"unload_models": True})
            small_mac.run({"model": loader, "held": node("TestHeld", model=("model", 0))}, 300)
            free(small_mac)
    for latent, image in found[1:]:
        assert torch.equal(latent, found[0][0]) and torch.equal(image, found[0][1])


@pytest.mark.parametrize("family, kind, dtype", [
    ("flux", "quant", "e4m3fn"), ("flux", "plain", "e4m3fn"),
    *(pytest.param(*case, marks=pytest.mark.full) for case in itertools.product(FAMILIES, KINDS, DTYPES)
      if case not in {("flux", "quant", "e4m3fn"), ("flux", "plain", "e4m3fn")}),
])
def test_a_lora_on_top(small_mac, on_the_cpu, family, kind, dtype):
    """Merged into the FP8 weights with stochastic rounding, which stock can't; taken out again, nothing is left."""
    free(small_mac)
    loader = unet(name(family, kind, dtype), f"fp8_{dtype}" if kind == "plain" else "default")
    lora = {"lora": node("LoraLoaderModelOnly", model=("model", 0), lora_name=f"{family}_lora.safetensors",
                         strength_model=1.0)}
    tag = f"lora {family} {kind} {dtype}"
    save = {"save": node("ModelSave", model=("lora", 0), filename_prefix=f"merged_{family}_{kind}_{dtype}")}
    graph = sampled(family, loader, tag, model=("lora", 0), more=lora | save)
    small_mac.run(sampled(family, loader, "before"), 300)
    small_mac.run(graph, 300)
    small_mac.run(sampled(family, loader, "after"), 300)
    before, merged, after = (results(small_mac, each)[0] for each in ("before", tag, "after"))
    assert torch.equal(before, after)
    expected, _ = on_the_cpu(tag, graph)
    assert psnr(merged, expected) >= 40 > psnr(merged, before), "and it shows"
    ours, theirs, plain = (weights(load_file(file)) for file in (
        small_mac.folder / "output" / f"{save['save']['inputs']['filename_prefix']}_00001_.safetensors",
        on_the_cpu.server.folder / "output" / f"{save['save']['inputs']['filename_prefix']}_00001_.safetensors",
        small_mac.folder / "models" / "diffusion_models" / name(family, kind, dtype)))
    assert ours.keys() == theirs.keys() and ours
    for key, value in ours.items():
        # Two draws of a stochastic rounding lie about a twentieth apart.
        assert apart(value, theirs[key]) < 0.1 * apart(plain[key], theirs[key]), key


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


@pytest.mark.parametrize("family, kind, dtype", [
    ("flux", "quant", "e4m3fn"), ("wan", "quant", "e5m2"), ("flux", "scaled", "e4m3fn"),
    *(pytest.param(family, "plain", dtype, marks=pytest.mark.full) for family in FAMILIES for dtype in DTYPES),
])
def test_saved_and_loaded_again(small_mac, on_the_cpu, family, kind, dtype):
    """By ComfyUI's own node: the weights' bytes and scales come back as they were, here and on another machine."""
    free(small_mac)
    file = name(family, kind, dtype)
    loader = unet(file, f"fp8_{dtype}" if kind == "plain" else "default")
    saved = f"saved_{family}_{kind}_{dtype}"
    small_mac.run(sampled(family, loader, "unsaved", more={
        "save": node("ModelSave", model=("model", 0), filename_prefix=f"diffusion_models/{saved}")}), 300)
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
    for server in (small_mac, on_the_cpu.server):
        target = server.folder / "models" / "diffusion_models" / f"{saved}.safetensors"
        target.unlink(missing_ok=True)
        target.write_bytes(written.read_bytes())
    again = unet(f"{saved}.safetensors", loader["inputs"]["weight_dtype"])
    small_mac.run(sampled(family, again, "reloaded"), 300)
    for one, other in zip(results(small_mac, "unsaved"), results(small_mac, "reloaded"), strict=True):
        assert torch.equal(one, other)
    elsewhere = on_the_cpu(f"{saved} reloaded", sampled(family, again, f"{saved} reloaded"))
    for actual, expected in zip(results(small_mac, "reloaded"), elsewhere, strict=True):
        assert psnr(actual, expected) >= 40
