"""What a model takes from load to the first sampler step: python fp8_memory.py COMFYUI_DIR FOLDER SETTINGS

In a process of its own, on the software device. SETTINGS is JSON:

    loader     "model", "checkpoint" (both a random Flux) or "clip" (a random Qwen3 1.7B, whose size ComfyUI fixes)
    hidden, double, single   the size of the Flux
    kind       of the file: "plain", "scaled", "quant" or "wide" (bfloat16)
    quantize   the node's choice

Prints JSON: the file's bytes, the report, the peaks of two numbers, each by itself, and as `total` that of their sum:

    private    anonymous memory of the process: Python, torch, ComfyUI, copies of weights on the CPU
    device     live tensors of the device, or the pages that they have, whichever is more. On this device those are of
               one file in memory, mapped at several places so that a launch sees its buffers far apart.

Not counted: pages of mapped files (the model, libraries), which the system takes back when it needs memory. A page of
the device's counts once, not once for each of its places (proportional set size; RSS counts it each time). The device
is to run with its checks off (SOFTMETAL_CHECKS=0): its record of who touched which bytes is more than a byte for each
byte that a kernel touches, and nothing that a Mac has. A reserved heap is no memory until a tensor lies in it.
"""
import asyncio
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"model": "diffusion_models", "checkpoint": "checkpoints", "clip": "text_encoders"}
NODES = {"model": "MetalFP8LoadDiffusionModel", "checkpoint": "MetalFP8LoadCheckpoint", "clip": "MetalFP8LoadCLIP"}


