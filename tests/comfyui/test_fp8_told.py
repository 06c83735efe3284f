"""What the FP8 nodes tell while they work, over HTTP and the websocket: how far they are, and that a model will not
fit, before it is loaded, on a device that has less memory."""
import re

import pytest
from fp8 import text
from fp8.checkpoints import name
from fp8.harness import free, load, reported, sizes
from graphs import node

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SENTENCE = re.compile(r"(\S+) takes ([\d.]+ \w+), and Metal recommends at most ([\d.]+ \w+) on this Mac: macOS will "
                      r"swap, or the run end out of memory\.")  # fmt: skip
# The report's output of each loader, and what ComfyUI logs when it makes the model.
NODES = {"model": (1, "model weight dtype"), "clip": (1, "CLIP/text encoder model load device"),
         "checkpoint": (3, "model weight dtype")}  # fmt: skip


@pytest.fixture
def browser(small_mac):
    from client import connected  # aiohttp is ComfyUI's

    free(small_mac)
    with connected(small_mac) as client:
        yield client


def loaders(server, **options):
    """which -> (its node, its file)."""
    flux, clip = name("flux", "quant", "e4m3fn"), text.offer([server], "quant", "e4m3fn")
    return {"model": (load(flux, "ours", **options), flux),
            "checkpoint": (load(flux, "our checkpoint", **options), flux),
            "clip": (node("MetalFP8LoadCLIP", clip_name=clip, type="stable_diffusion", **options), clip)}


def steps(browser, queued, node_id):
    """(value, of how many) of each message about the bar of a node of this prompt."""
    return [(data["value"], data["max"]) for kind, data in browser.of(queued)
            if kind == "progress" and data["node"] == node_id]


def test_each_bar_fills_to_its_end(small_mac, browser):
    """All four nodes in one prompt, one of them twice: every message names its node, and no bar goes back."""
    graph = {which: entry for which, (entry, _) in loaders(small_mac).items()}
    graph |= {f"show {which}": node("TestShow", value=(which, output)) for which, (output, _) in NODES.items()}
    graph["quantised"] = load(name("flux", "plain", "e5m2"), "ours", quantize="per row")
    for source in "model", "quantised":
        graph[f"save {source}"] = node("MetalFP8SaveModel", model=(source, 0), filename_prefix=f"told {source}")
    queued = browser.queue(graph)
    kind, data = browser.end(queued, 300)
    assert kind == "execution_success", data
    for which in (*NODES, "quantised", "save model", "save quantised"):
        found = steps(browser, queued, which)
        # Of what comes within a tenth of a second ComfyUI sends the first and the last.
        assert len(found) >= 2 and found == sorted(found), (which, found)
        assert {most for _, most in found} == {found[-1][0]}, (which, found)
        assert found[0][0] < found[-1][0], (which, found)
    assert {data["node"] for kind, data in browser.of(queued) if kind == "progress"} <= graph.keys()


@pytest.mark.parametrize("which", NODES)
def test_what_exceeds_the_macs_memory_is_told_before_it_is_loaded(small_mac, browser, which):
    """On the node while it loads, in the log, and in its report. What fits is loaded without a word."""
    output, made = NODES[which]
    entry, file = loaders(small_mac)[which]
    graph = {"1": entry, "show": node("TestShow", value=("1", output))}
    fitting, disk, resident = reported(small_mac.run(graph, 300), "1")
    assert not SENTENCE.search(fitting)
    free(small_mac)
    start, most = len(small_mac.log), int(0.8 * resident)
    small_mac.post("/test/memory", {"device": most})
    try:
        queued = browser.queue(graph)
        kind, data = browser.end(queued, 300)
    finally:
        small_mac.post("/test/memory", {"device": None})
    assert kind == "execution_success", data
    told = small_mac.end(queued)["outputs"]["1"]["text"][0]
    said = SENTENCE.search(told)
    assert said and said[1] == file and sizes(told) == (disk, resident)
    for text_, bytes_ in (said[2], resident), (said[3], most):
        value, unit = text_.split()
        assert float(value) * UNITS[unit] == pytest.approx(bytes_, rel=0.05)
    heard = [(kind, data) for kind, data in browser.messages if data.get("node") == "1"]
    sentences = [at for at, (kind, data) in enumerate(heard) if kind == "text" and said[0] in data["text"]]
    bar = [at for at, (kind, data) in enumerate(heard) if kind == "progress" and data["prompt_id"] == queued]
    assert sentences and bar and sentences[0] < bar[0], "first the sentence, then the load"
    log = small_mac.log[start:]
    assert 0 <= log.index(said[0]) < log.index(made)
