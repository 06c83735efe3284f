"""The FP8 nodes in a real ComfyUI: what they are, quantised on load, saved for everybody. As loaders of FP8 files they
are tested beside ComfyUI's, in test_fp8_loaders.py."""
import re

import pytest
import torch
from fp8.checkpoints import name
from fp8.harness import free, psnr, reported, results, sampled, unet
from graphs import node
from safetensors.torch import load_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

OPTIONS = [("quantize", ["as stored", "per tensor", "per row"]), ("format", ["float8_e4m3fn", "float8_e5m2"]),
           ("leave_alone", "STRING")]  # fmt: skip

def loader(file, **inputs):
    return node("MetalFP8LoadDiffusionModel", model_name=file, **inputs)


def listed(info, part):
    found = []
    for key, (kind, *options) in info["input"].get(part, {}).items():
        choices = options[0].get("options") if options and kind == "COMBO" else None
        found.append((key, choices if choices is not None else kind))
    return found


def test_the_nodes_are_as_released(small_mac):
    info = {name: small_mac.get(f"/object_info/{name}")[name] for name in (
        "MetalFP8LoadDiffusionModel", "MetalFP8LoadCLIP", "MetalFP8LoadCheckpoint", "MetalFP8SaveModel")}  # fmt: skip
    stock = small_mac.get("/object_info/UNETLoader")["UNETLoader"]["input"]["required"]["unet_name"][0]
    model, clip, checkpoint, save = info.values()
    assert all(one["category"] == "Metal Kernels" for one in info.values())
    assert listed(model, "required") == [("model_name", stock)] and listed(model, "optional") == OPTIONS
    assert (model["output_name"], model["output"]) == (["model", "report"], ["MODEL", "STRING"])
    (_, files), (kind, kinds) = listed(clip, "required")
    assert (kind, [name for name, _ in listed(clip, "required")]) == ("type", ["clip_name", "type"])
    for theirs, known in ("CLIPLoader", "wan"), ("DualCLIPLoader", "sdxl"):
        offered = small_mac.get(f"/object_info/{theirs}")[theirs]["input"]["required"]["type"][0]
        assert {known} <= set(offered) <= set(kinds)
    assert listed(clip, "optional") == [("device", ["device", "cpu"]), *(
        (f"clip_name{n}", ["none", *files]) for n in (2, 3, 4)), *OPTIONS]  # fmt: skip
    assert (clip["output_name"], clip["output"]) == (["clip", "report"], ["CLIP", "STRING"])
    assert [name for name, _ in listed(checkpoint, "required")] == ["ckpt_name"]
    assert listed(checkpoint, "optional") == [("device", ["device", "cpu"]), *OPTIONS]
    assert checkpoint["output"] == ["MODEL", "CLIP", "VAE", "STRING"]
    assert listed(save, "required") == [("model", "MODEL"), ("filename_prefix", "STRING")]
    assert listed(save, "optional") == OPTIONS[1:]
    assert (save["output_name"], save["output_node"]) == (["path", "report"], True)


@pytest.mark.parametrize("family, per, kind", [
    ("flux", "per row", "float8_e4m3fn"), ("wan", "per tensor", "float8_e4m3fn"), ("flux", "per tensor", "float8_e5m2"),
])  # fmt: skip
def test_quantised_on_load(small_mac, on_the_cpu, wide, family, per, kind):
    """What the device makes of it is what the CPU makes of it, and near the original; patterns leave layers alone."""
    tag = f"quantised {family} {per} {kind}"
    graph = sampled(family, loader(wide[family], quantize=per, format=kind), tag)
    entry = small_mac.run(graph, 300)
    text, disk, resident = reported(entry)
    assert resident < 0.9 * disk and f"to {kind}, {per}; " in text and "left alone by the patterns" in text
    assert (f"{kind} per row" in text) == (per == "per row")
    everything = small_mac.run({"model": loader(wide[family], quantize=per, format=kind, leave_alone=""),
                                "show": node("TestShow", value=("model", 1))}, 300)  # fmt: skip
    assert reported(everything)[2] < 0.6 * disk and "; 0 left alone" in reported(everything)[0]
    (latent, image), cpu = results(small_mac, tag), on_the_cpu(tag, graph)
    assert psnr(latent, cpu[0]) >= 40 and psnr(image, cpu[1]) >= 40
    original = on_the_cpu(f"wide {family}", sampled(family, unet(wide[family]), f"wide {family}"))
    assert psnr(latent, original[0]) >= (25 if kind == "float8_e4m3fn" else 18)


