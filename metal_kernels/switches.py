"""Which kernels run: three layers of modes, the states people see, and the counters.

Layers, nearest wins: `using()` (this thread and context only), the workflow layer (the whole process, set round each
node of a graph), the process mode. Each names some kernels and says `auto`, `on` or `off` of them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

import torch

from .kernel import Kernel, Need

log = logging.getLogger("metal_kernels")

AUTO, ON, OFF = "auto", "on", "off"
MODES = (AUTO, ON, OFF)
SHAPES_KEPT = 64
NOTES_KEPT = 512


class Layer(dict):
    """Kernel -> mode, in one context; and for each override what follows from that, worked out at its first call."""

    def __init__(self, modes: Mapping[str, str] = MappingProxyType({})):
        super().__init__(modes)
        self._awake: dict[object, tuple[object, tuple]] = {}

    def awake(self, override) -> tuple:
        """Of the override's candidates those that take calls in this layer, as its `awake` has them outside layers."""
        stamp, candidates = self._awake.get(override, (None, ()))
        if stamp is not override.stamp:
            stamp = override.stamp  # read first: what changes while we look makes another stamp
            candidates = override.awake_under(self)
            self._awake[override] = stamp, candidates
        return candidates


class _Quiet(Layer):
    """A layer under which every override goes straight to stock and counts nothing: inside self-checks."""

    def awake(self, override) -> tuple:
        return ()


QUIET = _Quiet()
here: ContextVar[Layer | None] = ContextVar("metal_kernels", default=None)
_watcher: Callable[[], None] | None = None
_pauser: Callable[[bool], None] | None = None


@contextmanager
def watch(watcher: Callable[[], None], pauser: Callable[[bool], None] | None = None) -> Iterator[None]:
    """Meanwhile, have `watcher` called at every counted call: after a kernel has run, before stock runs. For meters.

    pauser: called with True before a self-check and with False after it, so that what it takes is not metered.
    Neither may raise. One at a time: an inner one takes the place of the outer one.
    """
    global _watcher, _pauser
    outer = _watcher, _pauser
    _watcher, _pauser = watcher, pauser
    try:
        yield
    finally:
        _watcher, _pauser = outer


@contextmanager
def unmetered() -> Iterator[None]:
    """Round what is not the user's own work."""
    pauser = _pauser
    if pauser is not None:
        pauser(True)
    try:
        yield
    finally:
        if pauser is not None:
            pauser(False)


class Switch:
    """One kernel's state at run time. Who changes a field calls `refresh`; `listeners` make of it what calls read."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.mode = AUTO
        self.workflow: str | None = None
        self.need = Need(False, "not installed")
        self.registered = False
        self.unavailable: str | None = None
        self.failure: str | None = None
        self.checked: set[torch.dtype] = set()
        self.lock = threading.RLock()
        self.active = False
        self.listeners: list[Callable[[], None]] = []
        self._told: tuple[object, ...] = ()

    def refresh(self) -> None:
        """Recompute `active`, and tell the overrides, after any other field has changed."""
        self.active = self.runs_in(self.workflow or self.mode)
        if self.need.probe is not None:
            self.checked.clear()  # so that the next call comes by `first_use`, where `auto` asks the probe
        told = (self.workflow, self.mode, self.need.patch, self.registered, self.failure is None)
        if told != self._told:  # the workflow layer is set round each node of a graph, mostly to what it was
            self._told = told
            for listener in list(self.listeners):
                listener()

    def runs_in(self, mode: str) -> bool:
        """Whether the kernel takes calls in this mode."""
        if not self.registered or self.failure is not None:
            return False
        return mode == ON or (mode == AUTO and self.need.patch)

    def mode_under(self, modes: Mapping[str, str] | None) -> str:
        """The mode in force under these context-local modes."""
        return (modes or {}).get(self.kernel.name) or self.workflow or self.mode

    def fail(self, why: str) -> None:
        """Latch the kernel as failed: stock from now on, in every mode. Warns the first time."""
        with self.lock:
            if self.failure is not None:
                return
            self.failure = why
            self.refresh()
        log.warning(
            "Metal Kernels: %s failed and is switched off; torch's own kernel is used instead. %s",
            self.kernel.name,
            why,
        )

    @property
    def effective(self) -> str:
        """The mode in force in this context."""
        return self.mode_under(here.get())

    @property
    def state(self) -> tuple[str, str]:
        """(state, reason): one of stock, patched, off, failed, unavailable, and why in words."""
        if self.failure is not None:
            return "failed", self.failure
        if self.unavailable is not None:
            return "unavailable", self.unavailable
        if self.effective == OFF:
            return "off", "switched off"
        if self.registered and self.runs_in(self.effective):
            return "patched", self.need.reason if self.need.patch else "switched on"
        if self.effective == ON:
            return "stock", "switched on, but its ops are not registered yet: that happens between prompts"
        return "stock", self.need.reason

    def why_not_on(self) -> str:
        """What to say to someone who wants an unregistered kernel on in a context: what helps, if anything does."""
        state, reason = self.state
        here_it_is = f"using({self.kernel.name}='on'): {self.kernel.name} is"
        if self.unavailable is not None or self.failure is not None:
            return f"{here_it_is} {state} here and cannot be switched on: {reason.rstrip('.')}."
        return (
            f"{here_it_is} not registered with torch here ({state}: {reason.rstrip('.')}). Ops are registered only "
            f"between prompts: call set_mode({self.kernel.name}='on') first, after install()."
        )


class Counters:
    """What one op's override saw. Bounded: at most SHAPES_KEPT distinct shapes are kept. Exact under threads.

    A call leaves a note, which costs a tenth of a count; notes are counted when there are many, or when someone asks.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._notes: deque[tuple[str | None, torch.dtype | None, tuple[int, ...] | None]] = deque()
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self._notes.clear()
            self._taken: dict[torch.dtype, int] = {}
            self._passed: dict[torch.dtype | None, int] = {}
            self._by_kernel: dict[str, int] = {}
            self._shapes: set[tuple[int, ...]] = set()
            self._shapes_full = False

    def note(self, kernel: str | None, dtype: torch.dtype | None, shape: tuple[int, ...] | None) -> None:
        """A call that `kernel` ran, or that went to stock (None)."""
        self._notes.append((kernel, dtype, shape))
        if len(self._notes) >= NOTES_KEPT:
            with self._lock:
                self._count()
        if _watcher is not None:
            _watcher()

    def _count(self) -> None:
        """Count the notes. Under the lock; others may write new ones meanwhile."""
        while self._notes:
            kernel, dtype, shape = self._notes.popleft()
            counts = self._passed if kernel is None else self._taken
            counts[dtype] = counts.get(dtype, 0) + 1
            if kernel is not None:
                self._by_kernel[kernel] = self._by_kernel.get(kernel, 0) + 1
            if shape is None or shape in self._shapes:
                continue
            if len(self._shapes) < SHAPES_KEPT:
                self._shapes.add(shape)
            else:
                self._shapes_full = True

    def add_to(self, total: dict[str, int]) -> None:
        """Add each kernel's calls to `total`."""
        with self._lock:
            self._count()
            for kernel, calls in self._by_kernel.items():
                total[kernel] = total.get(kernel, 0) + calls

    def passed(self) -> int:
        """Calls that went to stock."""
        with self._lock:
            self._count()
            return sum(self._passed.values())

    def as_dict(self) -> dict[str, object]:
        """JSON-serialisable: taken and passed in all and by dtype, distinct shapes (`shapes_full`: there were more)."""
        with self._lock:
            self._count()
            return {
                "taken": sum(self._taken.values()),
                "passed": sum(self._passed.values()),
                "taken_by_dtype": _named(self._taken),
                "passed_by_dtype": _named(self._passed),
                "taken_by_kernel": dict(self._by_kernel),
                "distinct_shapes": len(self._shapes),
                "shapes": sorted(list(shape) for shape in self._shapes),
                "shapes_full": self._shapes_full,
            }


