"""Start an unmodified ComfyUI on the software mps device: python start.py COMFYUI_DIR FAULTS [main.py's arguments].

On a Mac the device is the GPU, and FAULTS is not used.
"""
import os
import runpy
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main():
    comfyui, faults, arguments = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if sys.platform != "darwin":
        sys.path.append(str(TESTS))
        import softmetal
        import torch  # noqa: F401  (the device's library needs torch's own to be loaded)

        softmetal.activate(faults=faults)
        # softmetal is loaded; tests/ must not stay on the path, it has folders called `nodes` and `comfyui`.
        sys.path.remove(str(TESTS))
    os.chdir(comfyui)
    sys.path[0] = comfyui
    sys.argv = ["main.py", *arguments]
    runpy.run_path("main.py", run_name="__main__")


if __name__ == "__main__":
    main()
