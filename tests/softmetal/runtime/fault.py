"""KernelFault: what a kernel did wrong, in a message that its author can act on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lane:
    """One thread of a launch, and what it was doing."""

    threadgroup: tuple[int, int, int]
    thread: int  # thread_index_in_threadgroup
    access: str  # "read", "write", "atomic", "atomic load" or "" if it was not accessing memory
    line: int  # of the .metal source; 0 if unknown

    @property
    def lane(self) -> int:
        return self.thread % 32

    @property
    def simdgroup(self) -> int:
        return self.thread // 32

    def __str__(self):
        return (
            f"thread {self.thread} of threadgroup {self.threadgroup} (lane {self.lane} of SIMD-group {self.simdgroup})"
        )

    @property
    def where(self) -> str:
        return f" at line {self.line}" if self.line else ""


class KernelFault(RuntimeError):
    """A launch that a GPU would have answered with garbage, a hang or a crash.

    kind: "race", "out_of_bounds", "uninitialised_read", "unwritten", "read_only_write", "misaligned", "divergence" (a
    barrier), "simd_divergence", "missing_lane", "watchdog", "crash", "stack_overflow", "arithmetic", "zero_size_grid",
    "grid_too_large", "argument", "out_of_memory".
    kernel: its host name. lanes: the thread that was stopped, and for races the one it conflicts with. buffer: n of
    [[buffer(n)]] or None. name: of the memory. offset: bytes from its start. element: offset in
    elements. size: bytes bound.
    seed: of the schedule under which it showed.
    """

    def __init__(
        self,
        kind: str,
        kernel: str,
        text: str,
        *,
        lanes: tuple[Lane, ...] = (),
        buffer: int | None = None,
        name: str = "",
        offset: int | None = None,
        element: int | None = None,
        size: int | None = None,
        line: int = 0,
        seed: int | None = None,
    ):
        self.kind, self.kernel, self.lanes, self.buffer, self.name = kind, kernel, lanes, buffer, name
        self.offset, self.element, self.size, self.line, self.seed = offset, element, size, line, seed
        tail = "" if seed is None else f" [software Metal, schedule seed {seed}]"
        super().__init__(f"{kind.replace('_', ' ')} in kernel '{kernel}': {text}{tail}")
