"""Scales that blocks of a weight share, those of int8 and of four bits: right ones, and every kind of wrong."""
import pytest
import torch
from model_files import E4M3, E5M2, part, random, recognised, text, write
from test_scales import BOTH, refused


@pytest.fixture(autouse=True)
def _pack(comfy_api):
    part("layers")


def mxfp8(rows=128, columns=64, **change):
    scales = torch.full((-(-rows // 128) * 128, -(-(columns // 32) // 4) * 4), 127, dtype=torch.uint8)
    return {"a.weight": random(rows, columns).to(E4M3), "a.weight_scale": scales,
            "a.comfy_quant": text({"format": "mxfp8"}), **change}  # fmt: skip


def nvfp4(rows=128, columns=64, **change):
    scales = torch.ones(-(-rows // 128) * 128, -(-(columns // 16) // 4) * 4).to(E4M3)
    return {"a.weight": torch.full((rows, columns // 2), 0x12, dtype=torch.uint8), "a.weight_scale": scales,
            "a.weight_scale_2": torch.tensor(0.5), "a.comfy_quant": text({"format": "nvfp4"}), **change}  # fmt: skip


def int8(**change):
    return {"a.weight": torch.ones(8, 16, dtype=torch.int8), "a.weight_scale": torch.full((8, 1), 0.5),
            "a.comfy_quant": text({"format": "int8_tensorwise"}), **change}  # fmt: skip


@BOTH
@pytest.mark.parametrize("tensors", [
    mxfp8(), mxfp8(96, 32), mxfp8(160, 160), nvfp4(), nvfp4(16, 16), nvfp4(144, 96), int8(),
    int8(**{"a.weight_scale": torch.tensor(0.5)}), nvfp4(**{"a.input_scale": torch.tensor(0.5)}),
    nvfp4(**{"a.weight_scale": torch.full((128, 4), 0x38, dtype=torch.uint8)}),
    nvfp4(**{"a.pre_quant_scale": torch.ones(64)}), mxfp8(**{"a.bias": random(128)}),
])  # fmt: skip
def test_other_formats_that_are_right(tmp_path, tensors, strict):
    assert list(recognised(write(tmp_path, tensors), strict=strict)[2]) == ["a"]


MARRED = random(128, 64)


@BOTH
@pytest.mark.parametrize("tensors, says", [
    (mxfp8(**{"a.weight_scale": torch.full((127, 4), 127, dtype=torch.uint8)}), "mxfp8 has 512 values there"),
    (mxfp8(**{"a.weight_scale": torch.tensor(127, dtype=torch.uint8)}), "mxfp8 has 512 values there"),
    (mxfp8(**{"a.weight_scale": torch.ones(128, 1)}), "a.weight_scale is float32; mxfp8 has float8_e8m0fnu"),
    (mxfp8(**{"a.weight_scale": torch.full((128, 4), 255, dtype=torch.uint8)}), "holds NaN"),
    (mxfp8(**{"a.weight": MARRED.to(E5M2)}), "a.weight is float8_e5m2, and its comfy_quant says mxfp8"),
    (mxfp8(**{"a.weight": MARRED.bfloat16()}), "a.weight is bfloat16, and its comfy_quant says mxfp8"),
    (mxfp8(**{"a.weight": random(128, 160).to(E4M3)}), "mxfp8 has 1,024 values there"),
    (mxfp8(**{"a.weight": random(128, 40).to(E4M3)}), "has 40 columns, no multiple of 32"),
    (mxfp8(**{"a.weight_scale_2": torch.tensor(0.5)}), "has a scale, a.weight_scale_2"),
    (nvfp4(**{"a.weight_scale": torch.ones(128, 3).to(E4M3)}), "nvfp4 has 512 values there"),
    (nvfp4(**{"a.weight_scale": torch.ones(()).to(E4M3)}), "nvfp4 has 512 values there"),
    (nvfp4(**{"a.weight_scale": torch.ones(128, 1)}), "a.weight_scale is float32; nvfp4 has float8_e4m3fn"),
    (nvfp4(**{"a.weight_scale": torch.full((128, 4), float("nan")).to(E4M3)}), "holds NaN"),
    (nvfp4(**{"a.weight_scale": torch.full((128, 4), -1.0).to(E4M3)}), "a negative value"),
    (nvfp4(**{"a.weight_scale_2": torch.ones(2)}), "a.weight_scale_2 has the shape (2,); one value is expected"),
    (nvfp4(**{"a.weight_scale_2": torch.tensor(float("nan"))}), "a.weight_scale_2 is nan"),
    (nvfp4(**{"a.weight_scale_2": torch.tensor(0.0)}), "a.weight_scale_2 is 0.0"),
    (nvfp4(**{"a.weight_scale_2": torch.tensor(1)}), "a.weight_scale_2 is int64: no floating-point dtype"),
    (nvfp4(**{"a.weight": torch.zeros(128, 64).to(E4M3)}), "a.weight is float8_e4m3fn, and its comfy_quant says nvfp4"),
    (nvfp4(**{"a.weight": torch.zeros(128, 16, dtype=torch.uint8)}), None),
    (nvfp4(**{"a.weight": torch.zeros(256, 32, dtype=torch.uint8)}), "nvfp4 has 1,024 values there"),
    (int8(**{"a.weight": random(8, 16).to(E4M3)}), "float8_e4m3fn, and its comfy_quant says int8_tensorwise"),
    (int8(**{"a.weight_scale": torch.ones(16)}), "a.weight_scale (16,); one value is expected"),
    (int8(**{"a.weight_scale": torch.tensor(float("nan"))}), "a.weight_scale is nan"),
    (int8(**{"a.weight_scale": torch.tensor(0.0)}), "a.weight_scale is 0.0"),
    (int8(**{"a.weight": torch.ones(8, 4, 3, 3, dtype=torch.int8)}), "has 4 dimensions"),
])  # fmt: skip
def test_other_formats_that_are_wrong(tmp_path, tensors, says, strict):
    if says is None:  # half the columns have as many tiles of scales; how many there should be, only the model knows
        assert recognised(write(tmp_path, tensors), strict=strict)[2]["a"].format == "nvfp4"
    else:
        refused(write(tmp_path, tensors), strict, says)


W4A4 = {"format": "convrot_w4a4"}
W4A8 = {"format": "asym_w4a8_int8"}


def w4a4(**change):
    return {"a.weight": torch.ones(8, 128, dtype=torch.int8), "a.weight_scale": torch.full((8,), 0.5),
            "a.comfy_quant": text(W4A4), **change}  # fmt: skip


def w4a8(**change):
    return {"a.weight": torch.ones(8, 128, dtype=torch.int8), "a.weight_s_rel": torch.ones(8, 16).to(E4M3),
            "a.weight_s_channel": torch.ones(8), "a.comfy_quant": text(W4A8), **change}  # fmt: skip


@BOTH
@pytest.mark.parametrize("tensors, says", [
    (w4a4(), None), (w4a8(), None), (w4a8(**{"a.weight_codebook": torch.randn(16)}), None),
    (int8(**{"a.comfy_quant": text({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 16})}), None),
    (int8(**{"a.comfy_quant": text({"format": "int8_tensorwise", "convrot": True})}), "no multiple of 256"),
    (int8(**{"a.comfy_quant": text({"format": "int8_tensorwise", "convrot": "yes"})}), "convrot is 'yes': true"),
    (w4a4(**{"a.weight_scale": torch.ones(16)}), "the shape (8,) is expected"),
    (w4a4(**{"a.weight_scale": torch.full((8,), float("nan"))}), "a.weight_scale is nan"),
    (w4a4(**{"a.comfy_quant": text({**W4A4, "linear_dtype": "int2"})}), "linear_dtype is 'int2': int4 or int8"),
    (w4a8(**{"a.weight_s_rel": torch.ones(8, 15).to(E4M3)}), "the shape (8, 16) is expected"),
    (w4a8(**{"a.weight_s_channel": torch.full((8,), -1.0)}), "a.weight_s_channel holds NaN, infinity or a negative"),
    (w4a8(**{"a.weight_codebook": torch.ones(15)}), "the shape (16,) is expected"),
    (w4a8(**{"a.comfy_quant": text({**W4A8, "group_size": 0})}), "group_size is 0: a whole number"),
    (nvfp4(**{"a.pre_quant_scale": torch.ones(40)}), "a.pre_quant_scale (40,); one value is expected, or the"),
    (nvfp4(**{"a.weight_scale": torch.zeros(128, 4).to(E4M3)}), None),
])  # fmt: skip
def test_formats_that_only_comfyui_computes_with(tmp_path, tensors, says, strict):
    known = dict.fromkeys(("int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8", "nvfp4"))
    path = write(tmp_path, tensors)
    if says is None:
        assert list(recognised(path, known, strict)[2]) == ["a"]
    else:
        with pytest.raises(ValueError) as caught:
            recognised(path, known, strict)
        assert says in str(caught.value)


@BOTH
@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4", "int8_tensorwise"])
def test_other_formats_without_a_scale(tmp_path, kind, strict):
    made = {"mxfp8": mxfp8, "nvfp4": nvfp4, "int8_tensorwise": int8}[kind]()
    for name in [name for name in made if "scale" in name]:
        left = {key: value for key, value in made.items() if key != name}
        refused(write(tmp_path, left), strict, f"a.weight is {kind} and its scale {name} is missing")
