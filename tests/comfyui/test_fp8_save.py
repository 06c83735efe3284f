"""Metal FP8 Save Model in a real ComfyUI: what can't be right is refused before there is a file, and what it writes
every loader takes."""
import pytest
import torch
from fp8.checkpoints import name
from fp8.harness import failure, free, load, psnr, results, sampled, unet
from graphs import node
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

GOOD, LORA, LAYER = name("flux", "quant", "e4m3fn"), "flux_lora.safetensors", "double_blocks.0.img_attn.qkv"


def saving(loader, prefix, model=("model", 0), **inputs):
    return {"model": loader, "save": node("MetalFP8SaveModel", model=model, filename_prefix=prefix, **inputs)}


def a_lora(server, factor):
    """The name of a LoRA of one layer, that many times the tests' own."""
    folder = server.folder / "models" / "loras"
    tensors = {key: value * (factor if "lora_up" in key else 1) for key, value in load_file(folder / LORA).items()
               if LAYER.replace(".", "_") in key or LAYER in key}  # fmt: skip
    assert tensors
    save_file(tensors, folder / "wrong.safetensors")
    return node("LoraLoaderModelOnly", model=("model", 0), lora_name="wrong.safetensors", strength_model=1.0)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("which", [GOOD, "per row"])
def test_a_lora_that_is_no_number(small_mac, factor, which):
    """On a layer in FP8: ComfyUI merges it into values and scale, which then are none either."""
    free(small_mac)
    loader = load(GOOD, "ours")
    if which == "per row":
        loader = node("MetalFP8LoadDiffusionModel", model_name=wide(small_mac), quantize="per row")
    graph = saving(loader, "wrong/lora", ("lora", 0)) | {"lora": a_lora(small_mac, factor)}
    message, where = failure(small_mac, graph)
    assert where == "MetalFP8SaveModel" and "\n" not in message.split(" Nothing was written.")[0]
    assert f"{LAYER} is FP8 and holds NaN or infinity" in message and "take off the LoRA" in message
    assert not (small_mac.folder / "output" / "wrong").exists(), "no file, and no folder for it"
    graph["save"]["inputs"]["model"] = ("model", 0)
    small_mac.run(graph, 300)
    assert (small_mac.folder / "output" / "wrong" / "lora_00001_.safetensors").exists(), "the model itself is well"
    for file in (small_mac.folder / "output" / "wrong").iterdir():
        file.unlink()
    (small_mac.folder / "output" / "wrong").rmdir()


def wide(*servers):
    """The name of a file in bfloat16 that these servers have."""
    for server in servers:
        folder = server.folder / "models" / "diffusion_models"
        source = load_file(folder / name("flux", "plain", "e4m3fn"))
        save_file({key: value.to(torch.bfloat16) for key, value in source.items()}, folder / "saved_wide.safetensors")
    return "saved_wide.safetensors"


@pytest.mark.parametrize("how", ["forced", "rows kept"])
def test_what_it_writes_every_loader_takes(small_mac, on_the_cpu, how):
    """A model that ComfyUI itself made FP8, without any scale; and layers that keep a scale for each row."""
    free(small_mac)
    file = wide(small_mac, on_the_cpu.server)
    loader = unet(file, "fp8_e4m3fn") if how == "forced" else node(
        "MetalFP8LoadDiffusionModel", model_name=file, quantize="per row")  # fmt: skip
    prefix = f"every_{how.replace(' ', '_')}"
    more = saving(loader, f"diffusion_models/{prefix}", **({} if how == "forced" else {"leave_alone": "*attn.qkv"}))
    entry = small_mac.run(sampled("flux", loader, prefix, more=more), 300)
    written = small_mac.folder / "output" / "diffusion_models" / f"{prefix}_00001_.safetensors"
    tensors = load_file(written)
    fp8 = {key for key, value in tensors.items() if value.dtype is torch.float8_e4m3fn}
    assert fp8 and all(f"{key}_scale" in tensors and key.replace(".weight", ".comfy_quant") in tensors for key in fp8)
    rows = {key for key in fp8 if tensors[f"{key}_scale"].numel() > 1}
    assert all("attn.qkv" in key for key in rows) and bool(rows) == (how == "rows kept")
    assert ("keep a scale for each row" in entry["outputs"]["save"]["text"][0]) == bool(rows)
    for server in (small_mac, on_the_cpu.server):
        (server.folder / "models" / "diffusion_models" / written.name).write_bytes(written.read_bytes())
    before = results(small_mac, prefix)
    for which in "default", "ours":
        free(small_mac)
        small_mac.run(sampled("flux", load(written.name, which), "saved"), 300)
        for one, other in zip(results(small_mac, "saved"), before, strict=True):
            assert psnr(one, other) >= (40 if how == "forced" else 25), "rows that did not keep theirs are rounded anew"
    expected = on_the_cpu(f"cpu {prefix}", sampled("flux", unet(written.name), f"cpu {prefix}"))
    for one, other in zip(results(small_mac, "saved"), expected, strict=True):
        assert psnr(one, other) >= 40


@pytest.mark.parametrize("prefix, says", [
    ("", "is hidden, or no name"), ("..", "is hidden, or no name"), ("diffusion_models/.x", "is hidden, or no name"),
    ("a\0b", "characters that are not for names"), ("x" * 300, "300 bytes, and 231 are possible"),
    ("a/" + "x" * 300 + "/b", "within ComfyUI's output folder"),
])  # fmt: skip
def test_prefixes_that_are_no_name(small_mac, prefix, says):
    before = sorted((small_mac.folder / "output").rglob("*"))
    message, where = failure(small_mac, saving(load(GOOD, "ours"), prefix))
    assert where == "MetalFP8SaveModel" and says in message and message.startswith("filename_prefix is ")
    assert sorted((small_mac.folder / "output").rglob("*")) == before


def test_a_pattern_that_names_nothing(small_mac):
    """On the loaders and the save node."""
    file, patterns = wide(small_mac), "double_blocks.*\n[\nno_such_layer"
    loader = node("MetalFP8LoadDiffusionModel", model_name=file, quantize="per tensor", leave_alone=patterns)
    entry = small_mac.run(saving(loader, "unused", leave_alone=patterns), 300)
    for part in "model", "save":
        text = entry["outputs"][part]["text"][0]
        assert "  no layer is named by the patterns [, no_such_layer" in text.splitlines(), text
