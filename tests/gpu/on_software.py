"""A recorded call replayed on software Metal, without a GPU: are recording and replay the call that was made?"""

from __future__ import annotations

import ctypes
import functools

import torch
from softmetal import frontend, runtime
from softmetal.runtime.launch import Bound, launch

from .plan import Instance, dtype_of


class Libraries:
    """The kernels of record_all()'s sources, compiled for this computer. theirs: digests of sources of others."""

    def __init__(self, sources: dict[str, str], theirs: tuple[str, ...] = (), checked: bool = True):
        self._sources, self._theirs, self.checked = sources, theirs, checked

    @functools.lru_cache(maxsize=64)  # noqa: B019 - lives as long as the test that made it
    def library(self, digest: str) -> tuple[frontend.Library, ctypes.CDLL]:
        runtime.load()
        ours = digest not in self._theirs
        made = frontend.compile(self._sources[digest], checked=self.checked, house_rules=ours)
        return made, ctypes.CDLL(str(made.path))


class SoftwareInstance(Instance):
    """Instance, with memory of the software device. libraries: in place of the functions of a GPU's driver."""

    def __init__(self, case: dict, libraries: Libraries):
        self._blocks: list[tuple[int, int]] = []
        super().__init__(case, libraries, None)

    def _memory(self, size: int) -> torch.Tensor:
        block = runtime.load().smr_arena_alloc(size)
        runtime.load().smr_mark_written(block, size)
        self._blocks.append((block, size))
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(block), dtype=torch.uint8)

    def close(self) -> None:
        self.storages, self.inputs, self.results, self._steps = [], [], [], []
        for block, _ in self._blocks:
            runtime.load().smr_arena_free(block)

    def _launch(self, step: dict, functions: Libraries):
        made, shared = functions.library(step["library"])
        kernel = made.kernels[step["kernel"]]
        entry = ctypes.cast(getattr(shared, kernel.symbol), ctypes.c_void_p).value
        bindings = [self._bound(argument, step["args"]) for argument in kernel.arguments]
        sizes = tuple(step["threads"]), tuple(step["group"])
        return lambda: launch(str(made.path), entry, kernel.name, bindings, *sizes, checked=functions.checked)

    def _bound(self, argument, args: list[dict]) -> Bound:
        value = args[argument.index] if argument.index < len(args) else {}
        about = (argument.name, argument.element_size, argument.address_space == "constant")
        if "storage" in value:
            (block, size), skip = self._blocks[value["storage"]], value["offset"] * dtype_of(value).itemsize
            return Bound(argument.index, block + skip, size - skip, *about)
        data = bytes.fromhex(value["hex"]) if "hex" in value else None
        return Bound(argument.index, data, len(data or b""), *about)
