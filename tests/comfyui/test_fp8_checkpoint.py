"""A Stable Diffusion 1 checkpoint in FP8, with the text encoder in it, through CheckpointLoaderSimple and ours: from a
prompt to a picture; with a LoRA on both, run twice, saved and loaded again."""
import pytest
import torch
from fp8 import harness, larger, text
from fp8.checkpoints import DTYPES, KINDS
from fp8.harness import adopt, bytes_in_fp8, crashes, free, load, psnr, results, rounded_as_well, same_each_time
from graphs import node
from safetensors.torch import load_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(1200)]

WHICH = ("checkpoint", "our checkpoint")


def cases(*quick, axes=(KINDS, DTYPES, WHICH)):
    return harness.cases(*axes, quick=quick)


@pytest.fixture
def offered(comfyui_path, fp8_models, small_mac, on_the_cpu):
    """(kind, dtype) -> the checkpoint's name, which both servers find."""
    servers = [small_mac, on_the_cpu.server]
    return lambda kind, dtype: larger.offer(comfyui_path, fp8_models, servers, "sd1", kind, dtype)


def graph(loader, tag, lora=False, **more):
    """From a prompt to a picture, both saved under `tag`."""
    model, clip = (("lora", 0), ("lora", 1)) if lora else (("model", 0), ("model", 1))
    found = {
        "model": loader, "text": node("CLIPTextEncode", clip=clip, text="a red fox in the snow"),
        "empty": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "sample": node("KSampler", model=model, positive=("text", 0), negative=("text", 0), latent_image=("empty", 0),
                       seed=7, steps=2, cfg=1.0, sampler_name="euler", scheduler="simple", denoise=1.0),
        "decode": node("VAEDecode", samples=("sample", 0), vae=("model", 2)),
        "latent": node("TestSave", value=("sample", 0), name=f"{tag} latent"),
        "image": node("TestSave", value=("decode", 0), name=f"{tag} image"),
        "held": node("TestHeld", model=model, after=("sample", 0)),
        "clip held": node("TestHeld", model=clip, after=("text", 0)), **more,
    }
    if lora:
        found["lora"] = node("LoraLoader", model=("model", 0), clip=("model", 1), lora_name="sd1_lora.safetensors",
                             strength_model=1.0, strength_clip=1.0)
    return found


def expected(on_the_cpu, offered, kind, dtype):
    """ComfyUI on the CPU with the same values in 16 bits: its CLIP-L knows no scales."""
    wide, tag = offered("plain" if kind == "plain" else "wide", dtype), f"sd1 {kind == 'plain'} {dtype}"
    return on_the_cpu(tag, graph(load(wide, "checkpoint"), tag))


@pytest.mark.parametrize("kind, dtype, which", cases(
    "quant e4m3fn checkpoint", "scaled e5m2 our checkpoint"))
def test_from_a_prompt_to_a_picture(small_mac, on_the_cpu, offered, kind, dtype, which):
    tag = f"sd1 {kind} {dtype} {which}"
    prompt = graph(load(offered(kind, dtype), which), tag)
    assert crashes(small_mac, prompt) in (prompt["model"]["class_type"], "CLIPTextEncode", "KSampler")
    outputs = small_mac.run(prompt, 600)["outputs"]
    model, encoder = outputs["held"]["held"][0], outputs["clip held"]["held"][0]
    assert bytes_in_fp8(model)["mps"] > 8e6 and model["load_device"] == "mps"
    place = "mps" if which == "our checkpoint" else "cpu"
    assert encoder["load_device"] == place
    if kind != "plain" or which == "our checkpoint":
        assert bytes_in_fp8(encoder)[place] >= text.in_layers(), "one byte a weight, where it runs"
    for actual, wanted in zip(results(small_mac, tag), expected(on_the_cpu, offered, kind, dtype), strict=True):
        assert psnr(actual, wanted) >= 40


@pytest.mark.parametrize("kind, dtype, which", cases("quant e5m2 checkpoint"))
def test_a_lora_on_model_and_text_encoder(small_mac, on_the_cpu, offered, kind, dtype, which):
    """And what is computed before and after it is the same, bit for bit."""
    free(small_mac)
    loader, tag = load(offered(kind, dtype), which), f"sd1 lora {kind} {dtype} {which}"
    small_mac.run(graph(loader, "sd1 before"), 600)
    small_mac.run(graph(loader, tag, lora=True), 600)
    small_mac.run(graph(loader, "sd1 after"), 600)
    before, merged, after = (results(small_mac, each) for each in ("sd1 before", tag, "sd1 after"))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    # A LoRA on FP8 is rounded to FP8, on the CPU too where the weights are kept so: scaled text encoders by our node.
    reference = "checkpoint" if kind == "plain" and which == "checkpoint" else "our checkpoint"
    wanted = on_the_cpu(tag, graph(load(offered(kind, dtype), reference), tag, lora=True))
    if dtype == "e5m2" and which == "our checkpoint":
        wide = load(offered("plain" if kind == "plain" else "wide", dtype), "checkpoint")
        exact = on_the_cpu(f"{tag} exact", graph(wide, f"{tag} exact", lora=True))
        assert rounded_as_well(merged[0], wanted[0], exact[0])
    else:
        assert psnr(merged[0], wanted[0]) >= 40
    assert psnr(merged[0], before[0]) < 28, "it shows"


