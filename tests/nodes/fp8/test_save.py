"""MetalFP8SaveModel: whatever it writes the loaders take, and what can't be right is refused before there is a file."""
import importlib
import json
import math
import sys
import types
from types import SimpleNamespace

import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import E4M3, E5M2, KNOWN, part, random, recognised, text

NAN, INFINITY = float("nan"), float("inf")


class Once(torch.Tensor):
    """A tensor of ComfyUI's state dict for saving: `.to("cpu")` gives it, one time."""

    def to(self, *args, **kwargs):
        assert not getattr(self, "read", False), "read twice"
        self.read = True
        return self.as_subclass(torch.Tensor).detach()


class Linear(torch.nn.Module):
    comfy_cast_weights, in_features, out_features = True, 1, 1


class Model:
    """A MODEL of these tensors. Those of `linears` are weights of ComfyUI's Linear layers."""

    patches, object_patches, patches_uuid = {}, {}, 0

    def __init__(self, tensors, linears=()):
        modules = [(name, Linear()) for name in linears]
        self.tensors = tensors
        self.model = SimpleNamespace(diffusion_model=SimpleNamespace(named_modules=lambda: modules))

    def state_dict_for_saving(self):
        return {f"model.diffusion_model.{name}": tensor.as_subclass(Once).detach()
                for name, tensor in self.tensors.items()}

    def get_model_object(self, name):
        return object()


@pytest.fixture
def save(comfy_api, monkeypatch):
    """save(model, path, **options) -> Saved, of the module's `save`."""
    import comfy

    for name, contents in {
        "model_management": dict(get_torch_device=lambda: torch.device("cpu")),
        "model_sampling": dict(ModelSamplingContinuousEDM=int, V_PREDICTION=int),
        "quant_ops": dict(QUANT_ALGOS=dict.fromkeys(KNOWN)),
    }.items():
        module = types.ModuleType(f"comfy.{name}")
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, f"comfy.{name}", module)
        monkeypatch.setattr(comfy, name, module, raising=False)
    monkeypatch.setattr(part("quantize"), "CHUNK", 64)
    return lambda model, path, **options: part("save").save(model, str(path), part("plan").Options(**options))


def test_a_layer_put_into_a_model_is_in_place_first(save, tmp_path, monkeypatch):
    """As ComfyUI's ModelSave has it: an object patch stands in a MODEL once it is loaded. What can't be is said."""
    from comfy import model_management

    model, asked = Model({"a.weight": random(8, 16)}, ["a"]), []
    monkeypatch.setattr(model_management, "load_models_gpu", asked.extend, raising=False)
    save(model, tmp_path / "m")
    assert asked == []
    monkeypatch.setattr(model, "object_patches", {"diffusion_model.a": object()})
    save(model, tmp_path / "m")
    assert asked == [model]

    monkeypatch.setattr(model_management, "load_models_gpu", lambda models: models[0].no_weight_scale)
    with pytest.raises(part("header").ModelFileError, match="merge models of one format.* Nothing was written"):
        save(model, tmp_path / "n")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz], ids=str)
def test_floats_of_other_machines_are_refused(save, tmp_path, dtype):
    with pytest.raises(part("header").ModelFileError, match=f"{dtype}, which no loader of FP8 files takes"):
        save(Model({"a.weight": random(8, 16).to(dtype)}, ["a"]), tmp_path / "m")
    assert not list(tmp_path.iterdir())


def layer(name, weight, scale, kind="float8_e4m3fn"):
    """A quantised layer of ComfyUI's."""
    return {f"{name}.weight": weight, f"{name}.weight_scale": scale, f"{name}.comfy_quant": text({"format": kind})}


def per_row(name, rows=8, columns=16):
    return layer(name, random(rows, columns).to(E4M3), torch.linspace(0.1, 0.5, rows)[:, None])


def tensors(path):
    with safetensors.safe_open(path, "pt") as file:
        return {key.removeprefix("model.diffusion_model."): file.get_tensor(key) for key in file.keys()}


def bits(tensor):
    return tensor.flatten().view(torch.uint8)


def loads(path):
    """The layers that both kinds of loaders find; both must take the file."""
    return [recognised(path, strict=strict)[2] for strict in (True, False)]


def config(tensor):
    return json.loads(bytes(tensor.tolist()))


