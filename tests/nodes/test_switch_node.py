"""MetalKernelsSwitch as a node: its inputs follow the kernels, its value passes through."""
import importlib
import json

import pytest


@pytest.fixture
def switch(loaded):
    return loaded[1]["MetalKernelsSwitch"]


def test_one_combo_a_kernel_in_the_librarys_order(loaded, switch):
    schema = switch.GET_SCHEMA()
    value, *combos = schema.inputs
    kernels = loaded[0].metal_kernels.KERNELS
    assert [combo.id for combo in combos] == [kernel.name for kernel in kernels]
    for combo, kernel in zip(combos, kernels, strict=True):
        assert combo.io_type == "COMBO" and combo.options == ["auto", "on", "off"] and combo.default == "auto"
        assert combo.optional and kernel.repairs in combo.tooltip
    assert value.id == "value" and not value.optional


def test_the_inputs_that_have_landed_stay_where_they_are(switch):
    """Saved workflows hold the widgets' values by position: append here, never reorder, rename or remove."""
    landed = ["value", "pad", "softmax", "linear", "fp8", "grouped_mm"]
    assert [entry.id for entry in switch.GET_SCHEMA().inputs][:len(landed)] == landed
    assert [entry.id for entry in switch.GET_SCHEMA().outputs][:1] == ["value"]


def test_the_type_is_kept(switch):
    schema = switch.GET_SCHEMA()
    assert schema.inputs[0].template == schema.outputs[0].template
    assert [output.io_type for output in schema.outputs] == ["COMFY_MATCHTYPE_V3", "STRING"]


@pytest.mark.parametrize("value", [None, (), [1, 2], {"samples": 3}, object()])
def test_the_value_passes_through(switch, value):
    given, text = switch.execute(value, pad="auto").result
    assert given is value and text == "pad=auto"


def test_kernels_that_are_not_given_are_not_named(switch):
    assert switch.execute(1).result == (1, "")


def test_an_unknown_value_stops_it(switch):
    with pytest.raises(ValueError, match="pad of the Metal Kernels Switch is 'maybe': it must be auto, on or off."):
        switch.execute(1, pad="maybe")


def test_status_names_the_nodes_whose_switches_disagree(loaded, monkeypatch):
    report = importlib.import_module(f"{loaded[0].__name__}.nodes.status.report")
    conflict = {"node": "8", "name": "Decode (#8)", "kind": "distance", "others": ["3", "4"],
                "text": "Decode (#8) is ..."}
    monkeypatch.setattr(report, "conflicts", lambda: [conflict])
    text, data = loaded[1]["MetalKernelsStatus"].execute().result
    assert "  Note: Decode (#8) is ..." in text.splitlines()
    assert json.loads(data)["conflicts"] == [conflict]


def test_status_says_why_switches_can_do_nothing(loaded, monkeypatch):
    monkeypatch.setattr(loaded[0].nodes.execution, "problem", lambda: "this ComfyUI's executor lacks a thing")
    text = loaded[1]["MetalKernelsStatus"].execute().result[0]
    assert "Metal Kernels Switch can't switch anything here: this ComfyUI's executor lacks a thing." in text
