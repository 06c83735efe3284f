"""Beside a real checkout of ComfyUI-AppleSilicon-FP8, loaded before this pack and after it: what it holds stays with
it, the status says so, the rest is ours, and graphs run as they do with that pack alone. METAL_KERNELS_PEERS names the
folder that has the checkout."""
import os
from pathlib import Path

import pytest
from fp8.checkpoints import name
from fp8.harness import SMALL, psnr, results, sampled, serving, unet, with_lora
from graphs import node
from server import OURS, TESTS_OWN
from start import SEEN_ON_A_MAC

NAME = "ComfyUI-AppleSilicon-FP8"
PEERS = os.environ.get("METAL_KERNELS_PEERS", "")
CHECKOUT = Path(PEERS, NAME)
THEIRS = {NAME: CHECKOUT}
HELD = {"torch.Tensor.to": "_patches.tensor_to_fp8", "torch._scaled_mm": "_patches.scaled_mm_fp8",
        "comfy.ops.cast_bias_weight": "_patches.ops_bias_fp8",
        "comfy.float.stochastic_rounding": "_patches.stochastic_round_fp8"}  # fmt: skip
ORDERS = {"theirs first": (THEIRS, OURS | TESTS_OWN), "ours first": (OURS | TESTS_OWN, THEIRS)}

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]


def beside(comfyui_path, fp8_models, packs):
    environment = {SEEN_ON_A_MAC: str(CHECKOUT), "APPLESILICON_FP8_PSUTIL": "off"}
    return serving(comfyui_path, fp8_models, "2.13", SMALL, packs=packs, environment=environment)


def graphs():
    """tag -> a graph: FP8 in each way that ComfyUI holds it, and with a LoRA."""
    quant, plain = unet(name("flux", "quant", "e4m3fn")), unet(name("flux", "plain", "e5m2"), "fp8_e5m2")
    return {"quant": sampled("flux", quant, "quant"), "plain": sampled("flux", plain, "plain"),
            "lora": sampled("flux", quant, "lora", model=("lora", 0), more=with_lora("flux"))}


def outcome(server, tag, graph):
    """What a graph made, or the words that it ended with."""
    entry = server.end(server.queue(graph), 300)
    if entry["status"]["status_str"] == "success":
        return results(server, tag)[0]
    return next(data["exception_message"] for kind, data in entry["status"]["messages"] if kind == "execution_error")


@pytest.fixture(scope="module")
def checkout(comfyui_path):
    if not (PEERS and CHECKOUT.is_dir()):
        pytest.skip(f"METAL_KERNELS_PEERS names no folder with {NAME}")


@pytest.fixture(scope="module")
def alone(checkout, comfyui_path, fp8_models):
    """What the graphs do with that pack alone."""
    with beside(comfyui_path, fp8_models, (THEIRS, TESTS_OWN)) as server:
        yield {tag: outcome(server, tag, graph) for tag, graph in graphs().items()}


@pytest.mark.parametrize("order", ORDERS)
def test_each_keeps_what_it_holds(checkout, comfyui_path, fp8_models, on_the_cpu, alone, order):
    with beside(comfyui_path, fp8_models, ORDERS[order]) as server:
        status = server.get("/test/status")
        assert {seam: module.rpartition("FP8.")[2] for seam, module in status["others"].items()} == HELD
        text = server.run({"1": node("MetalKernelsStatus")})["outputs"]["1"]["text"][0]
        assert f"{NAME} holds " in text and "which stay with it" in text
        assert "dequantize_per_tensor_fp8, quantize_per_tensor_fp8" in text, "comfy-kitchen's too"
        assert "fp8" in server.get("/test/state")["registered"]
        for tag, graph in graphs().items():
            found = outcome(server, tag, graph)
            print(order, tag, found if isinstance(found, str) else "runs")
            if isinstance(alone[tag], str):
                assert found == alone[tag]
            else:
                expected, _ = on_the_cpu(tag, graph)
                assert psnr(found, alone[tag]) >= 40 and psnr(found, expected) >= 40