@pytest.mark.parametrize("format, dtype", [("float8_e4m3fn", E4M3), ("float8_e5m2", E5M2)])
def test_every_kind_of_tensor(save, tmp_path, format, dtype):
    wide, left, values = random(8, 16), random(8, 16, seed=1).bfloat16(), random(8, 16, seed=2).to(E5M2)
    model = Model({
        "a.weight": wide, "a.bias": random(8).bfloat16(), "left.weight": left, "conv.weight": random(4, 4, 2, 2),
        **layer("q", values, torch.tensor(0.25), "float8_e5m2"), **per_row("rows"),
        "plain.weight": random(4, 4).to(E4M3), "plain.bias": random(4).to(E4M3), "norm.weight": random(4).to(E5M2),
        "none.weight": torch.zeros(0, 16), "number": torch.tensor(3),
    }, ["a", "left", "q", "rows", "plain", "none"])  # fmt: skip
    result = save(model, tmp_path / "m", format=format, leave_alone="left\n*norm*")
    got = tensors(tmp_path / "m")
    assert got["a.weight"].dtype is dtype and config(got["a.comfy_quant"]) == {"format": format}
    quantize = part("quantize").quantize
    values_a, scale_a = quantize(wide, dtype, "per tensor", "cpu")
    assert torch.equal(bits(got["a.weight"]), bits(values_a)) and torch.equal(got["a.weight_scale"], scale_a)
    for same in "a.bias", "left.weight", "conv.weight", "q.weight", "q.weight_scale", "q.comfy_quant", "number":
        assert got[same].dtype is model.tensors[same].dtype and torch.equal(bits(got[same]), bits(model.tensors[same]))
    row = model.tensors["rows.weight"].float() * model.tensors["rows.weight_scale"]
    values_r, scale_r = quantize(row, E4M3, "per tensor", "cpu")
    assert torch.equal(bits(got["rows.weight"]), bits(values_r)) and torch.equal(got["rows.weight_scale"], scale_r)
    assert torch.equal(bits(got["plain.weight"]), bits(model.tensors["plain.weight"]))
    assert got["plain.weight_scale"].item() == 1.0 and config(got["plain.comfy_quant"]) == {"format": "float8_e4m3fn"}
    for cast in "plain.bias", "norm.weight":
        assert got[cast].dtype is torch.bfloat16 and torch.equal(got[cast].float(), model.tensors[cast].float())
    assert got["none.weight"].shape == (0, 16) and "none.comfy_quant" not in got
    assert (result.requantized, result.kept_rows, result.unused) == (["model.diffusion_model.rows"], [], [])
    for found in loads(tmp_path / "m"):
        assert {name.removeprefix("model.diffusion_model.") for name in found} == {"a", "q", "rows", "plain"}


def test_saved_again_it_is_the_same_file(save, tmp_path):
    model = Model({"a.weight": random(8, 16), **per_row("rows"), "b.weight": random(4, 4).to(E4M3)}, ["a", "rows", "b"])
    save(model, tmp_path / "1")
    save(Model(tensors(tmp_path / "1"), ["a", "rows", "b"]), tmp_path / "2")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def fp8(bits_of_one):
    """A matrix whose one value has these bits."""
    made = torch.full((8, 16), 0x38, dtype=torch.uint8)
    made[5, 3] = bits_of_one
    return made


WRONG = {
    "a NaN in e4m3fn": layer("q", fp8(0x7F).view(E4M3), torch.tensor(0.5)),
    "a negative NaN in e4m3fn": layer("q", fp8(0xFF).view(E4M3), torch.tensor(0.5)),
    "a NaN in e5m2": layer("q", fp8(0x7E).view(E5M2), torch.tensor(0.5), "float8_e5m2"),
    "infinity in e5m2": layer("q", fp8(0xFC).view(E5M2), torch.tensor(0.5), "float8_e5m2"),
    "a NaN in a layer with a scale a row": layer("q", fp8(0x7F).view(E4M3), torch.ones(8, 1)),
    "a NaN among the scales of the rows": layer("q", fp8(0x38).view(E4M3), torch.tensor([1.0] * 7 + [NAN])[:, None]),
    "a scale of NaN": layer("q", fp8(0x38).view(E4M3), torch.tensor(NAN)),
    "a scale of infinity": layer("q", fp8(0x38).view(E4M3), torch.tensor(INFINITY)),
    "a scale that makes weights infinite": layer("q", fp8(0x7E).view(E4M3), torch.tensor(1e36)),
    "a scale of one value that is infinite in float32": layer("q", fp8(0x38).view(E4M3),
                                                              torch.tensor(1e300, dtype=torch.float64)),
    "a NaN in FP8 without a scale": {"q.weight": fp8(0x7F).view(E4M3)},
    "NaN in a block scale of nvfp4": {
        "q.weight": fp8(0), "q.weight_scale": torch.full((128, 4), 0x7F, dtype=torch.uint8).view(E4M3),
        "q.weight_scale_2": torch.tensor(1.0), "q.comfy_quant": text({"format": "nvfp4"})},
}  # fmt: skip


