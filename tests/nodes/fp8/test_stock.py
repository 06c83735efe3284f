"""ComfyUI's own loaders, held to their scales: stand-ins of them, real files, and what is put back."""
import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from model_files import E4M3, E5M2, KNOWN, part, quant_file, random, text, write

LOADERS = ("load_diffusion_model", "load_clip", "load_checkpoint_guess_config")


class Quantised(torch.nn.Parameter):
    storage_dtype = E4M3


def values(layer):
    """What the layer is stored as, in FP8: the last letter of its name tells."""
    return random(8, 16, seed=ord(layer[-1]) - ord("a")).to(E4M3)


def model(*layers, quantised=True):
    """A module with these layers, which hold their `values` in a quantised weight, or as they are."""
    root = torch.nn.Module()
    for name in layers:
        at = root
        for each in name.split("."):
            if not hasattr(at, each):
                at.add_module(each, torch.nn.Module())
            at = getattr(at, each)
        weight = values(name).bfloat16()
        at.weight = Quantised(weight, requires_grad=False) if quantised else torch.nn.Parameter(weight)
    return root


def patcher(root):
    return SimpleNamespace(model=SimpleNamespace(diffusion_model=root), load_device="mps")


def encoder(root):
    return SimpleNamespace(cond_stage_model=root, load_device="cpu")


@pytest.fixture
def comfy(loaded, monkeypatch):
    """comfy.sd with what a test puts there, the pack's functions before it; `calls` are ComfyUI's own."""
    pack, _ = loaded
    stock, sd = part("stock"), importlib.import_module("comfy.sd")
    stock.uninstall()
    management = ModuleType("comfy.model_management")
    management.current_loaded_models = [SimpleNamespace(model=object())]
    management.free_memory = lambda size, device, keep: seen.unloaded.append((device, keep))
    monkeypatch.setitem(sys.modules, management.__name__, management)
    monkeypatch.setattr(importlib.import_module("comfy"), "model_management", management, raising=False)
    monkeypatch.setattr(stock.library, "metal_kernels", SimpleNamespace(
        obstacle=lambda: seen.obstacle, modes=lambda: {"fp8": seen.mode}))
    seen = SimpleNamespace(stock=stock, sd=sd, utils=importlib.import_module("comfy.utils"), calls=[], obstacle=None,
                           mode="auto", unloaded=[])

    def put(**functions):
        stock.uninstall()
        for name, function in functions.items():
            monkeypatch.setattr(sd, name, function)
        stock.install()
        assert stock.problems() == []

    seen.put = put
    yield seen
    stock.uninstall()


def unet(comfy, result):
    def load_diffusion_model(unet_path, model_options=None, disable_dynamic=False):
        comfy.calls.append((unet_path, model_options))
        return result

    comfy.put(load_diffusion_model=load_diffusion_model)
    return lambda path, *args, **more: comfy.sd.load_diffusion_model(str(path), *args, **more)


def test_a_good_file_is_loaded_as_ever(comfy, tmp_path):
    path, good = quant_file(tmp_path, torch.tensor(0.5)), patcher(model("a"))
    load = unet(comfy, good)
    assert load(path) is good and load(path, {"dtype": E4M3}, disable_dynamic=True) is good
    assert comfy.calls == [(str(path), None), (str(path), {"dtype": E4M3})]


@pytest.mark.parametrize("make, says", [
    (lambda folder: quant_file(folder), "its scale a.weight_scale is missing"),
    (lambda folder: quant_file(folder, torch.ones(4, 1)), "its scale a.weight_scale (4, 1)"),
    (lambda folder: quant_file(folder, torch.tensor(0.5), config={"format": "float7"}), "in the format 'float7'"),
    (lambda folder: write(folder, {"a.weight": random(8, 4, 3, 3).to(E4M3), "a.weight_scale": torch.tensor(0.5)}),
     "has 4 dimensions, (8, 4, 3, 3)"),
    (lambda folder: write(folder, {"a.weight": random(8, 16).bfloat16(), "a.weight_scale": torch.tensor(0.5)}),
     "a.weight is bfloat16 and has a scale, a.weight_scale: how it is to be used is unknown"),
    (lambda folder: write(folder, {"a.weight": random(8, 16).to(E4M3), "a.weight_scale_inv": torch.tensor(0.5)}),
     "a.weight is float8_e4m3fn and has a scale, a.weight_scale_inv: how it is to be used is unknown"),
    (lambda folder: write(folder, {"a.weight": random(8, 4)}).with_suffix(".none.safetensors"), "can't be read"),
])  # fmt: skip
def test_a_damaged_file_is_never_given_to_comfyui(comfy, tmp_path, make, says):
    load = unet(comfy, patcher(model("a")))
    with pytest.raises(ValueError) as caught:
        load(make(tmp_path))
    assert says in str(caught.value) and "\n" not in str(caught.value) and not comfy.calls


