"""Which weights are quantised and how, in each of the three kinds of file; scales and formats that are wrong."""
import json

import pytest
import torch
from model_files import E4M3, E5M2, KNOWN, part, quant_file, random, recognised, text, write

WIDE = {"norm.weight": random(8).bfloat16(), "b.weight": random(8, 8).bfloat16(), "b.bias": random(8).bfloat16()}


@pytest.fixture(autouse=True)
def _pack(comfy_api):
    part("layers")


def brief(layers):
    return {name: (layer.format, layer.scale) for name, layer in layers.items()}


def test_a_plain_file_has_no_scales(tmp_path):
    path = write(tmp_path, {"a.weight": random(8, 16).to(E4M3), "c.weight": random(8, 16).to(E5M2),
                            "a.bias": random(8).to(E4M3), "norm.weight": random(8).to(E4M3)})  # fmt: skip
    layers = recognised(path)[2]
    assert brief(layers) == {"a": ("float8_e4m3fn", None), "c": ("float8_e5m2", None)}


@pytest.mark.parametrize("elements, full", [(0, False), (2, True)])
def test_the_older_scaled_kind(tmp_path, elements, full):
    """e5m2 is told from the weight itself. A marker of two elements: products in full precision."""
    path = write(tmp_path, {"scaled_fp8": torch.zeros(elements).to(E4M3), "a.weight": random(8, 16).to(E4M3),
                            "a.scale_weight": torch.tensor([0.5]), "a.scale_input": torch.tensor([1.0]),
                            "c.weight": random(8, 16).to(E5M2), "c.scale_weight": torch.tensor(0.25),
                            **WIDE})  # fmt: skip
    layers = recognised(path)[2]
    assert brief(layers) == {"a": ("float8_e4m3fn", "a.scale_weight"), "c": ("float8_e5m2", "c.scale_weight")}
    assert layers["a"].input_scale == "a.scale_input" and layers["c"].input_scale is None
    assert layers["a"].config.get("full_precision_matrix_mult", False) is full


