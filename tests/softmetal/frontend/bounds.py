"""Bounds of arrays and vectors in a thread's own memory: checked by the code itself, as no call-out sees that memory.

clang's -fsanitize=array-bounds tests every index into an array of known size. Arrays in device, constant and
threadgroup memory are left to the runtime, which knows what is bound and lets code cross the rows of a matrix.
"""

import re

_CHECK = re.compile(r"br i1 [%\w.]+, label %(?P<inside>cont\w*), label %trap\w*(?=.*!nosanitize)")
_USE = re.compile(
    r"getelementptr [^[\n]*\[[^]\n]*\](?:[^,\n]*), (?P<pointer>ptr(?: addrspace\(\d\))?)"
    "|extractelement|insertelement"
)


def keep_private_bounds(ir: str, checked: bool) -> str:
    """LLVM IR, fresh from clang, in which only checks of private arrays and vectors are left; none if not checked."""

    def decide(match: re.Match) -> str:
        block = ir.find(f"\n{match['inside']}:", match.end())
        use = _USE.search(ir, block)
        private = use and (not use["pointer"] or use["pointer"] == "ptr")
        return match[0] if checked and private else re.sub("br i1 [%\\w.]+", "br i1 true", match[0], count=1)

    return _CHECK.sub(decide, ir)