@pytest.mark.parametrize("tensors", [
    {"a.weight": random(8, 16).to(E4M3), "shared.weight": random(8, 16).to(E5M2)},
    {"model.diffusion_model.a.weight": random(8, 16).to(E4M3), "text_encoders.t5.b.weight": random(8, 16).to(E4M3),
     "model.diffusion_model.a.weight_scale": torch.tensor(0.5)},
    {"a.weight": random(8, 16), "a.weight_scale": torch.tensor(1.0)},
    {"a.weight": random(8, 16).bfloat16()}, {"a.weight": random(8, 16).to(torch.int8)},
], ids=["plain", "one model plain, one scaled", "a wide weight with a scale of 1", "wide", "integers"])  # fmt: skip
def test_a_file_without_fault(comfy, tmp_path, tensors):
    load = unet(comfy, patcher(model("a")))
    assert load(write(tmp_path, tensors)) is not None


def test_other_kinds_of_files_are_not_looked_at(comfy, tmp_path):
    (tmp_path / "model.ckpt").write_bytes(b"PK")
    load = unet(comfy, patcher(model("a")))
    assert load(tmp_path / "model.ckpt") is not None


REFUSED = "model.safetensors: ComfyUI takes no scale for 1 layers of this file, "


def test_a_layer_that_got_no_scale_is_refused_and_unloaded(comfy, tmp_path):
    path = quant_file(tmp_path, torch.tensor(0.5))
    bad = patcher(model("a", quantised=False))
    with pytest.raises(ValueError, match=f"{REFUSED}a, and would use them unscaled."):
        unet(comfy, bad)(path)
    management = sys.modules["comfy.model_management"]
    others = list(management.current_loaded_models)
    management.current_loaded_models.append(SimpleNamespace(model=bad))
    comfy.unloaded.clear()
    with pytest.raises(ValueError, match=REFUSED):
        unet(comfy, bad)(path)
    assert comfy.unloaded == [("mps", others)], "it and nothing else"
    with pytest.raises(ValueError, match=f"{REFUSED}a,"):
        unet(comfy, patcher(model("other.a", quantised=False)))(path)
    assert unet(comfy, patcher(model("other.name")))(path), "renamed, and quantised"


def test_a_layer_that_the_model_does_not_have_is_no_loss(comfy, tmp_path):
    """An lm_head, a vision tower: ComfyUI calls them unexpected, and goes on."""
    path = quant_file(tmp_path, torch.tensor(0.5), **{
        "lm_head.weight": random(8, 16, seed=3).to(E4M3), "lm_head.weight_scale": torch.tensor(0.5),
        "lm_head.comfy_quant": text({"format": "float8_e4m3fn"})})  # fmt: skip
    assert unet(comfy, patcher(model("a")))(path)
    with pytest.raises(ValueError, match=f"{REFUSED}a,"):
        unet(comfy, patcher(model("a", quantised=False)))(path)


@pytest.mark.parametrize("kind, weight, more", [
    ("mxfp8", (8, 32), {"a.weight_scale": torch.zeros(128, 4, dtype=torch.uint8)}),
    ("int8_tensorwise", (8, 16), {"a.weight_scale": torch.tensor(0.5)}),
])  # fmt: skip
def test_other_formats_are_held_to_it_too(comfy, tmp_path, monkeypatch, kind, weight, more):
    monkeypatch.setattr(importlib.import_module("comfy.quant_ops"), "QUANT_ALGOS", dict.fromkeys(KNOWN))
    stored = (random(*weight) * 20).to(torch.int8 if kind.startswith("int8") else E4M3)
    path = write(tmp_path, {"a.weight": stored, "a.comfy_quant": text({"format": kind}), **more})
    root = model("a")
    root.a.weight = torch.nn.Parameter(stored.float())
    with pytest.raises(ValueError, match=f"{REFUSED}a,"):
        unet(comfy, patcher(root))(path)


def test_operations_of_somebody_elses_own_know_best(comfy, tmp_path):
    load = unet(comfy, patcher(model("a", quantised=False)))
    assert load(quant_file(tmp_path), {"custom_operations": object()})


