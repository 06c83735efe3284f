"""The pack's nodes: a folder a feature, `node.py` thin, the logic beside it.

Importing this package imports no ComfyUI; `node_list` does.
"""
import importlib
import logging

# folder -> its node classes, in the order of the menu. Ids are final once released.
NODES = {
    "switch": ("MetalKernelsSwitch",),
    "status": ("MetalKernelsStatus",),
    "memory": ("MetalMemoryReport",),
    "parity": ("MetalParityCompare", "MetalParityVAE"),
    "fp8": ("MetalFP8LoadDiffusionModel", "MetalFP8LoadCLIP", "MetalFP8LoadCheckpoint", "MetalFP8SaveModel"),
}


def node_list():
    """Every node class that can be imported here; one that can't is named in the log and left out."""
    found = []
    for folder, names in NODES.items():
        try:
            module = importlib.import_module(f".{folder}.node", __name__)
            found += [getattr(module, name) for name in names]
        except Exception:
            logging.getLogger("metal_kernels").exception("Metal Kernels: nodes/%s can't be loaded", folder)
    return found