@pytest.mark.parametrize("kind, dtype, which", cases("scaled e4m3fn checkpoint"))
def test_saved_and_loaded_again(small_mac, offered, kind, dtype, which):
    """By CheckpointSave: every FP8 matrix and scale of model and text encoder comes back as it was, and the picture."""
    free(small_mac)
    file, saved = offered(kind, dtype), f"sd1_{kind}_{dtype}_{which.replace(' ', '_')}"
    save = node("CheckpointSave", model=("model", 0), clip=("model", 1), vae=("model", 2), filename_prefix=saved)
    small_mac.run(graph(load(file, which), "sd1 unsaved", save=save), 600)
    path = small_mac.folder / "output" / f"{saved}_00001_.safetensors"
    written, source = load_file(path), load_file(small_mac.folder / "models" / "checkpoints" / file)
    for key, value in source.items():
        if not (value.dtype.itemsize == 1 and value.ndim == 2 and key.endswith(".weight")):
            continue
        if kind == "plain" and (which == "checkpoint" or "embedding" in key) and "cond_stage_model" in key:
            assert torch.equal(written[key].float(), value.float()), "ComfyUI's CLIP turns plain FP8 into 16 bits"
            continue
        assert written[key].dtype == value.dtype
        assert torch.equal(written[key].view(torch.uint8), value.view(torch.uint8)), key
        scale = source.get(f"{key}_scale", source.get(f"{key.removesuffix('.weight')}.scale_weight"))
        assert scale is None or torch.equal(written[f"{key}_scale"], scale), key
    adopt([small_mac], path, "checkpoints", f"{saved}.safetensors")
    for _ in range(2):
        free(small_mac)
        small_mac.run(graph(load(f"{saved}.safetensors", which), "sd1 again"), 600)
        for one, other in zip(results(small_mac, "sd1 unsaved"), results(small_mac, "sd1 again"), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("kind, dtype, which, lora", cases(axes=(KINDS, DTYPES, WHICH, ("as it is", "lora"))))
def test_run_twice_unloaded_and_reloaded(small_mac, offered, kind, dtype, which, lora):
    """Model and text encoder, each with a LoRA or without: the same bits each time."""
    loader = load(offered(kind, dtype), which)
    assert same_each_time(small_mac, lambda tag: graph(loader, tag, lora=lora == "lora"))


@pytest.mark.parametrize("kind, dtype, which", cases())
def test_saved_with_a_lora_and_loaded_again(small_mac, on_the_cpu, offered, kind, dtype, which):
    """CheckpointSave of a model and a text encoder that have a LoRA: both loaders make the picture of the file that
    the LoRA made before, and the CPU makes it too."""
    free(small_mac)
    tag = f"sd1_saved_lora_{kind}_{dtype}_{which.replace(' ', '_')}"
    save = node("CheckpointSave", model=("lora", 0), clip=("lora", 1), vae=("model", 2), filename_prefix=tag)
    small_mac.run(graph(load(offered(kind, dtype), which), tag, lora=True, save=save), 600)
    small_mac.run(graph(load(offered(kind, dtype), which), "sd1 before"), 600)
    path, saved = small_mac.folder / "output" / f"{tag}_00001_.safetensors", f"{tag}.safetensors"
    adopt((small_mac, on_the_cpu.server), path, "checkpoints", saved)
    merged, before = results(small_mac, tag)[0], results(small_mac, "sd1 before")[0]
    for again in WHICH:
        free(small_mac)
        small_mac.run(graph(load(saved, again), "sd1 again"), 600)
        reloaded = results(small_mac, "sd1 again")
        assert psnr(reloaded[0], merged) >= 40 > psnr(reloaded[0], before), again
        expected = on_the_cpu(f"{tag} {again}", graph(load(saved, again), f"{tag} {again}"))
        for actual, wanted in zip(reloaded, expected, strict=True):
            assert psnr(actual, wanted) >= 40, again
    for server in (small_mac, on_the_cpu.server):
        (server.folder / "models" / "checkpoints" / saved).unlink()
    path.unlink()
