"""What a model takes from load to the first sampler step: python fp8_memory.py COMFYUI_DIR FOLDER SETTINGS

In a process of its own, on the software device. SETTINGS is JSON: hidden, double, single (the size of a random Flux),
wide (a bfloat16 file rather than an FP8 one), quantize (the node's choice). Prints JSON: the file's bytes, the report,
and at their peaks the allocator's bytes and the process's private ones. Pages of mapped files are not counted.
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


def private():
    """Bytes of anonymous and shared memory: all but mapped files. The software device's memory is anonymous."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


class Peak:
    """Samples both numbers in a thread. The device's memory is in `private`: `total` counts it once.

    allocated  live tensors. (The driver's number comes in heaps of 1 GiB, of which nothing is used until it is.)
    """

    def __init__(self):
        import torch

        self.allocated, self.total, self._on = 0, 0, True
        self._allocator = torch.mps.current_allocated_memory
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._on = False
        self._thread.join()
        self.sample()

    def sample(self):
        self.allocated = max(self.allocated, self._allocator())
        self.total = max(self.total, private())

    def _run(self):
        while self._on:
            self.sample()
            time.sleep(0.002)


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


def write(path, shapes, wide, pack):
    """Random weights, a tensor at a time."""
    import torch

    generator = torch.Generator().manual_seed(0)
    plain = torch.bfloat16 if wide else torch.float8_e4m3fn
    writer = importlib.import_module(f"{pack}.nodes.fp8.writer").Writer
    with writer(str(path), {name: (plain, shape) for name, shape in shapes.items()}) as file:
        for name, shape in shapes.items():
            file.put(name, (torch.randn(shape, generator=generator, dtype=torch.bfloat16) * 0.02).to(plain))


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


def main(folder, settings):
    import folder_paths
    import torch

    folder_paths.folder_names_and_paths["diffusion_models"] = ([str(folder)], {".safetensors"})
    name, nodes_by_id = the_pack()
    path = folder / "model.safetensors"
    shapes = flux_shapes(settings["hidden"], settings["double"], settings["single"])
    if not path.exists():
        write(path, shapes, settings.get("wide", False), name)
    with torch.inference_mode(), Peak() as peak:
        loaded = nodes_by_id["MetalFP8LoadDiffusionModel"].execute(
            path.name, quantize=settings.get("quantize", "as stored"))  # fmt: skip
        picture = step(loaded.args[0])
        torch.mps.synchronize()
    print(json.dumps({"file": path.stat().st_size, "report": loaded.args[1], "allocated": peak.allocated,
                      "total": peak.total, "finite": bool(picture.isfinite().all()),
                      "varied": float(picture.std())}))  # fmt: skip


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
