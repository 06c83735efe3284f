"""The checking runtime of the software Metal device: built with the system's C++ compiler on first use, then loaded.

`library_path()` is the shared object (what the torch extension links against), `load()` the loaded library.
The C interface is softmetal_abi.h. Nothing in here knows torch. Below csrc/, a file a duty:

    launch      the order of threadgroups, SIMD-groups and lanes; barriers and collectives
    fibre       a stack a thread, and the switch between them
    access      what happens at every memory access: bounds, written bytes, races
    shadow      who touched which bytes last: complete race detection whatever the order
    arena       address space for device memory with guard room, and which of its bytes were written
    bindings    a launch's arguments as ranges of memory
    library     a kernel library's own variables: threadgroup memory and constants
    signals     crashes inside kernels, and the watchdog
    place       which lanes have met: the same call, by the same calls, in the same iterations of their loops
    reports     what is written down when a lane is stopped; fault.py and launch.py put it in words

Each buffer of a launch has its own 1 TiB of addresses, so no index of 32 bits leads from one into another. Variables of
a library (threadgroup memory, constants) have 256 bytes of guard room, and an access that strays farther may land in
another one unseen. What else it cannot see is in a thread's own memory: an index
outside an array or vector of known size is caught, a stray pointer into it is not; a variable that nobody set holds a
pattern (NaN for floats) and is not reported as such.
"""

from .build import build_directory, cache_root, is_built, is_intact, library_path, load, publish
from .fault import KernelFault, Lane

__all__ = [
    "KernelFault",
    "Lane",
    "build_directory",
    "cache_root",
    "is_built",
    "is_intact",
    "library_path",
    "load",
    "publish",
]
