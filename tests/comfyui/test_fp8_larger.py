"""Qwen-Image and Z-Image, as small as ComfyUI lets them be (fp8/larger.py says why they are no smaller)."""
import itertools

import pytest
from fp8 import larger
from fp8.checkpoints import DTYPES, KINDS
from fp8.harness import crashes, free, load, psnr, reported, results, sampled
from graphs import node

pytestmark = [pytest.mark.comfyui, pytest.mark.full, pytest.mark.timeout(1800)]

# Each in every kind and dtype, through ComfyUI's loader (plain ones also with FP8 asked for) and ours.
CASES = [(*case, loader) for case in itertools.product(larger.FAMILIES, KINDS, DTYPES)
         for loader in ("default", *["forced"] * (case[1] == "plain"), "ours")]


@pytest.mark.parametrize("family, kind, dtype, loader", [pytest.param(*case, id="-".join(case)) for case in CASES])
def test_a_model_of_real_width(comfyui_path, fp8_models, small_mac, on_the_cpu, family, kind, dtype, loader):
    """The CPU's picture; stock crashes; a byte a weight."""
    def offered(kind):
        return larger.offer(comfyui_path, fp8_models, [small_mac, on_the_cpu.server], family, kind, dtype)

    free(small_mac)
    tag = f"{family} {kind} {dtype} {loader}"
    graph = sampled(family, load(offered(kind), loader), tag)
    assert crashes(small_mac, graph) == "KSampler"
    graph["held"] = node("TestHeld", model=("model", 0), after=("sample", 0))
    entry = small_mac.run(graph, 900)
    held = entry["outputs"]["held"]["held"][0]
    assert held["loaded"] and sum(size for kind, size in held["bytes"]["mps"].items() if "float8" in kind) > 300e6
    if loader == "ours":
        _, disk, resident = reported(entry)
        assert resident <= 1.05 * disk
    free(on_the_cpu.server)
    # Of scaled_fp8 it takes e5m2 for e4m3fn; the other format has the same values.
    file, stock = offered("quant" if (kind, dtype) == ("scaled", "e5m2") else kind), loader.replace("ours", "default")
    expected = on_the_cpu(f"{file} {stock}", sampled(family, load(file, stock), f"{file} {stock}"))
    for actual, wanted in zip(results(small_mac, tag), expected, strict=True):
        assert psnr(actual, wanted) >= 40
    free(small_mac)
