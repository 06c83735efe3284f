"""Files and names that are wrong, given to ComfyUI's loaders and the FP8 nodes in a real ComfyUI: one sentence each,
and nothing half-loaded."""
import pytest
import torch
from fp8.checkpoints import name
from fp8.harness import failed, failure, free, load
from graphs import node
from safetensors.torch import load_file, save_file
from server import Refused

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

GOOD = name("flux", "quant", "e4m3fn")
LAYER = "double_blocks.0.img_attn.qkv"
E4M3 = torch.float8_e4m3fn
CLIP = "text_model.encoder.layers.0.mlp.fc1"


def changed(change, drop=(), source=GOOD):
    """Bytes of a good file with tensors changed and left out."""

    def make(folder):
        tensors = {key: value for key, value in load_file(folder / source).items() if key not in drop} | change
        save_file(tensors, folder / "changing.safetensors")
        return (folder / "changing.safetensors").read_bytes()

    return make


def text(config):
    return torch.tensor(list(config.encode()), dtype=torch.uint8)


# What each kind of damage looks like, and what is said of it: {layer} is the layer that is meant.
DAMAGES = {
    "zip": (lambda folder, layer: b"PK\x03\x04" + bytes(1000), "bad.safetensors is no safetensors file"),
    "cut off": (lambda folder, layer: (folder / GOOD).read_bytes()[:500_000], "bad.safetensors is cut off"),
    "format": (lambda folder, layer: changed({f"{layer}.comfy_quant": text('{"format": "float6"}')})(folder),
               "the layer {layer} is in the format 'float6'"),
    "no scale": (lambda folder, layer: changed({}, [f"{layer}.weight_scale"])(folder),
                 "its scale {layer}.weight_scale is missing"),
    "an older file's": (
        lambda folder, layer: changed({}, [f"{layer}.scale_weight"], name("flux", "scaled", "e4m3fn"))(folder),
        "{layer}.weight is float8_e4m3fn and its scale is missing, while other weights of the file have one"),
    "scale's shape": (lambda folder, layer: changed({f"{layer}.weight_scale": torch.ones(128)})(folder),
                      "its scale {layer}.weight_scale (128,)"),
    "scale's value": (lambda folder, layer: changed({f"{layer}.weight_scale": torch.tensor(float("nan"))})(folder),
                      "the scale {layer}.weight_scale is nan"),
    "convolution": (lambda folder, layer: changed({f"{layer}.more.weight": torch.zeros(4, 4, 3, 3).to(E4M3),
                                                   f"{layer}.more.weight_scale": torch.tensor(0.5)})(folder),
                    "{layer}.more.weight is float8_e4m3fn with a scale and has 4 dimensions, (4, 4, 3, 3)"),
    "unscaled convolution": (
        lambda folder, layer: changed({f"{layer}.more.weight": torch.zeros(4, 4, 3, 3).to(E4M3)})(folder),
        "{layer}.more.weight is float8_e4m3fn and its scale is missing, while other weights of the file have one"),
}
LOADERS = [("default", "diffusion_models", LAYER), ("ours", "diffusion_models", LAYER),
           ("checkpoint", "checkpoints", f"model.diffusion_model.{LAYER}"),
           ("our checkpoint", "checkpoints", f"model.diffusion_model.{LAYER}")]


def must_fail(server, loader):
    """The one line that the loader node fails with, twice, for a failure is no result to be kept. Meanwhile nothing
    came to the device."""
    free(server)
    for _ in range(2):
        server.post("/test/reset", {})
        before = server.post("/test/memory", {})["memory"]["current"]
        said = failed(server, {"model": loader, "show": node("TestShow", value=("model", 0))})
        message = said["exception_message"].strip()
        assert said["node_type"] == loader["class_type"] and "\n" not in message, message
        assert said["exception_type"] in ("metal_kernels.ModelFileError", "metal_kernels.Unfamiliar")
        assert server.post("/test/memory", {})["peaks"]["current"] == before
    return message


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("loader, folder, layer", LOADERS, ids=[loader for loader, *_ in LOADERS])
def test_a_file_that_is_wrong(small_mac, damage, loader, folder, layer):
    folder, (make, says) = small_mac.folder / "models" / folder, DAMAGES[damage]
    (folder / "bad.safetensors").write_bytes(make(folder, layer))
    assert says.format(layer=layer) in must_fail(small_mac, load("bad.safetensors", loader))
    good = {"model": load(GOOD, loader), "show": node("TestHeld", model=("model", 0))}
    held = small_mac.run(good)["outputs"]["show"]["held"][0]
    assert held["loaded"] is ("checkpoint" in loader), "ComfyUI puts a checkpoint's model on the device at once"


