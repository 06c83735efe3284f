"""Vectors of truth values. Metal compares vectors to vectors of bool; clang to masks of integers, minus one for true.

Both mean the same to all(), any() and select(), and a mask becomes a vector of bool where one is wanted (bools.h).
Anywhere else a mask would be another number than Metal's, and is refused; so is a vector of integers that would become
a vector of bool without being asked to.
"""

import re

_MASK = re.compile(
    r"^ '[^']*(?:ext_vector_type[^']*)'(?::'[^']*')? (?:'(?:<|>|<=|>=|==|!=|&&|\|\|)'|prefix '!'.*)$|"
    r"^ '[^']*'(?::'[^']*ext_vector_type[^']*') (?:'(?:<|>|<=|>=|==|!=|&&|\|\|)'|prefix '!'.*)$"
)
_COMBINES = re.compile(r"(?:'(?:&&|\|\||&|\||\^|==|!=)'|prefix '[!~]'.*)$")
_FUNCTION = re.compile(r"(?:DeclRefExpr .* Function 0x[0-9a-f]+|UnresolvedLookupExpr .* =) '(\w+)'")
_TRANSPARENT = {"ParenExpr", "ImplicitCastExpr", "MaterializeTemporaryExpr", "ExprWithCleanups", "CXXBindTemporaryExpr"}
_TAKES_MASKS = {"all", "any", "select"}
_OPERATORS = ("BinaryOperator", "UnaryOperator")
_OF_INTEGERS = re.compile(r"'void \([^']*(?:\bvec<|ext_vector_type)")
_NODE = re.compile(r"^([ |`-]*)([A-Z]\w+) 0x[0-9a-f]+ (?:<(?:[^<>]|<[^<>]*>)*>)?(.*)$")
# The words of lines that may need more than a glance (conversions.py).
WORDS = r"ext_vector_type|CXXConstructExpr .*bools<"
REFUSED = (
    "comparing vectors gives a vector of bool, which the software device takes in all(), any() and select(), "
    "and where a bool2, bool3 or bool4 is wanted"
)
NOT_BY_ITSELF = "implicit conversion of a vector of integers to a vector of bool: write bool4(x)"


class Masks:
    """Looks at nodes of a dump (its lines) and at those around them."""

    def __init__(self, lines: list[str]):
        self._lines = lines

    def problem(self, index: int, kind: str, rest: str) -> str | None:
        """What is wrong with the node on this line, or None."""
        if kind in _OPERATORS and _MASK.match(rest) and not self._is_taken(index):
            return REFUSED
        if kind == "CXXConstructExpr" and "bools<" in rest and _OF_INTEGERS.search(rest):
            return None if self._holds_mask(index) else NOT_BY_ITSELF
        return None

    def _is_taken(self, index: int) -> bool:
        for line, kind, rest in self._ancestors(index):
            if kind == "CallExpr":
                return self._callee(line, index) in _TAKES_MASKS
            if kind == "CXXConstructExpr":
                return "bools<" in rest
            if not (kind in _OPERATORS and _COMBINES.search(rest)) and kind not in _TRANSPARENT:
                return False
        return False

    def _ancestors(self, index: int):
        """(line, kind, what it says) of the nodes that enclose the one on this line, the nearest first."""
        depth = self._depth(index)
        while depth and index:
            index -= 1
            if self._depth(index) < depth:
                depth = self._depth(index)
                if node := _NODE.match(self._lines[index]):
                    yield index, node[2], node[3]

    def _depth(self, index: int) -> int:
        line = self._lines[index]
        return len(line) - len(line.lstrip(" |`-"))

    def _callee(self, call: int, end: int) -> str | None:
        """The function that a call is of: the first that its nodes name."""
        return next((m[1] for m in map(_FUNCTION.search, self._lines[call + 1 : end]) if m), None)

    def _holds_mask(self, index: int) -> bool:
        for inner in range(index + 1, len(self._lines)):
            node = _NODE.match(self._lines[inner])
            if not node or node[2] not in _TRANSPARENT:
                return bool(node and node[2] in _OPERATORS and _MASK.match(node[3]))
        return False
