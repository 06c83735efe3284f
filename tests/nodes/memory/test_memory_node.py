"""MetalMemoryReport as a node: its identity, that its value passes, that it works where there is nothing to record."""
import json
import math

import pytest
from executor import node as prompt_node
from executor import run

INPUTS = [("value", "COMFY_MATCHTYPE_V3"), ("save_json", "BOOLEAN"), ("filename_prefix", "STRING")]
OUTPUTS = [("value", "COMFY_MATCHTYPE_V3"), ("report", "STRING"), ("table", "STRING"), ("json", "STRING"),
           ("picture", "IMAGE")]


@pytest.fixture
def node(loaded):
    return loaded[1]["MetalMemoryReport"]


def test_identity_is_as_released(node):
    """Workflows name these: they may be added to, never changed."""
    schema = node.GET_SCHEMA()
    assert (schema.node_id, schema.display_name, schema.category) == (
        "MetalMemoryReport", "Metal Memory Report", "Metal Kernels")
    assert [(i.id, i.io_type) for i in schema.inputs][:3] == INPUTS and all(i.optional for i in schema.inputs)
    assert [(o.id, o.io_type) for o in schema.outputs][:5] == OUTPUTS
    assert schema.inputs[0].template == schema.outputs[0].template, "the type is kept"
    assert (schema.inputs[1].default, schema.inputs[2].default) == (False, "metal_memory/report")
    assert schema.is_output_node and schema.not_idempotent and "oom" in schema.search_aliases
    assert all(each.tooltip for each in (*schema.inputs, *schema.outputs)) and schema.description


def test_it_runs_in_every_prompt(node):
    first, second = node.fingerprint_inputs(), node.fingerprint_inputs(value=1)
    assert math.isnan(first) and (first,) != (second,), "one and the same NaN would be equal to itself in a tuple"


@pytest.mark.parametrize("value", [None, (), {"samples": 3}, object()])
def test_the_value_passes_through(node, value, world):
    assert node.execute(value).result[0] is value


def test_where_there_is_nothing_to_record_it_says_why(node, world):
    world.toys.obstacle = "This machine computes on CUDA 12.8; these kernels are for Apple's MPS device only."
    out = node.execute("x")
    value, text, table, data, picture = out.result
    assert value == "x" and table == "" and text == f"Nothing to record: {world.toys.obstacle}"
    assert json.loads(data) == {"schema": 1, "available": False, "reason": world.toys.obstacle}
    assert picture.shape[0] == 1 and out.ui["text"] == (text,) and out.ui["images"]


def test_what_it_shows(node, world):
    found = {}
    executor = world.comfyui.execution.PromptExecutor({
        "Load": lambda executor, node_id, item: world.toys.set(driver=60),
        "MetalMemoryReport": lambda executor, node_id, item: found.update(out=node.execute("x"))})
    run(executor, {"a": prompt_node("Load"), "M": prompt_node("MetalMemoryReport")})
    value, text, table, data, picture = found["out"].result
    assert value == "x" and "Load (#a) made outside grow by 57.0 MiB" in text and table in text
    assert json.loads(data)["nodes"][0]["name"] == "Load (#a)"
    assert found["out"].ui == {"text": (text,), "images": [{"tensor": picture}], "animated": (False,)}


@pytest.mark.parametrize("prefix", ["../x", "", "/abs"])
def test_an_unfit_prefix_is_refused_before_anything_runs(node, world, prefix):
    assert repr(prefix) in node.validate_inputs(filename_prefix=prefix)
    with pytest.raises(ValueError, match="filename_prefix"):
        node.execute(filename_prefix=prefix)


@pytest.mark.parametrize("prefix", ["report", "a/b", None])
def test_a_fit_or_a_linked_prefix_is_accepted(node, prefix):
    assert node.validate_inputs(filename_prefix=prefix) is True
    assert node.validate_inputs() is True


@pytest.mark.parametrize("linked, says", [
    ({"filename_prefix": 3}, "filename_prefix is the int 3: give a text."),
    ({"filename_prefix": None}, "filename_prefix is nothing (None): give a text."),
    ({"filename_prefix": object()}, "filename_prefix is of type object: give a text."),
    ({"filename_prefix": "n" * 300}, "holds a name of 300 characters; give a shorter one."),
    ({"save_json": "no"}, "save_json is the str 'no': give true or false."),
    ({"save_json": None}, "save_json is nothing (None): give true or false."),
])
def test_a_linked_setting_of_another_type_is_one_sentence(node, world, linked, says):
    with pytest.raises(ValueError) as caught:
        node.execute(**linked)
    assert str(caught.value).endswith(says) and "\n" not in str(caught.value)


def test_a_save_json_linked_to_a_number_saves(node, world):
    executor = world.comfyui.execution.PromptExecutor({
        "MetalMemoryReport": lambda executor, node_id, item: node.execute("x", save_json=1, filename_prefix="n")})
    run(executor, {"M": prompt_node("MetalMemoryReport")})
    assert world.delivered[0].files == {"n"}
