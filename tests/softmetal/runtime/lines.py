"""From an address in a compiled kernel library to the line of its .metal source."""

import functools
import re
import shutil
import subprocess


@functools.lru_cache(maxsize=4096)
def source_lines(library: str, address: int) -> tuple[int, ...]:
    """The source lines of the instruction before `address` (where a call returns to), the innermost of the functions
    inlined there first; none if unknown.

    Asks binutils' addr2line, which comes with every C++ compiler; only faults ask, so its cost does not matter.
    """
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if not tool or address <= 0:
        return ()
    result = subprocess.run([tool, "-i", "-e", library, hex(address - 1)], capture_output=True, text=True)
    # Frames of the library's headers lie in between: what counts is what the kernel's author wrote.
    frames = (re.match(r"(.*):(\d+)", frame) for frame in result.stdout.splitlines())
    return tuple(int(found[2]) for found in frames if found and "program_source" in found[1] and found[2] != "0")


def source_line(library: str, address: int) -> int:
    """The innermost source line of the instruction before `address`; 0 if unknown."""
    return next(iter(source_lines(library, address)), 0)
