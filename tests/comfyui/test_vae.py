"""The repair itself in ComfyUI: a Wan VAE on a stock whose large pads are wrong, against the CPU."""
import json
import math

import pytest
import torch
from graphs import node, switch

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

MIB = 2**20


def psnr(picture, reference):
    """dB, for pictures of data range 1."""
    error = (picture.double() - reference.double()).pow(2).mean().item()
    return math.inf if error == 0 else -10 * math.log10(error)


@pytest.fixture(scope="module")
def reference():
    """The tiny VAE's decode on the CPU in float32, in this process: frames [T, H, W, 3] in 0 to 1."""
    from demo.workload import Workload, decode

    vae, latent = Workload().build("cpu")
    return decode(vae, latent)[0].movedim(0, -1).add(1).div(2).clamp(0, 1)


def decoded(comfyui, mode):
    """(frames, pads of the decode, outside's growth in bytes at its peak) of a decode under a switch."""
    comfyui.forget()
    comfyui.post("/test/reset", {})
    before = comfyui.get("/test/state")["peaks"]["outside"]
    entry = comfyui.run({"vae": node("TestTinyVAE"), "S": switch(("vae", 0), pad=mode),
                         "decode": node("VAEDecode", vae=("S", 0), samples=("vae", 1)),
                         "save": node("TestSave", value=("decode", 0), name=f"decoded {mode}"),
                         "pads": node("TestPads", vae=("S", 0), after=("decode", 0))})
    frames = torch.load(comfyui.folder / "output" / f"decoded {mode}.pt")
    return frames, entry["outputs"]["pads"]["pads"][0], comfyui.get("/test/state")["peaks"]["outside"] - before


def test_a_video_decode_is_garbage_on_stock_and_the_CPUs_picture_repaired(comfyui, reference):
    stock, pads, outside = decoded(comfyui, "off")
    assert pads["faulty_by_rule"] >= 10 and pads["past_threshold"] >= pads["faulty_by_rule"], pads
    assert stock.shape == reference.shape == (5, 256, 256, 3)
    assert psnr(stock, reference) < 15
    assert outside > 20 * MIB, "stock keeps driver memory for each distinct pad"

    repaired, pads, outside = decoded(comfyui, "on")
    assert pads["faulty_by_rule"] >= 10
    assert psnr(repaired, reference) > 60
    assert outside == 0, "the repair keeps none"


def test_the_parity_node_sees_both(comfyui):
    for mode, low, high in ("off", 0, 15), ("on", 60, math.inf):
        entry = comfyui.run({"vae": node("TestTinyVAE"), "S": switch(("vae", 0), pad=mode),
                             "parity": node("MetalParityVAE", vae=("S", 0), image_or_latent=("vae", 1),
                                            operation="decode", region="whole"),
                             "show": node("TestShow", value=("parity", 4)),
                             "passed": node("TestShow", value=("parity", 2))})
        assert low < float(entry["outputs"]["show"]["shown"][0]["text"]) <= high
        assert entry["outputs"]["passed"]["shown"][0]["text"] == str(mode == "on"), "by the node's own tolerance, 25 dB"


def test_which_pads_of_the_real_wan_2_2_encoder_are_faulty(comfyui_path):
    """ComfyUI's own model in full size, computing nothing: one pad at 1024x1024, none at 512x512 however many frames.

    What is past the threshold at 512x512 are pads of nothing but zeros, which copy. (full_size.py says why.)
    """
    import full_size

    printed = full_size.run(comfyui_path, "count").splitlines()[-1]  # newer ones print versions first
    found = {tuple(each["video"]): each for each in json.loads(printed)}
    assert set(found) == set(full_size.VIDEOS)
    for (_, height, width), pads in found.items():
        rank_5 = [(shape, pad) for shape, pad in pads["shapes"] if len(shape) == 5]
        real = [(shape, pad) for shape, pad in rank_5 if any(pad)]
        past = [(shape, pad) for shape, pad in rank_5 if shape[3] * shape[4] >= 65536]
        assert real[0] == ([1, 160, 1, height // 4, width // 4], [0, 0, 0, 0, 1, 0]), "the largest of those that pad"
        assert pads["faulty_by_rule"] == sum(any(pad) for _, pad in past) == (height * width >= 2**20)
        assert pads["past_threshold"] > pads["faulty_by_rule"], "but those copy"


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_real_wan_2_2_vae_encodes_wrongly_on_stock_and_rightly_repaired(comfyui_path, tmp_path):
    """ComfyUI's own loader and VAE, full size (705 M parameters), random weights: a picture of 1024x1024. At 512x512
    stock is right, which the pads, counted, say as well."""
    import full_size
    from server import running

    with running(comfyui_path, arguments=["--fp32-vae"]) as comfyui:
        checkpoint = comfyui.folder / "models" / "vae" / "wan2.2_vae.safetensors"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        full_size.run(comfyui_path, "make", checkpoint)
        full_size.run(comfyui_path, "encode", checkpoint, tmp_path / "cpu.pt")
        expected = torch.load(tmp_path / "cpu.pt")

        def encoded(mode, size):
            """(latent, pads, growth of outside in bytes at its peak, pads that the pack took)"""
            comfyui.post("/test/reset", {})
            comfyui.post("/test/pads", {"count": True})
            before = comfyui.get("/test/state")
            comfyui.run({"vae": node("VAELoader", vae_name="wan2.2_vae.safetensors"), "S": switch(("vae", 0), pad=mode),
                         "picture": node("TestPicture", size=size),
                         "encode": node("VAEEncode", pixels=("picture", 0), vae=("S", 0)),
                         "save": node("TestSave", value=("encode", 0), name=f"{mode} {size}")}, seconds=1500)
            after, pads = comfyui.get("/test/state"), comfyui.post("/test/pads", {"count": False})
            return (torch.load(comfyui.folder / "output" / f"{mode} {size}.pt"), pads,
                    after["peaks"]["outside"] - before["peaks"]["outside"],
                    after["taken"].get("pad", 0) - before["taken"].get("pad", 0))

        stock, pads, outside, taken = encoded("off", 1024)
        assert pads["past_threshold"] == 2 and pads["faulty_by_rule"] == 1 and taken == 0, pads
        assert stock.shape == expected.shape and expected.std() > 0.1
        assert latent_psnr(stock, expected) < 15
        assert outside > 0, "stock keeps driver memory for each distinct pad"

        repaired, pads, outside, taken = encoded("on", 1024)
        assert pads["past_threshold"] == 2 and pads["faulty_by_rule"] == 1 and taken == pads["calls"] > 0
        assert latent_psnr(repaired, expected) > 60
        assert outside == 0, "the repair keeps none"

        small, pads, _, taken = encoded("off", 512)
        assert pads["past_threshold"] == 1 and pads["faulty_by_rule"] == 0 and taken == 0
        assert latent_psnr(small, encoded("on", 512)[0]) > 60, "no pad of it is faulty on stock"


def latent_psnr(latent, reference):
    """dB; a latent's data range is the distance from its reference's least to its greatest element."""
    scale = (reference.max() - reference.min()).item()
    return psnr(latent / scale, reference / scale)
