"""Other packs that make FP8 work on Macs: what they hold stays with them, and people are told what that is.

Two are known. fp4-fp8-for-torch-mps registers its kernels with torch's dispatcher as soon as torch is imported; the
patcher finds those places taken. ComfyUI-AppleSilicon-FP8 puts Python functions in the place of torch's and ComfyUI's;
calls of those never come to the dispatcher as FP8, and what it puts into comfy-kitchen, `kitchen` leaves to it.
"""
import importlib
import sys

# Where a pack may put a function of its own: module or class, attribute.
SEAMS = (
    ("torch.Tensor", "to"), ("torch.Tensor", "copy_"), ("torch.Tensor", "clone"), ("torch.Tensor", "contiguous"),
    ("torch.Tensor", "reshape"), ("torch", "_scaled_mm"), ("torch.nn.functional", "linear"),
    ("comfy.ops", "cast_bias_weight"), ("comfy.float", "stochastic_rounding"),
)
THEIR_OWN = ("torch", "comfy")
DISPATCHER_PACKS = {"fp4_fp8_for_torch_mps": "fp4-fp8-for-torch-mps"}


def held():
    """Seam, "torch.Tensor.to" -> the module of what stands there, where that is neither torch's nor ComfyUI's."""
    found = {}
    for path, name in SEAMS:
        module = getattr(getattr(_owner(path), name, None), "__globals__", {}).get("__name__", "")
        if module and module.split(".")[0] not in THEIR_OWN:
            found[f"{path}.{name}"] = module
    return found


def notes(held_ops):
    """Lines for the status. held_ops: the aten ops that somebody else answers for."""
    packs = {}
    for seam, module in held().items():
        packs.setdefault(pack_of(module), []).append(seam)
    lines = [f"{pack} holds {', '.join(seams)}, which stay with it; the kernels take what comes past it"
             for pack, seams in packs.items()]
    for module, name in DISPATCHER_PACKS.items():
        if module in sys.modules and held_ops:
            ops = ", ".join(f"aten::{op}" for op in sorted(held_ops))
            lines.append(f"{name} is installed and holds {ops}, which stay with it; the kernels take the rest")
    return lines


def pack_of(module):
    """The name that people know a module by: of a custom node pack its folder, which ComfyUI puts before its parts."""
    return module.replace("\\", "/").split("/")[-1].split(".")[0]


def _owner(path):
    module, _, attribute = path.rpartition(".")
    if attribute[:1].isupper():
        return getattr(sys.modules.get(module), attribute, None)
    return sys.modules.get(path) or (importlib.import_module(path) if path.startswith("torch") else None)
