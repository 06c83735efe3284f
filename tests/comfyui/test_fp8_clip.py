"""CLIP-L in FP8 through ComfyUI's loaders and ours, on the CPU and on the device: where it ran is part of each test."""
import itertools

import pytest
import torch
from fp8 import text
from fp8.checkpoints import DTYPES, KINDS
from fp8.harness import adopt, bytes_in_fp8, crashes, free, pack_off, psnr, rounded_as_well, sizes
from fp8.harness import cases as fp8_cases
from graphs import node
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]


def cases(*quick):
    """Every kind and dtype, of which `quick` run in the quick suite."""
    return [pytest.param(*case, id="-".join(case), marks=() if case in quick else pytest.mark.full)
            for case in itertools.product(KINDS, DTYPES)]


def single(name, device="default"):
    return node("CLIPLoader", clip_name=name, type="stable_diffusion", device=device)


def ours(name, device="device", **more):
    return node("MetalFP8LoadCLIP", clip_name=name, type="stable_diffusion", device=device, **more)


def encoded(loader, tag):
    return {"clip": loader, "text": node("CLIPTextEncode", clip=("clip", 0), text="a red fox in the snow"),
            "flat": node("TestTextEmbedding", conditioning=("text", 0)),
            "save": node("TestSave", value=("flat", 0), name=tag),
            "held": node("TestHeld", model=("clip", 0), after=("text", 0))}


def run(server, loader, tag):
    """(embedding, where the encoder runs, bytes of FP8 that it holds by device, what the loader shows)."""
    outputs = server.run(encoded(loader, tag), 600)["outputs"]
    held = outputs["held"]["held"][0]
    return (torch.load(server.folder / "output" / f"{tag}.pt"), held["load_device"], bytes_in_fp8(held),
            outputs.get("clip", {}).get("text", [""])[0])


@pytest.fixture(scope="session")
def expected(on_the_cpu):
    """(kind, dtype) -> the embedding of ComfyUI on the CPU, of the same values in 16 bits: CLIP-L knows no scales."""
    found = {}

    def make(kind, dtype):
        kind = "plain" if kind == "plain" else "wide"
        if (kind, dtype) not in found:
            server = on_the_cpu.server
            found[kind, dtype] = run(server, single(text.offer([server], kind, dtype)), f"clip {kind} {dtype}")[0]
        return found[kind, dtype]

    return make


def is_right(server, found, expected, kind, place):
    embedding, where, fp8, _ = found
    assert where == place
    if kind != "plain":  # those ComfyUI's CLIP turns into 16 bits as they come
        assert fp8[place] >= text.in_layers(), "one byte a weight, where it runs"
    assert psnr(embedding, expected) >= 40


@pytest.mark.parametrize("device", ["default", "cpu"])
@pytest.mark.parametrize("kind, dtype", cases(("plain", "e5m2"), ("scaled", "e4m3fn"), ("quant", "e5m2")))
def test_stock_on_the_cpu_as_a_mac_has_it(small_mac, expected, kind, dtype, device):
    """Quantised ones come out right, which without the pack they don't on any machine: their scales are left out."""
    free(small_mac)
    load = single(text.offer([small_mac], kind, dtype), device)
    tag = f"clip {kind} {dtype} {device}"
    is_right(small_mac, run(small_mac, load, tag), expected(kind, dtype), kind, "cpu")
    if kind != "plain" and device == "cpu":
        with pack_off(small_mac):
            assert psnr(run(small_mac, load, f"{tag} off")[0], expected(kind, dtype)) < 20


@pytest.mark.parametrize("faults, kind, dtype", [
    pytest.param(faults, *case, id="-".join((faults, *case)),
                 marks=() if (faults, *case) in {("2.14", "quant", "e4m3fn"), ("2.14", "scaled", "e5m2")}
                 else pytest.mark.full)
    for faults, *case in itertools.product(("2.13", "2.14"), KINDS, DTYPES)])
