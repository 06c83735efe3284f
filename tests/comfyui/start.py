"""Start an unmodified ComfyUI on the software mps device: python start.py COMFYUI_DIR FAULTS [main.py's arguments].

On a Mac the device is the GPU, and FAULTS is not used. FAULTS "no device": this computer as it is.
"""
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# A folder of which every module finds itself on a Mac while it is imported: a pack that asks does then what it does
# there. All else asks torch, and has its answer from the software device.
SEEN_ON_A_MAC = "METAL_KERNELS_TEST_SEEN_ON_A_MAC"
# The folder of a package that torch loads by itself: it is loaded once the software device is there, by
# loaded_with_torch.py.
LOADED_WITH_TORCH = "METAL_KERNELS_TEST_LOADED_WITH_TORCH"


def seen_on_a_mac(folder):
    stock = SourceFileLoader.exec_module

    def exec_module(self, module):
        if not Path(self.path).resolve().is_relative_to(folder):
            return stock(self, module)
        platform, sys.platform = sys.platform, "darwin"
        try:
            return stock(self, module)
        finally:
            sys.platform = platform

    SourceFileLoader.exec_module = exec_module


def main():
    comfyui, faults, arguments = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if os.environ.get(SEEN_ON_A_MAC):
        seen_on_a_mac(Path(os.environ[SEEN_ON_A_MAC]).resolve())
    if sys.platform != "darwin" and faults != "no device":
        sys.path.append(str(TESTS))
        import softmetal
        import torch  # noqa: F401  (the device's library needs torch's own to be loaded)

        softmetal.activate(faults=faults)
        # softmetal is loaded; tests/ must not stay on the path, it has folders called `nodes` and `comfyui`.
        sys.path.remove(str(TESTS))
        if os.environ.get(LOADED_WITH_TORCH):
            sys.path.append(os.environ[LOADED_WITH_TORCH])
            import loaded_with_torch

            loaded_with_torch.load()
    os.chdir(comfyui)
    sys.path[0] = comfyui
    sys.argv = ["main.py", *arguments]
    runpy.run_path("main.py", run_name="__main__")


if __name__ == "__main__":
    main()
