"""Load the pack the way ComfyUI does: from its folder, by importlib, under a name that is not `metal_kernels`."""
import asyncio
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "metal_kernels_pack"
STANDIN = Path(__file__).resolve().parent / "nodes" / "comfy_standin"


def load():
    """The pack as a module named `metal_kernels_pack`; loaded once a process."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    spec = importlib.util.spec_from_file_location(NAME, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


def load_as_comfyui():
    """(pack, node classes) after what ComfyUI does at start: import, comfy_entrypoint, on_load, get_node_list.

    Outside ComfyUI a stand-in for its node API is put on sys.path.
    """
    if importlib.util.find_spec("comfy_api") is None:
        sys.path.append(str(STANDIN))
    pack = load()

    async def start():
        extension = await pack.comfy_entrypoint()
        await extension.on_load()
        return await extension.get_node_list()

    return pack, asyncio.run(start())