def test_stock_on_the_device(encoders_on_mps, expected, faults, kind, dtype):
    """With --gpu-only; on a Mac they run on the CPU otherwise."""
    server = encoders_on_mps(faults)
    free(server)
    load = single(text.offer([server], kind, dtype))
    assert crashes(server, encoded(load, "off")) == "CLIPLoader"
    is_right(server, run(server, load, f"clip {kind} {dtype}"), expected(kind, dtype), kind, "mps")


@pytest.mark.parametrize("device, place", [("device", "mps"), ("cpu", "cpu")])
@pytest.mark.parametrize("kind, dtype", cases(("plain", "e4m3fn"), ("scaled", "e5m2"), ("quant", "e4m3fn")))
def test_ours_where_it_is_told_to(small_mac, expected, kind, dtype, device, place):
    free(small_mac)
    load, tag = ours(text.offer([small_mac], kind, dtype), device), f"our clip {kind} {dtype} {device}"
    if device == "device":
        assert crashes(small_mac, encoded(load, tag)) == "CLIPTextEncode"
    found = run(small_mac, load, tag)
    is_right(small_mac, found, expected(kind, dtype), kind, place)
    assert found[2][place] >= text.in_layers() and f"  runs on   {place}" in found[3], "plain ones too"
    disk, resident = sizes(found[3])
    assert resident <= 1.05 * disk, found[3]


def test_ours_quantised_on_load(small_mac, expected):
    free(small_mac)
    name = text.offer([small_mac], "wide", "e4m3fn")
    embedding, _, _, shown = run(small_mac, ours(name, quantize="per row"), "clip quantised")
    assert "72 float8_e4m3fn per row" in shown and "quantised on load: 72 layers" in shown, shown
    assert psnr(embedding, expected("wide", "e4m3fn")) >= 25


def two(first, second, kind="sdxl"):
    return {"stock": node("DualCLIPLoader", clip_name1=first, clip_name2=second, type=kind, device="default"),
            "ours": node("MetalFP8LoadCLIP", clip_name=first, clip_name2=second, type=kind, device="device")}


@pytest.mark.parametrize("which, place", [("stock", "cpu"), ("ours", "mps")])
@pytest.mark.parametrize("kinds", [("quant", "scaled"), pytest.param(("scaled", "quant"), marks=pytest.mark.full)],
                         ids="-".join)
def test_two_files(small_mac, on_the_cpu, which, place, kinds):
    """Of SD3, CLIP-L twice, for its others are larger: the second is the one that is used."""
    free(small_mac)
    server, tag = on_the_cpu.server, f"two {'-'.join(kinds)}"
    names = [text.offer([small_mac], kind, "e4m3fn", seed) for seed, kind in enumerate(kinds)]
    found = run(small_mac, two(*names, "sd3")[which], tag)
    wide = [text.offer([server], "wide", "e4m3fn", seed) for seed in range(2)]
    is_right(small_mac, found, run(server, two(*wide, "sd3")["stock"], tag)[0], kinds[1], place)


@pytest.mark.full
@pytest.mark.parametrize("which, place", [("stock", "cpu"), ("ours", "mps")])
@pytest.mark.parametrize("first", ["scaled", "plain"])
def test_clip_l_and_clip_g(small_mac, on_the_cpu, which, place, first):
    """SDXL's two text encoders, 0.8 GB, in two formats."""
    free(small_mac)
    tag = f"{first} l and g"
    names = [text.offer([small_mac], first, "e4m3fn"), text.offer([small_mac], "quant", "e5m2", size="g")]
    found = run(small_mac, two(*names)[which], tag)
    server = on_the_cpu.server
    wide = [text.offer([server], first.replace("scaled", "wide"), "e4m3fn"),
            text.offer([server], "wide", "e5m2", size="g")]
    is_right(small_mac, found, run(server, two(*wide)["stock"], tag)[0], "quant", place)
    quantised = text.in_layers("g") + (0 if (first, which) == ("plain", "stock") else text.in_layers("l"))
    assert found[2][place] >= quantised


