"""Metal Kernels: the ComfyUI entry.

Installs the kernels when ComfyUI loads the pack, and lists the nodes. Never raises: where the kernels can't work, the
nodes still register and say why they do nothing. Everything is relative: ComfyUI loads this folder under a name
made from its path, and has a top-level module `nodes` of its own.
"""
import logging

from .nodes import execution, library
from .nodes.fp8 import kitchen, stock
from .nodes.memory import out_of_memory

try:
    from . import metal_kernels  # noqa: F401  (loaded by `library`; named here for whoever imports the pack)
except Exception:  # `library` holds the reason
    metal_kernels = None

WEB_DIRECTORY = "./js"

__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]

log = logging.getLogger("metal_kernels")


async def comfy_entrypoint():
    """The pack as a ComfyUI V3 extension; None, with a line in the log, where ComfyUI has no V3 node API."""
    try:
        from comfy_api.latest import ComfyExtension

        from .nodes import node_list
    except Exception as problem:
        log.warning("Metal Kernels: nothing is loaded, this ComfyUI lacks the node API of 0.30 (%s)", problem)
        return None

    class MetalKernelsExtension(ComfyExtension):
        async def on_load(self):
            library.install(execution, kitchen, stock, out_of_memory)

        async def get_node_list(self):
            return node_list()

    return MetalKernelsExtension()
