"""The kernels in this process: which ops are registered with torch, who asked for it, and what people are told.

Ties the environment, the switches and the patcher together. `metal_kernels/__init__.py` holds the one Installation
that a user meets; tests make others, with kernels of their own or on another dispatch key.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from .entries import Entry
from .environment import Environment, detect
from .extensions import Extension, Extensions
from .kernel import Kernel, Need, Patch
from .patcher import AlreadyPatched, NoSuchOp, Patcher
from .switches import AUTO, ON, Counters, Switch, Switches, parse_modes

log = logging.getLogger("metal_kernels")
VARIABLE = "METAL_KERNELS"


class Installation:
    """kernels: the families, in the order in which they are asked. environment: detected at install, unless given."""

    def __init__(self, kernels: Iterable[Kernel], dispatch_key: str = "MPS", environment: Environment | None = None):
        self.kernels = tuple(kernels)
        self.switches = Switches(self.kernels)
        self.patcher = Patcher(dispatch_key)
        self.entries: dict[str, Entry] = {}
        self.extensions = Extensions()
        self.installed = False
        self._given = environment
        self._environment = environment
        self._held: Counter[str] = Counter()
        self.held_elsewhere: dict[str, str] = {}  # op -> who answers for it instead of us, in words
        self._lock = threading.RLock()

    @property
    def environment(self) -> Environment:
        if self._environment is None:
            self._environment = detect()
        return self._environment

    def install(self) -> None:
        """Register every op that a kernel wants here, and say so in one line of the log. Idempotent.

        Reads METAL_KERNELS first. Compiles nothing and makes no tensor. Where nothing can run, nothing is registered
        and `status()` says why.
        """
        with self._lock:
            if self.installed:
                return
            self._environment = self._given or detect()
            self._read_variable()
            other = self._other_copy()
            for switch in self.switches:
                switch.checked.clear()  # what was checked, was checked on the machine as it was then
                switch.unavailable = self.environment.obstacle or other
                if self.environment.obstacle is None:
                    switch.need = _need(switch.kernel, self.environment)
            self.installed = True
            self._apply()
            log.info("Metal Kernels: %s", self.headline())
            self.extensions.install()

    def uninstall(self) -> None:
        """Take the extensions out, and give every op back to torch. Modes, counters and failures are kept."""
        with self._lock:
            if self.installed:
                self.extensions.uninstall()
            self.patcher.uninstall()
            self.installed = False
            for switch in self.switches:
                switch.registered = False
                switch.refresh()

    def add_extension(self, extension: Extension) -> None:
        """Have it installed and uninstalled with the kernels; where they are installed, it is now. Idempotent."""
        with self._lock:
            if self.extensions.add(extension) and self.installed:
                self.extensions.put(extension)

    def remove_extension(self, extension: Extension) -> None:
        """Forget it, and take it out where it is in. Idempotent."""
        with self._lock:
            if self.extensions.remove(extension) and self.installed:
                self.extensions.take(extension)

    def set_mode(self, everything: str | None = None, /, **modes: str) -> None:
        """Set the process mode of all kernels, or of those named, and register or unregister their ops to match."""
        with self._lock:
            if everything is not None:
                modes = {**dict.fromkeys(self.switches.by_name, everything), **modes}
            self.switches.set_process(modes)
            self._apply()

    def set_workflow(self, modes: Mapping[str, str] | None = None) -> None:
        """Set the workflow layer, for the whole process; None clears it. Registers nothing: see `registered`."""
        self.switches.set_workflow(modes or {})

    @contextmanager
    def registered(self, *names: str) -> Iterator[None]:
        """Keep these kernels' ops registered meanwhile, so that a layer can switch them on. For one prompt; nests."""
        for name in names:
            self.switches[name]
        with self._lock:
            self._held.update(names)
            self._apply()
        try:
            yield
        finally:
            with self._lock:
                self._held.subtract(names)
                self._apply()

    def entry(self, kernel: str, name: str) -> Entry:
        """Another program's way into `kernel`, counted as `name`: the same object each time. Raises ValueError."""
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = Entry(self.switches[kernel], name)
        return entry

    def reset_counters(self) -> None:
        for counters in self._all_counters():
            counters.reset()

    def _all_counters(self) -> list[Counters]:
        return [*self.patcher.counters.values(), *(entry.counters for entry in self.entries.values())]

    def taken(self) -> dict[str, int]:
        """kernel -> calls it has run since the counters were reset."""
        total: dict[str, int] = {}
        for counters in self._all_counters():
            counters.add_to(total)
        return total

    def passed(self) -> dict[str, int]:
        """kernel -> calls of its ops and entries that others ran since the counters were reset, whoever was asked."""
        counters = self.patcher.counters
        total = Counter(
            {kernel.name: sum(counters[op].passed() for op in kernel.ops if op in counters) for kernel in self.kernels}
        )
        for entry in list(self.entries.values()):
            total[entry.switch.kernel.name] += entry.counters.passed()
        return dict(total)

    def headline(self) -> str:
        """One line: what is patched, and how to switch it off."""
        if self.environment.obstacle:
            return f"nothing is patched. {self.environment.obstacle}"
        patched = [switch.kernel.name for switch in self.switches if switch.active]
        if not patched:
            return "nothing is patched: " + "; ".join(f"{s.kernel.name} {': '.join(s.state)}" for s in self.switches)
        untested = f" ({self.environment.untested})" if self.environment.untested else ""
        return f"patched {', '.join(patched)}{untested}. To switch off: {VARIABLE}=off, or {VARIABLE}={patched[0]}=off."

    def _read_variable(self) -> None:
        modes, complaints = parse_modes(os.environ.get(VARIABLE, ""), self.switches.by_name)
        self.switches.set_process(modes)
        if complaints:
            log.warning("Metal Kernels: %s is not understood and left out: %s.", VARIABLE, "; ".join(complaints))

    def _wanted(self, switch: Switch) -> bool:
        """Whether the kernel's ops are to be registered now."""
        if not self.installed or switch.failure is not None:
            return False
        return switch.mode == ON or (switch.mode == AUTO and switch.need.patch) or self._held[switch.kernel.name] > 0

    def _apply(self) -> None:
        """Make the registrations match what is wanted. What is in another pack's hands stays there."""
        if not self.installed or self.environment.obstacle or self._other_copy():
            return
        for switch in self.switches:
            switch.unavailable = None
        self._register_wanted()
        for switch in self.switches:
            switch.registered = self._wanted(switch) and switch.unavailable is None
            switch.refresh()

    def _register_wanted(self) -> None:
        """An op that another pack holds, or that this torch lacks, is left out; a kernel without any is unavailable."""
        wanted: dict[str, list[tuple[Patch, Switch]]] = {}
        for switch in self.switches:
            if self._wanted(switch):
                for patch in switch.kernel.patches:
                    wanted.setdefault(patch.op, []).append((patch, switch))
        for op in [op for op in self.patcher.overrides if op not in wanted]:
            self.patcher.unregister(op)
        self.held_elsewhere, missing = {}, set()
        for op, candidates in wanted.items():
            try:
                self.patcher.register(op, candidates)
            except AlreadyPatched as error:
                self.held_elsewhere[op] = str(error)
            except NoSuchOp:  # a newer torch's op
                missing.add(op)
        for switch in self.switches:
            ops = switch.kernel.ops
            held = [op for op in ops if op in self.held_elsewhere]
            if not self._wanted(switch) or not set(ops) <= set(held) | missing:
                continue
            switch.unavailable = self.held_elsewhere[held[0]] if held else f"this torch has none of {', '.join(ops)}"

    def _other_copy(self) -> str | None:
        """This library may be loaded twice, as `metal_kernels` and inside the ComfyUI pack; only one copy may patch."""
        for name, module in list(sys.modules.items()):
            if name.split(".")[-1] != "metal_kernels":
                continue
            other = getattr(module, "_installation", None)
            if other not in (None, self) and other.installed and other.patcher.overrides:
                return f"already patched by another copy of this library, loaded as {name}"
        return None


def _need(kernel: Kernel, environment: Environment) -> Need:
    try:
        return kernel.need(environment)
    except Exception as error:  # one family's mistake must not take the others, or ComfyUI's start, with it
        return Need(False, f"whether this torch needs it could not be found out: {type(error).__name__}: {error}")
