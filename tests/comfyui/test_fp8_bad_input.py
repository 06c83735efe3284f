"""Files and names that are wrong, given to the FP8 nodes in a real ComfyUI: one sentence, and nothing half-loaded."""
import pytest
import torch
from fp8.checkpoints import name
from fp8.harness import failure, free
from graphs import node
from safetensors.torch import load_file, save_file
from server import Refused

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

GOOD = name("flux", "quant", "e4m3fn")
LAYER = "double_blocks.0.img_attn.qkv"
E4M3 = torch.float8_e4m3fn


def changed(change, drop=()):
    """Bytes of a good file with tensors changed and left out."""

    def make(folder):
        tensors = {key: value for key, value in load_file(folder / GOOD).items() if key not in drop} | change
        save_file(tensors, folder / "changing.safetensors")
        return (folder / "changing.safetensors").read_bytes()

    return make


def text(config):
    return torch.tensor(list(config.encode()), dtype=torch.uint8)


@pytest.mark.parametrize("make, says", [
    (lambda folder: b"PK\x03\x04" + bytes(1000), "bad.safetensors is no safetensors file"),
    (lambda folder: (folder / GOOD).read_bytes()[:500_000], "bad.safetensors is cut off"),
    (changed({f"{LAYER}.comfy_quant": text('{"format": "float6"}')}), f"the layer {LAYER} is in the format 'float6'"),
    (changed({}, [f"{LAYER}.weight_scale"]), f"its scale {LAYER}.weight_scale is missing"),
    (changed({f"{LAYER}.weight_scale": torch.ones(128)}), f"its scale {LAYER}.weight_scale (128,)"),
    (changed({f"{LAYER}.weight_scale": torch.tensor(float("nan"))}), f"the scale {LAYER}.weight_scale is nan"),
    (changed({"conv.weight": torch.zeros(4, 4, 3, 3).to(E4M3), "conv.weight_scale": torch.tensor(0.5)}),
     "conv.weight is float8_e4m3fn with a scale and has 4 dimensions, (4, 4, 3, 3)"),
    (lambda folder: (folder.parent / "vae" / "flux_vae.safetensors").read_bytes(),
     "bad.safetensors holds no diffusion model that this ComfyUI knows"),
], ids=["zip", "cut off", "format", "no scale", "scale's shape", "scale's value", "convolution", "a vae"])  # fmt: skip
def test_a_file_that_is_wrong(small_mac, make, says):
    folder = small_mac.folder / "models" / "diffusion_models"
    content = make(folder)
    (folder / "bad.safetensors").write_bytes(content)
    graph = {"model": node("MetalFP8LoadDiffusionModel", model_name="bad.safetensors"),
             "show": node("TestShow", value=("model", 1))}  # fmt: skip
    for _ in range(2):  # a failure is no result to be kept
        message, where = failure(small_mac, graph)
        assert where == "MetalFP8LoadDiffusionModel"
        assert says in message and "\n" not in message, message
    good = {"model": node("MetalFP8LoadDiffusionModel", model_name=GOOD), "show": node("TestHeld", model=("model", 0))}
    assert small_mac.run(good)["outputs"]["show"]["held"][0]["loaded"] is False, "nothing was left behind"


@pytest.mark.parametrize("graph", [
    {"model": node("MetalFP8LoadDiffusionModel", model_name="../vae/flux_vae.safetensors")},
    {"model": node("MetalFP8LoadCheckpoint", ckpt_name="/etc/passwd")},
    {"model": node("MetalFP8LoadCLIP", clip_name="none.safetensors", type="flux")},
    {"model": node("MetalFP8LoadDiffusionModel", model_name=GOOD, quantize="per block")},
    {"model": node("MetalFP8LoadDiffusionModel", model_name=GOOD, format="float8")},
])  # fmt: skip
def test_names_and_choices_that_the_lists_do_not_offer(small_mac, graph):
    with pytest.raises(Refused) as refused:
        small_mac.queue(graph | {"show": node("TestShow", value=("model", 1))})
    (problem,) = refused.value.args[0]["node_errors"]["model"]["errors"]
    assert problem["type"] == "value_not_in_list"


def test_a_name_that_comes_by_a_link(small_mac):
    """ComfyUI checks no linked value against the list: the node does."""
    graph = {"name": node("TestText", text="../vae/flux_vae.safetensors"),
             "model": node("MetalFP8LoadDiffusionModel", model_name=("name", 0)),
             "show": node("TestShow", value=("model", 1))}  # fmt: skip
    message, _ = failure(small_mac, graph)
    assert "'../vae/flux_vae.safetensors' is no file of the models folder diffusion_models" in message


@pytest.mark.parametrize("prefix", ["../outside", "/outside"])
def test_saving_outside_the_output_folder(small_mac, prefix):
    free(small_mac)
    graph = {"model": node("MetalFP8LoadDiffusionModel", model_name=GOOD),
             "save": node("MetalFP8SaveModel", model=("model", 0), filename_prefix=prefix)}  # fmt: skip
    message, where = failure(small_mac, graph)
    assert where == "MetalFP8SaveModel"
    assert f"filename_prefix is {prefix!r}: it must name a place within ComfyUI's output folder." in message


def test_saving_what_holds_nan(small_mac):
    folder = small_mac.folder / "models" / "diffusion_models"
    tensors = {key: value.to(torch.bfloat16) for key, value in
               load_file(folder / name("flux", "plain", "e4m3fn")).items()}  # fmt: skip
    tensors[f"{LAYER}.weight"][3, 4] = float("nan")
    save_file(tensors, folder / "nan.safetensors")
    graph = {"model": node("MetalFP8LoadDiffusionModel", model_name="nan.safetensors", quantize="per row"),
             "save": node("MetalFP8SaveModel", model=("model", 0), filename_prefix="diffusion_models/nan")}  # fmt: skip
    message, _ = failure(small_mac, graph)
    assert f"{LAYER} holds NaN or infinity: name it among the layers to leave alone." in message
    assert list((small_mac.folder / "output" / "diffusion_models").glob("nan*")) == []
    graph["save"]["inputs"]["leave_alone"] = f"{LAYER}\n*norm*"
    entry = small_mac.run(graph | {"show": node("TestShow", value=("model", 1))})
    shown = entry["outputs"]["show"]["shown"][0]["text"]
    assert f"1 layers hold NaN or infinity and are not quantised: {LAYER}" in shown
    assert (small_mac.folder / "output" / "diffusion_models" / "nan_00001_.safetensors").exists()
