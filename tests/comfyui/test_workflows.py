"""Every example workflow, as a user has it: its API twin is what the browser makes of it, and it runs to the end."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
from convert import BYPASSED, MUTED, to_api
from examples import FOLDER, WORKFLOWS, give_files, read, with_stand_ins
from graphs import by, node
from PIL import Image
from server import ROOT

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

PICTURE = "picture: "  # how the demo begins the line that names a file


@pytest.fixture(scope="module")
def object_info(comfyui, comfyui_path):
    """/object_info, once there are the files that the workflows load."""
    give_files(comfyui, comfyui_path)
    return comfyui.get("/object_info")


def test_there_is_a_twin_for_each():
    assert WORKFLOWS and WORKFLOWS == sorted(path.stem for path in (FOLDER / "api").glob("*.json"))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_twin_is_what_the_browser_makes_of_it(object_info, name):
    assert to_api(read(f"{name}.json"), object_info, newer_inputs=False) == read("api", f"{name}.json")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_its_wires_fit_together(name):
    workflow = read(f"{name}.json")
    nodes = {node["id"]: node for node in workflow["nodes"]}
    for link, source, output, target, slot, _ in workflow["links"]:
        assert link in nodes[source]["outputs"][output]["links"]
        assert nodes[target]["inputs"][slot]["link"] == link
    assert workflow["last_node_id"] == max(nodes) and workflow["last_link_id"] >= len(workflow["links"])


@pytest.mark.parametrize("name", WORKFLOWS)
def test_it_runs_to_the_end(comfyui, object_info, client, name):
    prompt = with_stand_ins(to_api(read(f"{name}.json"), object_info))
    queued = client.queue(prompt)
    kind, data = client.end(queued, 300)
    assert kind == "execution_success", data
    outputs = comfyui.end(queued)["outputs"]
    for node_id, entry in prompt.items():
        if object_info[entry["class_type"]]["output_node"]:
            assert outputs.get(node_id), f"{entry['class_type']} showed nothing"


def test_the_FP8_loaders_show_how_far_they_are_and_what_they_hold(comfyui, object_info, client):
    """On the nodes, in the browser: the bar fills from left to right, and the report stays."""
    comfyui.forget()
    prompt = with_stand_ins(read("api", "FP8 model to a picture.json"))
    queued = client.queue(prompt)
    kind, data = client.end(queued, 300)
    assert kind == "execution_success", data
    outputs = comfyui.end(queued)["outputs"]
    for node_id, what, held in (
        ("1", "diffusion model", "float8_e4m3fn per row"), ("2", "text encoder", "float8_e4m3fn"),
    ):  # fmt: skip
        steps = [(data["value"], data["max"]) for kind, data in client.of(queued)
                 if kind == "progress" and data["node"] == node_id]
        # Of what comes within a tenth of a second ComfyUI sends the first and the last.
        assert len(steps) >= 2 and steps == sorted(steps) and steps[-1][0] == steps[-1][1], (node_id, steps)
        title, disk, resident, layers, *rest = outputs[node_id]["text"][0].splitlines()
        assert title.endswith(what) and held in layers
        assert re.fullmatch(r"  on disk   .* \([\d,]+ bytes\)", disk)
        assert re.fullmatch(r"  resident  .* \([\d,]+ bytes\), [\d.]+ of the file", resident)
        assert ("  runs on   cpu" in rest) is (node_id == "2")
        assert rest[0].startswith("  quantised on load: ") is (node_id == "1")


def test_what_exceeds_a_macs_memory_is_told_before_it_is_loaded(comfyui, object_info):
    comfyui.forget()
    start = len(comfyui.log)
    comfyui.post("/test/memory", {"recommended": 2**20})
    try:
        outputs = comfyui.run(with_stand_ins(read("api", "FP8 model to a picture.json")), 300)["outputs"]
    finally:
        comfyui.post("/test/memory", {"recommended": None})
    said = re.search(r"flux_of_clip\.safetensors takes ([\d.]+) MiB, and Metal recommends at most 1\.0 MiB on this Mac",
                     outputs["1"]["text"][0])  # fmt: skip
    assert said and float(said[1]) > 1
    log = comfyui.log[start:]
    assert 0 < log.index(said[0]) < log.index("model_type FLUX")


def test_the_two_branches_of_the_A_B_differ_on_this_stock(comfyui, object_info):
    prompt = with_stand_ins(read("api", "A-B of kernels.json"))
    prompt |= {"passed": node("TestShow", value=("8", 2)), "psnr": node("TestShow", value=("8", 4))}
    found = {}
    for mode in "off", "auto":
        prompt["4"]["inputs"]["pad"] = mode
        shown = comfyui.run(prompt)["outputs"]
        assert comfyui.get("/test/state")["conflicts"] == [], "the comparison follows the nearer switch"
        found[mode] = [shown[node_id]["shown"][0]["text"] for node_id in ("passed", "psnr")]
    assert found["off"][0] == "False" and float(found["off"][1]) < 25, found
    assert found["auto"] == ["True", "inf"], "two branches under the same kernels are equal, bit for bit"


def test_the_demo_shows_each_of_them(comfyui_path, tmp_path):
    """What `make demo COMFYUI_PATH=...` runs (tests/house: that it does): the texts in order, the pictures as files."""
    done = subprocess.run([sys.executable, str(ROOT / "tests" / "comfyui" / "examples.py"), comfyui_path, tmp_path],
                          capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    sections = done.stdout.split("\n== ")
    assert [section.splitlines()[0] for section in sections[1:]] == WORKFLOWS
    for name, section in zip(WORKFLOWS, sections[1:], strict=True):
        shown = {entry["class_type"] for entry in read("api", f"{name}.json").values()}
        if shown & {"MetalParityCompare", "MetalParityVAE"}:
            assert "Parity passed" in section or "Parity FAILED" in section
        if "MetalMemoryReport" in shown:
            assert "driver" in section and "outside" in section
        pictures = [Path(line[len(PICTURE) :]) for line in section.splitlines() if line.startswith(PICTURE)]
        assert pictures and all(Image.open(picture).width > 100 for picture in pictures)
        assert {picture.parent for picture in pictures} == {tmp_path}


def ui(mode):
    """TestText -> switch (off) in this mode -> TestPad, as the browser saves it."""
    return {"nodes": [
        {"id": 1, "type": "TestText", "order": 0, "mode": 0, "inputs": [], "widgets_values": ["x"],
         "outputs": [{"name": "text", "type": "*", "links": [1]}]},
        {"id": 2, "type": "MetalKernelsSwitch", "order": 1, "mode": mode, "widgets_values": ["off"],
         "inputs": [{"name": "value", "type": "*", "link": 1}],
         "outputs": [{"name": "value", "type": "*", "links": [2]},
                     {"name": "kernels", "type": "STRING", "links": None}]},
        {"id": 3, "type": "TestPad", "order": 2, "mode": 0, "widgets_values": [60 + mode],
         "inputs": [{"name": "value", "type": "*", "link": 2}], "outputs": []},
    ], "links": [[1, 1, 0, 2, 0, "*"], [2, 2, 0, 3, 0, "*"]]}


@pytest.mark.parametrize("mode, taker, source", [
    (0, "stock", ["2", 0]), (MUTED, "pack", None), (BYPASSED, "pack", ["1", 0]),
], ids=["active", "muted", "bypassed"])
def test_muted_and_bypassed_switches_govern_nothing(comfyui, object_info, mode, taker, source):
    workflow = ui(mode)
    prompt = to_api(workflow, object_info)
    assert prompt["3"]["inputs"].get("value") == source
    # As from the browser, which sends the workflow along with the prompt.
    queued = comfyui.queue(prompt, extra_data={"extra_pnginfo": {"workflow": workflow}})
    entry = comfyui.end(queued)
    assert entry["status"]["status_str"] == "success" and by(entry, "3") == taker