def pages():
    """(anonymous bytes, bytes of the device's file in memory), each page once, of this process."""
    with open("/proc/self/smaps_rollup") as text:
        fields = dict(line.split(":", 1) for line in text.read().splitlines()[1:])
    return tuple(int(fields[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem"))


class Peak:
    """Samples the numbers in a thread, and where asked at once."""

    def __init__(self):
        import torch

        self.allocated = self.private = self.device = self.total = self.samples = 0
        self._on, self._allocator = True, torch.mps.current_allocated_memory
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._on = False
        self._thread.join()
        self.sample()

    def sample(self):
        private, device = pages()
        allocated = self._allocator()
        device = max(device, allocated)
        self.allocated, self.private = max(self.allocated, allocated), max(self.private, private)
        self.device, self.total = max(self.device, device), max(self.total, private + device)
        self.samples += 1

    def _run(self):
        while self._on:
            start = time.perf_counter()
            self.sample()
            time.sleep(max(0.002, 5 * (time.perf_counter() - start)))  # a look at all pages takes its time


def flux_shapes(hidden, double, single):
    """The names and shapes of a Flux, from ComfyUI's own class without memory."""
    import comfy.ops
    import torch
    from comfy.ldm.flux.model import Flux

    model = Flux(image_model="flux", in_channels=16, out_channels=16, vec_in_dim=32, context_in_dim=64,
                 hidden_size=hidden, mlp_ratio=4.0, num_heads=hidden // 128, depth=double, depth_single_blocks=single,
                 axes_dim=[16, 56, 56], theta=10000, patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[],
                 dtype=torch.float32, device="meta", operations=comfy.ops.disable_weight_init)  # fmt: skip
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def qwen_shapes():
    """The names and shapes of Ovis' text encoder, likewise."""
    import comfy.ops
    import torch
    from comfy.text_encoders.llama import Ovis25_2B

    model = Ovis25_2B({}, torch.float32, "meta", comfy.ops.disable_weight_init)
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def dtypes(shapes, kind):
    """name -> torch dtype: FP8 for all matrices but embeddings, bfloat16 for the rest, or for all of a "wide" file."""
    import torch

    return {name: torch.bfloat16 if kind == "wide" or len(shape) != 2 or "embed_tokens" in name
            else torch.float8_e4m3fn for name, shape in shapes.items()}


def beside(kinds, kind):
    """name -> tensor: what goes with the FP8 matrices in a file of this kind, scales of 1/256 and what marks it."""
    import torch

    layers = [name.removesuffix(".weight") for name, dtype in kinds.items() if dtype is torch.float8_e4m3fn]
    scale, text = torch.tensor(1 / 256), torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8)
    if kind == "scaled":
        marker = {"scaled_fp8": torch.zeros(0, dtype=torch.float8_e4m3fn)}
        return marker | {f"{at}.scale_weight": scale for at in layers}
    if kind == "quant":
        return {f"{at}.{name}": value for at in layers
                for name, value in (("weight_scale", scale), ("comfy_quant", text))}
    return {}


def write(path, shapes, kind, pack):
    """Random weights, a tensor at a time; norms are ones."""
    import torch

    generator, kinds = torch.Generator().manual_seed(0), dtypes(shapes, kind)
    more, writer = beside(kinds, kind), importlib.import_module(f"{pack}.nodes.fp8.writer").Writer
    announced = {name: (kinds[name], shape) for name, shape in shapes.items()}
    announced |= {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in more.items()}
    with writer(str(path), announced) as file:
        for name, shape in shapes.items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.bfloat16) * 0.02
            if more and kinds[name] is torch.float8_e4m3fn:
                drawn *= 256
            file.put(name, (torch.ones_like(drawn) if "norm" in name else drawn).to(kinds[name]))
        for name, tensor in more.items():
            file.put(name, tensor)


def the_pack():
    """The pack's module name and its node classes by id, as ComfyUI loads it."""
    name = "metal_kernels_pack"
    spec = importlib.util.spec_from_file_location(name, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def start():
        extension = await module.comfy_entrypoint()
        await extension.on_load()
        return await extension.get_node_list()

    return name, {node.GET_SCHEMA().node_id: node for node in asyncio.run(start())}


def step(model):
    """One sampler step of a 64 x 64 picture."""
    import torch

    import nodes

    generator = torch.Generator().manual_seed(5)
    text = [[torch.randn(1, 8, 64, generator=generator),
             {"pooled_output": torch.randn(1, 32, generator=generator), "guidance": 3.5}]]  # fmt: skip
    latent = {"samples": torch.zeros(1, 16, 8, 8)}
    return nodes.common_ksampler(model, 7, 1, 1.0, "euler", "simple", text, text, latent)[0]["samples"]


def encode(clip):
    """A sentence's embedding."""
    return clip.encode_from_tokens_scheduled(clip.tokenize("a red fox"))[0][0]


def main(folder, settings):
    import folder_paths
    import torch

    loader = settings.get("loader", "model")
    folder_paths.folder_names_and_paths[FOLDERS[loader]] = ([str(folder)], {".safetensors"})
    name, nodes_by_id = the_pack()
    path = folder / "model.safetensors"
    if loader == "clip":
        shapes = qwen_shapes()
    else:
        shapes = flux_shapes(settings["hidden"], settings["double"], settings["single"])
    if loader == "checkpoint":
        shapes = {f"model.diffusion_model.{key}": shape for key, shape in shapes.items()}
    if not path.exists():
        write(path, shapes, settings.get("kind", "plain"), name)
    more = {"type": "ovis"} if loader == "clip" else {}
    with torch.inference_mode(), Peak() as peak:
        loaded = nodes_by_id[NODES[loader]].execute(
            path.name, quantize=settings.get("quantize", "as stored"), **more)  # fmt: skip
        made = encode(loaded.args[0]) if loader == "clip" else step(loaded.args[0])
        torch.mps.synchronize()
    print(json.dumps({"file": path.stat().st_size, "report": loaded.args[-1], "allocated": peak.allocated,
                      "private": peak.private, "device": peak.device, "total": peak.total, "samples": peak.samples,
                      "finite": bool(made.isfinite().all()), "varied": float(made.float().std())}))  # fmt: skip


if __name__ == "__main__":
    comfyui, target, chosen = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).resolve(), json.loads(sys.argv[3])
    if sys.platform != "darwin":
        sys.path.append(str(ROOT / "tests"))
        import softmetal
        import torch  # noqa: F401  (the device's library needs torch's own to be loaded)

        softmetal.activate(faults="2.13")
        sys.path.remove(str(ROOT / "tests"))
    sys.path[0], sys.argv = comfyui, ["main.py"]
    os.chdir(comfyui)
    import comfy.options

    comfy.options.enable_args_parsing()
    main(target, chosen)
