"""What a peer launches for a case: memory, values and steps in the form that recorder.py gives ours."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from ..cases import SIZES, Tensor
from .source import Source

CUDA_GRID = (2**31 - 1, 65535, 65535)
NULL = {"null": True}  # a buffer that the kernel has and does not touch


class TooManyGroups(ValueError):
    """The peer's grid has more threadgroups along a dimension than CUDA launches."""


def int32(value: int) -> dict:
    return packed("<i", value)


def float32(value: float) -> dict:
    return packed("<f", value)


def packed(form: str, *values) -> dict:
    """A value that the host hands over by its bytes; form as struct has it, padding included."""
    return {"hex": struct.pack(form, *values).hex()}


class Call:
    """peer: whose. The operation that the results are checked as, and its arguments, are set by use()."""

    def __init__(self, peer: str):
        self.peer, self.title = peer, ""
        self.sources: dict[str, Source] = {}  # by digest
        self._op, self._args = "", []
        self._storages: list[int] = []
        self._inputs: list[dict] = []
        self._results: list[dict] = []
        self._steps: list[dict] = []

    def use(self, op: str, args: Sequence, results: Sequence[dict], title: str = "") -> tuple[list[dict], list[dict]]:
        """(references to the tensors among args, references to the results)"""
        self._op, self.title = op, title
        for value in args:
            if isinstance(value, Tensor):
                self._inputs.append(self._reference(value) | _filled(value))
                self._args.append({"input": True})
            else:
                self._args.append(list(value) if isinstance(value, tuple) else value)
        self._results = [self._reference(Tensor(r["dtype"], tuple(r["shape"]))) for r in results]
        return list(self._inputs), self._results

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> dict:
        return self._reference(Tensor(dtype, shape))

    def values(self, dtype: str, values: Sequence[int]) -> dict:
        """A small tensor of these values: an array that the host code hands over."""
        tensor = Tensor(dtype, (len(values),), values=tuple(values))
        self._inputs.append(self._reference(tensor) | _filled(tensor))
        return self._inputs[-1]

    def launch(self, source: Source, kernel: str, args: Sequence[dict], threads, group, divergent: bool = False):
        """dispatchThreads. args by their buffer index. divergent: lanes of a SIMD-group reach a collective alone."""
        threads, group = (*threads, 1, 1)[:3], (*group, 1, 1)[:3]
        for extent, size, most in zip(threads, group, CUDA_GRID, strict=True):
            if -(-extent // size) > most:
                raise TooManyGroups(kernel)
        digest = source.digest(self.peer)
        self.sources[digest] = source
        self._steps.append(
            {
                "kernel": kernel, "library": digest, "args": list(args), "threads": list(threads),
                "group": list(group), "divergent": divergent,
            }
        )  # fmt: skip

    def launch_groups(self, source: Source, kernel: str, args, groups, group, divergent: bool = False):
        """dispatchThreadgroups."""
        groups, group = (*groups, 1, 1)[:3], (*group, 1, 1)[:3]
        self.launch(source, kernel, args, [n * size for n, size in zip(groups, group, strict=True)], group, divergent)

    def plan(self) -> dict:
        return {
            "peer": self.peer, "title": self.title, "op": self._op, "args": self._args, "inputs": self._inputs,
            "results": self._results, "storages": self._storages, "steps": self._steps, "sources": self.sources,
        }  # fmt: skip

    def _reference(self, tensor: Tensor) -> dict:
        stride = tensor.stride or contiguous(tensor.shape)
        last = sum((n - 1) * step for n, step in zip(tensor.shape, stride, strict=True))
        self._storages.append((tensor.offset + last + 1) * SIZES[tensor.dtype])
        return {
            "storage": len(self._storages) - 1, "dtype": tensor.dtype, "shape": list(tensor.shape),
            "stride": list(stride), "offset": tensor.offset,
        }  # fmt: skip


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _filled(tensor: Tensor) -> dict:
    return {"fill": tensor.fill, "high": tensor.high, "values": None if tensor.values is None else list(tensor.values)}
