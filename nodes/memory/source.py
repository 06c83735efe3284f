"""Where the numbers come from: torch.mps, torch.accelerator's statistics and the operating system.

current    live tensors                     torch.mps.current_allocated_memory
reserved   the pool of torch's allocator    torch.accelerator's statistics, which know MPS from torch 2.13 on
driver     all Metal memory of the process  torch.mps.driver_allocated_memory
outside    driver - reserved                read together; MPSGraph's share, "other allocations" in error messages
footprint  the whole process                the operating system
"""
from typing import NamedTuple

import torch

from .. import library
from . import footprint

NAMES = ("current", "reserved", "driver", "outside", "footprint")
COUNTED = ("current", "reserved")  # the allocator keeps their peaks itself, where it keeps any
ATTEMPTS = 4


class Reading(NamedTuple):
    """Bytes at one moment. None: not available here, or not asked for."""

    current: int
    reserved: int | None
    driver: int
    outside: int | None
    footprint: int | None


def obstacle():
    """None, or one sentence: why there is nothing to record on this machine."""
    try:
        if torch.backends.mps.is_available():
            torch.mps.driver_allocated_memory()
            return None
        found = environment().get("obstacle")
    except Exception as error:
        return f"torch.mps gives no memory numbers here: {type(error).__name__}: {error}"
    return found or "This torch finds no MPS device."


def environment():
    """What `metal_kernels.status()` says of torch, macOS, chip and device; {} where the library can't be used."""
    if library.metal_kernels is None:
        return {}
    return library.metal_kernels.environment.detect().as_dict()


class MpsSource:
    """Reads this process's MPS memory. `counts_peaks`: the allocator's own peaks can be had and reset."""

    def __init__(self):
        current = torch.mps.current_allocated_memory()
        statistics = self._statistics = _statistics()
        self.has_reserved = statistics is not None
        # Its "allocated" must be the number that we call current, or its peak is a peak of something else.
        self.counts_peaks = self.has_reserved and statistics()["allocated"] == current and _reset_peaks()
        self.footprint_kind, self._footprint = footprint.reader()

    def read(self, with_footprint=True):
        """A `Reading`."""
        driver, reserved = self._driver_and_reserved()
        return Reading(
            torch.mps.current_allocated_memory(), reserved, driver,
            None if reserved is None else driver - reserved,
            self._footprint() if with_footprint and self._footprint else None,
        )  # fmt: skip

    def glance(self):
        """(current, driver): two cheap numbers, to see whether a reading would say anything new."""
        return torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()

    def take_peaks(self):
        """The allocator's peaks of current and reserved since the last call, by name; {} where it counts none."""
        if not self.counts_peaks:
            return {}
        statistics = self._statistics()
        _reset_peaks()
        return {"current": statistics["allocated_peak"], "reserved": statistics["reserved_peak"]}

    def recommended_maximum(self):
        """Bytes that Metal recommends this process to stay below; None where torch doesn't say."""
        try:
            return int(torch.mps.recommended_max_memory())
        except (AttributeError, RuntimeError):
            return None

    def _driver_and_reserved(self):
        """Both of one moment: another thread may grow the pool between two calls, which would look like `outside`."""
        driver = torch.mps.driver_allocated_memory()
        if self._statistics is None:
            return driver, None
        reserved = self._statistics()["reserved"]
        best = driver, reserved
        for _ in range(ATTEMPTS):
            again = torch.mps.driver_allocated_memory(), self._statistics()["reserved"]
            if again == (driver, reserved):
                return again
            best = min(best, again, key=lambda pair: pair[0] - pair[1])
            driver, reserved = again
        return best


def _statistics():
    """A function that gives allocated, reserved and their peaks; None where torch's statistics don't know MPS."""
    for find in (_direct, _public):
        try:
            if torch.accelerator.current_accelerator().type == "mps":
                find()
                return find
        except (AttributeError, KeyError, RuntimeError, TypeError):
            continue
    return None


def _direct():
    """A tenth of the public function's time, which would be seen at a hundred readings a second."""
    found = torch._C._accelerator_getDeviceStats(torch.accelerator.current_device_index())
    allocated, reserved = found["allocated_bytes"]["all"], found["reserved_bytes"]["all"]
    return {
        "allocated": allocated["current"], "allocated_peak": allocated["peak"],
        "reserved": reserved["current"], "reserved_peak": reserved["peak"],
    }  # fmt: skip


def _public():
    found = torch.accelerator.memory_stats()
    return {
        "allocated": found["allocated_bytes.all.current"], "allocated_peak": found["allocated_bytes.all.peak"],
        "reserved": found["reserved_bytes.all.current"], "reserved_peak": found["reserved_bytes.all.peak"],
    }  # fmt: skip


def _reset_peaks():
    """Whether it worked."""
    try:
        torch.accelerator.reset_peak_memory_stats()
    except (AttributeError, RuntimeError):
        return False
    return True
