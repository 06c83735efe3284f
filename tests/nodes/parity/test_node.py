"""The two nodes through the stand-in of ComfyUI's API: their identity, what they hand out, what reaches the user."""
import json
import math
import sys
import types
from fractions import Fraction

import numpy as np
import pytest
import torch
from parity_toys import ToyVAE

TOLERANCES = [
    ("min_psnr", "FLOAT"), ("max_abs_error", "FLOAT"), ("max_rel_error", "FLOAT"), ("min_cosine", "FLOAT"),
    ("exact", "BOOLEAN"), ("data_range", "FLOAT"),
]  # fmt: skip
OUTPUTS = [("report", "STRING"), ("json", "STRING"), ("passed", "BOOLEAN"), ("difference", "IMAGE"), ("psnr", "FLOAT")]


class Interrupted(Exception):
    """ComfyUI's InterruptProcessingException."""


@pytest.fixture
def comfy(monkeypatch):
    """What `progress` uses of ComfyUI: the interrupt, the progress bar, the text on a node."""
    seen = types.SimpleNamespace(interrupt=False, bars=[], texts=[])

    def throw():
        if seen.interrupt:
            seen.interrupt = False
            raise Interrupted

    class ProgressBar:
        def __init__(self, total):
            self.total, self.values = total, []
            seen.bars.append(self)

        def update_absolute(self, value, total=None):
            self.values.append(value)

    def module(name, **contents):
        made = types.ModuleType(name)
        made.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    management = module("comfy.model_management", throw_exception_if_processing_interrupted=throw)
    module("comfy", model_management=management, utils=module("comfy.utils", ProgressBar=ProgressBar))
    context = types.SimpleNamespace(node_id="7")
    module("comfy_execution", utils=module("comfy_execution.utils", get_executing_context=lambda: context))
    instance = types.SimpleNamespace(send_progress_text=lambda text, node_id: seen.texts.append((node_id, text)))
    module("server", PromptServer=types.SimpleNamespace(instance=instance))
    return seen


@pytest.fixture
def compare(loaded, comfy):
    return loaded[1]["MetalParityCompare"]


@pytest.fixture
def vae_node(loaded, comfy):
    return loaded[1]["MetalParityVAE"]


def outputs(out):
    report, text, passed, difference, psnr, *images = out.result
    return types.SimpleNamespace(report=report, data=json.loads(text), passed=passed, difference=difference, psnr=psnr,
                                 images=images, ui=out.ui)


IMAGE = torch.rand(2, 16, 24, 3, generator=torch.Generator().manual_seed(0))
LATENT = {"samples": torch.randn(1, 8, 8, 8, generator=torch.Generator().manual_seed(0))}


def test_compares_identity_is_as_released(compare):
    """Workflows name these: they may be added to, never changed."""
    schema = compare.GET_SCHEMA()
    assert (schema.node_id, schema.display_name, schema.category) == (
        "MetalParityCompare", "Metal Parity Compare", "Metal Kernels")
    assert [(i.id, i.io_type) for i in schema.inputs] == [("value", "*"), ("reference", "*"), *TOLERANCES]
    assert [(o.id, o.io_type) for o in schema.outputs] == OUTPUTS
    assert schema.is_output_node and "psnr" in schema.search_aliases


def test_vaes_identity_is_as_released(vae_node):
    schema = vae_node.GET_SCHEMA()
    assert (schema.node_id, schema.display_name, schema.category) == (
        "MetalParityVAE", "Metal Parity VAE", "Metal Kernels")
    assert [(i.id, i.io_type) for i in schema.inputs] == [
        ("vae", "VAE"), ("image_or_latent", "IMAGE,LATENT"), ("operation", "COMBO"), ("region", "COMBO"),
        ("size", "INT"), ("frames", "INT"), *TOLERANCES]
    combos = {i.id: (i.options, i.default) for i in schema.inputs if i.io_type == "COMBO"}
    assert combos == {
        "operation": (["decode", "encode", "round trip"], "decode"),
        "region": (["whole", "centre crop", "tiles"], "whole"),
    }
    assert [(o.id, o.io_type) for o in schema.outputs] == [*OUTPUTS, ("device_image", "IMAGE"), ("cpu_image", "IMAGE")]
    assert schema.is_output_node and "black image" in schema.search_aliases


