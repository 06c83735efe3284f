"""comfy_quant texts where ComfyUI wants them, with a stand-in of its convert_old_quants."""
import json

import pytest
import torch
from model_files import E4M3, E5M2, part, random, text

texts, layers = part("texts"), part("layers")
FP8 = {"e4m3fn": E4M3, "e5m2": E5M2}
HALF = torch.tensor(0.5)


def said(state):
    return {name.removesuffix(".comfy_quant"): json.loads(bytes(value.tolist())) for name, value in state.items()
            if name.endswith(".comfy_quant")}


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("ending", layers.SCALES)
def test_scales_alone_get_a_text(dtype, ending):
    state = {"a.weight": random(8, 16).to(FP8[dtype]), f"a.{ending}": HALF}
    texts.complete(state)
    assert said(state) == {"a": {"format": f"float8_{dtype}"}} and state["a.weight_scale"] is HALF
    assert set(state) == {"a.weight", "a.weight_scale", "a.comfy_quant"}
    before = dict(state)
    texts.complete(state)
    assert state == before and list(state) == list(before)


def test_a_text_with_a_scale_under_its_old_name():
    given = text({"format": "float8_e4m3fn", "full_precision_matrix_mult": True})
    state = {"a.weight": random(8, 16).to(E4M3), "a.scale_weight": HALF, "a.scale_input": torch.tensor(2.0),
             "a.comfy_quant": given, "b.weight": random(8, 16).to(E4M3), "b.scale_weight": HALF,
             "b.scale_input": torch.tensor(1.0)}  # fmt: skip
    texts.complete(state)
    assert state["a.comfy_quant"] is given and state["a.weight_scale"] is HALF and state["a.input_scale"] == 2
    assert "a.scale_weight" not in state and "a.scale_input" not in state
    assert "b.input_scale" not in state and "b.scale_input" not in state, "1 is no scale"


def test_scales_in_float64_which_no_mac_has():
    state = {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": HALF.double(), "a.input_scale": HALF.double()}
    texts.complete(state)
    assert state["a.weight_scale"].dtype is state["a.input_scale"].dtype is torch.float32


@pytest.mark.parametrize("tensors", [
    {"a.weight": random(8, 16).to(E4M3)}, {"a.weight": random(8, 16), "a.weight_scale": torch.tensor(1.0)},
    {"a.weight": random(8, 16).to(torch.int8), "a.weight_scale": HALF,
     "a.comfy_quant": text({"format": "int8_tensorwise"})},
    {"t5.scaled_fp8": torch.zeros(0).to(E4M3), "t5.a.weight": random(8, 16).to(E4M3), "t5.a.scale_weight": HALF},
], ids=["plain", "wide", "another format", "below a marker"])  # fmt: skip
def test_what_is_left_as_it_is(tensors):
    state = dict(tensors)
    texts.complete(state)
    assert state == tensors


def test_a_marker_for_products_in_full_precision():
    state = {"scaled_fp8": torch.zeros(2), "model.a.weight": random(8, 16).to(E4M3), "model.a.weight_scale": HALF}
    texts.complete(state)
    assert said(state) == {"model.a": {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}}


@pytest.fixture
def converted(monkeypatch):
    """state dict -> what ComfyUI's function, ours before it, makes of it: the stand-in says float8_e4m3fn of all."""
    def convert_old_quants(state_dict, model_prefix="", metadata=None):
        given = {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}
        scaled = [name.removesuffix(".scale_weight") for name in state_dict if name.endswith(".scale_weight")]
        state = {name.replace("scale_weight", "weight_scale"): value for name, value in state_dict.items()}
        return {**state, **{f"{layer}.comfy_quant": text(given) for layer in scaled}}, metadata

    stock = part("stock")

    def call(state, metadata=None):
        given = {"state_dict": state, "model_prefix": "", "metadata": metadata}
        return stock._old_quants(lambda: convert_old_quants(state, "", metadata), given)

    return call


def test_scaled_fp8_in_e5m2_is_read_as_such(converted):
    given = {"a.weight": random(8, 16).to(E5M2), "b.weight": random(8, 16).to(E4M3), "a.scale_weight": HALF,
             "b.scale_weight": HALF, "c.weight": random(8, 16).to(E5M2), "c.weight_scale": HALF,
             "c.comfy_quant": text({"format": "float8_e5m2"})}  # fmt: skip
    state, metadata = converted(given, {"x": "y"})
    found = said(state)
    assert found["a"] == {"format": "float8_e5m2", "full_precision_matrix_mult": True}
    assert found["b"]["format"] == "float8_e4m3fn" and found["c"] == {"format": "float8_e5m2"}
    assert metadata == {"x": "y"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz], ids=str)
def test_scaled_fp8_with_weights_of_other_dtypes(converted, dtype):
    weight = random(8, 16).to(dtype)
    state, _ = converted({"a.weight": weight, "a.scale_weight": torch.tensor(1.0)})
    assert set(state) == {"a.weight"} and state["a.weight"] is weight, "its scale is 1: it is what it is"
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=f"a.weight is {kind} and has a scale: what it means is unknown."):
        converted({"a.weight": weight, "a.scale_weight": HALF})


def test_texts_from_the_metadata_are_the_files_own(converted):
    given = {"a.weight": random(8, 16).to(E5M2), "a.scale_weight": HALF}
    state, _ = converted(given, {"_quantization_metadata": "{}"})
    assert said(state)["a"]["format"] == "float8_e4m3fn", "what contradicts the weight is refused before"
