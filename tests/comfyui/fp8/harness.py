"""Servers that have the tiny checkpoints, graphs that use them, and comparisons. The fixtures are conftest.py's."""
import contextlib
import functools
import itertools
import math
import os
import re
import time
from pathlib import Path

import pytest
import torch
from graphs import cached, error, node
from safetensors.torch import load_file, save_file
from server import TESTS_OWN, running

from . import checkpoints

# A Mac on which the models don't fit into memory twice: ComfyUI then keeps plain FP8 files as they are. (It asks for
# the machine's memory less what is reserved.)
SMALL = ("--reserve-vram", "100000")
CONDITIONING = {"flux": 64, "wan": 4096, "qwen": 3584, "zimage": 2560}
IMAGE = ("EmptySD3LatentImage", dict(width=64, height=64, batch_size=1))
VIDEO = ("EmptyHunyuanLatentVideo", dict(width=64, height=64, length=5, batch_size=1))
LATENTS = {"flux": IMAGE, "wan": VIDEO, "qwen": IMAGE, "zimage": IMAGE}
VAES = {"flux": "flux", "wan": "wan", "qwen": "wan", "zimage": "flux"}


def cases(*axes, quick):
    """The product of the axes; what is not among `quick`, words in a line, is for the full suite."""
    found = [pytest.param(*case, id="-".join(case), marks=() if " ".join(case) in quick else pytest.mark.full)
             for case in itertools.product(*axes)]
    assert len(quick) == sum(not each.marks for each in found), "a quick case is none of the product"
    return found


@contextlib.contextmanager
def serving(comfyui_path, models, faults="2.13", arguments=(), **more):
    """A server on the software device (or with --cpu on the CPU) that finds the files below `models`. more: `running`'s
    own."""
    with running(comfyui_path, faults=faults, arguments=arguments, **more) as server:
        for file in Path(models).rglob("*.safetensors"):
            target = server.folder / "models" / file.relative_to(models)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                os.symlink(file, target)
        yield server


def unet(file, weight_dtype="default"):
    return node("UNETLoader", unet_name=file, weight_dtype=weight_dtype)


def sampled(family, loader, tag, model=("model", 0), more=None):
    """A graph: `loader` as node "model", what `more` adds, two sampler steps, a VAE decode; both saved under `tag`."""
    latent, size = LATENTS[family]
    checkpoint = "Checkpoint" in loader["class_type"]
    graph = {
        "model": loader, "text": node("TestConditioning", width=CONDITIONING[family]), "empty": node(latent, **size),
        "sample": node("KSampler", model=model, positive=("text", 0), negative=("text", 0), latent_image=("empty", 0),
                       seed=7, steps=2, cfg=1.0, sampler_name="euler", scheduler="simple", denoise=1.0),
        "vae": node("VAELoader", vae_name=f"{VAES[family]}_vae.safetensors"),
        "decode": node("VAEDecode", samples=("sample", 0), vae=("model", 2) if checkpoint else ("vae", 0)),
        "latent": node("TestSave", value=("sample", 0), name=f"{tag} latent"),
        "image": node("TestSave", value=("decode", 0), name=f"{tag} image"),
        **(more or {}),
    }
    if checkpoint:
        del graph["vae"]
    return graph


EXACT = ("plain", "e4m3fn")  # whose values bfloat16 holds
LOADERS = ("default", "forced", "checkpoint", "ours", "our checkpoint")


def load(file, loader, **options):
    """The loader node: ComfyUI's as a user leaves it, with FP8 asked for, of a whole checkpoint; and this pack's."""
    if loader == "checkpoint":
        return node("CheckpointLoaderSimple", ckpt_name=file)
    if loader == "our checkpoint":
        return node("MetalFP8LoadCheckpoint", ckpt_name=file, **options)
    if loader == "ours":
        return node("MetalFP8LoadDiffusionModel", model_name=file, **options)
    dtype = "e5m2" if "e5m2" in file else "e4m3fn"
    return unet(file, "default" if loader == "default" else f"fp8_{dtype}")


KEEPING = ("kept", "ours")  # FP8 kept as it is: by UNETLoader (plain files: asked to), by MetalFP8LoadDiffusionModel


def keep(family, kind, dtype, loader):
    """A loader that keeps FP8 as it is: one of KEEPING, or of a whole checkpoint as in LOADERS."""
    kept = ("forced" if kind == "plain" else "default") if loader == "kept" else loader
    return load(checkpoints.name(family, kind, dtype), kept)