@pytest.mark.parametrize("tensors", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("leave_alone", ["", "q"])
def test_what_is_no_number_in_fp8_is_refused(save, tmp_path, tensors, leave_alone):
    """Left alone or not: there it stays FP8."""
    model = Model({"a.weight": random(8, 16), **tensors}, ["a", "q"])
    with pytest.raises(ValueError) as caught:
        save(model, tmp_path / "new" / "m", leave_alone=leave_alone)
    assert str(caught.value) == (
        "model.diffusion_model.q is FP8 and holds NaN or infinity, which leaving it alone would keep: take off the "
        "LoRA that brings them, or load the model from another file. Nothing was written."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong, dtype", [
    *((wrong, dtype) for wrong in (NAN, INFINITY, -INFINITY) for dtype in (torch.float32, torch.bfloat16)),
    (INFINITY, torch.float16), (3.4e38, torch.float32),  # infinite in bfloat16
])  # fmt: skip
def test_leaving_a_wide_layer_alone_helps(save, tmp_path, wrong, dtype):
    weight = random(8, 16).to(dtype)
    weight[7, 1] = wrong
    model = Model({"b.weight": random(8, 16), "a.weight": weight}, ["a", "b"])
    with pytest.raises(ValueError, match="diffusion_model.a holds NaN or infinity: name it among the layers to leave "):
        save(model, tmp_path / "m", leave_alone="")
    assert list(tmp_path.iterdir()) == []
    save(model, tmp_path / "m", leave_alone="a")
    got = tensors(tmp_path / "m")
    assert got["b.weight"].dtype is E4M3 and torch.equal(bits(got["a.weight"]), bits(weight))
    loads(tmp_path / "m")


@pytest.mark.parametrize("large", [1e38, 3.3e38])
def test_large_numbers_are_numbers(save, tmp_path, large):
    weight = random(8, 16)
    weight[0, 0] = large
    save(Model({"a.weight": weight}, ["a"]), tmp_path / "m")
    got = tensors(tmp_path / "m")
    again = got["a.weight"].float() * got["a.weight_scale"]
    assert math.isclose(again[0, 0].item(), large, rel_tol=1e-6) and again.isfinite().all()
    loads(tmp_path / "m")


def test_a_layer_with_scales_for_its_rows_may_keep_them(save, tmp_path):
    """By a pattern of the user's own; those that the node comes with are about wide layers."""
    model = Model({**per_row("mine"), **per_row("img_in"), **per_row("third")}, ["mine", "img_in", "third"])
    default = part("plan").LEAVE_ALONE
    assert "img_in" in default
    result = save(model, tmp_path / "m", leave_alone=f"{default}\nmine")
    got = tensors(tmp_path / "m")
    for name in "mine.weight", "mine.weight_scale", "mine.comfy_quant":
        assert torch.equal(bits(got[name]), bits(model.tensors[name]))
    assert got["img_in.weight_scale"].shape == got["third.weight_scale"].shape == ()
    assert result.kept_rows == ["model.diffusion_model.mine"] and len(result.requantized) == 2
    assert "1 layers keep a scale for each row, as a pattern asks" in part("report").saved(result)
    loads(tmp_path / "m")


def test_patterns_that_name_no_layer_are_told(save, tmp_path):
    model = Model({"a.weight": random(8, 16)}, ["a"])
    result = save(model, tmp_path / "m", leave_alone=f"{part('plan').LEAVE_ALONE}\nA\n[\ntypo*")
    assert result.unused == ["[", "typo*"], "of the list that the node comes with most name nothing in one model"
    assert "  no layer is named by the patterns [, typo*" in part("report").saved(result).splitlines()
    result = save(model, tmp_path / "m", leave_alone="a")
    assert result.unused == [] and "no layer is named" not in part("report").saved(result)


