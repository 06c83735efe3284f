"""torch.mps.compile_shader on the software Metal device: the contract of torch 2.9 to 2.15, severely kept.

    library = compile_shader(source)                 # SyntaxError: "program_source:3:9: error: ..."
    library.scale(x, y, 2.0, threads=x.numel(), group_size=256)

What a launch does wrong raises KernelFault at once (a GPU would run on): see runtime.fault. For tests there
is more here: `seed`, `schedule`, `checks`, `strict`, `check_written`, `launches`.
"""

import collections
import contextlib
import ctypes
import os
from collections.abc import Iterator

import torch

from . import frontend, runtime
from .arguments import ArgumentCasts, ErrorBuffer, Pointers, check_error_index, extents, misread, pack
from .recording import LaunchLog, LaunchRecord
from .runtime import KernelFault
from .runtime.launch import MAX_BUFFERS, WATCHDOG_SECONDS, Bound, launch

__all__ = [
    "KernelFault",
    "LaunchRecord",
    "Library",
    "Kernel",
    "check_written",
    "checks",
    "compile_shader",
    "fault_log",
    "launches",
    "schedule",
    "seed",
    "settings",
    "strict",
]

MAX_THREADS = 1024
SIMD_WIDTH = 32
_GRID_LIMIT = 2**32 - 1


class _Settings:
    """How launches of this process are run."""

    def __init__(self):
        self.seed = int(os.environ.get("SOFTMETAL_SEED", "0"))
        self.checked = os.environ.get("SOFTMETAL_CHECKS", "1") not in ("0", "off", "false")
        self.strict = False
        self.watchdog_seconds = float(os.environ.get("SOFTMETAL_WATCHDOG", WATCHDOG_SECONDS))


settings = _Settings()
launches = LaunchLog()
# Every fault that a launch raised, newest last. Whoever catches RuntimeError (a patch that falls back to stock) hides
# one; a test that must not have any looks here.
fault_log: collections.deque[KernelFault] = collections.deque(maxlen=100)


def has_error_buffer() -> bool:
    """Whether kernels take error_buf_idx=: from torch 2.11 on. A profile that presents an older torch hides it."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)


@contextlib.contextmanager
def schedule(
    seed: int | None = None,
    *,
    checks: bool | None = None,
    strict: bool | None = None,
    watchdog_seconds: float | None = None,
) -> Iterator[None]:
    """Run the launches inside under other settings (of the whole process): `with schedule(seed=3): ...`

    seed: order of threadgroups, SIMD-groups and lanes; a right kernel gives the same bits under every seed.
    checks: False for the fast mode. strict: after each launch, check_written every tensor it may write to.
    """
    before = dict(vars(settings))
    changes = {"seed": seed, "checked": checks, "strict": strict, "watchdog_seconds": watchdog_seconds}
    vars(settings).update({name: value for name, value in changes.items() if value is not None})
    try:
        yield
    finally:
        vars(settings).update(before)


def seed(value: int) -> None:
    """Set the seed of all following launches (at first: $SOFTMETAL_SEED, or 0)."""
    settings.seed = int(value)


def checks(on: bool) -> None:
    """Turn all checks on (the default) or off: the fast mode, for demos. $SOFTMETAL_CHECKS=0: off from the start."""
    settings.checked = bool(on)


def strict(on: bool) -> None:
    """After every launch, check_written each tensor that the kernel may write to. Off at first: it may fill a part."""
    settings.strict = bool(on)


def check_written(tensor: torch.Tensor) -> None:
    """Raise KernelFault("unwritten") if a kernel was given `tensor` fresh and left an element of it unwritten."""
    library = runtime.load()
    if not library.smr_tracked_blocks() or not tensor.numel():
        return
    sizes = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
    strides = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.stride())
    first = library.smr_first_unwritten(tensor.data_ptr(), tensor.element_size(), tensor.dim(), sizes, strides)
    if first < 0:
        return
    kernel = library.smr_unwritten_kernel(tensor.data_ptr()).decode()
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), tensor.shape)) if tensor.dim() else ()
    raise KernelFault(
        "unwritten",
        kernel,
        (
            f"element {first} (index {index}) of a {tuple(tensor.shape)} {tensor.dtype} tensor was never "
            f"written: it was allocated "
            "without a value, bound, and left so. Cover it by the grid or fill the tensor first."
        ),
        element=first,
    )


def compile_shader(source: str) -> "Library":
    """Compile MSL source text. Raises SyntaxError with the compiler's words for a source that Metal would refuse."""
    if not isinstance(source, str):
        raise TypeError(f"compile_shader(): source must be str, not {type(source).__name__}")
    return Library(source)


