"""Let ComfyUI import PyPI's torchvision and torchaudio beside a CPU build of torch. Run with that venv's Python.

Both are CUDA builds there, and the image graphs of the tests call neither: only the schemas of torchvision's operators
must exist, and torchaudio must be importable. With another torch, or on a Mac, this does nothing.
"""
import importlib.util
import sys
import sysconfig
from pathlib import Path

VISION = '''\
"""Defines the operators that torchvision's import looks up."""
import importlib.abc
import sys


class Finder(importlib.abc.MetaPathFinder):
    library = None

    def find_spec(self, name, path, target=None):
        if name == "torchvision" and Finder.library is None:
            import torch

            Finder.library = torch.library.Library("torchvision", "DEF")
            for op in ("nms", "qnms"):
                Finder.library.define(op + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


sys.meta_path.insert(0, Finder())
'''

AUDIO = '''\
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise RuntimeError("torchaudio is not installed: " + name)
'''


def main():
    import torch

    if sys.platform == "darwin" or torch.version.cuda:
        return
    site = Path(sysconfig.get_paths()["purelib"])
    (site / "_torchvision_cpu.py").write_text(VISION)
    (site / "torchvision_cpu.pth").write_text("import _torchvision_cpu\n")
    if importlib.util.find_spec("torchaudio") is None:
        audio = site / "torchaudio"
        audio.mkdir()
        (audio / "__init__.py").write_text('__version__ = "0"\nfrom . import functional, transforms\n' + AUDIO)
        (audio / "functional.py").write_text(AUDIO)
        (audio / "transforms.py").write_text(AUDIO)


if __name__ == "__main__":
    main()