@pytest.mark.parametrize("name", ["MetalParityCompare", "MetalParityVAE"])
def test_everything_is_explained(loaded, name):
    schema = loaded[1][name].GET_SCHEMA()
    assert len(schema.description) > 60
    for one in (*schema.inputs, *schema.outputs):
        assert one.tooltip and one.tooltip.endswith((".", "checked.")), one.id
    first_optional = [i.optional for i in schema.inputs].index(True)
    assert all(i.optional for i in schema.inputs[first_optional:])


def test_compare_hands_out_report_json_verdict_picture_and_psnr(compare):
    out = outputs(compare.execute(IMAGE + 0.01, IMAGE, min_psnr=45.0))
    assert not out.passed and out.psnr == pytest.approx(40, abs=0.01)
    assert out.report.startswith("Parity FAILED") and out.data["passed"] is False
    assert out.difference.shape[0] == 1 and out.difference.shape[-1] == 3
    assert out.ui["text"] == (out.report,) and out.ui["images"][0]["tensor"] is out.difference
    assert outputs(compare.execute(IMAGE + 0.01, IMAGE, min_psnr=35.0)).passed


@pytest.mark.parametrize("apart", [0.0, 0.009, 0.012, 0.05, 0.06])
def test_an_input_that_a_prompt_leaves_out_has_the_default_that_the_node_shows(compare, vae_node, apart):
    """ComfyUI fills none in."""
    for node, given in ((compare, {"value": IMAGE + apart, "reference": IMAGE}),
                        (vae_node, {"vae": ToyVAE(fault=apart), "image_or_latent": LATENT, "operation": "decode",
                                    "region": "whole"})):
        shown = {each.id: each.default for each in node.define_schema().inputs if each.optional}
        assert shown["min_psnr"] in (40.0, 25.0)
        left_out, written = outputs(node.execute(**given)), outputs(node.execute(**given, **shown))
        assert (left_out.passed, left_out.data["failures"]) == (written.passed, written.data["failures"])
        assert left_out.passed == (left_out.psnr >= shown["min_psnr"])


@pytest.mark.parametrize("number", [np.float32(40), np.float64(40), Fraction(40), np.int64(40)])
def test_numbers_of_other_kinds_that_come_by_a_link(compare, number):
    out = outputs(compare.execute(IMAGE, IMAGE, min_psnr=number, data_range=number, exact=np.bool_(True)))
    assert out.passed and out.data["data_range"] == 40.0


def test_compare_of_equal_values(compare):
    out = outputs(compare.execute(LATENT, LATENT, exact=True))
    assert out.passed and out.psnr == math.inf and out.data["psnr_db"] is None


@pytest.mark.parametrize("arguments, says", [
    ({"value": IMAGE, "reference": IMAGE[:1]}, "value has shape (2, 16, 24, 3) and reference (1, 16, 24, 3)"),
    ({"value": IMAGE, "reference": None}, "reference is nothing (None)"),
    ({"value": IMAGE, "reference": IMAGE, "max_abs_error": -0.5}, "max_abs_error is -0.5"),
    ({"value": IMAGE, "reference": IMAGE, "data_range": -1.0}, "data_range is -1"),
    ({"value": IMAGE, "reference": IMAGE, "data_range": "x"}, "data_range is the str 'x'"),
    ({"value": IMAGE, "reference": IMAGE, "data_range": None}, "data_range is nothing (None)"),
    ({"value": IMAGE, "reference": IMAGE, "min_psnr": "x"}, "min_psnr is the str 'x'"),
    ({"value": IMAGE, "reference": IMAGE, "max_rel_error": None}, "max_rel_error is nothing (None)"),
    ({"value": IMAGE, "reference": IMAGE, "exact": "no"}, "exact is the str 'no': give true or false"),
    ({"value": IMAGE, "reference": IMAGE, "exact": 1.5}, "exact is the float 1.5"),
    ({"value": IMAGE, "reference": IMAGE, "min_psnr": 10**400}, "min_psnr is the int 1000"),
])
def test_compares_errors_are_one_sentence(compare, arguments, says):
    with pytest.raises(ValueError) as caught:
        compare.execute(**arguments)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_compare_can_be_cancelled(compare, comfy):
    comfy.interrupt = True
    with pytest.raises(Interrupted):
        compare.execute(IMAGE, IMAGE)