def test_comfy_quant_in_tensors_and_in_the_metadata(tmp_path):
    tensors = {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": torch.tensor(0.5), **WIDE}
    config = {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}
    one = write(tmp_path, {**tensors, "a.comfy_quant": text(config)})
    assert recognised(one)[2]["a"].config == config
    two = write(tmp_path, tensors, {"_quantization_metadata": json.dumps({"layers": {"a": config}})})
    assert recognised(two)[2]["a"].config == config


def test_a_scale_without_a_word_about_it_is_used_all_the_same(tmp_path):
    path = write(tmp_path, {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": torch.tensor(0.5)})
    assert brief(recognised(path)[2]) == {"a": ("float8_e4m3fn", "a.weight_scale")}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (8, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_that_are_right(tmp_path, shape, dtype):
    assert recognised(quant_file(tmp_path, torch.full(shape, 0.5, dtype=dtype)))[2]["a"].scale == "a.weight_scale"


@pytest.mark.parametrize("scale, says", [
    (None, "a.weight is float8_e4m3fn and its scale a.weight_scale is missing"),
    (torch.ones(8), "has the shape (8, 16) and its scale a.weight_scale (8,)"),
    (torch.ones(16), "has the shape (8, 16) and its scale a.weight_scale (16,)"),
    (torch.ones(1, 16), "its scale a.weight_scale (1, 16)"),
    (torch.ones(4, 1), "its scale a.weight_scale (4, 1); one value is expected, or the shape (8, 1)"),
    (torch.zeros(0), "its scale a.weight_scale (0,)"),
    (torch.ones((), dtype=torch.int32), "its scale a.weight_scale is int32"),
    (torch.tensor(float("nan")), "the scale a.weight_scale is nan"),
    (torch.tensor(float("inf")), "the scale a.weight_scale is inf"),
    (torch.tensor(-0.5), "the scale a.weight_scale is -0.5"),
])  # fmt: skip
def test_scales_that_are_wrong(tmp_path, scale, says):
    with pytest.raises(ValueError) as caught:
        recognised(quant_file(tmp_path, scale))
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("scale, says", [
    (torch.ones(2), "a.input_scale has the shape (2,); one value is expected"),
    (torch.ones(1, dtype=torch.int32), "a.input_scale is int32: no floating-point dtype"),
    (torch.tensor(float("nan")), "the scale a.input_scale is nan"),
    (torch.tensor(-1.0), "the scale a.input_scale is -1.0"),
])
@pytest.mark.parametrize("strict", [True, False], ids=["ours", "stock"])
def test_scales_of_inputs_that_are_wrong(tmp_path, scale, says, strict):
    with pytest.raises(ValueError) as caught:
        recognised(quant_file(tmp_path, torch.tensor(0.5), **{"a.input_scale": scale}), strict=strict)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_one_scale_missing_among_others(tmp_path):
    path = write(tmp_path, {"a.weight": random(8, 16).to(E4M3), "a.scale_weight": torch.tensor(0.5),
                            "b.weight": random(8, 16).to(E4M3)})  # fmt: skip
    with pytest.raises(ValueError, match="b.weight is float8_e4m3fn and its scale is missing, while other weights"):
        recognised(path)


@pytest.mark.parametrize("config, says", [
    ({"format": "float7"}, "the layer a is in the format 'float7', which this ComfyUI doesn't know; it knows"),
    ({}, "the format None"),
    ([1], "the format [1]"),
    ("float8_e4m3fn", "the format 'float8_e4m3fn'"),
    ({"format": ["float8_e4m3fn"]}, "the format ['float8_e4m3fn']"),
    ({"format": {"float8_e4m3fn": 1}}, "the format {'float8_e4m3fn': 1}"),
    ({"format": "float8_e5m2"}, "a.weight is float8_e4m3fn, and its comfy_quant says float8_e5m2"),
    ({"format": "int8_tensorwise"}, "a.weight is float8_e4m3fn, and its comfy_quant says int8_tensorwise"),
    ({"format": "nvfp4"}, "a.weight is float8_e4m3fn, and its comfy_quant says nvfp4"),
    ({"format": "float8_e4m3fn", "full_precision_matrix_mult": "no"}, "full_precision_matrix_mult is 'no': true"),
    ({"format": "float8_e4m3fn", "num_experts": "x"}, "num_experts is 'x': a whole number"),
    ({"format": "float8_e4m3fn", "num_experts": True}, "num_experts is True: a whole number"),
    ({"format": "float8_e4m3fn", "num_experts": 0}, "num_experts is 0: a whole number"),
])  # fmt: skip
@pytest.mark.parametrize("strict", [True, False], ids=["ours", "stock"])
def test_formats(tmp_path, config, says, strict):
    path = quant_file(tmp_path, torch.tensor(0.5), config=config or {"other": 1})
    with pytest.raises(ValueError) as caught:
        recognised(path, strict=strict)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_format_that_this_comfyui_lacks(tmp_path):
    path = quant_file(tmp_path, torch.tensor(0.5), config={"format": "mxfp8"})
    with pytest.raises(ValueError, match="the format 'mxfp8', which this ComfyUI doesn't know; it knows float8_e4m3fn"):
        recognised(path, list(KNOWN)[:2])


@pytest.mark.parametrize("values, says", [
    (torch.tensor([1, 2, 3], dtype=torch.uint8), r"b'\x01\x02\x03'"),
    (torch.tensor([0.5, 1.0]), "[0.5, 1.0]"),
    (torch.tensor([-1, 300], dtype=torch.int32), "[-1, 300]"),
    (torch.zeros(0, dtype=torch.uint8), "b''"),
])
@pytest.mark.parametrize("strict", [True, False], ids=["ours", "stock"])
def test_a_comfy_quant_text_that_is_no_json(tmp_path, values, says, strict):
    path = quant_file(tmp_path, torch.tensor(0.5), **{"a.comfy_quant": values})
    with pytest.raises(ValueError) as caught:
        recognised(path, strict=strict)
    assert str(caught.value).endswith(f"a.comfy_quant is no JSON text but {says}.")


def test_metadata_that_is_no_json(tmp_path):
    path = write(tmp_path, {"a.weight": random(8, 16)}, {"_quantization_metadata": "{"})
    with pytest.raises(ValueError, match="its metadata's _quantization_metadata can't be read"):
        recognised(path)


@pytest.mark.parametrize("more", [{"a.comfy_quant": text({"format": "float8_e4m3fn"})}, {}], ids=["declared", "found"])
def test_scaled_fp8_in_a_convolution_is_refused(tmp_path, more):
    """ComfyUI's convolutions have no scale: the weight would be used as it is stored."""
    path = write(tmp_path, {"a.weight": random(8, 4, 3, 3).to(E4M3), "a.weight_scale": torch.tensor(0.5), **more})
    with pytest.raises(ValueError) as caught:
        recognised(path)
    assert "a.weight is float8_e4m3fn with a scale and has 4 dimensions, (8, 4, 3, 3)" in str(caught.value)


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (8, 4, 1, 3, 3), (8, 4, 3)])
@pytest.mark.parametrize("strict", [True, False], ids=["ours", "stock"])
def test_an_unscaled_convolution_beside_scaled_weights_is_refused(tmp_path, shape, strict):
    """Nobody can tell whether its values are the weights or lack their scale."""
    path = write(tmp_path, {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": torch.tensor(0.5),
                            "norm.weight": random(8).to(E4M3), "b.weight": random(*shape).to(E4M3)})
    with pytest.raises(ValueError) as caught:
        recognised(path, strict=strict)
    assert str(caught.value).endswith("b.weight is float8_e4m3fn and its scale is missing, while other weights of the "
                                      "file have one.")


def test_an_unscaled_convolution_is_no_quantised_layer(tmp_path):
    path = write(tmp_path, {"a.weight": random(8, 4, 3, 3).to(E4M3), "b.weight": random(8, 8).to(E4M3)})
    assert list(recognised(path)[2]) == ["b"]


@pytest.mark.parametrize("weight, scale, says", [
    (random(8, 16).to(torch.int8), None, "a.weight is int8, and nothing in the file says in which format"),
    (random(8, 16), torch.tensor(0.5), "a.weight is float32 and has a scale, a.weight_scale: how it"),
    (random(8, 16), torch.tensor(1.0), None),
])  # fmt: skip
def test_scales_and_integers_that_say_nothing(tmp_path, weight, scale, says):
    path = write(tmp_path, {"a.weight": weight, **({} if scale is None else {"a.weight_scale": scale})})
    if says is None:
        assert recognised(path)[2] == {}
        return
    with pytest.raises(ValueError, match=says.replace("(", "[(]")):
        recognised(path)


def test_stacked_experts(tmp_path):
    config = {"format": "float8_e4m3fn", "num_experts": 4}
    path = quant_file(tmp_path, torch.ones(4), config=config, shape=(4, 8, 16))
    assert recognised(path)[2]["a"].config == config
    with pytest.raises(ValueError, match="its scale a.weight_scale [(]3,[)]"):
        recognised(quant_file(tmp_path, torch.ones(3), config=config, shape=(4, 8, 16)))
