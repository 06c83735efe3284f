"""What the pack launches for a call, recorded without running it: the pack's own host code chooses kernels and grids.

Tensors are on the software device, whose memory is address space until it is touched; nothing here touches it, so cases
may be larger than this machine. Launches and ATen operations with results of their own are noted instead of run.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from unittest import mock

import torch
from softmetal.arguments import ArgumentCasts, extents, pack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

# Operations that only make memory or look at it in another way: they are run.
_MEMORY = {
    "alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "new_empty", "new_empty_strided",
    "permute", "select", "slice", "split", "squeeze", "t", "transpose", "unsqueeze", "view", "_unsafe_view", "unbind",
    "_reshape_alias", "resolve_neg", "resolve_conj", "resize_", "unsafe_split", "split_with_sizes",
}  # fmt: skip


class Recording:
    """The steps of one call. Tensors are named by their storage: `storages[n]` has so many bytes."""

    def __init__(self):
        self.steps: list[dict] = []
        self.storages: list[int] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []  # so that no address is given away twice

    def reference(self, tensor: torch.Tensor) -> dict:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        number = self._numbers.get(address) if storage.nbytes() else None
        if number is None:
            number = len(self.storages)
            self.storages.append(storage.nbytes())
            self._alive.append(tensor)
            if storage.nbytes():
                self._numbers[address] = number
        return {
            "storage": number,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
        }

    def encode(self, value):
        """An argument as JSON has it."""
        if isinstance(value, torch.Tensor):
            return self.reference(value) if value.device.type == "mps" else {"value": value.tolist()}
        if isinstance(value, torch.dtype):
            return {"dtype_value": str(value).removeprefix("torch.")}
        if isinstance(value, (list, tuple)):
            return [self.encode(item) for item in value]
        if isinstance(value, torch.device | torch.layout | torch.memory_format):
            return None
        return value


class _Mode(TorchDispatchMode):
    def __init__(self, recording: Recording):
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        tensors = []
        tree_map_only(torch.Tensor, tensors.append, (args, kwargs))
        on_mps = any(t.device.type == "mps" for t in tensors)
        device = kwargs.get("device")
        if name in _MEMORY or not (on_mps or (device is not None and torch.device(device).type == "mps")):
            return func(*args, **kwargs)
        if name in ("item", "_local_scalar_dense") or (device is not None and torch.device(device).type == "cpu"):
            raise AssertionError(f"the pack reads from the device in a call that must not wait for it: {func}")
        written = [
            args[i] if i < len(args) else kwargs.get(argument.name)
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        results = written or self._empty(func, args, kwargs)
        self._recording.steps.append(
            {
                "op": name,
                "args": self._recording.encode(args),
                "kwargs": {k: self._recording.encode(v) for k, v in kwargs.items()},
                "in_place": bool(written),
                "out": [self._recording.reference(result) for result in results],
            }
        )
        return results[0] if len(results) == 1 else tuple(results)

    @staticmethod
    def _empty(func, args, kwargs) -> list[torch.Tensor]:
        """Memory for the results, of the shapes and strides that the meta device says."""
        meta_args, meta_kwargs = tree_map_only(torch.Tensor, _meta, (args, kwargs))
        if "device" in meta_kwargs:
            meta_kwargs["device"] = "meta"
        made = func(*meta_args, **meta_kwargs)
        made = made if isinstance(made, (tuple, list)) else [made]
        return [torch.empty_strided(m.shape, m.stride(), dtype=m.dtype, device="mps") for m in made]


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


class _Library:
    """What torch.mps.compile_shader returns while recording."""

    def __init__(self, source: str, recordings: list[Recording], sources: dict[str, str]):
        self._digest = hashlib.sha256(source.encode()).hexdigest()[:16]
        self._recordings = recordings
        sources[self._digest] = source

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def launch(*args, threads=None, group_size=None, arg_casts=None):
            recording = self._recordings[-1]
            casts = ArgumentCasts(arg_casts)
            values = [pack(index, value, casts) for index, value in enumerate(args)]
            grid = (*extents("threads", threads), 1, 1)[:3]
            group = (*(extents("group_size", group_size) or (min(grid[0], 1024),)), 1, 1)[:3]
            recording.steps.append(
                {
                    "kernel": name,
                    "library": self._digest,
                    "args": [
                        recording.reference(value) if isinstance(value, torch.Tensor) else {"hex": bytes(value).hex()}
                        for value in values
                    ],
                    "threads": list(grid),
                    "group": list(group),
                }
            )

        return launch


class Recorder:
    """Records calls of the pack. `sources`: by digest, the .metal texts whose kernels were launched."""

    def __init__(self):
        self.sources: dict[str, str] = {}
        self._open: list[Recording] = []

    @contextlib.contextmanager
    def installed(self, libraries) -> Iterator[None]:
        """Inside, `libraries` (the families' ShaderLibrary objects) launch into recordings and nowhere else."""

        def compile_shader(source: str) -> _Library:
            return _Library(source, self._open, self.sources)

        fresh = {"_library": None, "_kernels": {}, "_failure": None, "_missing": {}}
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(torch.mps, "compile_shader", compile_shader))
            for library in libraries:
                for name, value in fresh.items():
                    stack.enter_context(mock.patch.object(library, name, type(value)() if value == {} else value))
            yield

    @contextlib.contextmanager
    def record(self) -> Iterator[Recording]:
        recording = Recording()
        self._open.append(recording)
        try:
            with _Mode(recording):
                yield recording
        finally:
            self._open.pop()
