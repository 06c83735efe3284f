"""Metal Shading Language for the software device: `compile` turns MSL source text into a shared object and its kernels.

    library = softmetal.frontend.compile(source)      # CompileError: "program_source:LINE:COLUMN: error: ..."
    library.path, library.kernels["scale_float"].arguments

The compiler is the clang inside the PyPI package `ziglang`. Open symbols of the shared object are the runtime's
(softmetal_abi.h, __asan_*) and libm's, both to be found in the process.
"""

from .compiler import compile
from .diagnostics import CompileError
from .library import Argument, Kernel, Library
from .toolchain import ToolchainError

__all__ = ["Argument", "CompileError", "Kernel", "Library", "ToolchainError", "compile"]
