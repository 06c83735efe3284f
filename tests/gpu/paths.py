"""Which lines of the families' host code a set of recorded calls goes through: what the sanitizer then has seen.

A path is a statement of a function that can lead to a launch. Statements that raise lead to none.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    "pad/host.py", "pad/geometry.py", "softmax/host.py", "softmax/geometry.py", "linear/host.py", "linear/geometry.py",
    "grouped_mm/host.py", "grouped_mm/geometry.py", "grouped_mm/routing.py", "fp8/cast.py", "fp8/linear.py",
    "fp8/quantize.py", "fp8/scaled_mm.py",
)  # fmt: skip


class Executed:
    """Lines by file, while watching() is open."""

    def __init__(self, root: Path):
        self._files = {str(root / module): module for module in MODULES}
        self.lines: dict[str, set[int]] = {module: set() for module in MODULES}
        self._caches: list = []

    def _forget(self) -> None:
        """What the modules keep of earlier calls: a plan that is remembered goes through no line."""
        if not self._caches:
            modules = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) in self._files]
            self._caches = [v for m in modules for v in vars(m).values() if hasattr(v, "cache_clear")]
        for cache in self._caches:
            cache.cache_clear()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._forget()
        before = sys.gettrace()

        def trace(frame, event, argument):
            module = self._files.get(frame.f_code.co_filename)
            if module is None:
                return None
            lines = self.lines[module]

            def line(frame, event, argument):
                lines.add(frame.f_lineno)
                return line

            lines.add(frame.f_lineno)
            return line

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def statements(path: Path) -> dict[str, list[tuple[int, range]]]:
    """function -> (line, the lines of which one is noted when it runs) of its statements, without docstrings, raises
    and what only leads to one."""
    found: dict[str, list] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = list(_statements(node.body))
    return found


def _statements(body: list[ast.stmt]) -> Iterator[tuple[int, range]]:
    for node in body:
        documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if documents or isinstance(node, ast.Raise | ast.FunctionDef | ast.Pass):
            continue
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "handlers", "finalbody")]
        inner = [item for block in blocks if isinstance(block, list) for item in block if isinstance(item, ast.stmt)]
        end = inner[0].lineno if inner else node.end_lineno + 1
        yield node.lineno, range(node.lineno, max(end, node.lineno + 1))
        yield from _statements(inner)


def missed(root: Path, executed: Executed, outside: dict[str, str]) -> list[str]:
    """ "fp8/cast.py copy_: return self" for every statement that was not run. outside: what launches nothing, as
    "module function" or "module function: first line of the statement", with the reason."""
    gaps = []
    for module in MODULES:
        text = (root / module).read_text().splitlines()
        for function, found in statements(root / module).items():
            for line, noted in found:
                what = f"{module} {function}: {text[line - 1].strip()}"
                if f"{module} {function}" in outside or what in outside or executed.lines[module] & set(noted):
                    continue
                gaps.append(what)
    return gaps
