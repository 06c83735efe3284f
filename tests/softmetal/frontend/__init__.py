"""Metal Shading Language for the software device: `compile` turns MSL source text into a shared object and its kernels.

    library = softmetal.frontend.compile(source)      # CompileError: "program_source:LINE:COLUMN: error: ..."
    library.path, library.kernels["scale_float"].arguments

The compiler is the clang inside the PyPI package `ziglang`; what a source goes through:

    preprocess (toolchain)   clang -E, with Metal's macros and header names only
    translate                kernels, attributes, threadgroup variables, literals, T(x); lines stay where they are
    rules                    what Metal refuses and C++ does not, as far as words show it
    to LLVM IR (toolchain)   with real address spaces, so that clang refuses what mixes them; where clang refuses what
                             Metal takes, spelled anew (copies, initialisers, members) and compiled again
    conversions              implicit conversions of bfloat and reinterpreting casts, from the syntax tree
    reflection               arguments, threadgroup memory and calls, from the intermediate code
    erase, link              flat memory, every access a call into the runtime (checked) or plain vectorised code

include/msl/ is the metal:: library; target_cpu.h, and for compile(target="nvptx") target_nvptx.h with math_nvptx.h, are
what knows the target. PTX is made by nvptx.py, from the same text and after the same rules. Open symbols of the
shared object are the runtime's (softmetal_abi.h, __asan_*) and libm's float functions, both found in the process.

Differences from Apple's compiler, errors here and never other results: Metal 3.2, and bfloat that converts to float or
comes of integers by itself, are for other people's sources only (`house_rules` of compile); memory that a fence of 3.2
orders is reported as a race; the result of comparing vectors goes into all(), any() and select(), and where a bool2,
bool3 or bool4 is wanted, only; a function template's parameter vec<T, N> has no bool as its T; C casts between vector
types must be written as calls, float4(x); a member function is called on the thread's own objects only, also where the
source has it for other address spaces (`float get() const device`); an initialiser of zeros of a threadgroup variable,
which Metal lets pass, sets nothing; there are no textures and samplers. A kernel with function constants or threadgroup
arguments compiles, but compile_shader gives neither: Kernel says which (library.py).
"""

from .compiler import compile
from .diagnostics import CompileError
from .library import Argument, Kernel, Library
from .toolchain import ToolchainError

__all__ = ["Argument", "CompileError", "Kernel", "Library", "ToolchainError", "compile"]
