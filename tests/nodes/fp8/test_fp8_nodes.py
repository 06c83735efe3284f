"""The four nodes through the stand-in of ComfyUI's API: their identity, the names they take, and the words they say."""
import importlib
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from model_files import E4M3, part, quant_file, random, write

NODES = ("MetalFP8LoadDiffusionModel", "MetalFP8LoadCLIP", "MetalFP8LoadCheckpoint", "MetalFP8SaveModel")
OPTIONS = [("quantize", "COMBO"), ("format", "COMBO"), ("leave_alone", "STRING")]


class Linear(torch.nn.Module):
    """ComfyUI's Linear as far as it matters: a comfy_quant text makes its weight a quantised one."""

    comfy_cast_weights = True

    def __init__(self, weight, scale=None, quant_format=None):
        super().__init__()
        if scale is None:
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
        else:
            self.quant_format = quant_format
            self.weight = quantised(weight, scale)


class Quantised(torch.nn.Parameter):
    """Shaped like comfy-kitchen's QuantizedTensor in a Parameter."""

    def __new__(cls, values, scale):
        return super().__new__(cls, torch.empty(values.shape, dtype=torch.bfloat16), requires_grad=False)

    def __init__(self, values, scale):
        self._qdata, self.params, self.storage_dtype = values, SimpleNamespace(scale=scale), values.dtype


def quantised(values, scale):
    return Quantised(values, scale)


@pytest.fixture
def comfy(loaded, monkeypatch, tmp_path):
    """What the loaders use of ComfyUI; `unheld` are layers that its model has no quantised place for."""
    seen = SimpleNamespace(states=[], unheld=set(), texts=[], warnings=[], nodes=loaded[1], known=True)

    def load(state, metadata=None):
        seen.states.append(state)
        if not seen.known:
            return None
        root = torch.nn.ModuleDict()
        for name in [key.removesuffix(".weight") for key in state if key.endswith(".weight")]:
            weight, scale = state[f"{name}.weight"], state.get(f"{name}.weight_scale")
            held = scale is not None and name not in seen.unheld
            root[name.replace(".", "_")] = Linear(weight, scale if held else None, str(weight.dtype)[6:])
        return SimpleNamespace(model=SimpleNamespace(diffusion_model=root), cached_patcher_init=None)

    def module(name, **contents):
        made = types.ModuleType(name)
        made.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    sd = importlib.import_module("comfy.sd")
    monkeypatch.setattr(sd, "load_diffusion_model_state_dict", load, raising=False)
    management = module("comfy.model_management", get_torch_device=lambda: torch.device("cpu"), is_oom=lambda e: False,
                        throw_exception_if_processing_interrupted=lambda: None)
    module("comfy.quant_ops", QUANT_ALGOS={"float8_e4m3fn": {}, "float8_e5m2": {}})
    bar = SimpleNamespace(update_absolute=lambda value, total: seen.texts.append(value))
    utils = module("comfy.utils", ProgressBar=lambda total: bar)
    monkeypatch.setattr(sys.modules["comfy"], "model_management", management, raising=False)
    monkeypatch.setattr(sys.modules["comfy"], "utils", utils, raising=False)
    files = importlib.import_module("folder_paths").FILES
    files["diffusion_models"] = {"model.safetensors": str(tmp_path / "model.safetensors"),
                                 "old.ckpt": str(tmp_path / "old.ckpt")}  # fmt: skip
    yield seen
    files.clear()


def run(comfy, **options):
    return comfy.nodes["MetalFP8LoadDiffusionModel"].execute("model.safetensors", **options)


@pytest.mark.parametrize("name, inputs, outputs", [
    ("MetalFP8LoadDiffusionModel", [("model_name", "COMBO"), *OPTIONS], [("model", "MODEL"), ("report", "STRING")]),
    ("MetalFP8LoadCLIP", [("clip_name", "COMBO"), ("type", "COMBO"), ("device", "COMBO"), ("clip_name2", "COMBO"),
                          ("clip_name3", "COMBO"), ("clip_name4", "COMBO"), *OPTIONS],
     [("clip", "CLIP"), ("report", "STRING")]),
    ("MetalFP8LoadCheckpoint", [("ckpt_name", "COMBO"), ("device", "COMBO"), *OPTIONS],
     [("model", "MODEL"), ("clip", "CLIP"), ("vae", "VAE"), ("report", "STRING")]),
    ("MetalFP8SaveModel", [("model", "MODEL"), ("filename_prefix", "STRING"), *OPTIONS[1:]],
     [("path", "STRING"), ("report", "STRING")]),
])  # fmt: skip
def test_the_identity_is_as_released(loaded, name, inputs, outputs):
    """Workflows name these: they may be added to, never changed."""
    schema = loaded[1][name].GET_SCHEMA()
    assert schema.category == "Metal Kernels" and schema.display_name.startswith("Metal FP8 ")
    assert [(one.id, one.io_type) for one in schema.inputs] == inputs
    assert [(one.id, getattr(one, "io_type", None)) for one in schema.outputs] == outputs
    assert len(schema.description) > 60 and "fp8" in schema.search_aliases
    assert schema.is_output_node == (name == "MetalFP8SaveModel")
    for one in (*schema.inputs, *schema.outputs):
        assert one.tooltip and one.tooltip.endswith((".", ")")), one.id


