"""Small model files for these tests, and the pack's modules that read them."""
import importlib
import json

import torch
from safetensors.torch import save_file

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
KNOWN = dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "mxfp8", "nvfp4", "int8_tensorwise"))


def part(name):
    """The module nodes/fp8/NAME.py of the pack as ComfyUI loads it."""
    from pack import load

    return importlib.import_module(f"{load().__name__}.nodes.fp8.{name}")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def text(config):
    """A comfy_quant tensor."""
    return torch.tensor(list(json.dumps(config).encode()), dtype=torch.uint8)


def write(folder, tensors, metadata=None, name="model.safetensors"):
    path = folder / name
    save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata=metadata)
    return path


def recognised(path, known=KNOWN, strict=True):
    """(header, mapped, layers) of a file. strict: as this pack's own loaders read it."""
    header = part("header").read(str(path))
    mapped = part("mapped").Mapped(header)
    return header, mapped, part("layers").recognise(header, mapped, known, strict)


def quant_file(folder, scale=None, fp8=E4M3, config=None, shape=(8, 16), **more):
    """One layer `a` in comfy_quant's way: scale None leaves the scale out."""
    tensors = {"a.weight": random(*shape).to(fp8), "a.comfy_quant": text(config or {"format": "float8_e4m3fn"})}
    if scale is not None:
        tensors["a.weight_scale"] = scale
    return write(folder, {**tensors, **more})
