"""The parity nodes in a real ComfyUI: what they show, what stops a graph and with which sentence, cancel."""
import time

import pytest
from graphs import error, node

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

SMALL = node("EmptyImage", width=64, height=64, batch_size=2, color=0x808080)
OTHER = node("EmptyImage", width=64, height=64, batch_size=2, color=0x828080)
WIDE = node("EmptyImage", width=96, height=64, batch_size=2, color=0)
LATENT = node("EmptyLatentImage", width=64, height=64, batch_size=1)


def compare(value, reference, **inputs):
    return node("MetalParityCompare", value=(value, 0), reference=(reference, 0), **inputs)


def check(**inputs):
    return node("MetalParityVAE", **{"vae": ("vae", 0), "image_or_latent": ("vae", 1), "operation": "decode",
                                     "region": "whole", **inputs})


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


@pytest.mark.parametrize("graph, node_type, says", [
    ({"a": SMALL, "b": WIDE, "p": compare("a", "b")}, "MetalParityCompare",
     "value has shape (2, 64, 64, 3) and reference (2, 64, 96, 3)"),
    ({"a": SMALL, "b": LATENT, "p": compare("a", "b")}, "MetalParityCompare",
     "value is an IMAGE and reference is a LATENT"),
    ({"a": SMALL, "b": node("TestText", text="no tensor"), "p": compare("a", "b")}, "MetalParityCompare",
     "reference is the str 'no tensor'"),
    ({"a": SMALL, "n": node("TestNumber", number=-1), "p": compare("a", "a", min_psnr=("n", 0))}, "MetalParityCompare",
     "min_psnr is -1"),
    ({"vae": node("TestTinyVAE"), "a": SMALL, "p": check(image_or_latent=("a", 0))}, "MetalParityVAE",
     "operation 'decode' takes a LATENT, but image_or_latent is an IMAGE"),
    ({"vae": node("TestText", text="no vae"), "a": LATENT, "p": check(image_or_latent=("a", 0))}, "MetalParityVAE",
     "vae (str) holds no torch module"),
])
def test_what_cannot_be_checked_stops_the_graph_with_one_sentence(comfyui, graph, node_type, says):
    said = error(comfyui.end(comfyui.queue(graph)))
    assert said["node_type"] == node_type
    assert says in said["exception_message"] and "\n" not in said["exception_message"].strip()


def test_a_negative_tolerance_on_the_widget_is_refused_at_once(comfyui):
    from server import Refused

    with pytest.raises(Refused) as refused:
        comfyui.queue({"a": SMALL, "p": compare("a", "a", max_abs_error=-0.5)})
    assert refused.value.args[0]["node_errors"]["p"]["errors"][0]["details"] == "max_abs_error"


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
