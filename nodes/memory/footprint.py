"""What the operating system charges to this process.

On a Mac that is `phys_footprint`, "Memory" in Activity Monitor: it includes Metal memory, which the resident set size
does not. Elsewhere it is the resident set size.
"""
import ctypes
import os
import sys

PHYS_FOOTPRINT = 'phys_footprint, "Memory" in Activity Monitor'
RESIDENT = "resident set size"


class _Usage(ctypes.Structure):
    """struct rusage_info_v0 of macOS (sys/resource.h)."""

    _fields_ = [("uuid", ctypes.c_uint8 * 16), *((name, ctypes.c_uint64) for name in (
        "user_time", "system_time", "pkg_idle_wkups", "interrupt_wkups", "pageins", "wired_size", "resident_size",
        "phys_footprint", "proc_start_abstime", "proc_exit_abstime"))]


def reader():
    """(what it reads, a function that gives it in bytes or None); (None, None) where it can't be read."""
    for kind, read in ((PHYS_FOOTPRINT, _mac), (RESIDENT, _linux), (RESIDENT, _psutil)):
        try:
            if read() is not None:
                return kind, read
        except Exception:  # another operating system
            continue
    return None, None


def _mac():
    if sys.platform != "darwin":
        return None
    usage = _Usage()
    if _library().proc_pid_rusage(os.getpid(), 0, ctypes.byref(usage)) != 0:
        return None
    return usage.phys_footprint


def _library(found=[]):  # noqa: B006  (opened once)
    if not found:
        found.append(ctypes.CDLL(None))
    return found[0]


def _linux():
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _psutil():
    import psutil  # ComfyUI's own dependency

    return psutil.Process().memory_info().rss