def saved(server, family, load, prefix, more=None, model=("model", 0)):
    """(the file that MetalFP8SaveModel writes of this model, its report); a picture is made too, named `prefix`."""
    graph = sampled(family, load, prefix, model=model, more={
        **(more or {}), "save": node("MetalFP8SaveModel", model=model, filename_prefix=f"diffusion_models/{prefix}"),
    })  # fmt: skip
    text = server.run(graph, 300)["outputs"]["save"]["text"][0]
    return server.folder / "output" / "diffusion_models" / f"{prefix}_00001_.safetensors", text


@pytest.mark.parametrize("family, per, lora", [
    ("flux", "per tensor", False), ("wan", "per row", False), ("flux", "as stored", True),
])  # fmt: skip
def test_saved_it_loads_everywhere(small_mac, on_the_cpu, wide, family, per, lora):
    """Stock UNETLoader on the CPU takes the file and makes the device's picture; saved again it is the same, byte for
    byte. A scale a row becomes one scale a layer."""
    prefix = f"saved_{family}_{per.replace(' ', '_')}"
    more = {"lora": node("LoraLoaderModelOnly", model=("model", 0), lora_name=f"{family}_lora.safetensors",
                         strength_model=0.5)} if lora else {}  # fmt: skip
    file, text = saved(small_mac, family, loader(wide[family], quantize=per), prefix, more,
                       ("lora", 0) if lora else ("model", 0))  # fmt: skip
    assert "float8_e4m3fn" in text and ("had a scale for each row" in text) == (per == "per row"), text
    stored = load_file(file)
    layers = [key.removesuffix(".comfy_quant") for key in stored if key.endswith(".comfy_quant")]
    assert len(layers) >= 10 and not any("_mod." in layer or "final_layer" in layer for layer in layers)
    for layer in layers:
        assert stored[f"{layer}.weight"].dtype is torch.float8_e4m3fn and stored[f"{layer}.weight_scale"].numel() == 1

    again, _ = saved(small_mac, family, loader(file.name), f"{prefix}_again")
    assert again.read_bytes() == file.read_bytes()
    free(small_mac)
    target = on_the_cpu.server.folder / "models" / "diffusion_models" / file.name
    target.write_bytes(file.read_bytes())
    stock = on_the_cpu(f"stock {prefix}", sampled(family, unet(file.name), f"stock {prefix}"))
    reloaded, first = results(small_mac, f"{prefix}_again"), results(small_mac, prefix)
    for actual, expected in zip(reloaded, stock, strict=True):
        assert psnr(actual, expected) >= 40
    if per == "per tensor":
        assert torch.equal(reloaded[0], first[0]), "nothing is quantised anew"
    else:
        assert psnr(reloaded[0], first[0]) >= 25


def test_a_convolution_in_fp8_without_a_scale_is_held_wide(small_mac, on_the_cpu):
    """Wan's patch embedding: five dimensions. The values are the weights, and the report says where they went."""
    source = load_file(small_mac.folder / "models" / "diffusion_models" / name("wan", "plain", "e4m3fn"))
    assert source["patch_embedding.weight"].dtype is torch.float8_e4m3fn
    entry = small_mac.run({"model": loader(name("wan", "plain", "e4m3fn")),
                           "show": node("TestShow", value=("model", 1))}, 300)  # fmt: skip
    assert re.search(r"FP8 weights are no matrices and are held in bfloat16: .*patch_embedding.weight .128, 16, 1,",
                     reported(entry)[0])  # fmt: skip
