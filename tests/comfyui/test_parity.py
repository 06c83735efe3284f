"""The parity nodes in a real ComfyUI: what they show, their progress, cancel. (test_bad_input: what stops a graph.)"""
import re
import time

import pytest
from graphs import check, compare, error, node

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


def test_memory_and_time_are_said_before_anything_runs(comfyui):
    graph = {"vae": node("TestTinyVAE"), "p": check(region="centre crop", size=128)}
    before = len(comfyui.log)
    outputs, _ = shown(comfyui, graph, ("p", 2))
    first, rough, better = [line.partition(": ")[2] for line in comfyui.log[before:].splitlines() if "parity: " in line]
    assert first.startswith("The CPU side needs about ") and first.endswith(" available.")
    assert rough.startswith(first[:-1]) and "it takes about" in rough and "mps float32 took" in better
    assert first in outputs["p"]["text"][0]


def test_what_does_not_fit_into_memory_is_refused_before_anything_runs(comfyui):
    graph = {"vae": node("TestTinyVAE"), "a": node("EmptyLatentImage", width=16384, height=16384, batch_size=1),
             "p": check(image_or_latent=("a", 0))}
    entry = comfyui.end(comfyui.queue(graph))
    need, _, advice = error(entry)["exception_message"].strip().partition(" That does not fit: ")
    assert re.fullmatch(r"The CPU side needs about [\d.]+ GiB \(estimate: .*\); [\d.]+ [MG]iB available.", need)
    assert advice == ("choose region 'tiles' or 'centre crop' with a smaller size, fewer frames, or close other "
                      "applications.")


@pytest.mark.parametrize("operation, thing, shape", [
    ("encode", "picture", (1, 4, 1, 16, 16)), ("round trip", "picture", (1, 128, 128, 3)),
    ("round trip", "latent", (1, 4, 1, 16, 16)), ("decode", "latent", (1, 128, 128, 3)),
])
def test_every_operation_agrees_with_the_CPU(comfyui, operation, thing, shape):
    graph = {"vae": node("TestTinyVAE"), "picture": node("TestPicture", size=128),
             "p": check(image_or_latent=("picture", 0) if thing == "picture" else ("vae", 1), operation=operation,
                        region="whole" if thing == "picture" else "centre crop", size=128, frames=1)}
    outputs, (psnr, data) = shown(comfyui, graph, ("p", 4), ("p", 1))
    assert float(psnr) > 60
    assert str(shape) in outputs["p"]["text"][0], outputs["p"]["text"][0]
    assert outputs["p"]["images"]


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