@pytest.mark.parametrize("how", ["switched off", "uninstalled", "no MPS"])
def test_it_does_nothing(comfy, tmp_path, how):
    comfy.obstacle = "no MPS" if how == "no MPS" else None
    load = unet(comfy, patcher(model("a", quantised=False)))
    comfy.mode = "off" if how == "switched off" else "auto"
    if how == "uninstalled":
        comfy.stock.uninstall()
    assert load(quant_file(tmp_path))


@pytest.mark.parametrize("helps", [True, False])
def test_a_text_encoder_that_does_not_look_is_told(comfy, tmp_path, helps):
    def load_clip(ckpt_paths, embedding_directory=None, clip_type=None, model_options=None):
        comfy.calls.append(model_options)
        return encoder(model("a", quantised=helps and "quantization_metadata" in model_options))

    comfy.put(load_clip=load_clip)
    path = str(quant_file(tmp_path, torch.tensor(0.5)))
    if not helps:
        with pytest.raises(ValueError, match="ComfyUI takes no scale for 1 layers"):
            comfy.sd.load_clip([path], model_options={"x": 1})
        return
    found = comfy.sd.load_clip(ckpt_paths=[path], model_options={"x": 1})
    assert comfy.calls == [{"x": 1}, {"x": 1, "quantization_metadata": {"mixed_ops": True}}]
    assert isinstance(found.cond_stage_model.a.weight, Quantised)


def checkpoint_file(folder, *parts):
    return write(folder, {f"{name}.{end}": value for name in parts for end, value in {
        "weight": values(name), "weight_scale": torch.tensor(0.5),
        "comfy_quant": text({"format": "float8_e4m3fn"})}.items()})  # fmt: skip


@pytest.mark.parametrize("lost", ["model", "encoder", "encoder at first", "vae", None])
def test_a_checkpoint_part_by_part(comfy, tmp_path, lost):
    def load_checkpoint_guess_config(ckpt_path, output_vae=True, output_clip=True, output_model=True,
                                     model_options=None, te_model_options=None):  # fmt: skip
        comfy.calls.append((output_model, output_vae, te_model_options))
        told = "quantization_metadata" in (te_model_options or {})
        return (
            patcher(model("a", quantised=lost != "model")) if output_model else None,
            encoder(model("b", quantised=lost != "encoder" and (told or lost != "encoder at first"))),
            SimpleNamespace(first_stage_model=model("c", quantised=False)) if output_vae else None, None,
        )  # fmt: skip

    comfy.put(load_checkpoint_guess_config=load_checkpoint_guess_config)
    parts = ["model.diffusion_model.a", "cond_stage_model.b", *(["first_stage_model.c"] if lost == "vae" else [])]
    path = str(checkpoint_file(tmp_path, *parts))
    if lost in ("model", "encoder", "vae"):
        with pytest.raises(ValueError, match="ComfyUI takes no scale for 1 layers"):
            comfy.sd.load_checkpoint_guess_config(path)
        return
    found, clip, vae, vision = comfy.sd.load_checkpoint_guess_config(path)
    assert found and vae and vision is None and isinstance(clip.cond_stage_model.b.weight, Quantised)
    again = [(False, False, {"quantization_metadata": {"mixed_ops": True}})] if lost else []
    assert comfy.calls == [(True, True, None), *again]


def test_all_is_put_back(comfy):
    before = [getattr(comfy.sd, name) for name in LOADERS]
    comfy.put()
    assert all(getattr(comfy.sd, name) is not original for name, original in zip(LOADERS, before, strict=True))
    comfy.stock.install()  # once
    comfy.stock.uninstall()
    assert [getattr(comfy.sd, name) for name in LOADERS] == before


def test_a_comfyui_that_has_changed_is_left_alone_and_the_status_says_so(comfy, monkeypatch, caplog):
    monkeypatch.setattr(comfy.sd, "load_clip", lambda paths: paths)
    monkeypatch.delattr(comfy.utils, "convert_old_quants")
    comfy.stock.install()
    clip, quants = comfy.stock.problems()
    assert clip == "FP8 files are not checked in comfy.sd.load_clip, which is not as it was " \
                   "(TypeError: it takes no ckpt_paths)"
    assert "comfy.utils.convert_old_quants" in quants and clip in caplog.text
    assert comfy.sd.load_clip(1) == 1 and comfy.sd.load_diffusion_model.__module__ == "comfy.sd"
    report = importlib.import_module(comfy.stock.__name__.replace("fp8.stock", "status.report"))
    assert f"  Note: {clip}." in report.as_text({"problem": None, "loaders": comfy.stock.problems()})