@pytest.mark.parametrize("class_type", ["CLIPLoader", "DualCLIPLoader", "MetalFP8LoadCLIP"])
@pytest.mark.parametrize("tensors, says", [
    (None, "bad.safetensors is no safetensors file"),
    ({}, f"its scale {CLIP}.weight_scale is missing"),
    ({f"{CLIP}.weight_scale": torch.ones(3072)}, f"its scale {CLIP}.weight_scale (3072,)"),
    ({f"{CLIP}.comfy_quant": text('{"format": "float6"}')}, f"the layer {CLIP} is in the format 'float6'"),
], ids=["no file", "no scale", "scale's shape", "format"])
def test_a_text_encoder_that_is_wrong(small_mac, class_type, tensors, says):
    target = small_mac.folder / "models" / "text_encoders" / "bad.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    if tensors is None:
        target.write_bytes(b"<html>" + bytes(100))
    else:
        save_file({f"{CLIP}.weight": torch.zeros(3072, 768).to(E4M3),
                   f"{CLIP}.comfy_quant": text('{"format": "float8_e4m3fn"}'), **tensors}, target)
    two = class_type == "DualCLIPLoader"
    names = {f"clip_name{number}": "bad.safetensors" for number in (1, 2)} if two else {"clip_name": "bad.safetensors"}
    assert says in must_fail(small_mac, node(class_type, **names, type="sd3"))


@pytest.mark.parametrize("loader, says", [
    ("ours", "bad.safetensors holds no diffusion model that this ComfyUI knows"),
    ("default", "Could not detect model type of"),
])
def test_a_file_of_another_kind(small_mac, loader, says):
    folder = small_mac.folder / "models" / "diffusion_models"
    (folder / "bad.safetensors").write_bytes((folder.parent / "vae" / "flux_vae.safetensors").read_bytes())
    message, _ = failure(small_mac, {"model": load("bad.safetensors", loader),
                                     "show": node("TestShow", value=("model", 0))})
    assert says in message


@pytest.mark.parametrize("graph", [
    {"model": load("../vae/flux_vae.safetensors", "default")},
    {"model": load("/etc/passwd", "checkpoint")},
    {"model": node("CLIPLoader", clip_name="none.safetensors", type="sd3")},
    {"model": node("DualCLIPLoader", clip_name1="none.safetensors", clip_name2="../none.safetensors", type="sd3")},
    {"model": node("MetalFP8LoadDiffusionModel", model_name="../vae/flux_vae.safetensors")},
    {"model": node("MetalFP8LoadCheckpoint", ckpt_name="/etc/passwd")},
    {"model": node("MetalFP8LoadCLIP", clip_name="none.safetensors", type="flux")},
    {"model": node("MetalFP8LoadDiffusionModel", model_name=GOOD, quantize="per block")},
    {"model": node("MetalFP8LoadDiffusionModel", model_name=GOOD, format="float8")},
])  # fmt: skip
def test_names_and_choices_that_the_lists_do_not_offer(small_mac, graph):
    with pytest.raises(Refused) as refused:
        small_mac.queue(graph | {"show": node("TestShow", value=("model", 0))})
    problems = refused.value.args[0]["node_errors"]["model"]["errors"]
    assert problems and all(problem["type"] == "value_not_in_list" for problem in problems)


@pytest.mark.parametrize("class_type, field, more, says", [
    ("MetalFP8LoadDiffusionModel", "model_name", {}, "is no file of the models folder diffusion_models"),
    ("MetalFP8LoadCheckpoint", "ckpt_name", {}, "is no file of the models folder checkpoints"),
    ("MetalFP8LoadCLIP", "clip_name", {"type": "sd3"}, "is no file of the models folder text_encoders"),
    ("MetalFP8LoadCLIP", "clip_name3", {"type": "sd3", "clip_name": "there.safetensors"},
     "is no file of the models folder text_encoders"),
    ("UNETLoader", "unet_name", {"weight_dtype": "default"}, "not found"),
    ("CheckpointLoaderSimple", "ckpt_name", {}, "not found"),
    ("CLIPLoader", "clip_name", {"type": "sd3"}, "not found"),
    ("DualCLIPLoader", "clip_name2", {"type": "sd3", "clip_name1": "there.safetensors"}, "not found"),
], ids=["our model", "our checkpoint", "our clip", "our third clip", "UNETLoader", "CheckpointLoaderSimple",
        "CLIPLoader", "DualCLIPLoader"])  # fmt: skip
@pytest.mark.parametrize("outside", ["../vae/flux_vae.safetensors", "/etc/hosts"], ids=["beside", "absolute"])
def test_a_name_that_comes_by_a_link(small_mac, class_type, field, more, says, outside):
    """ComfyUI checks no linked value against the list: the nodes do."""
    encoders = small_mac.folder / "models" / "text_encoders"
    encoders.mkdir(exist_ok=True)
    save_file({"a": torch.zeros(1)}, encoders / "there.safetensors")
    graph = {"name": node("TestText", text=outside), "model": node(class_type, **{field: ("name", 0)}, **more),
             "show": node("TestShow", value=("model", 0))}  # fmt: skip
    said = failed(small_mac, graph)
    message = said["exception_message"].strip()
    assert said["node_type"] == class_type and says in message and outside in message and "\n" not in message


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
