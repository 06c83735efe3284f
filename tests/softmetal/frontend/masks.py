"""Vectors of truth values. Metal compares vectors to vectors of bool; clang to masks of integers, minus one for true.

Both mean the same to all(), any() and select(). Anywhere else a mask would be another number than Metal's, and is
refused.
"""

import re

_MASK = re.compile(
    r"^ '[^']*(?:ext_vector_type[^']*)'(?::'[^']*')? (?:'(?:<|>|<=|>=|==|!=|&&|\|\|)'|prefix '!'.*)$|"
    r"^ '[^']*'(?::'[^']*ext_vector_type[^']*') (?:'(?:<|>|<=|>=|==|!=|&&|\|\|)'|prefix '!'.*)$"
)
_COMBINES = re.compile(r"(?:'(?:&&|\|\||&|\||\^|==|!=)'|prefix '[!~]'.*)$")
_FUNCTION = re.compile(r" Function 0x[0-9a-f]+ '(\w+)'")
_TRANSPARENT = {"ParenExpr", "ImplicitCastExpr", "MaterializeTemporaryExpr", "ExprWithCleanups"}
_TAKES_MASKS = {"all", "any", "select"}
REFUSED = "comparing vectors gives a vector of bool, which the software device takes in all(), any() and select() only"


class Masks:
    """Follows the nodes of a dump in order; `misused` says whether the newest is a mask that goes anywhere else."""

    def __init__(self):
        self._path: list[tuple[int, str, str]] = []  # depth, kind, what it says: the nodes that enclose the newest
        self._callee: dict[int, str] = {}  # depth of a call -> the function's name

    def misused(self, depth: int, kind: str, rest: str) -> bool:
        while self._path and self._path[-1][0] >= depth:
            self._callee.pop(self._path.pop()[0], None)
        if kind == "DeclRefExpr":
            self._note_callee(rest)
        wrong = kind in ("BinaryOperator", "UnaryOperator") and bool(_MASK.match(rest)) and not self._is_taken()
        self._path.append((depth, kind, rest))
        return wrong

    def _note_callee(self, rest: str) -> None:
        function = _FUNCTION.search(rest)
        call = next((node for node in reversed(self._path) if node[1] not in _TRANSPARENT), None)
        if function and call and call[1] == "CallExpr":
            self._callee.setdefault(call[0], function[1])

    def _is_taken(self) -> bool:
        for depth, kind, rest in reversed(self._path):
            if kind == "CallExpr":
                return self._callee.get(depth) in _TAKES_MASKS
            combines = kind in ("BinaryOperator", "UnaryOperator") and _COMBINES.search(rest)
            if not combines and kind not in _TRANSPARENT:
                return False
        return False