class Library:
    """What compile_shader returns: kernels as attributes, by host name; dir() lists them."""

    def __init__(self, source: str):
        self._source = source
        self._variants: dict[bool, tuple[frontend.Library, ctypes.CDLL]] = {}
        self._variant(settings.checked)

    def _variant(self, checked: bool) -> tuple[frontend.Library, ctypes.CDLL]:
        if checked not in self._variants:
            runtime.load()  # its symbols are what the kernels' library lacks
            try:
                compiled = frontend.compile(self._source, checked=checked)
            except frontend.CompileError as error:
                raise SyntaxError(str(error)) from None
            self._variants[checked] = compiled, ctypes.CDLL(str(compiled.path))
        return self._variants[checked]

    def __getattr__(self, name: str) -> "Kernel":
        if name.startswith("_variant") or name == "_source":  # an instance that was never set up (copy, pickle)
            raise AttributeError(name)
        kernel = self._variant(settings.checked)[0].kernels.get(name)
        if kernel is None or kernel.function_constants:
            missing = f" (no value for function constant {', '.join(kernel.function_constants)})" if kernel else ""
            raise RuntimeError(f"Failed to create function state object for: {name}{missing}")
        return Kernel(self, name)

    def __dir__(self) -> list[str]:
        return list(self._variant(settings.checked)[0].kernels)


