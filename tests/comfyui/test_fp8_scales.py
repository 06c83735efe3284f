"""Scales and texts that are wrong in all the ways that are known, through ComfyUI's loaders and ours in a real ComfyUI:
one sentence each, before anything is loaded. And files that are odd and right: they are loaded, and right."""
import itertools
import json
import struct

import pytest
import torch
from fp8.checkpoints import name
from fp8.harness import failed, failure, free, load, pack_off, results, sampled
from graphs import node
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

E4M3 = torch.float8_e4m3fn
FLUX, CLIP = "double_blocks.0.img_attn.qkv", "text_model.encoder.layers.0.mlp.fc1"


def text(config):
    written = config if isinstance(config, str) else json.dumps(config)
    return torch.tensor(list(written.encode()), dtype=torch.uint8)


def without_texts(tensors):
    return {key: value for key, value in tensors.items() if not key.endswith(".comfy_quant")}


def scales_as(ending):
    """No texts, and every scale under another name."""
    return lambda tensors, layer: {
        f"{key.removesuffix('weight_scale')}{ending}" if key.endswith(".weight_scale") else key: value
        for key, value in without_texts(tensors).items()}  # fmt: skip


def with_(**parts):
    """The layer's tensors changed: name -> tensor, None for none, or a function of the tensor that is there. A name
    with _ before it is one of another layer's."""

    def change(tensors, layer):
        tensors = dict(tensors)
        for part, value in parts.items():
            key = f"{layer}{part}" if part.startswith("_") else f"{layer}.{part}"
            made = value(tensors.get(key)) if callable(value) else value
            if made is None:
                tensors.pop(key, None)
            else:
                tensors[key] = made
        return tensors

    return change


def format_(kind, **parts):
    return with_(comfy_quant=text({"format": kind}), **parts)


def undeclared(dtype):
    return with_(weight=lambda weight: weight.float().to(dtype), comfy_quant=None)


def integers(weight):
    return weight.float().clamp(-100, 100).to(torch.int8)


def packed(weight):
    return weight.view(torch.uint8)[:, ::2]