@pytest.mark.parametrize("which, kind, dtype", fp8_cases(("CLIPLoader", "ours"), KINDS, DTYPES, quick=(
    "CLIPLoader plain e4m3fn", "CLIPLoader quant e4m3fn", "ours quant e4m3fn")))
def test_a_lora_on_top(small_mac, on_the_cpu, which, kind, dtype):
    """On the text encoder; taken out again nothing is left of it."""
    which = {"CLIPLoader": single, "ours": ours}[which]
    free(small_mac)
    both = [small_mac, on_the_cpu.server]
    text.offer_lora(both)

    def with_lora(loader, tag):
        graph = encoded(loader, tag)
        graph["lora"] = node("LoraLoader", model=("model", 0), clip=("clip", 0), lora_name=text.LORA,
                             strength_model=0.0, strength_clip=1.0)
        graph["model"] = node("UNETLoader", unet_name="flux_quant_e4m3fn.safetensors", weight_dtype="default")
        graph["text"]["inputs"]["clip"] = graph["held"]["inputs"]["model"] = ["lora", 1]
        return graph

    load, tag = which(text.offer([small_mac], kind, dtype)), f"lora {which.__name__} {kind} {dtype}"
    before = run(small_mac, load, f"{tag} before")[0]
    small_mac.run(with_lora(load, tag), 600)
    merged = torch.load(small_mac.folder / "output" / f"{tag}.pt")
    assert torch.equal(run(small_mac, load, f"{tag} after")[0], before)
    server = on_the_cpu.server

    def on_cpu(loader, tag):
        server.run(with_lora(loader, tag), 600)
        return torch.load(server.folder / "output" / f"{tag}.pt")

    # ComfyUI holds a plain text encoder in 16 bits; ours in FP8, to which what a LoRA changes is rounded again.
    file = text.offer([server], kind, dtype)
    if dtype == "e5m2" and which is ours:
        exact = on_cpu(single(file if kind == "plain" else text.offer([server], "wide", dtype)), f"{tag} exact")
        assert rounded_as_well(merged, on_cpu(ours(file), tag), exact)
    else:
        assert psnr(merged, on_cpu(single(file), tag)) >= (36 if (which, kind) == (ours, "plain") else 40)
    assert psnr(merged, before) < 28, "it shows"


def dual(name):
    """One file twice, as CLIP-L of SD3: the second is the one that is used."""
    return node("DualCLIPLoader", clip_name1=name, clip_name2=name, type="sd3", device="default")


STOCK = {"CLIPLoader": single, "DualCLIPLoader": dual}


def stock_cases(*quick):
    return fp8_cases(STOCK, KINDS, DTYPES, quick=quick)


@pytest.mark.parametrize("which, kind, dtype", fp8_cases(("DualCLIPLoader",), KINDS, DTYPES,
                                                         quick=("DualCLIPLoader scaled e5m2",)))
def test_stock_two_on_the_device(encoders_on_mps, on_the_cpu, which, kind, dtype):
    server, tag = encoders_on_mps("2.13"), f"dual {kind} {dtype}"
    free(server)
    load = dual(text.offer([server], kind, dtype))
    assert crashes(server, encoded(load, "off")) == which
    wide = dual(text.offer([on_the_cpu.server], "plain" if kind == "plain" else "wide", dtype))
    is_right(server, run(server, load, tag), run(on_the_cpu.server, wide, tag)[0], kind, "mps")


def lora_graph(loader, tag, lora, **more):
    """The text encoded, by an encoder with a LoRA or without."""
    graph = encoded(loader, tag) | more
    if lora:
        graph["lora"] = node("LoraLoader", model=("model", 0), clip=("clip", 0), lora_name=text.SHORT_LORA,
                             strength_model=0.0, strength_clip=1.0)
        graph["model"] = node("UNETLoader", unet_name="flux_quant_e4m3fn.safetensors", weight_dtype="default")
        graph["text"]["inputs"]["clip"] = graph["held"]["inputs"]["model"] = ["lora", 1]
    return graph


def embedding(server, graph, tag):
    outputs = server.run(graph, 600)["outputs"]
    assert outputs["held"]["held"][0]["load_device"] == "mps"
    return torch.load(server.folder / "output" / f"{tag}.pt")


