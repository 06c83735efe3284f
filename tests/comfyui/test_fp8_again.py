"""FP8 models more than once: run twice, unloaded and loaded again, with a LoRA and without, from a model's file and
from a checkpoint; saved with a LoRA on and loaded again. With a text encoder in it: test_fp8_checkpoint.py."""
import pytest
import torch
from fp8.checkpoints import DTYPES, FAMILIES, KINDS, same
from fp8.harness import KEEPING, adopt, cases, free, keep, load, psnr, results, same_each_time, sampled, unet, with_lora
from graphs import node
from safetensors.torch import load_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

LOADERS = (*KEEPING, "checkpoint", "our checkpoint")
SAVERS = ("ModelSave", "MetalFP8SaveModel")


@pytest.mark.parametrize("family, kind, dtype, loader, lora", cases(
    FAMILIES, KINDS, DTYPES, LOADERS, ("as it is", "lora"), quick={
        "flux quant e4m3fn kept as it is", "wan plain e5m2 kept lora", "flux scaled e5m2 ours lora",
        "wan plain e4m3fn ours as it is", "flux scaled e4m3fn checkpoint lora", "wan quant e5m2 our checkpoint lora",
    }))  # fmt: skip
def test_run_twice_unloaded_and_reloaded(small_mac, family, kind, dtype, loader, lora):
    """The same bits each time, with the model loaded, after an unload, and after a load from the file."""
    model, more = ("lora", 0) if lora == "lora" else ("model", 0), with_lora(family) if lora == "lora" else {}
    loader = keep(family, kind, dtype, loader)
    assert same_each_time(small_mac, lambda tag: sampled(family, loader, tag, model=model, more=more))


@pytest.mark.parametrize("family, kind, dtype, loader, saver", cases(
    FAMILIES, KINDS, DTYPES, KEEPING, SAVERS, quick={
        "flux quant e4m3fn kept ModelSave", "wan scaled e5m2 ours MetalFP8SaveModel",
    }))  # fmt: skip
def test_saved_with_a_lora_and_loaded_again(small_mac, on_the_cpu, family, kind, dtype, loader, saver):
    """What the file makes, through ComfyUI's loader and ours, is what the model with its LoRA made before it was saved;
    and what the CPU makes of the LoRA, and of the file."""
    free(small_mac)
    tag, model, lora = f"saved_lora_{family}_{kind}_{dtype}_{loader}_{saver}", ("lora", 0), with_lora(family, 0.7)
    save = {"save": node(saver, model=model, filename_prefix=f"diffusion_models/{tag}")}
    small_mac.run(sampled(family, keep(family, kind, dtype, loader), "before"), 300)
    small_mac.run(sampled(family, keep(family, kind, dtype, loader), tag, model=model, more=lora | save), 300)
    written = small_mac.folder / "output" / "diffusion_models" / f"{tag}_00001_.safetensors"
    held = {value.dtype for key, value in load_file(written).items() if key.endswith("qkv.weight")}
    assert not held - {getattr(torch, f"float8_{dtype}")}, "it is FP8 still"
    adopt((small_mac, on_the_cpu.server), written, "diffusion_models", f"{tag}.safetensors")
    stock = load(same(family, kind, dtype), "forced" if kind == "plain" else "default")
    with_the_lora, _ = on_the_cpu(f"{tag} cpu", sampled(family, stock, f"{tag} cpu", model=model, more=lora))
    merged, before = results(small_mac, tag)[0], results(small_mac, "before")[0]
    for again in "stock", "ours":
        free(small_mac)
        asked = f"fp8_{dtype}" if kind == "plain" else "default"
        file = load(f"{tag}.safetensors", "ours") if again == "ours" else unet(f"{tag}.safetensors", asked)
        small_mac.run(sampled(family, file, f"{tag} {again}"), 300)
        expected = on_the_cpu(f"{tag} {again}", sampled(family, file, f"{tag} {again}"))
        reloaded = results(small_mac, f"{tag} {again}")
        saved, plain = psnr(reloaded[0], merged), psnr(reloaded[0], before)
        print(f"{again}: {saved:.1f} dB from the model that was saved, {plain:.1f} from that without a LoRA")
        assert saved >= 40 and saved > plain + 10, again
        assert psnr(reloaded[0], with_the_lora) >= 40, "but for the draws of the stochastic rounding"
        for actual, wanted in zip(reloaded, expected, strict=True):
            assert psnr(actual, wanted) >= 40, again