def test_vae_hands_out_both_pictures_too(vae_node, comfy):
    out = outputs(vae_node.execute(ToyVAE(), LATENT, "decode", "whole", min_psnr=20.0))
    assert out.passed and [tuple(i.shape) for i in out.images] == [(1, 32, 32, 3)] * 2
    assert out.data["vae"]["operation"] == "decode" and "CPU side" in out.report
    assert out.ui["text"] == (out.report,)
    assert not outputs(vae_node.execute(ToyVAE(fault=1.0), LATENT, "decode", "tiles", size=16, min_psnr=20.0)).passed


def test_vae_shows_encoded_latents_in_false_colour(vae_node):
    out = outputs(vae_node.execute(ToyVAE(), IMAGE, "encode", "whole"))
    assert [tuple(i.shape) for i in out.images] == [(2, 4, 6, 3)] * 2


def test_vae_shows_progress_and_says_what_it_needs_on_the_node(vae_node, comfy):
    vae_node.execute(ToyVAE(), LATENT, "decode", "whole")
    (bar,) = comfy.bars
    assert bar.values == sorted(set(bar.values)) and bar.values[-1] == bar.total
    assert [node for node, _ in comfy.texts] == ["7"] * 3
    assert "needs about" in comfy.texts[0][1] and "it takes about" in comfy.texts[1][1]
    assert "(estimate)" in comfy.texts[2][1]


def test_vae_works_without_a_server(vae_node, monkeypatch):
    monkeypatch.setitem(sys.modules, "server", None)
    assert outputs(vae_node.execute(ToyVAE(), LATENT, "decode", "whole")).psnr > 20


def test_vae_can_be_cancelled(vae_node, comfy):
    comfy.interrupt = True
    with pytest.raises(Interrupted):
        vae_node.execute(ToyVAE(), LATENT, "decode", "whole")


@pytest.mark.parametrize("new, says", [(3, "pad: 3 calls taken, 1 left to stock"),
                                       (1, "pad: 1 call taken, 1 left to stock")])
def test_vae_names_the_kernels_that_took_part(loaded, vae_node, monkeypatch, new, says):
    """From the difference of the library's counters, not from their totals."""
    pack = loaded[0]
    calls = {"taken": 100, "passed": 7}

    class Counting(ToyVAE):
        def decode(self, latent):
            if self.vae_dtype == torch.bfloat16:
                calls["taken"] += new
                calls["passed"] += 1
            return super().decode(latent)

    before = dict(calls)
    monkeypatch.setattr(pack.nodes.library.metal_kernels, "status", lambda: {"kernels": {
        "pad": {"ops": {"constant_pad_nd": {**calls, "taken_by_kernel": {"pad": calls["taken"]}}}},
        "idle": {"ops": {"linear": before}},
        "shares": {"ops": {"constant_pad_nd": {**calls, "taken_by_kernel": {"pad": calls["taken"]}}}},
    }})
    out = outputs(vae_node.execute(Counting(), LATENT, "decode", "whole"))
    assert out.data["vae"]["kernels"] == {"pad": {"taken": new, "passed": 1}}
    assert says in out.report