@pytest.mark.parametrize("which, kind, dtype", stock_cases("DualCLIPLoader quant e4m3fn"))
def test_stock_saved_again_and_loaded_again(encoders_on_mps, which, kind, dtype):
    """By CLIPSave, with a LoRA and without. Without, every FP8 value and scale comes back as it was, and the embedding;
    with, the embedding that the LoRA made."""
    server = encoders_on_mps("2.13")
    free(server)
    text.offer_lora([server], text.SHORT_LORA)
    name = text.offer([server], kind, dtype)
    for lora in False, True:
        tag = f"{which}_{kind}_{dtype}_{lora}"
        save = node("CLIPSave", clip=("lora", 1) if lora else ("clip", 0), filename_prefix=tag)
        before = embedding(server, lora_graph(STOCK[which](name), tag, lora, written=save), tag)
        path, = (server.folder / "output").glob(f"{tag}_clip_l_*.safetensors")
        if not lora:
            plain = before
            same_values(load_file(server.folder / "models" / "text_encoders" / name), load_file(path), kind)
        adopt([server], path, "text_encoders", f"{tag}.safetensors")
        free(server)
        after = embedding(server, lora_graph(STOCK[which](f"{tag}.safetensors"), f"{tag} again", False), f"{tag} again")
        assert psnr(after, before) >= 40 if lora else torch.equal(after, before)
    assert psnr(before, plain) < 28, "it shows"


def same_values(source, written, kind):
    for key, value in source.items():
        if value.dtype.itemsize == 1 and value.ndim == 2 and key.endswith(".weight"):
            if kind == "plain":  # ComfyUI's CLIP turns it into 16 bits
                assert torch.equal(written[key].float(), value.float()), key
                continue
            assert written[key].dtype == value.dtype, key
            assert torch.equal(written[key].view(torch.uint8), value.view(torch.uint8)), key
            scale = source.get(f"{key}_scale", source.get(f"{key.removesuffix('.weight')}.scale_weight"))
            assert torch.equal(written[f"{key}_scale"], scale), key


@pytest.mark.parametrize("which, kind, dtype, lora", fp8_cases(
    STOCK, KINDS, DTYPES, ("as it is", "lora"),
    quick=("CLIPLoader quant e5m2 lora",)))
def test_stock_run_twice_unloaded_and_reloaded(encoders_on_mps, which, kind, dtype, lora):
    """The same bits each time: from the file, again, after an unload, from the file again."""
    server = encoders_on_mps("2.13")
    text.offer_lora([server], text.SHORT_LORA)
    name, found = text.offer([server], kind, dtype), []

    def once(number):
        graph = lora_graph(STOCK[which](name), "again", lora == "lora")
        graph["again"] = node("TestAgain", value=tuple(graph["text"]["inputs"]["clip"]), tag=f"{name} {number}")
        graph["text"]["inputs"]["clip"] = ["again", 0]
        found.append(embedding(server, graph, "again"))

    free(server)
    once(1)
    once(2)
    server.post("/free", {"unload_models": True})
    once(3)
    free(server)
    once(4)
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("which, ending", [
    ("CLIPLoader", "weight_scale"), pytest.param("DualCLIPLoader", "scale_weight", marks=pytest.mark.full)])
def test_stock_with_scales_alone(small_mac, which, ending):
    """Neither a text nor a marker says that it is scaled: the scales do."""
    free(small_mac)
    right, folder = text.offer([small_mac], "quant", "e4m3fn"), small_mac.folder / "models" / "text_encoders"
    tensors = {key.replace("weight_scale", ending): value for key, value in load_file(folder / right).items()
               if not key.endswith(".comfy_quant")}
    save_file(tensors, folder / "alone.safetensors")
    found = run(small_mac, STOCK[which]("alone.safetensors"), "alone")
    assert torch.equal(found[0], run(small_mac, STOCK[which](right), "not alone")[0])
    assert found[2]["cpu"] >= text.in_layers()
