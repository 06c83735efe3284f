"""The parity nodes in a real ComfyUI: what they show, their progress, cancel. (test_bad_input: what stops a graph.)"""
import json
import re
import shutil
import time

import pytest
from graphs import check, compare, error, node, pad

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


def test_a_tolerance_that_a_prompt_leaves_out_is_the_one_that_the_node_shows(comfyui):
    """A prompt by HTTP need not name it, and ComfyUI fills none in."""
    graph = {"a": node("EmptyImage", width=64, height=64, batch_size=1, color=0),
             "b": node("EmptyImage", width=64, height=64, batch_size=1, color=0x505050), "p": compare("a", "b")}
    _, (passed, psnr) = shown(comfyui, graph, ("p", 2), ("p", 4))
    assert passed == "False" and float(psnr) < 15


def test_the_frames_of_two_videos_are_compared(comfyui):
    graph = {"a": SMALL, "b": OTHER, "v": node("CreateVideo", images=("a", 0), fps=8.0),
             "w": node("CreateVideo", images=("b", 0), fps=8.0), "p": compare("v", "w"), "q": compare("v", "b")}
    outputs, found = shown(comfyui, graph, ("p", 4), ("q", 4))
    assert [float(psnr) for psnr in found] == pytest.approx([46.9, 46.9], abs=0.1), "also against the frames themselves"
    for node_id in "pq":
        assert outputs[node_id]["text"][0].startswith("Parity passed: IMAGE, 24,576 elements")


def test_the_frames_of_a_video_file_are_compared(comfyui):
    """ComfyUI decodes the file when the frames are asked for."""
    write_video(comfyui.folder / "input" / "five.mp4", frames=5)
    graph = {"v": node("LoadVideo", file="five.mp4"), "f": node("GetVideoComponents", video=("v", 0)),
             "p": compare("v", "f", exact=True)}
    outputs, (passed, psnr) = shown(comfyui, graph, ("p", 2), ("p", 4))
    assert (passed, psnr) == ("True", "inf")
    assert outputs["p"]["text"][0].startswith("Parity passed: IMAGE, 46,080 elements\n  value: IMAGE (5, 48, 64, 3)")


def write_video(path, frames):
    import av
    import numpy as np

    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            picture = np.full((48, 64, 3), 50 * number, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())


def test_what_is_not_finite_is_counted_on_each_side(comfyui):
    """An error that no mean can see fails whatever the tolerances; what agrees is compared."""
    graph = {"a": node("TestTensor", kind="image, 5 NaN, 3 inf"), "b": node("TestTensor", kind="image, 2 NaN"),
             "p": compare("a", "b")}
    outputs, (passed, told) = shown(comfyui, graph, ("p", 2), ("p", 1))
    assert passed == "False"
    text = outputs["p"]["text"][0]
    assert text.startswith("Parity FAILED: IMAGE, 24,576 elements\n"
                           "  6 of 24,576 elements are NaN or infinite on one side and not the same on the other.")
    assert "NaN 5 in value, 2 in reference; infinite 3 and 0" in text
    assert "PSNR infinite (no error) over the 24,568 elements finite on both sides (data range 1" in text
    assert '"unlike_nonfinite": 6' in told


def test_every_number_reaches_other_nodes_as_json(comfyui):
    graph = {"a": node("TestTensor", kind="latent", add=0.25), "b": node("TestTensor", kind="latent"),
             "p": compare("a", "b", max_abs_error=0.2, data_range=2.0),
             "j": node("PreviewAny", source=("p", 1)), "d": node("PreviewImage", images=("p", 3))}
    outputs = comfyui.run(graph)["outputs"]
    told = json.loads(outputs["j"]["text"][0])
    assert (told["passed"], told["kind"], told["elements"], told["data_range"]) == (False, "LATENT", 256, 2.0)
    assert [told["max_abs_error"], told["mean_abs_error"]] == pytest.approx([0.25, 0.25])
    assert told["psnr_db"] == pytest.approx(18.06, abs=0.01), "20 log10(2 / 0.25)"
    assert told["max_rel_error"] > 1 > told["cosine"] > 0.9
    assert told["value"]["nan"] == told["reference"]["inf"] == 0
    assert any("The largest difference is 0.25, above the 0.2 allowed." in each for each in told["failures"])
    assert len(outputs["d"]["images"]) == 1, "the picture is an IMAGE"


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


@pytest.fixture
def own_vaes(comfyui, fp8_models):
    """ComfyUI's loader finds two tiny random VAEs, which it builds its own models from: TAESD, for pictures, and Wan's,
    for videos."""
    folder = comfyui.folder / "models" / "vae"
    folder.mkdir(parents=True, exist_ok=True)
    for file in (fp8_models / "vae").iterdir():
        if not (folder / file.name).exists():
            shutil.copy(file, folder)


@pytest.mark.parametrize("family, operation, region, shape", [
    ("flux", "decode", "whole", (1, 64, 64, 3)), ("flux", "encode", "tiles", (1, 16, 8, 8)),
    ("flux", "round trip", "centre crop", (1, 32, 32, 3)), ("wan", "decode", "tiles", (1, 64, 64, 3)),
    ("wan", "encode", "whole", (1, 16, 1, 8, 8)), ("wan", "round trip", "centre crop", (1, 32, 32, 3)),
])
def test_ComfyUIs_own_VAEs_agree_with_the_CPU(comfyui, own_vaes, family, operation, region, shape):
    """In the 16 bits that ComfyUI chooses for them; and they work after the check as they did before it."""
    checked = "latent" if operation == "decode" else "picture"
    graph = {
        "vae": node("VAELoader", vae_name=f"{family}_vae.safetensors"), "picture": node("TestPicture", size=64),
        "latent": node("VAEEncode", pixels=("picture", 0), vae=("vae", 0)),
        "before": node("VAEDecode", samples=("latent", 0), vae=("vae", 0)), "then": pad(checked, "before"),
        "p": check(image_or_latent=("then", 0), operation=operation, region=region, size=32, min_psnr=35.0),
        "at last": pad("latent", "p"), "after": node("VAEDecode", samples=("at last", 0), vae=("vae", 0)),
        "same": compare("after", "before", exact=True),
    }  # fmt: skip
    outputs, found = shown(comfyui, graph, ("p", 2), ("same", 2))
    text = outputs["p"]["text"][0]
    assert found == ["True", "True"], text
    assert f"device: {'LATENT' if operation == 'encode' else 'IMAGE'} {shape} float32 from mps bfloat16" in text


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
