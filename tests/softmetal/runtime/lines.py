"""From an address in a compiled kernel library to the line of its .metal source."""

import functools
import re
import shutil
import subprocess


@functools.lru_cache(maxsize=4096)
def source_line(library: str, address: int) -> int:
    """The innermost source line of the instruction before `address` (where a call returns to); 0 if unknown.

    Asks binutils' addr2line, which comes with every C++ compiler; only faults ask, so its cost does not matter.
    """
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if not tool or address <= 0:
        return 0
    result = subprocess.run([tool, "-i", "-e", library, hex(address - 1)], capture_output=True, text=True)
    # With -i come the inlined frames, innermost first: the first one that lies in the kernel's own source is what the
    # author wrote.
    for frame in result.stdout.splitlines():
        found = re.match(r"(.*):(\d+)", frame)
        if found and "program_source" in found[1]:
            return int(found[2])
    found = re.match(r"[^:]*:(\d+)", result.stdout)
    return int(found[1]) if found and "/" not in result.stdout.split(":")[0] else 0