def _named(counts: Mapping[torch.dtype | None, int]) -> dict[str, int]:
    return {"other" if dtype is None else str(dtype).removeprefix("torch."): count for dtype, count in counts.items()}


class Switches:
    """All kernels' switches, by name, and the three layers."""

    def __init__(self, kernels: Iterable[Kernel]):
        self.by_name = {kernel.name: Switch(kernel) for kernel in kernels}

    def __iter__(self) -> Iterator[Switch]:
        return iter(self.by_name.values())

    def __getitem__(self, name: str) -> Switch:
        """Raises ValueError, naming the value and the known names, for an unknown kernel."""
        try:
            return self.by_name[name]
        except KeyError:
            raise ValueError(
                f"there is no kernel {name!r}; the kernels are {', '.join(self.by_name) or 'none'}"
            ) from None

    def validate(self, modes: Mapping[str, str]) -> None:
        """Raises ValueError for a kernel or a mode that does not exist, naming it."""
        for name, mode in modes.items():
            self[name]
            if mode not in MODES:
                raise ValueError(f"{name}={mode!r}: the modes are {', '.join(MODES)}")

    def set_process(self, modes: Mapping[str, str]) -> None:
        """The process layer: sets the named kernels, leaves the others."""
        self.validate(modes)
        for name, mode in modes.items():
            self[name].mode = mode
            self[name].refresh()

    def set_workflow(self, modes: Mapping[str, str]) -> None:
        """The workflow layer, whole: a kernel that is not named has none."""
        self.validate(modes)
        for name, switch in self.by_name.items():
            switch.workflow = modes.get(name)
            switch.refresh()

    @contextmanager
    def using(self, modes: Mapping[str, str]) -> Iterator[None]:
        """The context layer, over what an outer `using` set."""
        self.validate(modes)
        for name, mode in modes.items():
            if mode == ON and not self[name].registered:
                raise RuntimeError(self[name].why_not_on())
        token = here.set(Layer({**(here.get() or {}), **modes}))
        try:
            yield
        finally:
            here.reset(token)


def parse_modes(text: str, known: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Read the environment variable METAL_KERNELS: "off", "pad=off,fp8=on", "off,pad=on".

    A bare mode is for every kernel; later entries win. Returns the modes and a sentence for each entry that was not
    understood; those are left out, and nothing is ever raised.
    """
    known, modes, complaints = list(known), {}, []
    for entry in filter(None, (part.strip().lower() for part in text.split(","))):
        name, separator, mode = (part.strip() for part in entry.partition("="))
        if not separator:
            name, mode = "", name
        if mode not in MODES:
            complaints.append(f"{entry!r}: the modes are {', '.join(MODES)}")
        elif separator and name not in known:
            complaints.append(f"{entry!r}: the kernels are {', '.join(known) or 'none'}")
        else:
            modes.update({name: mode} if separator else dict.fromkeys(known, mode))
    return modes, complaints
