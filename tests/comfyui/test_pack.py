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
    lines = [line for line in comfyui.log.splitlines() if "Metal Kernels: patched" in line]
    assert len(lines) == 1 and "METAL_KERNELS=off" in lines[0], lines


def test_the_nodes_are_listed(comfyui):
    node = comfyui.get("/object_info")["MetalKernelsStatus"]
    assert node["display_name"] == "Metal Kernels Status" and node["category"] == "Metal Kernels"
    assert node["output"] == ["STRING", "STRING"] and node["output_name"] == ["text", "json"]
    assert node["output_node"] is True
    assert "after" in node["input"]["optional"]


def listed(node, part):
    """[(id, type)] of a node's inputs, as /object_info has them; a combo's type is the list of its choices."""
    found = []
    for name, (kind, *options) in node["input"].get(part, {}).items():
        choices = options[0].get("options") if options and kind == "COMBO" else None
        found.append((name, choices or kind))
    return found


def test_the_switch_is_as_released(comfyui):
    """Workflows name these: kernels are appended, nothing is ever moved or renamed."""
    node = comfyui.get("/object_info/MetalKernelsSwitch")["MetalKernelsSwitch"]
    assert (node["display_name"], node["category"]) == ("Metal Kernels Switch", "Metal Kernels")
    assert listed(node, "required") == [("value", "COMFY_MATCHTYPE_V3")]
    modes = ["auto", "on", "off"]
    landed = ["pad", "softmax", "linear", "fp8", "grouped_mm"]
    kernels = [name for name, _ in listed(node, "optional")]
    assert kernels[: len(landed)] == landed
    assert listed(node, "optional") == [(name, modes) for name in kernels]
    assert (node["output"], node["output_name"]) == (["COMFY_MATCHTYPE_V3", "STRING"], ["value", "kernels"])
    assert node["output_node"] is False


TOLERANCES = [("min_psnr", "FLOAT"), ("max_abs_error", "FLOAT"), ("max_rel_error", "FLOAT"), ("min_cosine", "FLOAT"),
              ("exact", "BOOLEAN"), ("data_range", "FLOAT")]  # fmt: skip
VERDICT = {"report": "STRING", "json": "STRING", "passed": "BOOLEAN", "difference": "IMAGE", "psnr": "FLOAT"}


@pytest.mark.parametrize("name, title, required, optional, outputs", [
    ("MetalParityCompare", "Metal Parity Compare", [("value", "*"), ("reference", "*")], TOLERANCES, VERDICT),
    ("MetalParityVAE", "Metal Parity VAE",
     [("vae", "VAE"), ("image_or_latent", "IMAGE,LATENT"), ("operation", ["decode", "encode", "round trip"]),
      ("region", ["whole", "centre crop", "tiles"])],
     [("size", "INT"), ("frames", "INT"), *TOLERANCES],
     {**VERDICT, "device_image": "IMAGE", "cpu_image": "IMAGE"}),
])
def test_the_parity_nodes_are_as_released(comfyui, name, title, required, optional, outputs):
    node = comfyui.get(f"/object_info/{name}")[name]
    assert (node["display_name"], node["category"], node["output_node"]) == (title, "Metal Kernels", True)
    assert (listed(node, "required"), listed(node, "optional")) == (required, optional)
    assert dict(zip(node["output_name"], node["output"], strict=True)) == outputs
    assert list(node["output_name"]) == list(outputs)


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


def test_every_node_is_explained_in_the_browser(comfyui):
    """A help page, a description, words to be found by, and a tooltip on whatever can be connected or set."""
    nodes = {name: node for name, node in comfyui.get("/object_info").items()
             if node["python_module"] == "custom_nodes.metal-kernels"}
    assert {"MetalKernelsStatus", "MetalKernelsSwitch", "MetalMemoryReport", "MetalParityCompare",
            "MetalParityVAE"} <= set(nodes)
    for name, node in nodes.items():
        assert comfyui.text(f"/extensions/metal-kernels/docs/{name}.md").startswith(f"# {node['display_name']}\n")
        assert node["category"].startswith("Metal Kernels") and len(node["description"]) > 60, name
        assert len(node["search_aliases"]) >= 5, name
        assert len(node["output_tooltips"]) == len(node["output"]) and all(node["output_tooltips"]), name
        for part in "required", "optional":
            for field, (_, *options) in node["input"].get(part, {}).items():
                assert options and options[0].get("tooltip"), f"{name}.{field}"
