"""Vectors of bool that are clang's: vec<T, N> in a template whose T is bool.

They would be bits in memory, where Metal's are bytes, and clang 21 compiles assignments to their elements into
nonsense. bool2, bool3, bool4 and vec<bool, N> are the library's own (include/msl/bools.h).
"""

import re

from .diagnostics import CompileError, message

_BITS = re.compile(r"= bitcast i\d+ %[\w.]+ to <\d+ x i1>(?:[^\n]*!dbg !(\d+))?")


def refuse_bits(ir: str) -> None:
    """Raise CompileError if a text of LLVM IR, fresh from clang, has such a vector in memory."""
    if found := _BITS.search(ir):
        line = found[1] and re.search(rf"^!{found[1]} = !DILocation\(line: (\d+)", ir, re.M)
        text = "vec<T, N> with bool as its T is not supported by the software device: write bool2, bool3 or bool4"
        raise CompileError(message(int(line[1]) if line else 1, text))
