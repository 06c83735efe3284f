"""smr_launch from Python: bindings in, a KernelFault out if the kernel did something wrong."""

import ctypes
import re
from dataclasses import dataclass

from . import build
from .fault import KernelFault, Lane
from .lines import source_line, source_lines

READ_ONLY, BY_VALUE, UNSET, LISTED = 1, 2, 4, 8
WATCHDOG_SECONDS = 30.0  # of processor time, here: twenty times the largest launch of benchmark.py
MAX_BUFFERS = 31
_TEXT_BYTES = 768
_SPACES = ("memory", "buffer", "argument", "threadgroup variable", "program-scope constant", "stack")
_ACCESSES = {1: "read", 2: "write", 4: "atomic", 5: "atomic load"}
_OPERATIONS = (
    "SIMD collective",
    "simd_sum",
    "simd_product",
    "simd_min",
    "simd_max",
    "simd_and",
    "simd_or",
    "simd_xor",
    "simd_shuffle",
    "simd_shuffle_up",
    "simd_shuffle_down",
    "simd_shuffle_xor",
    "simd_broadcast",
    "SIMD prefix operation",
    "simd_ballot",
    "simdgroup_matrix operation",
    "quad operation",
)


class _Binding(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("index", ctypes.c_uint32),
        ("element_size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("position", ctypes.c_uint32),
    ]


class _Info(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
        ("bindings", ctypes.POINTER(_Binding)),
        ("binding_count", ctypes.c_uint32),
        ("threads", ctypes.c_uint32 * 3),
        ("group_size", ctypes.c_uint32 * 3),
        ("flags", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("watchdog_seconds", ctypes.c_double),
    ]


class _Lane(ctypes.Structure):
    _fields_ = [
        ("group", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32),
        ("access", ctypes.c_uint32),
        ("line", ctypes.c_int32),
        ("pc", ctypes.c_uint64),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("space", ctypes.c_uint32),
        ("lane_count", ctypes.c_uint32),
        ("lanes", _Lane * 2),
        ("buffer", ctypes.c_int32),
        ("element_size", ctypes.c_uint32),
        ("offset", ctypes.c_int64),
        ("access_size", ctypes.c_uint64),
        ("bound_size", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("library_base", ctypes.c_uint64),
        ("op", ctypes.c_uint32),
        ("name", ctypes.c_char * 128),
        ("text", ctypes.c_char * _TEXT_BYTES),
    ]


@dataclass(frozen=True)
class Bound:
    """What one [[buffer(index)]] gets. data: an address (device memory) or bytes (by value); None: never set.

    position: this is memory whose address belongs there in the array of pointers that [[buffer(index)]], bound before,
    has by value.
    """

    index: int
    data: int | bytes | None
    size: int = 0  # bytes that may be touched from `data` on
    name: str = ""
    element_size: int = 1
    read_only: bool = False
    position: int | None = None


def launch(
    library: str,
    entry: int,
    kernel: str,
    bindings: list[Bound],
    threads: tuple[int, int, int],
    group_size: tuple[int, int, int],
    *,
    seed: int = 0,
    checked: bool = True,
    watchdog_seconds: float = WATCHDOG_SECONDS,
) -> None:
    """Run the kernel at address `entry` of the shared object `library` on a grid of `threads`. Raises KernelFault.

    Returns when the kernel is done. One launch runs at a time; other threads wait their turn (without the GIL).
    """
    table = (_Binding * max(1, len(bindings)))()
    kept = []
    for slot, bound in zip(table, bindings, strict=False):
        slot.index, slot.element_size, slot.name = bound.index, bound.element_size, bound.name.encode()
        slot.flags = READ_ONLY if bound.read_only else 0
        if bound.position is not None:
            slot.flags, slot.position = slot.flags | LISTED, bound.position
        if bound.data is None:
            slot.flags |= UNSET
        elif isinstance(bound.data, bytes):
            copy = ctypes.create_string_buffer(bound.data, len(bound.data))
            kept.append(copy)
            slot.data, slot.size = ctypes.addressof(copy), len(bound.data)
            slot.flags |= BY_VALUE
        else:
            slot.data, slot.size = bound.data, bound.size
    info = _Info(
        entry,
        kernel.encode(),
        table,
        len(bindings),
        (ctypes.c_uint32 * 3)(*threads),
        (ctypes.c_uint32 * 3)(*group_size),
        1 if checked else 0,
        seed & (2**64 - 1),
        watchdog_seconds,
    )
    report = _Report()
    if build.load().smr_launch(ctypes.byref(info), ctypes.byref(report)):
        raise _fault(report, library, kernel, seed, watchdog_seconds)


def _lane(raw: _Lane, library: str, base: int) -> Lane:
    access = _ACCESSES.get(raw.access, "")
    line = raw.line or (source_line(library, raw.pc - base) if raw.pc > base else 0)
    return Lane(tuple(raw.group), raw.thread, access, line)


def _fault(report: _Report, library: str, kernel: str, seed: int, watchdog_seconds: float) -> KernelFault:
    report.text = _called_from(report.text.decode(), library).encode()[: _TEXT_BYTES - 1]
    lanes = tuple(_lane(raw, library, report.library_base) for raw in report.lanes[: report.lane_count])
    kind, text = _WORDING[report.kind](report, lanes, _memory(report), watchdog_seconds)
    element_size = max(1, report.element_size)
    known = bool(report.space and report.access_size)
    return KernelFault(
        kind,
        kernel,
        text,
        lanes=lanes,
        buffer=report.buffer if report.buffer >= 0 else None,
        name=report.name.decode(),
        offset=report.offset if known else None,
        element=report.offset // element_size if known else None,
        size=report.bound_size if known else None,
        line=lanes[0].line if lanes else 0,
        seed=seed,
    )


def _memory(report: _Report) -> str:
    name = report.name.decode()
    if not report.space:
        return f"address {report.address:#x}, which is in none of its buffers"
    what = f"buffer({report.buffer}) '{name}'" if report.buffer >= 0 else f"{_SPACES[report.space]} '{name}'"
    size = max(1, report.element_size)
    element = f"element {report.offset // size} (byte {report.offset})" if size > 1 else f"byte {report.offset}"
    return f"{element} of {what} of {report.bound_size} bytes"


def _doing(lane: Lane, past: bool = False) -> str:
    words = {
        "read": ("reads", "read"),
        "write": ("writes", "wrote"),
        "atomic": ("atomically accesses", "atomically accessed"),
        "atomic load": ("atomically loads", "atomically loaded"),
    }
    return words[lane.access][past] if lane.access else ("stops" if not past else "stopped")


def _race(report, lanes, memory, _):
    one, other = lanes
    if one.threadgroup != other.threadgroup:
        advice = (
            "Threadgroups of one launch run in any order: give each its own part of the buffer, use atomics, or launch "
            "twice."
        )
    elif report.space == 3:
        advice = "Put threadgroup_barrier(mem_flags::mem_threadgroup) between the two."
    else:
        advice = "Put threadgroup_barrier(mem_flags::mem_device) between the two, or let one thread do both."
    return "race", (
        f"{one} {_doing(one)} {memory}{one.where}; {other} {_doing(other, True)} it{other.where}, and nothing "
        f"orders the two. {advice}"
    )


def _out_of_bounds(report, lanes, memory, _):
    lane = lanes[0]
    verb = _doing(lane)
    if report.space == 5 and not report.access_size:
        return "out_of_bounds", f"{lane} uses an index outside an array or vector of its own memory{lane.where}."
    if not report.space:
        return "out_of_bounds", f"{lane} {verb} {report.access_size} bytes at {memory}{lane.where}."
    past = report.offset + report.access_size - report.bound_size
    how = f"{-report.offset} bytes before its start" if report.offset < 0 else f"{past} bytes past its end"
    advice = "Check the index against the size that was passed."
    if report.space == 2 and 0 <= report.offset < report.element_size:
        advice = (
            "The parameter's type is wider than what was bound: ints arrive as 8 bytes, floats as 4, unless arg_casts "
            "says otherwise."
        )
    elif not report.bound_size:
        advice = "Nothing is bound there: the argument is missing, or the tensor is empty."
    return "out_of_bounds", f"{lane} {verb} {report.access_size} bytes at {memory}{lane.where}: {how}. {advice}"


def _uninitialised(report, lanes, memory, _):
    advice = (
        "Write it first, and put a threadgroup_barrier(mem_flags::mem_threadgroup) after the writes."
        if report.space == 3
        else "No op and no kernel has written it since it was allocated: fill the tensor before binding it."
    )
    return "uninitialised_read", f"{lanes[0]} reads {memory}{lanes[0].where}, which nobody has written. {advice}"


def _read_only(report, lanes, memory, _):
    return "read_only_write", f"{lanes[0]} writes {memory}{lanes[0].where}, which is read-only."


def _misaligned(report, lanes, memory, _):
    lane = lanes[0]
    return "misaligned", (
        f"{lane} {_doing(lane)} {report.access_size} bytes at {memory}{lane.where}, address "
        f"{report.address:#x}, which is "
        "not a multiple of what the type needs. Take the vector path only when offset and row length allow it."
    )


def _called_from(text: str, library: str) -> str:
    """Tells calls that lead to one line of the source apart by the lines that they come from, innermost first."""

    def told_apart(match: re.Match) -> str:
        lines = [line for address in match[2].split() for line in source_lines(library, int(address, 16))]
        while lines and lines[0] != int(match[1]):
            lines.pop(0)  # of the library's own functions
        callers = lines[1:-1]  # the last is the kernel's entry
        return f"(line {match[1]}" + "".join(f", called from line {line}" for line in callers)

    return re.sub(r"\(line (\d+)<([ 0-9a-f]*)>", told_apart, text)


def _barrier(report, lanes, memory, _):
    return "divergence", (
        f"threads of threadgroup {lanes[0].threadgroup} part ways at the threadgroup_barrier{lanes[0].where}: "
        f"{report.text.decode()}. Every thread of a threadgroup must reach the same barrier: no return, break "
        f"or if round it."
    )


def _simd(report, lanes, memory, _):
    what = _OPERATIONS[report.op] if 0 < report.op < len(_OPERATIONS) else "simdgroup_barrier"
    return "simd_divergence", (
        f"lanes of SIMD-group {lanes[0].simdgroup} of threadgroup {lanes[0].threadgroup} part ways at "
        f"{what}{lanes[0].where}: "
        f"{report.text.decode()}. Every lane must reach it: give inactive lanes a neutral value instead of "
        f"leaving them out."
    )


def _missing_lane(report, lanes, memory, _):
    what = _OPERATIONS[report.op] if report.op < len(_OPERATIONS) else "SIMD collective"
    return "missing_lane", (
        f"{what}{lanes[0].where} in {lanes[0]} reads lane {report.offset}, and this SIMD-group has {report.bound_size} "
        "lanes: a partial last threadgroup. Launch whole SIMD-groups or bound the lane."
    )


def _watchdog(report, lanes, memory, seconds):
    return "watchdog", (
        f"still running after {seconds:g} s of processor time, in {lanes[0]}{lanes[0].where}. A GPU's watchdog "
        f"would have "
        "ended it: look for a loop that does not end, or split the work over several launches."
    )


def _crash(report, lanes, memory, _):
    where = f" at address {report.address:#x}" if report.address else ", at a trap or a misaligned vector"
    return "crash", f"the processor stopped {lanes[0]}{lanes[0].where} (signal {report.offset}){where}."


def _stack(report, lanes, memory, _):
    return (
        "stack_overflow",
        f"{lanes[0]} ran out of its 256 KiB of stack{lanes[0].where}: a recursion, or a very large local array.",
    )


def _arithmetic(report, lanes, memory, _):
    return (
        "arithmetic",
        f"{lanes[0]} divided an integer by zero (or the smallest one by -1){lanes[0].where}: undefined in Metal.",
    )


def _memory_full(report, lanes, memory, _):
    return "out_of_memory", "no room left to give its buffers guard zones."


# By enum smr_kind of softmetal_abi.h.
_WORDING = {
    1: _race,
    2: _out_of_bounds,
    3: _uninitialised,
    4: _read_only,
    5: _barrier,
    6: _simd,
    7: _missing_lane,
    8: _watchdog,
    9: _crash,
    10: _stack,
    11: _arithmetic,
    12: _memory_full,
    13: _misaligned,
}
