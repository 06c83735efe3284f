"""What `metal_kernels.uninstall()` leaves of the pack in a ComfyUI: python uninstalled.py COMFYUI_DIR

In a process of its own, on the software device: ComfyUI is imported and looked at, then the pack is loaded into it as
ComfyUI does, taken out, put in again, put under another pack's wrappers, and taken out once more. Prints JSON: for each
step the names of what is not the very object that it was before the pack was loaded.
"""
import functools
import importlib
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULES = ("comfy.model_management", "comfy.sd", "comfy.utils", "comfy.ops", "comfy.quant_ops", "comfy.float",
           "comfy.model_patcher", "comfy.sample", "folder_paths", "execution", "nodes", "server",
           "comfy_execution.progress", "comfy_execution.utils", "comfy_kitchen", "comfy_kitchen.registry",
           "comfy_kitchen.tensor", "comfy_kitchen.tensor.base", "comfy_kitchen.backends.eager")
SEAMS = ("comfy.sd.load_diffusion_model", "comfy.sd.load_clip", "comfy.sd.load_checkpoint_guess_config",
         "comfy.utils.convert_old_quants", "comfy.utils.set_attr_param", "comfy.model_management.is_oom")


def look():
    """name -> what stands there: every attribute of the modules and of the classes in them, comfy-kitchen's registry
    and tables entry by entry, and the dispatcher's kernels on MPS."""
    import torch
    from comfy_kitchen.tensor import base

    found = {}
    for path in MODULES:
        module = importlib.import_module(path)
        for name, value in list(vars(module).items()):
            found[f"{path}.{name}"] = value
            if isinstance(value, type) and value.__module__ == path:
                found.update({f"{path}.{name}.{key}": each for key, each in list(vars(value).items())})
    registry = importlib.import_module("comfy_kitchen.registry").registry
    for table in "_backends", "_constraints", "_unavailable":
        found.update({f"registry.{table}[{key}]": value for key, value in getattr(registry, table).items()})
    for name in "_priority", "_disabled", "_capabilities":
        found[f"registry.{name}"] = Plain(getattr(registry, name))
    for op, handlers in base._LAYOUT_DISPATCH_TABLE.items():
        found.update({f"layouts[{op}][{layout.__name__}]": handler for layout, handler in handlers.items()})
    for op in "copy_", "linear", "constant_pad_nd", "_softmax", "_scaled_mm", "cat":
        table = torch._C._dispatch_dump_table(f"aten::{op}").splitlines()
        found[f"aten::{op}"] = Plain([line for line in table if line.startswith("MPS:")])
    return found


class Plain:
    """A value, not an object: equal if it reads the same."""

    def __init__(self, value):
        self.text = repr(sorted(value.items()) if isinstance(value, dict) else value)


def changed(before):
    """The names of what is another object now, or there no more, or new."""
    now = look()
    return sorted(name for name in before.keys() | now.keys()
                  if name not in before or name not in now or not _same(before[name], now[name]))


def _same(one, other):
    return one.text == other.text if isinstance(one, Plain) else one is other


def wrap(path):
    """Another pack's wrapper over what stands there; returns it, and a function that takes it off."""
    owner, name = importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def theirs(*args, **kwargs):
        return inner(*args, **kwargs)

    setattr(owner, name, theirs)
    return owner, name, theirs


def fp8(kernels):
    """How an FP8 cast ends under a mode of the kernel: its value, or what is raised."""
    import torch

    values = torch.full((4,), 0x38, dtype=torch.uint8, device="mps").view(torch.float8_e4m3fn)
    try:
        return values.to(torch.float32).cpu().tolist()
    except Exception as error:
        return str(error).splitlines()[0]


def main():
    import torch

    before = look()
    from fp8_memory import the_pack

    name, _ = the_pack()
    kernels = sys.modules[f"{name}.metal_kernels"]
    oom = RuntimeError("MPS backend out of memory (MPS allocated: 1 GiB)")
    management = importlib.import_module("comfy.model_management")
    found = {"loaded": changed(before), "cast": fp8(kernels), "oom": bool(management.is_oom(oom))}
    kernels.uninstall()
    found.update({"uninstalled": changed(before), "stock cast": fp8(kernels), "stock oom": management.is_oom(oom)})
    for mode in "off", "on", "auto":
        kernels.set_mode(fp8=mode)
        found[f"uninstalled, {mode}"] = [changed(before), fp8(kernels)]
    kernels.install()
    kernels.install()
    found["again"] = changed(before)
    for mode in "off", "on", "auto":
        kernels.set_mode(fp8=mode)
        found[f"installed, {mode}"] = fp8(kernels)
    theirs = [wrap(path) for path in SEAMS]
    registry = importlib.import_module("comfy_kitchen.registry").registry
    registry.set_priority(["eager", "metal", "cuda"])
    kernels.uninstall()
    kernels.uninstall()
    found["under others"] = changed(before)
    found["theirs stay"] = all(getattr(owner, name) is wrapper for owner, name, wrapper in theirs)
    found["priority"] = list(registry._priority)
    found["oom under others"] = bool(management.is_oom(oom))
    kernels.install()
    found["oom over others"] = bool(management.is_oom(oom))
    kernels.uninstall()
    found["theirs stay still"] = all(getattr(owner, name) is wrapper for owner, name, wrapper in theirs)
    found["device"] = torch.zeros(1, device="mps").device.type
    print(json.dumps(found))


if __name__ == "__main__":
    comfyui = os.path.abspath(sys.argv[1])
    sys.argv = ["main.py"]
    if sys.platform != "darwin":
        sys.path.append(str(HERE.parent))
        import softmetal
        import torch  # noqa: F401  (the device's library needs torch's own to be loaded)

        softmetal.activate(faults="2.13")
        sys.path.remove(str(HERE.parent))
    sys.path.insert(0, comfyui)
    os.chdir(comfyui)
    sys.path.append(str(HERE))
    main()
