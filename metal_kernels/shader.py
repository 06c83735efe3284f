"""A `.metal` file as a library of typed kernels: compiled once, when first used, under a lock.

The only file that speaks to `torch.mps.compile_shader`. What it accepts and does is torch's contract (2.9 to 2.15);
what that contract leaves unchecked, and a GPU would answer with garbage, is checked here first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import torch

MAX_THREADS = 2**32 - 1  # grid positions are uint: one more thread and they wrap
MAX_LIST_BYTES = 4096  # setBytes' limit: 512 ints (int64) or 1024 floats (float32)
MAX_INTS = MAX_LIST_BYTES // 8
MAX_FLOATS = MAX_LIST_BYTES // 4
MAX_GROUP = 1024


class ShaderError(RuntimeError):
    """The library does not compile on this machine, or lacks a kernel. Remembered: never tried twice."""


def grid(count: int, width: int = 2**30) -> tuple[int, ...]:
    """The grid for `count` threads: (count,) while a uint can number them, else (width, rows) with rows enough.

    A kernel that may meet the second form reads a uint2 position, computes `ulong i = ulong(p.y) * width + p.x` and
    leaves at once when `i >= count`.
    """
    return (count,) if count <= MAX_THREADS else (width, -(-count // width))


class ShaderLibrary:
    """One `.metal` file.

    path: the file, best given as `Path(__file__).with_name("pad.metal")`. It is read and compiled at the first
    `launch` or `compile`; importing costs nothing. Safe to use from several threads.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock = threading.RLock()
        self._library = None
        self._kernels: dict[str, object] = {}
        self._failure: str | None = None
        self._missing: dict[str, str] = {}

    def compile(self) -> None:
        """Compile now. Raises ShaderError with the compiler's text; later calls raise the same again at once."""
        with self._lock:
            if self._failure is not None:
                raise ShaderError(self._failure)
            if self._library is not None:
                return
            try:
                self._library = torch.mps.compile_shader(self.path.read_text(encoding="ascii"))
            except (SyntaxError, RuntimeError, OSError, UnicodeError, AttributeError) as error:
                self._failure = f"{self.path.name} does not compile: {error}"
                raise ShaderError(self._failure) from error

    def launch(
        self,
        name: str,
        *args: torch.Tensor | int | float | bool | Sequence[int] | Sequence[float],
        threads: int | Sequence[int],
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | dict[int, str] | None = None,
    ) -> None:
        """Encode one launch of the kernel `name` on the current stream; returns before it has run.

        args       bound to [[buffer(0)]], [[buffer(1)]], ... in order. Tensors (on mps, not empty) bind their
                   storage at their offset, with no sizes or strides; int and bool arrive as int64, float as float32,
                   lists as arrays of these.
        threads    total threads, not groups: an int or up to three. With a zero among them nothing is launched.
        group_size threads of a threadgroup, of the same rank as `threads`; at most 1024 in all.
        arg_casts  "int32", "fp16", ... for all scalars, or {position: cast}.

        Raises ShaderError (does not compile, no such kernel), ValueError and TypeError for arguments that must not
        reach a GPU: a tensor elsewhere or of no bytes, a list that is empty or over 4096 bytes, over 2**32 - 1
        threads in one dimension.
        """
        threads = (threads,) if isinstance(threads, int) else tuple(threads)
        if 0 in threads:
            return
        self._check_grid(name, threads, group_size)
        for position, value in enumerate(args):
            _check_argument(name, position, value)
        kernel = self._kernels.get(name) or self._kernel(name)
        options = {"threads": threads if len(threads) > 1 else threads[0]}
        if group_size is not None:
            options["group_size"] = group_size
        if arg_casts is not None:
            options["arg_casts"] = arg_casts
        kernel(*args, **options)

    def _kernel(self, name: str):
        # torch guards its caches of functions and pipelines only from 2.15 on, hence creation under our lock.
        with self._lock:
            kernel = self._kernels.get(name)
            if kernel is not None:
                return kernel
            if name in self._missing:
                raise ShaderError(self._missing[name])
            self.compile()
            try:
                kernel = getattr(self._library, name)
            except (RuntimeError, AttributeError) as error:
                self._missing[name] = f"{self.path.name} has no usable kernel {name}: {error}"
                raise ShaderError(self._missing[name]) from error
            self._kernels[name] = kernel
            return kernel

    @staticmethod
    def _check_grid(name: str, threads: tuple[int, ...], group_size) -> None:
        if not 1 <= len(threads) <= 3:
            raise ValueError(f"{name}: a grid has one to three dimensions, not {len(threads)}")
        for extent in threads:
            if not 0 < extent <= MAX_THREADS:
                raise ValueError(
                    f"{name}: {extent} threads in one dimension; 1 to {MAX_THREADS} can be numbered (see grid())"
                )
        if group_size is None:
            return
        group = (group_size,) if isinstance(group_size, int) else tuple(group_size)
        if len(group) != len(threads):
            raise ValueError(f"{name}: group_size {group} has another rank than threads {threads}")
        total = 1
        for extent in group:
            total *= extent
        if not 0 < total <= MAX_GROUP:
            raise ValueError(f"{name}: group_size {group} has {total} threads; 1 to {MAX_GROUP} are allowed")


def _check_argument(name: str, position: int, value: object) -> None:
    if isinstance(value, torch.Tensor):
        if value.device.type != "mps":
            raise ValueError(f"{name}: argument {position} is on {value.device}; kernels take mps tensors only")
        if not value.numel():
            raise ValueError(f"{name}: argument {position} of shape {tuple(value.shape)} has no bytes to bind")
    elif isinstance(value, (list, tuple)):
        _check_list(name, position, value)
    elif isinstance(value, int):
        _check_int(name, position, value)
    elif not isinstance(value, float):
        raise TypeError(
            f"{name}: argument {position} is a {type(value).__name__}; tensors, numbers and lists of them can be bound"
        )


def _check_int(name: str, position: int, value: int) -> None:
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: argument {position} is {value}, which int64 does not hold")


def _check_list(name: str, position: int, values: Sequence) -> None:
    if not values:
        raise ValueError(f"{name}: argument {position} is an empty list; there are no bytes to bind")
    if all(isinstance(value, int) for value in values):
        limit, kind = MAX_INTS, "ints"
        _check_int(name, position, min(values))
        _check_int(name, position, max(values))
    elif all(isinstance(value, float) for value in values):
        limit, kind = MAX_FLOATS, "floats"
    else:
        raise TypeError(f"{name}: argument {position} mixes types; a list is all int or all float")
    if len(values) > limit:
        raise ValueError(f"{name}: argument {position} has {len(values)} {kind}; {limit} fit")