def test_what_the_loaders_refuse_is_not_written(save, tmp_path):
    for wrong, said in (
        (layer("q", random(8, 16).to(E4M3), torch.tensor(-1.0)), "is no scale"),
        (layer("q", random(8, 16).to(E4M3), torch.ones(3)), "one value is expected"),
        ({"q.weight": random(8, 16).to(E4M3), "q.comfy_quant": text({"format": "float8_e4m3fn"})}, "is missing"),
        (layer("q", random(8, 16).to(E4M3), torch.tensor(1.0), "float9"), "which this ComfyUI doesn't know"),
        ({"c": torch.zeros(2, dtype=torch.complex128)}, "which no safetensors file can hold"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            save(Model(wrong, ["q"]), tmp_path / "new" / "m")
        assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


STACK = {"q.weight": random(3, 4, 8).to(E4M3),
         "q.comfy_quant": text({"format": "float8_e4m3fn", "num_experts": 3})}  # fmt: skip
OTHERS = {
    "mxfp8": {"q.weight": random(32, 64).to(E4M3), "q.weight_scale": torch.full((128, 4), 127, dtype=torch.uint8),
              "q.comfy_quant": text({"format": "mxfp8"})},
    "nvfp4": {"q.weight": torch.zeros(32, 32, dtype=torch.uint8),
              "q.weight_scale": torch.full((128, 4), 0x38, dtype=torch.uint8).view(E4M3),
              "q.weight_scale_2": torch.tensor(0.5), "q.comfy_quant": text({"format": "nvfp4"})},
    "int8": {"q.weight": torch.ones(4, 8, dtype=torch.int8), "q.weight_scale": torch.full((4, 1), 0.5),
             "q.comfy_quant": text({"format": "int8_tensorwise"})},
    "experts, one scale each": {**STACK, "q.weight_scale": torch.ones(3)},
    "experts, one scale each, upright": {**STACK, "q.weight_scale": torch.ones(3, 1)},
    "experts, one scale a row": {**STACK, "q.weight_scale": torch.ones(3, 4, 1)},
    "an input scale": layer("q", random(4, 8).to(E4M3), torch.tensor(0.5)) | {"q.input_scale": torch.tensor(2.0)},
}


@pytest.mark.parametrize("tensors_of_it", OTHERS.values(), ids=OTHERS)
def test_what_is_quantised_already_stays_as_it_is(save, tmp_path, tensors_of_it):
    """In any format, byte by byte."""
    result = save(Model(tensors_of_it, ["q"]), tmp_path / "m")
    got = tensors(tmp_path / "m")
    assert got.keys() == tensors_of_it.keys() and result.requantized == []
    for name, tensor in tensors_of_it.items():
        assert got[name].shape == tensor.shape and torch.equal(bits(got[name]), bits(tensor))
    loads(tmp_path / "m")


@pytest.mark.parametrize("scale", [torch.tensor([1.0, NAN, 1.0]), torch.tensor([[1.0], [1e37], [1.0]]),
                                   torch.tensor([1.0] * 11 + [INFINITY]).reshape(3, 4, 1)], ids=["NaN", "large", "row"])
def test_experts_that_are_no_numbers(save, tmp_path, scale):
    weight = torch.full((3, 4, 8), 0x7E, dtype=torch.uint8).view(E4M3)
    with pytest.raises(ValueError, match="q is FP8 and holds NaN or infinity"):
        save(Model({**STACK, "q.weight": weight, "q.weight_scale": scale}, ["q"]), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given, says", [
    (None, "leave_alone is nothing (None): it must be a text, one pattern a line."),
    (["a"], "leave_alone is of type list: it must be a text, one pattern a line."),
    (3, "leave_alone is the int 3: it must be a text, one pattern a line."),
])  # fmt: skip
def test_patterns_that_are_no_text(comfy_api, given, says):
    with pytest.raises(ValueError) as caught:
        part("plan").Options(leave_alone=given)
    assert str(caught.value) == says


NUMBERS = st.sampled_from([0.0, 1.0, -3.0, 448.0, 1e-44, 1e-30, 1e30, 1e38, 3.4e38, INFINITY, NAN])
SHAPES = st.tuples(st.integers(0, 5), st.integers(0, 5))


@st.composite
def models(draw):
    """Any mix of layers, with numbers of all kinds among their weights and scales."""
    made, linears = {}, []
    for at in range(draw(st.integers(1, 4))):
        name, shape = f"{draw(st.sampled_from(['blocks', 'img_in', 'norm']))}.{at}", draw(SHAPES)
        kind = draw(st.sampled_from(["wide", "plain", "quantised", "rows", "bias", "conv"]))
        dtype = draw(st.sampled_from([E4M3, E5M2]))
        values = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(at))
        values = values if draw(st.booleans()) else values & 0x3F  # numbers alone, or whatever there is
        wide = random(*shape).to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])))
        if wide.numel():
            wide[0, 0] = draw(NUMBERS)
        if draw(st.booleans()):
            linears.append(name)
        if kind in ("quantised", "rows"):
            scale = draw(NUMBERS) if kind == "quantised" else [[draw(NUMBERS)] for _ in range(shape[0])]
            made |= layer(name, values.view(dtype), torch.tensor(scale).reshape(() if kind == "quantised" else (-1, 1)),
                          str(dtype).removeprefix("torch."))
        elif kind == "bias":
            made |= {f"{name}.weight": wide, f"{name}.bias": values.flatten().view(dtype)}
        else:
            kinds = {"wide": wide, "plain": values.view(dtype), "conv": random(2, 2, 2, 2).to(dtype)}
            made[f"{name}.weight"] = kinds[kind]
    return made, linears


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(models(), st.sampled_from(["float8_e4m3fn", "float8_e5m2"]), st.sampled_from(["", "img_in.*", "*"]))
def test_whatever_it_writes_loads(save, tmp_path, made, format, leave_alone):
    """And is finite wherever it is FP8; what it refuses, it says in a sentence, and writes nothing."""
    path = tmp_path / "m"
    path.unlink(missing_ok=True)
    try:
        save(Model(*made), path, format=format, leave_alone=leave_alone)
    except part("header").ModelFileError as refused:
        assert str(refused).endswith("Nothing was written.") and "\n" not in str(refused)
        assert list(tmp_path.iterdir()) == []
        return
    for found in loads(path):
        got = tensors(path)
        for name, each in found.items():
            name = name.removeprefix("model.diffusion_model.")
            weight = got[f"{name}.weight"].float() * got[f"{name}.weight_scale"].float()
            assert each.scale is not None and weight.bfloat16().isfinite().all()
        for name, tensor in got.items():
            if tensor.dtype in (E4M3, E5M2):
                assert name.endswith(".weight") and f"model.diffusion_model.{name.removesuffix('.weight')}" in found


