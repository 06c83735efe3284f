"""activate and deactivate: which Mac, with which torch and which faults, this process seems to run on."""
import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import chips
from .presentation import Presentation, missing_functions, pool_name

_lock = threading.RLock()
_installed = False
_presentation: Presentation | None = None
_active: "Profile | None" = None


@dataclass(frozen=True)
class Profile:
    """What `activate` was asked for.

    missing: what the presented version has and the installed torch lacks, a sentence each. Faults do not depend on the
    installed torch, but a function of torch that is not there cannot be shown.
    """

    faults: str | frozenset[str] | None
    chip: str
    macos: str
    missing: tuple[str, ...] = ()


def activate(faults: str | Iterable[str] | None = None, chip: str = "Apple M2 Max", macos: str = "15.5") -> Profile:
    """Makes the mps device answer as a Mac does, from now on, in this process. Call it again to become another Mac.

    faults: None for a stock without faults under the installed torch's own version; "2.9", "2.12", "2.13", "2.14" or
        "2.15" for what stock of that version does wrong, presented as that version (torch.__version__, what it lacked);
        or fault ids (see `softmetal.faults.FAULTS`) to show just those.
    chip: name that Metal gives ("Apple M2 Max"): decides cores and memory. macos: product version ("15.5").

    A profile newer than the installed torch shows that version's faults and its number; the functions that this torch
    lacks stay away, and `Profile.missing` names them.
    Counters, memory peaks and what the driver keeps start anew, as in a new process. Call it before threads use the
    device.
    Raises ValueError for an unknown version, fault id or chip. Returns the profile.
    """
    from softmetal import faults as stock

    global _presentation, _active
    with _lock:
        if faults is not None and not isinstance(faults, str):
            faults = frozenset(faults)
        machine = chips.find(chip)
        chosen = stock.select(faults)
        numbers = tuple(int(part) for part in macos.split("."))
        device = _install()
        if _presentation is not None:
            _presentation.undo()
        device.set_macos(numbers[0], numbers[1] if len(numbers) > 1 else 0)
        device.set_recommended_max_memory(machine.recommended_max_memory)
        device.set_memory_fraction(float(os.environ.get("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "1.7")))
        stock.switch(device, chosen, numbers[0])
        version = stock.VERSIONS.get(faults) if isinstance(faults, str) else None
        device.set_pool_name(pool_name(version))
        device.set_available(True)
        missing = missing_functions(version)  # before the installed version is hidden
        _presentation = Presentation(machine, macos, version)
        _presentation.apply()
        device.empty_cache()
        device.forget_outside()
        device.reset_counters()
        device.reset_memory_peaks()
        _active = Profile(faults, chip, macos, missing)
        return _active


def deactivate() -> None:
    """Restores what torch and platform show of themselves: no mps available, torch's own version.

    Does nothing when inactive. Tensors on the device stay usable: the dispatcher keeps the device's kernels, which no
    other device reaches.
    """
    from softmetal import faults as stock

    from .build import load

    global _presentation, _active
    with _lock:
        if _presentation is None:
            return
        _presentation.undo()
        _presentation = _active = None
        device = load()
        stock.switch(device, frozenset())
        device.set_available(False)


def active_profile() -> Profile | None:
    """The profile in force, None when inactive."""
    return _active


@contextlib.contextmanager
def profile(
    faults: str | Iterable[str] | None = None, chip: str = "Apple M2 Max", macos: str = "15.5"
) -> Iterator[Profile]:
    """`activate(...)` for the length of a with-block; then the profile before it is in force again, or none."""
    before = _active
    try:
        yield activate(faults, chip, macos)
    finally:
        if before is None:
            deactivate()
        else:
            activate(before.faults, before.chip, before.macos)


def _install():
    """Loads the extension and puts it into torch's dispatcher, once a process."""
    from .build import load
    from .operators import ABSENT, COMPOSITE

    global _installed
    device = load()
    if not _installed:
        device.install(COMPOSITE, ABSENT)
        _installed = True
    return device
