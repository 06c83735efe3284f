"""Out of memory in a real graph: with ComfyUI told what it looks like on MPS, a VAE decodes in tiles and models go."""
import contextlib
import re

import pytest
import torch
from fp8.checkpoints import name
from fp8.harness import failure, free, psnr, sampled, unet
from graphs import node

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

MIB = 2**20
MESSAGE = re.compile(r"MPS backend out of memory \(MPS allocated: ([\d.]+ \w+), other allocations: ([\d.]+ \w+), max "
                     r"allowed: ([\d.]+ \w+)\)\. Tried to allocate ([\d.]+ \w+) on (?:private|shared) pool\. Use "
                     r"PYTORCH_MPS_HIGH_WATERMARK_RATIO=0\.0 to disable upper limit")  # fmt: skip
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
RETRY = "Ran out of memory when regular VAE decoding, retrying with tiled VAE decoding"
UNLOADING = "Got an OOM, unloading all loaded models"


def memory(server, **settings):
    return server.post("/test/memory", settings)


@contextlib.contextmanager
def limited(server, limit):
    """Meanwhile Metal gives the process this many bytes and no more."""
    memory(server, limit=limit)
    try:
        yield
    finally:
        memory(server, limit=1.7 * memory(server)["recommended"])  # torch's own default


@contextlib.contextmanager
def without_the_pack(server, how):
    """The pack, or its hook alone, taken out, and put in again."""
    if how == "hook":
        memory(server, recognise=False)
    else:
        server.post("/test/mode", {"everything": "off"})
    try:
        yield
    finally:
        memory(server, recognise=True)
        server.post("/test/mode", {"everything": "auto", "softmax": "off"})


def decode(kind, tag, **inputs):
    """A latent of random numbers for 496x496, decoded by a Wan VAE: whole, or in tiles of 256. (From 512 on, ComfyUI
    0.33 makes tiles of 512, by its own estimate of what fits.)"""
    return {"empty": node("EmptyHunyuanLatentVideo", width=496, height=496, length=1, batch_size=1),
            "noise": node("TestNoise", samples=("empty", 0)),
            "vae": node("VAELoader", vae_name="wan_wide_vae.safetensors"),
            "decode": node(kind, samples=("noise", 0), vae=("vae", 0), **inputs),
            "save": node("TestSave", value=("decode", 0), name=tag)}


def peaks(server, graph):
    """The device's peaks while it ran."""
    free(server)
    server.post("/test/reset", {})
    server.run(graph, 600)
    return memory(server)["peaks"]


def saved(server, tag):
    return torch.load(server.folder / "output" / f"{tag}.pt")


def numbers(message):
    """(allocated, other, allowed, tried) of the error's text in bytes; what torch rounds to hundredths."""
    found = MESSAGE.match(message)
    assert found, message
    return [float(value) * UNITS[unit] for value, unit in (text.split() for text in found.groups())]


@pytest.fixture(scope="module")
def mac(small_mac):
    """Attention's softmax is stock's meanwhile: of this size the software device takes minutes for it."""
    small_mac.post("/test/mode", {"softmax": "off"})
    yield small_mac
    small_mac.post("/test/mode", {"softmax": "auto"})


@pytest.fixture(scope="module")
def limit(mac):
    """What a decode in tiles takes and a little more. The convolutions of a whole one need far more: were it attention
    alone, ComfyUI would do that in slices, and no tiles be needed."""
    whole = peaks(mac, decode("VAEDecode", "whole"))["current"]
    tiled = peaks(mac, decode("VAEDecodeTiled", "tiled", tile_size=256, overlap=64, temporal_size=64,
                              temporal_overlap=8))["driver"]
    print({"whole, live tensors": whole / MIB, "tiles, driver": tiled / MIB})
    chosen = tiled + 12 * MIB
    assert chosen < 0.8 * whole
    free(mac)
    return chosen


def test_a_decode_that_does_not_fit_is_done_in_tiles(mac, limit):
    free(mac)
    start = len(mac.log)
    with limited(mac, limit):
        mac.run(decode("VAEDecode", "fallen back"), 600)
    assert RETRY in mac.log[start:]
    assert psnr(saved(mac, "fallen back"), saved(mac, "tiled")) > 40
    assert psnr(saved(mac, "fallen back"), saved(mac, "whole")) > 20, "but for the seams of this random VAE"


@pytest.mark.parametrize("how", ["hook", "pack"])
def test_without_it_the_same_decode_fails(mac, limit, how):
    free(mac)
    start = len(mac.log)
    with limited(mac, limit), without_the_pack(mac, how):
        message, where = failure(mac, decode("VAEDecode", "failed"))
        assert where == "VAEDecode" and RETRY not in mac.log[start:]
        allocated, other, allowed, tried = numbers(message)
        assert allowed == pytest.approx(limit, rel=0.01) and allocated + other + tried > 0.99 * allowed
    mac.run(decode("VAEDecode", "failed"), 600)
    assert torch.equal(saved(mac, "failed"), saved(mac, "whole")), "nothing is left of it"


def latents(size, tag):
    """A sampler's latents of a picture of this size, by a model in FP8."""
    graph = sampled("flux", unet(name("flux", "quant", "e4m3fn")), tag)
    graph["empty"] = node("EmptySD3LatentImage", width=size, height=size, batch_size=1)
    return {key: graph[key] for key in ("model", "text", "empty", "sample", "latent")}


@pytest.mark.parametrize("recognised", [True, False])
def test_models_are_unloaded(mac, recognised):
    """A sampler without room fails all the same, but its model goes, and the next prompt runs."""
    free(mac)
    mac.run(latents(64, "before"), 300)
    held = {"model": latents(64, "")["model"], "held": node("TestHeld", model=("model", 0))}
    assert mac.run(held)["outputs"]["held"]["held"][0]["loaded"]
    start, now = len(mac.log), memory(mac)["memory"]["driver"]
    with limited(mac, now + 2 * MIB), contextlib.ExitStack() as stack:
        if not recognised:
            stack.enter_context(without_the_pack(mac, "hook"))
        message, where = failure(mac, latents(512, "no room"))
        assert numbers(message) and where == "KSampler"
        assert (UNLOADING in mac.log[start:]) is recognised
        assert ("This error means you ran out of memory on your GPU" in message) is recognised
        assert mac.run(held)["outputs"]["held"]["held"][0]["loaded"] is not recognised
    mac.run(latents(64, "after"), 300)
    assert psnr(saved(mac, "after latent"), saved(mac, "before latent")) > 60
