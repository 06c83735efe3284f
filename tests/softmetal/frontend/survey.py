"""How much of a body of Metal source the front end reads: every .metal file below some folders, and why one is refused.

    python -m softmetal.frontend --survey mlx/backend/metal/kernels -I .
    python -m softmetal.frontend --survey aten/src/ATen/native/mps/kernels

Such files are written for a build that has include paths, which compile_shader has not: what they include from their
own folder and from the roots is put in its place first. This project's own rules
(house_rules of `compile`) are not theirs. Nothing is linked or run.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import compiler
from .diagnostics import CompileError
from .toolchain import ToolchainError

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"(?P<quoted>[^"]+)"|<(?P<angled>[^>]+)>)')
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b")
_PLACE = re.compile(r"^program_source:(\d+):", re.M)


@dataclass
class Result:
    """What became of one file: how many kernels it has, or the front end's first complaint (file:line in its place)."""

    path: Path
    kernels: int
    problem: str | None = None


class Flat:
    """A source with everything that it includes from `roots` in its place; `text`, and where each line came from.

    A file with `#pragma once` is put in once; every other one wherever it is included, but not into itself.
    """

    def __init__(self, path: Path, roots: Sequence[Path]):
        self._roots = roots
        self._once: set[Path] = set()
        self._open: list[Path] = []
        self._lines: list[str] = []
        self.places: list[tuple[Path, int]] = []
        self._add(path)
        self.text = "\n".join(self._lines) + "\n"

    def _add(self, path: Path) -> None:
        # Comments may hold any character in Metal; this front end's own rule of ASCII is for kernels of its users.
        text = path.read_text(encoding="utf-8", errors="replace").encode("ascii", errors="replace").decode()
        self._open.append(path)
        for number, line in enumerate(text.split("\n"), 1):
            found = _INCLUDE.match(line)
            inner = self._find(found["quoted"] or found["angled"], path, bool(found["quoted"])) if found else None
            if _ONCE.match(line):
                self._once.add(path)
                line = ""
            if inner is None:
                self._lines.append(line)
                self.places.append((path, number))
            elif inner not in self._once and inner not in self._open:
                self._add(inner)
        self._open.pop()

    def _find(self, name: str, includer: Path, beside: bool) -> Path | None:
        folders = [includer.parent, *self._roots] if beside else self._roots
        return next((p.resolve() for p in (folder / name for folder in folders) if p.is_file()), None)

    def placed(self, text: str) -> str:
        """Diagnostics with the files' own names and lines."""

        def place(match: re.Match) -> str:
            number = int(match[1])
            path, line = self.places[min(max(number, 1), len(self.places)) - 1]
            return f"{path.name}:{line}:"

        return _PLACE.sub(place, text)


def files(folders: Iterable[Path]) -> list[Path]:
    """Every .metal file below the folders (or a file that is named itself), in the order of their names."""
    found = (p for folder in folders for p in ([folder] if folder.is_file() else folder.rglob("*.metal")))
    return sorted({p.resolve() for p in found})


def read(path: Path, roots: Sequence[Path]) -> Result:
    """One file through everything that judges a source."""
    flat = Flat(path, roots)
    try:
        return Result(path, len(compiler.check(flat.text, house_rules=False)))
    except (CompileError, ToolchainError) as error:
        return Result(path, 0, flat.placed(str(error)))


def report(folders: Sequence[Path], roots: Sequence[Path]) -> int:
    """Print a line a file, then the share. Returns how many were refused."""
    results = []
    for path in files(folders):
        results.append(result := read(path, [root.resolve() for root in roots]))
        shown = f"{result.kernels} kernels" if result.problem is None else _first_line(result.problem)
        print(f"{'ok' if result.problem is None else 'REFUSED':<8}{path.name}: {shown}", flush=True)
    refused = sum(result.problem is not None for result in results)
    kernels = sum(result.kernels for result in results)
    print(f"{len(results) - refused} of {len(results)} files compile, {kernels} kernels")
    return refused


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
