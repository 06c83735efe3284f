"""MetalKernelsStatus: what it shows, that it runs in every prompt, and that its identity stays as released."""
import json

import pytest
import torch
import torch.nn.functional as F

STATES = {"stock", "patched", "off", "failed", "unavailable"}


@pytest.fixture
def node(loaded):
    return loaded[1]["MetalKernelsStatus"]


def test_identity_is_as_released(node):
    """Workflows name these: they may be added to, never changed."""
    schema = node.GET_SCHEMA()
    assert (schema.node_id, schema.category) == ("MetalKernelsStatus", "Metal Kernels")
    assert schema.display_name == "Metal Kernels Status"
    assert [(i.id, i.io_type, i.optional) for i in schema.inputs] == [("after", "*", True)]
    assert [(o.id, o.io_type) for o in schema.outputs] == [("text", "STRING"), ("json", "STRING")]
    assert schema.is_output_node and schema.description and "mps" in schema.search_aliases


def test_text_and_json_say_the_same(node):
    out = node.execute()
    text, report = out.result[0], json.loads(out.result[1])
    assert out.ui.as_dict() == {"text": (text,)}
    assert report["problem"] is None
    assert report["environment"]["torch"] == str(torch.__version__) and report["environment"]["torch"] in text
    for name, kernel in report["kernels"].items():
        assert kernel["state"] in STATES and kernel["reason"]
        assert f"{name} " in text and kernel["state"] in text


def test_it_takes_any_input(node):
    assert node.execute(after=torch.zeros(2)).result[0] == node.execute().result[0]


def test_it_runs_in_every_prompt(node):
    """ComfyUI compares these as parts of a cache key, where an object equals itself even if it is NaN."""
    first, second = node.fingerprint_inputs(), node.fingerprint_inputs(after=1)
    assert (first,) != (second,)


def test_it_counts_what_the_kernel_took(comfy_api, mps, pack):
    import softmetal
    from pack import load_as_comfyui

    softmetal.activate(faults="2.13")
    try:
        node = next(n for n in load_as_comfyui()[1] if n.GET_SCHEMA().node_id == "MetalKernelsStatus")
        pack.metal_kernels.uninstall()
        pack.metal_kernels.install()
        pack.metal_kernels.reset_counters()
        for _ in range(3):
            F.pad(torch.ones(1, 1, 2, 3, 3, device=mps), (1, 1, 0, 0, 2, 0))
        out = node.execute()
        pad = json.loads(out.result[1])["kernels"]["pad"]
        assert pad["state"] == "patched"
        assert pad["ops"]["constant_pad_nd"]["taken"] == 3
        assert "3 taken" in out.result[0] and "METAL_KERNELS=off" in out.result[0]
        pack.metal_kernels.set_mode(pad="off")
        assert json.loads(node.execute().result[1])["kernels"]["pad"]["state"] == "off"
    finally:
        pack.metal_kernels.set_mode("auto")
        pack.metal_kernels.uninstall()
        softmetal.activate()
