"""Vectors of bool that are clang's: vec<T, N> as a function template's parameter or result, T being bool.

They would be bits in memory, where Metal's are bytes, and clang 21 compiles assignments to their elements into
nonsense. bool2, bool3, bool4, vec<bool, N>, and vec<T, N> in a body, a class member or an alias, are the library's own
(include/msl/bools.h).
"""

import re

from .diagnostics import CompileError, message

_BITS = re.compile(r"= bitcast i\d+ %[\w.]+ to <\d+ x i1>")
_FUNCTION = re.compile(r"^define [^\n]* !dbg !(\d+) \{", re.M)
REFUSED = "a parameter vec<T, N> whose T is bool is not supported by the software device: write bool2, bool3 or bool4"


def refuse_bits(ir: str) -> None:
    """Raise CompileError, at the function, if a text of LLVM IR fresh from clang has such a vector in memory."""
    if found := _BITS.search(ir):
        function = _FUNCTION.search(ir, ir.rfind("\ndefine ", 0, found.start()) + 1)
        line = function and re.search(rf"^!{function[1]} = distinct !DISubprogram\(.*?line: (\d+)", ir, re.M)
        raise CompileError(message(int(line[1]) if line else 1, REFUSED))
