"""The parity nodes in a real ComfyUI: what they show, their progress, cancel. (test_bad_input: what stops a graph.)"""
import time

import pytest
from graphs import check, compare, node

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

SMALL = node("EmptyImage", width=64, height=64, batch_size=2, color=0x808080)
OTHER = node("EmptyImage", width=64, height=64, batch_size=2, color=0x828080)
def shown(comfyui, graph, *node_ids):
    """The texts that TestShow nodes make of `graph`'s outputs (id, output)."""
    graph = graph | {f"show{i}": node("TestShow", value=link) for i, link in enumerate(node_ids)}
    outputs = comfyui.run(graph)["outputs"]
    return outputs, [outputs[f"show{i}"]["shown"][0]["text"] for i in range(len(node_ids))]


def test_compare_shows_report_and_picture(comfyui):
    graph = {"a": SMALL, "b": OTHER, "p": compare("a", "b", min_psnr=40.0)}
    outputs, (passed, psnr) = shown(comfyui, graph, ("p", 2), ("p", 4))
    assert passed == "True" and float(psnr) == pytest.approx(46.9, abs=0.1)
    text = outputs["p"]["text"][0]
    assert text.startswith("Parity passed: IMAGE, 24,576 elements") and "data range 1" in text
    assert outputs["p"]["images"][0]["type"] == "temp"


def test_the_frames_of_two_videos_are_compared(comfyui):
    graph = {"a": SMALL, "b": OTHER, "v": node("CreateVideo", images=("a", 0), fps=8.0),
             "w": node("CreateVideo", images=("b", 0), fps=8.0), "p": compare("v", "w"), "q": compare("v", "b")}
    outputs, found = shown(comfyui, graph, ("p", 4), ("q", 4))
    assert [float(psnr) for psnr in found] == pytest.approx([46.9, 46.9], abs=0.1), "also against the frames themselves"
    for node_id in "pq":
        assert outputs[node_id]["text"][0].startswith("Parity passed: IMAGE, 24,576 elements")


@pytest.mark.parametrize("kind", ["mask", "latent", "embedding"])
def test_other_values_are_compared(comfyui, kind):
    graph = {"a": node("TestTensor", kind=kind), "b": node("TestTensor", kind=kind, add=0.25), "p": compare("b", "a")}
    outputs, (psnr,) = shown(comfyui, graph, ("p", 4))
    assert "max abs error 0.25," in outputs["p"]["text"][0] and 5 < float(psnr) < 35


def test_a_check_shows_its_progress_and_stops_when_cancelled(comfyui, client):
    """Within seconds, in the middle of the CPU side, and the next check works."""
    graph = {"vae": node("TestTinyVAE"), "picture": node("TestPicture", size=512),
             "p": check(image_or_latent=("picture", 0), operation="round trip")}
    prompt = client.queue(graph)

    def on_the_cpu(kind, data):
        state = data["nodes"].get("p", {}) if kind == "progress_state" else {}
        return state.get("max") == 1000 and state.get("value", 0) > 110  # the device's share is 100

    client.until(on_the_cpu, 300)
    comfyui.post("/interrupt", {})
    start = time.monotonic()
    assert client.end(prompt)[0] == "execution_interrupted"
    assert time.monotonic() - start < 10
    comfyui.end(prompt)
    graph = {"vae": node("TestTinyVAE"), "p": check(region="centre crop", size=64)}
    outputs, (passed,) = shown(comfyui, graph, ("p", 2))
    assert passed == "True" and "pad: " in outputs["p"]["text"][0]
