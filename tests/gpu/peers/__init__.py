"""The peers' own Metal kernels, beside ours in the same run: MLX's and PyTorch 2.15's.

Their sources are read from folders that are given to the build step and are never part of this repository; the same
front end compiles them. What their host code decides (kernel, grid, threadgroup, packing of arguments) is restated in
mlx.py and pytorch.py, each rule beside the file and function that it is of.

    python -m gpu.build OUT --peers MLX --peers-torch PYTORCH

MLX       a checkout of ml-explore/mlx, or its folder mlx/ with backend/metal/kernels in it
PYTORCH   a checkout of pytorch/pytorch of 2.15, or a folder with ATen/native/mps/kernels and c10/metal
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..cases import Case
from . import mlx, pytorch
from .call import Call, TooManyGroups
from .source import Folder


class Peers:
    """Those whose folders are given. `folders`: by the name of the peer, where their sources are."""

    def __init__(self, mlx_folder: Path | None, torch_folder: Path | None):
        self._modules = {}
        self.folders: dict[str, Folder] = {}
        for module, folder in ((mlx, mlx_folder), (pytorch, torch_folder)):
            if folder is not None:
                self._modules[module.NAME] = module
                self.folders[module.NAME] = Folder(folder, module.KERNELS)

    def calls(self, case: Case, results: list[dict]) -> Iterator[dict]:
        """What each peer launches for a case, as plan.json has it. results: the case's, for their shapes and dtypes."""
        for name, module in self._modules.items():
            for make in module.OPERATIONS.get(case.op, ()):
                call = Call(name)
                try:
                    if make(call, case, results):
                        yield call.plan()
                except TooManyGroups:
                    continue  # a grid that Apple's GPUs launch and CUDA does not
