"""Qwen-Image and Z-Image, as small as ComfyUI lets them be (fp8/larger.py says why they are no smaller)."""
import itertools

import pytest
from fp8 import larger
from fp8.checkpoints import DTYPES, KINDS
from fp8.harness import crashes, free, load, psnr, reported, results, sampled
from graphs import node

pytestmark = [pytest.mark.comfyui, pytest.mark.full, pytest.mark.timeout(1800)]

# Each in every kind and dtype, through ComfyUI's loader (plain ones also with FP8 asked for) and ours.
FILES = list(itertools.product(larger.FAMILIES, KINDS, DTYPES))
CASES = [pytest.param(file, loader, id="-".join((*file, loader))) for file in FILES
         for loader in ("default", *["forced"] * (file[1] == "plain"), "ours")]


@pytest.fixture(scope="module")
def file(request, comfyui_path, fp8_models, small_mac, on_the_cpu):
    """(family, kind, dtype, the file's name, that of one with the same values which ComfyUI reads right by itself: of
    scaled_fp8 it takes e5m2 for e4m3fn). Together they would be 8 GB: each goes after its tests."""
    family, kind, dtype = request.param
    servers, kinds = (small_mac, on_the_cpu.server), (kind, "quant" if (kind, dtype) == ("scaled", "e5m2") else kind)
    names = [larger.offer(comfyui_path, fp8_models, servers, family, each, dtype) for each in kinds]
    yield family, kind, dtype, *names
    for server in servers:
        free(server)
    for models in (fp8_models, *(server.folder / "models" for server in servers)):
        for each in set(names):
            (models / "diffusion_models" / each).unlink()


@pytest.mark.parametrize("file, loader", CASES, indirect=["file"])
def test_a_model_of_real_width(small_mac, on_the_cpu, file, loader):
    """The CPU's picture; stock crashes; a byte a weight."""
    family, kind, dtype, name, same = file
    free(small_mac)
    tag = f"{family} {kind} {dtype} {loader}"
    graph = sampled(family, load(name, loader), tag)
    assert crashes(small_mac, graph) == "KSampler"
    graph["held"] = node("TestHeld", model=("model", 0), after=("sample", 0))
    entry = small_mac.run(graph, 900)
    held = entry["outputs"]["held"]["held"][0]
    assert held["loaded"] and sum(size for kind, size in held["bytes"]["mps"].items() if "float8" in kind) > 300e6
    if loader == "ours":
        _, disk, resident = reported(entry)
        assert resident <= 1.05 * disk
    free(small_mac)
    free(on_the_cpu.server)
    stock = loader.replace("ours", "default")
    expected = on_the_cpu(f"{same} {stock}", sampled(family, load(same, stock), f"{same} {stock}"))
    for actual, wanted in zip(results(small_mac, tag), expected, strict=True):
        assert psnr(actual, wanted) >= 40
