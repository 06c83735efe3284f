"""Beside the real packs of other people's that make FP8 work on Macs: what they hold stays with them, the status says
so, the rest is ours, and graphs run as they do with that pack alone. METAL_KERNELS_PEERS names the folder that has
them: a checkout of ComfyUI-AppleSilicon-FP8, loaded before this pack and after it, and fp4-fp8-for-torch-mps, which
torch loads by itself before either."""
import functools
import os
from pathlib import Path

import pytest
from fp8.checkpoints import name
from fp8.harness import SMALL, load, psnr, results, sampled, serving, unet, with_lora
from graphs import error, node
from loaded_with_torch import PACKAGE
from server import OURS, TESTS_OWN
from start import LOADED_WITH_TORCH, SEEN_ON_A_MAC

NODES = "ComfyUI-AppleSilicon-FP8"
PEERS = os.environ.get("METAL_KERNELS_PEERS", "")
CHECKOUT = Path(PEERS, NODES)
THEIRS = {NODES: CHECKOUT}
# pack -> what its servers' environment has besides.
PACKS = {NODES: {SEEN_ON_A_MAC: str(CHECKOUT), "APPLESILICON_FP8_PSUTIL": "off"},
         PACKAGE: {LOADED_WITH_TORCH: PEERS, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}}
# pack, order -> the custom nodes, in the order in which they are loaded.
ORDERS = {(NODES, "theirs first"): (THEIRS, OURS | TESTS_OWN), (NODES, "ours first"): (OURS | TESTS_OWN, THEIRS),
          (PACKAGE, "theirs first"): (OURS | TESTS_OWN,)}
ALONE = {NODES: (THEIRS, TESTS_OWN), PACKAGE: (TESTS_OWN,)}
HELD = {"torch.Tensor.to": "_patches.tensor_to_fp8", "torch._scaled_mm": "_patches.scaled_mm_fp8",
        "comfy.ops.cast_bias_weight": "_patches.ops_bias_fp8",
        "comfy.float.stochastic_rounding": "_patches.stochastic_round_fp8"}  # fmt: skip

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]


def beside(comfyui_path, fp8_models, pack, packs):
    return serving(comfyui_path, fp8_models, "2.13", SMALL, packs=packs, environment=PACKS[pack])


def graphs():
    """tag -> a graph: FP8 in each way that ComfyUI holds it, with a LoRA and without."""
    models = {"quant": unet(name("flux", "quant", "e4m3fn")), "plain": unet(name("flux", "plain", "e5m2"), "fp8_e5m2")}
    found = {tag: sampled("flux", model, tag) for tag, model in models.items()}
    return found | {f"{tag} lora": sampled("flux", model, f"{tag} lora", model=("lora", 0), more=with_lora("flux"))
                    for tag, model in models.items()}


def outcome(server, tag, graph):
    """What a graph made, or the words that it ended with."""
    entry = server.end(server.queue(graph), 300)
    if entry["status"]["status_str"] == "success":
        return results(server, tag)[0]
    return error(entry)["exception_message"]


@pytest.fixture(scope="module")
def alone(comfyui_path, fp8_models):
    """pack -> what the graphs do with that pack alone."""
    @functools.cache
    def of(pack):
        with beside(comfyui_path, fp8_models, pack, ALONE[pack]) as server:
            return {tag: outcome(server, tag, graph) for tag, graph in graphs().items()}
    return of


def says_what_is_held(pack, status, lines, registered):
    if pack == PACKAGE:
        assert ("  Note: fp4-fp8-for-torch-mps is installed and holds aten::_scaled_mm, aten::copy_, aten::linear, "
                "which stay with it; the kernels take the rest") in lines
        assert registered == {"pad", "softmax", "fp8", "grouped_mm"}
        return
    assert {seam: module.rpartition("FP8.")[2] for seam, module in status["others"].items()} == HELD
    assert f"  Note: {NODES} holds {', '.join(HELD)}, which stay with it; the kernels take what comes past it" in lines
    assert (f"  Note: {NODES} holds comfy-kitchen's dequantize_per_tensor_fp8, quantize_per_tensor_fp8, which stay "
            "with it") in lines
    assert registered == {"pad", "softmax", "linear", "fp8", "grouped_mm"}


@pytest.mark.parametrize("pack, order", [pytest.param(*case, id=", ".join(case)) for case in ORDERS])
def test_each_keeps_what_it_holds(comfyui_path, fp8_models, on_the_cpu, alone, pack, order):
    if not Path(PEERS or ".", pack).is_dir():
        pytest.skip(f"METAL_KERNELS_PEERS names no folder with {pack}")
    with beside(comfyui_path, fp8_models, pack, ORDERS[pack, order]) as server:
        text = server.run({"1": node("MetalKernelsStatus")})["outputs"]["1"]["text"][0]
        says_what_is_held(pack, server.get("/test/status"), text.splitlines(),
                          set(server.get("/test/state")["registered"]))
        for tag, graph in graphs().items():
            found, theirs = outcome(server, tag, graph), alone(pack)[tag]
            print(pack, order, tag, found if isinstance(found, str) else "runs")
            if tag == "plain lora":
                assert "Undefined type Float8_e5m2" in theirs, "alone, neither pack can"
            if (pack, tag) == (PACKAGE, "plain lora"):
                assert found == theirs, "it holds copy_, in which it casts no FP8"
                continue
            assert psnr(found, on_the_cpu(tag, graph)[0]) >= 40
            assert isinstance(theirs, str) or psnr(found, theirs) >= 40
        ours = sampled("flux", load(name("flux", "quant", "e4m3fn"), "ours"), "ours")
        assert psnr(outcome(server, "ours", ours), on_the_cpu("quant", graphs()["quant"])[0]) >= 40
        kernels = server.get("/test/status")["kernels"]
        assert kernels["softmax"]["ops"]["_softmax"]["taken"] > 0, "the rest is ours"
        linear = kernels["fp8"]["entries"]["comfy_kitchen::linear on an FP8 layout"]["taken"]
        assert (linear > 0) is (pack == PACKAGE), "the other one's cast_bias_weight makes a copy before"