class TestWhereItGoes:
    @pytest.fixture
    def output(self, comfy_api, tmp_path, monkeypatch):
        """`output.path` with ComfyUI's function for names, as it is in 0.30, beneath."""
        folder_paths = importlib.import_module("folder_paths")
        monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path), raising=False)
        return part("output").path

    @pytest.mark.parametrize("prefix, file", [
        ("a", "a_00001_.safetensors"), ("diffusion_models/a", "diffusion_models/a_00001_.safetensors"),
        ("a b/./c", "a b/c_00001_.safetensors"), ("there/a", "there/a_00008_.safetensors"),
        ("%year%/a", "2026/a_00001_.safetensors"), ("x" * 231, "x" * 231 + "_00001_.safetensors"),
        ("\u00e9\u4e2d", "\u00e9\u4e2d_00001_.safetensors"),
    ])  # fmt: skip
    def test_names(self, output, tmp_path, prefix, file):
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "a_00007_.safetensors").touch()
        assert output(prefix) == str(tmp_path / file)
        assert [each.name for each in tmp_path.iterdir()] == ["there"], "nothing is made before there is a file"

    @pytest.mark.parametrize("prefix, says", [
        (None, "is nothing (None): it must name a place"), (["a"], "is of type list: it must name a place"),
        ("a\0b", "has characters that are not for names"), ("a\nb", "has characters that are not for names"),
        ("a\udc80", "has characters that are not for names"),
        ("", "is hidden, or no name"), (".", "is hidden, or no name"), ("a/..", "is hidden, or no name"),
        (".a", "is hidden, or no name"), (".a/b", "is hidden, or no name"), ("a/.b/c", "is hidden, or no name"),
        ("..", "is hidden, or no name"), ("../a", "it must name a place within ComfyUI's output folder"),
        ("/etc/a", "it must name a place within"), ("%year%/../../a", "it must name a place within"),
        ("x" * 300, "its name has 300 bytes, and 231 are possible"),
        ("\u4e2d" * 100, "its name has 300 bytes, and 231 are possible"),
        ("a/" + "x" * 300 + "/b", "within ComfyUI's output folder (File name too long)"),
    ])  # fmt: skip
    def test_names_that_are_none(self, output, tmp_path, prefix, says):
        with pytest.raises(part("header").ModelFileError) as caught:
            output(prefix)
        assert says in str(caught.value) and str(caught.value).startswith("filename_prefix is ")
        assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []
