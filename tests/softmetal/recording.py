"""What was launched: counts always, and on request enough to launch it again elsewhere."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TensorArgument:
    """A tensor that was bound, without its data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int


@dataclass(frozen=True)
class LaunchRecord:
    """One launch: `source` holds `kernel`; arguments in order, tensors as TensorArgument, values as they were."""

    source: str
    kernel: str
    arguments: tuple
    arg_casts: str | dict | None
    threads: tuple[int, int, int]
    group_size: tuple[int, int, int]

    @classmethod
    def of(cls, source, kernel, arguments, arg_casts, threads, group_size) -> "LaunchRecord":
        def describe(value):
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                return TensorArgument(value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
            if isinstance(value, torch.Tensor):
                return value.item()
            return tuple(map(describe, value)) if isinstance(value, (list, tuple)) else value

        return cls(source, kernel, tuple(map(describe, arguments)), arg_casts, threads, group_size)


class LaunchLog:
    """Launches of this process. `counts[kernel]` always; `with launches.record() as made:` fills `made`."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self._open: list[list[LaunchRecord]] = []
        self._lock = threading.Lock()

    def note(self, kernel: str, make: Callable[[], LaunchRecord]) -> None:
        """Count a launch of `kernel`; its record is made only if somebody records."""
        with self._lock:
            self.counts[kernel] += 1
            if not self._open:
                return
            record = make()
            for made in self._open:
                made.append(record)

    @contextlib.contextmanager
    def record(self) -> Iterator[list[LaunchRecord]]:
        made: list[LaunchRecord] = []
        with self._lock:
            self._open.append(made)
        try:
            yield made
        finally:
            with self._lock:
                self._open = [other for other in self._open if other is not made]

    def clear(self) -> None:
        with self._lock:
            self.counts.clear()