def reported(entry, node_id="model"):
    """(the text, bytes on disk, bytes resident) that one of the pack's loaders shows."""
    text = entry["outputs"][node_id]["text"][0]
    return text, *sizes(text)


def sizes(text):
    """(bytes on disk, bytes resident) of a loader's report."""
    return tuple(int(number.replace(",", "")) for number in re.findall(r"\(([\d,]+) bytes\)", text)[:2])


def bytes_in_fp8(held):
    """device -> bytes of FP8, of what TestHeld shows."""
    return {place: sum(size for kind, size in sizes.items() if kind.startswith("float8"))
            for place, sizes in held["bytes"].items()}


def results(server, tag):
    """(latent, image) of a graph that was run."""
    return tuple(torch.load(server.folder / "output" / f"{tag} {part}.pt") for part in ("latent", "image"))


def free(server):
    """Unload every model and drop the execution cache, as ComfyUI's own button does."""
    server.post("/free", {"unload_models": True, "free_memory": True})
    server.forget()


def repeated(server, make):
    """The (latent, image) of three whole runs of `make(tag)`, loaded from the file, loaded again after an unload, and
    from the file once more; and between them two latents, the second of a model that is loaded already. (A VAE on this
    small Mac takes a model's place.) Sampler and text encoder run in each: ComfyUI's cache of results holds none."""
    whole, latents = [], []

    def run(tag, sampling=False):
        graph = anew(make(tag), f"{time.monotonic_ns()}")
        if sampling:
            graph = {key: value for key, value in graph.items() if key not in ("vae", "decode", "image")}
        ran = cached(server.run(graph, 600))
        assert not ran & {"sample", *(["text"] if "again text" in graph else [])}
        if sampling:
            latents.append(torch.load(server.folder / "output" / f"{tag} latent.pt"))
        else:
            whole.append(results(server, tag))

    def loaded():
        graph = make("again")
        kept = {key: graph[key] for key in ("model", "lora") if key in graph}
        held = node("TestHeld", model=graph["sample"]["inputs"]["model"])
        entry = server.run(kept | {"held": held}, 300)
        assert cached(entry) == kept.keys(), "the same model as before, and not another one from the file"
        return entry["outputs"]["held"]["held"][0]["loaded"]

    free(server)
    run("again file")
    run("again first", sampling=True)
    assert loaded()
    run("again second", sampling=True)
    server.post("/free", {"unload_models": True})
    loaded()  # the worker unloads before or after this prompt
    assert not loaded()
    run("again unloaded")
    free(server)
    run("again reloaded")
    return whole, latents


def same_each_time(server, make):
    """Whether everything in `repeated` is the same, bit for bit."""
    whole, latents = repeated(server, make)
    latent, image = whole[0]
    return (all(torch.equal(each, latent) for each in (*latents, *(pair[0] for pair in whole)))
            and all(torch.equal(pair[1], image) for pair in whole))


def anew(graph, tag):
    """The graph, of which sampler and text encoder run even if they did in a graph of another tag."""
    graph = dict(graph)
    for name, at in ("sample", "latent_image"), ("text", "clip"):
        inputs = graph[name]["inputs"]
        if at in inputs:
            graph[f"again {name}"] = node("TestAgain", value=inputs[at], tag=tag)
            graph[name] = {**graph[name], "inputs": {**inputs, at: [f"again {name}", 0]}}
    return graph


def with_lora(family, strength=1.0):
    """The node "lora" on the node "model"."""
    return {"lora": node("LoraLoaderModelOnly", model=("model", 0), lora_name=f"{family}_lora.safetensors",
                         strength_model=strength)}


def adopt(servers, source, folder, name):
    """Let the servers find a copy of the file `source` under this name in their folder of models."""
    for server in servers:
        target = server.folder / "models" / folder / name
        target.unlink(missing_ok=True)
        target.write_bytes(source.read_bytes())


def psnr(actual, expected):
    """dB against the reference's range; infinite for equal tensors."""
    assert actual.shape == expected.shape
    assert actual.isfinite().all()
    error = (actual.double() - expected.double()).pow(2).mean().item()
    extent = (expected.max() - expected.min()).item()
    assert extent > 0.05, "a flat picture proves nothing"
    return math.inf if error == 0 else 10 * math.log10(extent**2 / error)