def test_the_report_counts_bytes_and_layers(comfy, tmp_path):
    tensors = {"a.weight": random(8, 16).to(E4M3), "b.weight": random(8, 16).bfloat16()}
    size = write(tmp_path, tensors).stat().st_size
    model, text = run(comfy).result
    assert text.splitlines() == [
        "model.safetensors: diffusion model", f"  on disk   0.5 KiB ({size} bytes)",
        f"  resident  0.4 KiB (388 bytes), {388 / size:.3f} of the file", "  layers    1 bfloat16, 1 float8_e4m3fn",
    ]  # fmt: skip
    assert model.cached_patcher_init[1][0] == "model.safetensors"
    assert comfy.texts == sorted(comfy.texts) and comfy.texts[-1] == 1000


def test_a_layer_that_comfyui_does_not_scale_is_loaded_again_in_bfloat16(comfy, tmp_path):
    quant_file(tmp_path, torch.tensor(0.5), **{"b.weight": random(4, 4).bfloat16()})
    comfy.unheld = {"a"}
    text = run(comfy).result[1]
    assert "1 layers are no place for FP8 in ComfyUI and are bfloat16: a" in text and "2 bfloat16" in text
    first, second = comfy.states
    assert first["a.weight"].dtype is E4M3 and "a.comfy_quant" not in second
    assert torch.equal(second["a.weight"], (first["a.weight"].float() * 0.5).bfloat16())


def test_an_unscaled_layer_that_comfyui_does_not_hold_is_right_as_it_is(comfy, tmp_path):
    write(tmp_path, {"a.weight": random(8, 16).to(E4M3)})
    comfy.unheld = {"a"}
    run(comfy)
    assert len(comfy.states) == 1


@pytest.mark.parametrize("name, says", [
    ("../x.safetensors", "'../x.safetensors' is no file of the models folder diffusion_models"),
    ("/etc/passwd", "'/etc/passwd' is no file of the models folder diffusion_models"),
    (None, "None is no file of the models folder diffusion_models"),
    ("old.ckpt", "'old.ckpt' is no safetensors file"),
])  # fmt: skip
def test_names_that_are_no_model(comfy, name, says):
    with pytest.raises(ValueError, match=says.replace(".", "[.]")):
        comfy.nodes["MetalFP8LoadDiffusionModel"].execute(name)
    assert comfy.states == []


def test_a_file_that_has_gone_since_the_list_was_made(comfy, monkeypatch):
    """Or a link that leads nowhere: ComfyUI lists it all the same."""
    folder_paths = importlib.import_module("folder_paths")

    def gone(folder, name):
        raise FileNotFoundError(f"Model in folder '{folder}' with filename '{name}' not found.")

    monkeypatch.setattr(folder_paths, "get_full_path_or_raise", gone)
    with pytest.raises(part("header").ModelFileError) as caught:
        run(comfy)
    assert str(caught.value) == "'model.safetensors' of the models folder diffusion_models is not there any more."


def test_a_model_that_comfyui_does_not_know(comfy, tmp_path):
    write(tmp_path, {"a.weight": random(8, 16)})
    comfy.known = False
    with pytest.raises(ValueError, match="model.safetensors holds no diffusion model that this ComfyUI knows."):
        run(comfy)


def test_comfyuis_own_errors_become_a_sentence_and_out_of_memory_passes(comfy, tmp_path, monkeypatch):
    write(tmp_path, {"a.weight": random(8, 16)})
    sd = sys.modules["comfy.sd"]

    def fail(problem):
        def load(state, metadata=None):
            raise problem

        monkeypatch.setattr(sd, "load_diffusion_model_state_dict", load)

    fail(RuntimeError("Error(s) in loading:\n\tsize mismatch for a.weight"))
    with pytest.raises(ValueError) as caught:
        run(comfy)
    said = "RuntimeError: Error(s) in loading: size mismatch for a.weight"
    assert str(caught.value) == f"ComfyUI can't load model.safetensors: {said}"
    fail(RuntimeError("MPS backend out of memory"))
    with pytest.raises(RuntimeError, match="^MPS backend out of memory"):
        run(comfy)


def test_a_warning_before_what_does_not_fit(comfy, tmp_path, monkeypatch, caplog):
    write(tmp_path, {"a.weight": random(64, 64).to(E4M3)})
    memory = part("memory")
    monkeypatch.setattr(memory, "limit", lambda: 3 * 2**10)
    monkeypatch.setattr(memory, "taken", lambda: 2**20)
    before = []
    sd = sys.modules["comfy.sd"]
    real = sd.load_diffusion_model_state_dict

    def load(*args, **kwargs):
        before.append([record.message for record in caplog.records if record.levelname == "WARNING"])
        return real(*args, **kwargs)

    monkeypatch.setattr(sd, "load_diffusion_model_state_dict", load)
    text = run(comfy).result[1]
    said = ("model.safetensors takes 4.0 KiB, and Metal recommends at most 3.0 KiB on this Mac: macOS will swap, or "
            "the run end out of memory. Another 1.0 MiB are in use. Use a smaller file, or quantise on load.")
    assert before == [[f"Metal Kernels FP8: {said}"]] and f"  Warning: {said}" in text.splitlines()
    monkeypatch.setattr(memory, "limit", lambda: 5 * 2**10)
    assert "Warning" not in run(comfy).result[1]


@pytest.mark.parametrize("needed, most, warns", [(10, None, False), (10, 10, False), (11, 10, True)])
def test_the_limit(loaded, needed, most, warns):
    assert bool(part("memory").warning("x", needed, most, 0)) is warns


def test_the_limit_is_metals_own(loaded, mps):
    assert part("memory").limit() == torch.mps.recommended_max_memory() > 2**30
    assert part("memory").taken() == torch.mps.driver_allocated_memory()
