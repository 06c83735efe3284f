"""The pack in a real ComfyUI: it loads, its nodes are listed, the status node runs and shows what is patched."""
import json

import pytest

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

GRAPH = {"1": {"class_type": "MetalKernelsStatus", "inputs": {}}}


def test_the_pack_loads_on_mps(comfyui):
    assert comfyui.get("/system_stats")["devices"][0]["type"] == "mps"
    troubles = [line for line in comfyui.log.splitlines() if "metal-kernels" in line
                and ("Cannot import" in line or "Error while calling" in line or "IMPORT FAILED" in line)]
    assert troubles == []
    lines = [line for line in comfyui.log.splitlines() if "Metal Kernels:" in line]
    assert len(lines) == 1 and "METAL_KERNELS=off" in lines[0], lines


def test_the_nodes_are_listed(comfyui):
    node = comfyui.get("/object_info")["MetalKernelsStatus"]
    assert node["display_name"] == "Metal Kernels Status" and node["category"] == "Metal Kernels"
    assert node["output"] == ["STRING", "STRING"] and node["output_name"] == ["text", "json"]
    assert node["output_node"] is True
    assert "after" in node["input"]["optional"]


def test_the_status_node_shows_its_text_and_runs_in_every_prompt(comfyui):
    for _ in range(2):
        entry = comfyui.run(GRAPH)
        text = entry["outputs"]["1"]["text"][0]
        assert "pad" in text and "patched" in text and "METAL_KERNELS=off" in text
        cached = [body["nodes"] for kind, body in entry["status"]["messages"] if kind == "execution_cached"]
        assert cached == [[]], "a status from an earlier prompt is no status"


def test_its_json_reaches_other_nodes(comfyui):
    graph = {**GRAPH, "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 1]}}}
    report = json.loads(comfyui.run(graph)["outputs"]["2"]["text"][0])
    assert report["problem"] is None and report["kernels"]["pad"]["state"] == "patched"


def test_it_waits_for_what_it_comes_after(comfyui):
    graph = {"1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0}},
             "2": {"class_type": "MetalKernelsStatus", "inputs": {"after": ["1", 0]}}}
    assert "patched" in comfyui.run(graph)["outputs"]["2"]["text"][0]


def test_its_help_page_is_served(comfyui):
    assert comfyui.text("/extensions/metal-kernels/docs/MetalKernelsStatus.md").startswith("# Metal Kernels Status")
