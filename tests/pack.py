"""Load the pack the way ComfyUI does: from its folder, by importlib, under a name that is not `metal_kernels`."""
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "metal_kernels_pack"


def load():
    """The pack as a module named `metal_kernels_pack`; loaded once a process."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    spec = importlib.util.spec_from_file_location(NAME, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module