def rounded_as_well(merged, reference, exact):
    """Whether a LoRA in float8_e5m2 on the device is as near as the CPU's to the LoRA on 16 bits.

    ComfyUI merges in float16 there and in float32 on the CPU. In float16 it can't divide by scales as small as
    e5m2's are and takes another: then the stochastic rounding draws otherwise, and both differ by both errors. Which
    of the two is nearer is chance, by up to 3 dB in the encoder and model of these tests.
    """
    ours, theirs, apart = psnr(merged, exact), psnr(reference, exact), psnr(merged, reference)
    print(f"e5m2: {ours:.1f} dB from the LoRA on 16 bits, the CPU {theirs:.1f}; {apart:.1f} from each other")
    return ours > theirs - 3 and apart > theirs - 5


def failed(server, graph):
    """The data of execution_error of a prompt that must fail."""
    entry = server.end(server.queue(graph), 300)
    assert entry["status"]["status_str"] == "error", "it ran"
    data = error(entry)
    assert "/" not in data["exception_type"], "no path of the user's disk"
    return data


def failure(server, graph):
    """The message of a prompt that must fail, and the node class it failed in."""
    data = failed(server, graph)
    return data["exception_message"].strip(), data["node_type"]


def crashes(server, graph):
    """With the pack's kernel switched off the graph must fail as people report it of FP8 on MPS: in words of torch's,
    inside another sentence where they are about a module's weights. Returns the class of the node that failed."""
    with pack_off(server):
        message, where = failure(server, graph)
    assert "Undefined type Float8_e" in message, (message, where)
    return where


class Reference:
    """The CPU's results of the same graphs, each computed once."""

    def __init__(self, server):
        self.server, self.found = server, {}

    def __call__(self, tag, graph):
        if tag not in self.found:
            self.server.run(graph, 300)
            self.found[tag] = results(self.server, tag)
        return self.found[tag]


@pytest.fixture(scope="session")
def fp8_models(comfyui_path, tmp_path_factory):
    """The folder of the tiny checkpoints."""
    folder = tmp_path_factory.mktemp("models")
    checkpoints.make("checkpoints", comfyui_path, folder)
    return folder


@pytest.fixture(scope="session")
def macs(comfyui_path, fp8_models):
    """faults -> a server on the software device, started at its first use, that keeps plain FP8 files as they are."""
    with contextlib.ExitStack() as started:
        yield functools.cache(lambda faults: started.enter_context(serving(comfyui_path, fp8_models, faults, SMALL)))


@pytest.fixture(scope="session", params=["2.13", pytest.param("2.14", marks=pytest.mark.full)])
def small_mac(request, macs):
    return macs(request.param)


@pytest.fixture(scope="session")
def encoders_on_mps(comfyui_path, fp8_models):
    """faults -> a server that keeps everything on the device, text encoders too: on a Mac they run on the CPU."""
    with contextlib.ExitStack() as started:
        yield functools.cache(
            lambda faults: started.enter_context(serving(comfyui_path, fp8_models, faults, ("--gpu-only",))))


@pytest.fixture(scope="session")
def on_the_cpu(comfyui_path, fp8_models):
    """`Reference`: the same ComfyUI with --cpu, which computes in float32 and keeps FP8 files as they are, too."""
    with serving(comfyui_path, fp8_models, arguments=("--cpu", *SMALL)) as server:
        yield Reference(server)


@pytest.fixture(scope="session")
def elsewhere(comfyui_path, fp8_models):
    """The same ComfyUI without this pack, on a computer that has a CPU and no more: no software device either."""
    with serving(comfyui_path, fp8_models, "no device", ("--cpu",), packs=(TESTS_OWN,)) as server:
        yield server


@pytest.fixture(scope="module")
def wide(small_mac, on_the_cpu):
    """family -> the name of a file of it in bfloat16, which both servers find."""
    for family in checkpoints.FAMILIES:
        source = load_file(small_mac.folder / "models" / "diffusion_models" / checkpoints.name(family, *EXACT))
        tensors = {key: value.to(torch.bfloat16) for key, value in source.items()}
        for server in (small_mac, on_the_cpu.server):
            save_file(tensors, server.folder / "models" / "diffusion_models" / f"{family}_wide.safetensors")
    return {family: f"{family}_wide.safetensors" for family in checkpoints.FAMILIES}


@contextlib.contextmanager
def pack_off(server):
    """The pack's FP8 kernel switched off, and nothing loaded before or after."""
    server.post("/test/mode", {"fp8": "off"})
    try:
        free(server)
        yield
    finally:
        server.post("/test/mode", {"fp8": "auto"})
        free(server)