class Kernel:
    """One kernel. Calling it runs it to its end; on a GPU it would only be encoded."""

    def __init__(self, library: Library, name: str):
        self._library, self._name = library, name
        self._meta = library._variant(settings.checked)[0].kernels[name]

    @property
    def max_threads_per_threadgroup(self) -> int:
        return min(MAX_THREADS, self._meta.max_total_threads or MAX_THREADS)

    @property
    def thread_execution_width(self) -> int:
        return SIMD_WIDTH

    @property
    def static_thread_group_memory_length(self) -> int:
        return self._meta.threadgroup_bytes

    def __call__(self, *args, threads=None, group_size=None, arg_casts=None, **options) -> None:
        """kernel(*args, threads=None, group_size=None, arg_casts=None, error_buf_idx=None)

        args: bound to [[buffer(0)]] on. Tensors by storage and offset, without strides; a 0-dim CPU tensor (of
        doubles: as floats), float (float32), int and bool (int64) by value; lists of ints or floats as arrays;
        lists of tensors as arrays of pointers.
        arg_casts: "fp16", "bf16", "int32", "int16", "int8", "uint8" for all values, or {index: cast}.
        threads: total threads, an int or up to three; default numel of the first tensor. group_size: the same rank.
        Raises RuntimeError (arguments), ValueError (group too large), KernelFault.
        """
        error_index = options.pop("error_buf_idx", None) if has_error_buffer() else None
        if options:
            raise TypeError(f"__call__(): incompatible function arguments: unexpected keyword {', '.join(options)}")
        check_error_index(error_index)
        grid, group = extents("threads", threads), extents("group_size", group_size)
        casts = ArgumentCasts(arg_casts)
        values = []
        for index, value in enumerate(args):
            values.append(pack(index, value, casts))
            if grid is None and isinstance(value, torch.Tensor):
                grid = (value.numel(),)
        if error_index is not None:
            error_buffer = ErrorBuffer()
            values += [None] * (error_index + 1 - len(values))
            values[error_index] = error_buffer.tensor
        if grid is None:
            raise RuntimeError("Number of threads is undefined or has wrong dimension")
        if group is not None and len(group) != len(grid):
            raise RuntimeError("size and group_size must have same number of dimensions")
        limit = self.max_threads_per_threadgroup
        group = group or ((min(grid[0], limit),) if len(grid) == 1 else (limit,))
        grid, group = (*grid, 1, 1)[:3], (*group, 1, 1)[:3]
        if group[0] * group[1] * group[2] > limit:
            raise ValueError(f"Threadgroup size exceeds {limit} limit")
        launches.note(
            self._name, lambda: LaunchRecord.of(self._library._source, self._name, args, arg_casts, grid, group)
        )
        try:
            self._run(values, grid, group)
            self._check_written(values)
        except KernelFault as fault:
            fault_log.append(fault)
            raise

    def _check_written(self, values: list) -> None:
        if settings.strict and settings.checked:
            writable = {a.index for a in self._meta.arguments if not a.const and a.address_space == "device"}
            for index, value in enumerate(values):
                if index in writable and isinstance(value, torch.Tensor):
                    check_written(value)

    def _run(self, values: list, grid: tuple[int, int, int], group: tuple[int, int, int]) -> None:
        if 0 in grid or 0 in group:
            raise KernelFault(
                "zero_size_grid",
                self._name,
                (
                    f"launched with threads={grid}, group_size={group}. Metal's validation refuses a grid "
                    f"without threads: "
                    "return before the launch when there is nothing to do."
                ),
            )
        if max(grid) > _GRID_LIMIT:
            raise KernelFault(
                "grid_too_large",
                self._name,
                (
                    f"{max(grid)} threads in one dimension: positions are uint and would wrap. Use a second "
                    f"dimension or a loop."
                ),
            )
        if self._meta.threadgroup_arguments:
            raise KernelFault(
                "argument",
                self._name,
                (
                    f"threadgroup argument '{self._meta.threadgroup_arguments[0]}' has no length, and compile_shader "
                    f"cannot give it one: declare a threadgroup array in the kernel's body."
                ),
                name=self._meta.threadgroup_arguments[0],
            )
        compiled, library = self._library._variant(settings.checked)
        entry = ctypes.cast(getattr(library, compiled.kernels[self._name].symbol), ctypes.c_void_p).value
        launch(
            str(compiled.path),
            entry,
            self._name,
            self._bind(values),
            grid,
            group,
            seed=settings.seed,
            checked=settings.checked,
            watchdog_seconds=settings.watchdog_seconds,
        )

    def _bind(self, values: list) -> list[Bound]:
        if len(values) > MAX_BUFFERS:
            raise KernelFault(
                "argument",
                self._name,
                f"{len(values)} arguments: Metal has {MAX_BUFFERS} buffers, 0 to {MAX_BUFFERS - 1}.",
            )
        declared = {argument.index: argument for argument in self._meta.arguments}
        values = values + [None] * (max(declared, default=-1) + 1 - len(values))
        bindings = []
        for index, value in enumerate(values):
            argument = declared.get(index)
            name, size, constant = (argument.name, argument.element_size, argument.const) if argument else ("", 1, True)
            if isinstance(value, torch.Tensor):
                address, reach = _address(value, self._name, index)
                if argument and settings.checked and reach and address % max(1, argument.alignment):
                    raise KernelFault(
                        "misaligned",
                        self._name,
                        (
                            f"buffer({index}) '{name}' is a pointer to {argument.type}, which needs "
                            f"{argument.alignment}-byte alignment, and the "
                            f"tensor starts at byte {value.storage_offset() * value.element_size()} of its "
                            f"storage. Take the scalar path for it."
                        ),
                        buffer=index,
                        name=name,
                    )
                bindings.append(Bound(index, address, reach, name, size, constant))
            elif isinstance(value, Pointers):
                bindings += self._bind_listed(index, value, name)
            else:
                wrong = argument and settings.checked and misread(value, argument.type)
                if wrong:
                    text = f"argument {index} '{name}' {wrong}."
                    raise KernelFault("argument", self._name, text, buffer=index, name=name)
                bindings.append(Bound(index, value, len(value or b""), name, size, True))
        return bindings

    def _bind_listed(self, index: int, tensors: Pointers, name: str) -> list[Bound]:
        """An array of pointers, and what they point to: as far as each tensor reaches, to be read and written."""
        places = [_address(tensor, self._name, index) for tensor in tensors]
        sizes = [tensor.element_size() for tensor in tensors]
        return [
            Bound(index, bytes(8 * len(places)), 8 * len(places), name, 8, True),
            *(Bound(index, address, reach, f"{name}[{position}]", size, False, position)
              for position, ((address, reach), size) in enumerate(zip(places, sizes, strict=True))),
        ]


def _address(tensor: torch.Tensor, kernel: str, index: int) -> tuple[int, int]:
    """Address of the first element and the bytes from there to the last one that sizes and strides reach."""
    if tensor.device.type != "mps":
        raise KernelFault(
            "argument", kernel, f"buffer({index}) is a tensor on {tensor.device}: its pointer means nothing to the GPU."
        )
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()
