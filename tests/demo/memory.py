"""Four memory numbers, over time and at their peaks. One never stands for another.

current   live tensors
reserved  the allocator's pool
driver    all of the process's Metal memory
outside   driver - reserved: what MPSGraph keeps, "other allocations" in an out-of-memory message
"""
import threading
import time
from typing import NamedTuple

import torch

NAMES = ("current", "reserved", "driver", "outside")


class Reading(NamedTuple):
    """Bytes; `reserved` and `outside` are None where this torch has no statistic for the pool (before 2.13)."""

    seconds: float
    current: int
    reserved: int | None
    driver: int
    outside: int | None


def read(since=0.0):
    """The four numbers now, at `since` seconds of time.perf_counter subtracted."""
    current = torch.mps.current_allocated_memory()
    reserved = torch.accelerator.memory_reserved() if hasattr(torch.accelerator, "memory_reserved") else None
    driver = torch.mps.driver_allocated_memory()
    outside = None if reserved is None else driver - reserved
    return Reading(time.perf_counter() - since, current, reserved, driver, outside)


class Timeline:
    """Readings while it is entered: a thread's, and one after every module of `model`.

    A C++ call that holds the GIL blinds the thread, and a short peak falls between two of its readings; the
    module boundaries are the numbers that come out the same every time.
    """

    def __init__(self, model, period=0.005):
        self.readings = []
        self._model, self._period = model, period
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self):
        self._start = time.perf_counter()
        self._hooks = [m.register_forward_hook(self._sample) for m in self._model.modules()]
        self._thread = threading.Thread(target=self._run, name="memory timeline", daemon=True)
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        for hook in self._hooks:
            hook.remove()
        self._sample()

    def _run(self):
        while not self._stop.wait(self._period):
            self._sample()

    def _sample(self, *_):
        with self._lock:
            self.readings.append(read(self._start))

    def peaks(self):
        """The largest of each number that was seen; None where it has no readings."""
        columns = {name: [getattr(r, name) for r in self.readings] for name in NAMES}
        return {name: max(c) if None not in c else None for name, c in columns.items()}

    def thinned(self, limit=1000):
        """At most about `limit` readings as lists: of each run of neighbours, the one with the most driver memory."""
        step = -(-len(self.readings) // limit)
        runs = (self.readings[i:i + step] for i in range(0, len(self.readings), step))
        return [list(max(run, key=lambda r: (r.driver, r.current))) for run in runs]