def blocks(columns, dtype=torch.uint8, value=120):
    """Scales of a weight's blocks, as ComfyUI lays them out: rows to 128, scales of a row to 4."""
    def make(weight):
        rows, scales = -(-weight.shape[0] // 128) * 128, -(-(weight.shape[1] // columns) // 4) * 4
        return torch.full((rows, scales), value, dtype=torch.uint8).view(dtype)
    return make


def given(maker):
    """A part made from the layer's weight as it was."""
    def change(tensors, layer):
        return maker(tensors[f"{layer}.weight"])(tensors, layer)
    return change


def nan(scale):
    return torch.full_like(scale, torch.nan)


UNKNOWN, MISSING = "has a scale", "its scale is missing"
# What is done to a good file -> a part of what is said of it.
DAMAGES = {
    "HF's scale_inv": (scales_as("weight_scale_inv"), UNKNOWN), "scale": (scales_as("scale"), UNKNOWN),
    "weight.scale": (scales_as("weight.scale"), UNKNOWN),
    "weight_scale_2 alone": (scales_as("weight_scale_2"), UNKNOWN),
    "inputs' scales alone": (scales_as("input_scale"), MISSING), "older ones": (scales_as("scale_input"), MISSING),
    "a marker and no scale": (lambda tensors, layer: {"scaled_fp8": torch.zeros(0).to(E4M3), **{
        key: value for key, value in without_texts(tensors).items() if not key.endswith("_scale")}}, MISSING),
    "e4m3fnuz": (undeclared(torch.float8_e4m3fnuz), UNKNOWN), "e5m2fnuz": (undeclared(torch.float8_e5m2fnuz), UNKNOWN),
    "int32": (undeclared(torch.int32), UNKNOWN), "bfloat16": (undeclared(torch.bfloat16), UNKNOWN),
    "int8": (with_(weight=integers, comfy_quant=None), UNKNOWN),
    "two scales": (with_(scale_weight=torch.tensor(7.0)), "two scales"),
    "int8's text": (format_("int8_tensorwise"), "its comfy_quant says int8_tensorwise"),
    "another FP8's text": (format_("float8_e5m2"), "its comfy_quant says float8_e5m2"),
    "float64": (with_(weight_scale=torch.tensor(1e300, dtype=torch.float64)), "which float32 does not hold"),
    "zero": (with_(weight_scale=torch.tensor(0.0)), "which is no scale"),
    "infinity": (with_(weight_scale=torch.tensor(torch.inf)), "which is no scale"),
    "three dimensions": (with_(weight_scale=lambda scale: scale.reshape(1, 1, 1)), "its scale"),
    "by columns": (given(lambda weight: with_(weight_scale=torch.ones(1, weight.shape[1]))), "its scale"),
    "an FP8 bias": (with_(bias=torch.ones(8).to(E4M3), bias_scale=torch.tensor(0.5)), UNKNOWN),
    "a parameter": (with_(in_proj_weight=torch.ones(8, 8).to(E4M3), in_proj_weight_scale=torch.tensor(0.5)), UNKNOWN),
    "one among many": (with_(weight_scale=None, comfy_quant=None), MISSING),
    "called shared": (with_(**{"_not_shared.weight": torch.ones(8, 8).to(E4M3)}), MISSING),
    "four dimensions": (with_(**{"_4.weight": torch.ones(4, 4, 3, 3).to(E4M3), "_4.weight_scale": torch.tensor(0.5)}),
                        "4 dimensions"),
    "unscaled, four": (with_(**{"_4.weight": torch.ones(4, 4, 3, 3).to(E4M3)}), MISSING),
    "deep text": (with_(comfy_quant=text("[" * 100_000)), "is no JSON text"),
    "a list": (format_(["float8_e4m3fn"]), "is in the format"), "nothing": (with_(comfy_quant=text("null")), "format"),
    "mxfp8, one scale": (format_("mxfp8"), "scale"), "mxfp8, none": (format_("mxfp8", weight_scale=None), "is missing"),
    "mxfp8, float32": (given(lambda weight: format_("mxfp8", weight_scale=blocks(32)(weight).float())), "scale"),
    "mxfp8, short": (given(lambda weight: format_("mxfp8", weight_scale=blocks(32)(weight)[:1])), "scale"),
    "mxfp8, NaN": (given(lambda weight: format_("mxfp8", weight_scale=blocks(32, value=255)(weight))), "scale"),
    "mxfp8, e5m2": (given(lambda weight: format_("mxfp8", weight=weight.float().to(torch.float8_e5m2),
                                                 weight_scale=blocks(32)(weight))), "its comfy_quant says mxfp8"),
    "nvfp4, one": (format_("nvfp4", weight=packed), "weight_scale_2 is missing"),
    "nvfp4, short": (given(lambda weight: format_("nvfp4", weight=packed, weight_scale=blocks(16, E4M3, 8)(weight)[:1],
                                                  weight_scale_2=torch.tensor(0.5))), "scale"),
    "nvfp4, NaN": (given(lambda weight: format_("nvfp4", weight=packed, weight_scale=blocks(16, E4M3, 8)(weight),
                                                weight_scale_2=torch.tensor(torch.nan))), "nan"),
    "nvfp4, two": (given(lambda weight: format_("nvfp4", weight=packed, weight_scale=blocks(16, E4M3, 8)(weight),
                                                weight_scale_2=torch.ones(2))), "weight_scale_2"),
    "int8, none": (format_("int8_tensorwise", weight=integers, weight_scale=None), "is missing"),
    "int8, NaN": (format_("int8_tensorwise", weight=integers, weight_scale=nan), "nan"),
    "int8, wrong shape": (format_("int8_tensorwise", weight=integers, weight_scale=torch.ones(3)), "its scale"),
}  # fmt: skip
# What the metadata says -> the same.
METADATA = {
    "no layers": ("[]", "_quantization_metadata can't be read"), "deep": ("[" * 100_000, "can't be read"),
    "a list": ('{"layers": []}', "can't be read"),
    "another": (lambda layer: json.dumps({"layers": {layer: {"format": "float8_e5m2"}}}), "contradicts itself"),
}
HEADERS = {
    "deep": (b'{"a":' + b"[" * 100_000, "is no JSON"),
    "a list": (b'{"a":{"dtype":["F32"],"shape":[2,3],"data_offsets":[0,24]}}', "bad.safetensors"),
    "true": (b'{"a":{"dtype":"F32","shape":[true,6],"data_offsets":[0,24]}}', "bad.safetensors"),
    "huge": (b'{"a":{"dtype":"F32","shape":[0,' + b"9" * 30 + b'],"data_offsets":[0,0]}}', "bad.safetensors"),
}


def clip(encoder="clip_name", **more):
    names = {field: "bad.safetensors" for field in encoder.split()}
    return lambda class_type: node(class_type, **names, type="sd3", **more)


# loader -> (the folder, what names begin with, the layer that is meant, the node)
LOADERS = {
    "UNETLoader": ("diffusion_models", "", FLUX, load("bad.safetensors", "default")),
    "MetalFP8LoadDiffusionModel": ("diffusion_models", "", FLUX, load("bad.safetensors", "ours")),
    "CheckpointLoaderSimple": ("checkpoints", "model.diffusion_model.", FLUX, load("bad.safetensors", "checkpoint")),
    "MetalFP8LoadCheckpoint": ("checkpoints", "model.diffusion_model.", FLUX,
                               load("bad.safetensors", "our checkpoint")),
    "CLIPLoader": ("text_encoders", "", CLIP, clip()("CLIPLoader")),
    "DualCLIPLoader": ("text_encoders", "", CLIP, clip("clip_name1 clip_name2")("DualCLIPLoader")),
    "MetalFP8LoadCLIP": ("text_encoders", "", CLIP, clip()("MetalFP8LoadCLIP")),
}
FULL = {"MetalFP8LoadCheckpoint", "MetalFP8LoadCLIP", "DualCLIPLoader"}


def good(server, folder, layer):
    """The tensors of a good file."""
    if folder != "text_encoders":
        return load_file(server.folder / "models" / folder / name("flux", "quant", "e4m3fn"))
    generator = torch.Generator().manual_seed(0)
    made = {}
    for at in layer, layer.replace("fc1", "fc2"):
        shape = (3072, 768) if at == layer else (768, 3072)
        made |= {f"{at}.weight": (torch.randn(shape, generator=generator) * 100).to(E4M3),
                 f"{at}.weight_scale": torch.tensor(0.01), f"{at}.comfy_quant": text({"format": "float8_e4m3fn"})}
    return made


@pytest.mark.parametrize("loader", [pytest.param(each, marks=[pytest.mark.full] * (each in FULL)) for each in LOADERS])
def test_what_is_wrong_is_said_before_anything_is_loaded(small_mac, loader):
    folder, prefix, layer, loading = LOADERS[loader]
    layer, target = f"{prefix}{layer}", small_mac.folder / "models" / folder / "bad.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    tensors, wrong = good(small_mac, folder, layer), {}
    free(small_mac)
    before = small_mac.post("/test/memory", {})
    small_mac.post("/test/reset", {})

    def judge(title, says):
        said = failed(small_mac, {"model": loading, "show": node("TestShow", value=("model", 0))})
        message = said["exception_message"].strip()
        kind = said["exception_type"] in ("metal_kernels.ModelFileError", "metal_kernels.Unfamiliar")
        if not kind or says not in message or "\n" in message or said["node_type"] != loading["class_type"]:
            wrong[title] = f"{said['exception_type']}: {message:.300}"

    for title, (change, says) in DAMAGES.items():
        save_file({key: value.contiguous() for key, value in change(tensors, layer).items()}, target)
        judge(title, says)
    for title, (said, says) in METADATA.items():
        save_file(tensors, target, metadata={"_quantization_metadata": said(layer) if callable(said) else said})
        judge(f"metadata: {title}", says)
    for title, (header, says) in HEADERS.items():
        target.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
        judge(f"header: {title}", says)
    assert wrong == {}
    after = small_mac.post("/test/memory", {})
    assert after["peaks"]["current"] == before["memory"]["current"] and after["loaded"] == before["loaded"]


def another_layer(tensors, layer):
    """A layer that the model has no place for: ComfyUI calls it unexpected."""
    more = layer.replace(FLUX, "lm_head")
    return tensors | {f"{more}.{part}": tensors[f"{layer}.{part}"] for part in ("weight_scale", "comfy_quant")} | {
        f"{more}.weight": tensors[f"{layer}.weight"].flip(0)}


ODD = {
    "another layer": another_layer,
    "a scale under its old name": lambda tensors, layer: with_(
        weight_scale=None, scale_weight=tensors[f"{layer}.weight_scale"])(tensors, layer),
    "scales alone": lambda tensors, layer: without_texts(tensors),
    "older ones alone": scales_as("scale_weight"),
    "float64": with_(weight_scale=torch.Tensor.double),
    "twice the same": lambda tensors, layer: with_(scale_weight=tensors[f"{layer}.weight_scale"])(tensors, layer),
}
QUICK = {("default", "another layer"), ("default", "a scale under its old name"), ("checkpoint", "older ones alone"),
         ("default", "float64")}


@pytest.mark.parametrize("loader, odd", [
    pytest.param(*case, id=" ".join(case), marks=() if case in QUICK else pytest.mark.full)
    for case in itertools.product(("default", "checkpoint", "ours", "our checkpoint"), ODD)])
def test_what_is_odd_and_right(small_mac, loader, odd):
    """The same picture as the good file's, bit for bit."""
    prefix = "model.diffusion_model." if "checkpoint" in loader else ""
    folder = small_mac.folder / "models" / ("checkpoints" if "checkpoint" in loader else "diffusion_models")
    right = name("flux", "quant", "e4m3fn")
    tensors = ODD[odd](load_file(folder / right), f"{prefix}{FLUX}")
    save_file({key: value.clone().contiguous() for key, value in tensors.items()}, folder / "odd.safetensors")
    free(small_mac)
    for file in right, "odd.safetensors":
        small_mac.run(sampled("flux", load(file, loader), f"{loader} {file}"), 600)
    found, expected = (results(small_mac, f"{loader} {file}") for file in ("odd.safetensors", right))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def open_clip(tensors):
    """A layer under OpenCLIP's names, which ComfyUI changes: of the weight and the bias, and not of the scale."""
    at = "transformer.resblocks.0"
    found = {key.replace(CLIP, f"{at}.mlp.c_fc"): value for key, value in tensors.items() if key.startswith(CLIP)}
    return found | {f"{at}.ln_1.weight": torch.ones(768)}


def test_a_scale_that_comfyui_loses_on_the_way(small_mac):
    """Refused, and nothing stays loaded; with the pack off it is used as it is stored. Ours holds it in bfloat16."""
    target = small_mac.folder / "models" / "text_encoders" / "lost.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file(open_clip(good(small_mac, "text_encoders", CLIP)), target)

    def graph(class_type):
        loader = node(class_type, clip_name="lost.safetensors", type="stable_diffusion")
        return {"clip": loader, "held": node("TestHeld", model=("clip", 0))}

    free(small_mac)
    before = small_mac.post("/test/memory", {})["loaded"]
    message, where = failure(small_mac, graph("CLIPLoader"))
    assert where == "CLIPLoader" and small_mac.post("/test/memory", {})["loaded"] == before
    assert message == ("lost.safetensors: ComfyUI takes no scale for 1 layers of this file, "
                       "transformer.resblocks.0.mlp.c_fc, and would use them unscaled. Load it with one of the Metal "
                       "FP8 nodes.")
    with pack_off(small_mac):
        small_mac.run(graph("CLIPLoader"))
    shown = small_mac.run(graph("MetalFP8LoadCLIP"))["outputs"]["clip"]["text"][0]
    assert "1 layers are no place for FP8 in ComfyUI and are bfloat16: transformer.resblocks.0.mlp.c_fc" in shown, shown
