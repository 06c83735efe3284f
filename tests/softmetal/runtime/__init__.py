"""The checking runtime of the software Metal device: built with the system's C++ compiler on first use, then loaded.

`library_path()` is the shared object (what the torch extension links against), `load()` the loaded library.
The C interface is softmetal_abi.h. Nothing in here knows torch.
"""

from .build import build_directory, library_path, load
from .fault import KernelFault, Lane

__all__ = ["KernelFault", "Lane", "build_directory", "library_path", "load"]
