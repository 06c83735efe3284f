"""How much of a body of Metal source the front end takes: every .metal file below some folders, and why one is refused.

    python -m softmetal.frontend --survey mlx/backend/metal/kernels -I . --build
    python -m softmetal.frontend --survey aten/src/ATen/native/mps/kernels --build

Such files are written for a build that has include paths, which compile_shader has not: what they include from their
own folder and from the roots is put in its place first. This project's own rules (house_rules of `compile`) are not
theirs. A file counts as read when every kernel in it, each instantiation of a template included, has gone through all
that judges a source: preprocessor, translation, clang to intermediate code, reflection, conversions. With --build it
counts when it also went, with every memory check, through optimiser, code generator and linker and was loaded; of each
kernel template the first instantiation only, as files with thousands of them would take hours. Nothing is run.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .. import runtime
from . import compiler
from .diagnostics import CompileError
from .toolchain import ToolchainError

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"(?P<quoted>[^"]+)"|<(?P<angled>[^>]+)>)')
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b")
_PLACE = re.compile(r"^program_source:(\d+):", re.M)


@dataclass
class Result:
    """What became of one file: kernels read and built, those read that want more threadgroup memory than there is, the
    seconds that each step took, or the first complaint (file:line in its place)."""

    path: Path
    kernels: int = 0
    built: int = 0
    too_large: int = 0
    problem: str | None = None
    reading: float = 0.0
    building: float = 0.0

    def __str__(self) -> str:
        seconds = f"{self.reading:.0f} s" + (f" + {self.building:.0f} s" if self.building else "")
        if self.problem is not None:
            return f"REFUSED {self.path.name} [{seconds}]: {self.problem.split(chr(10), 1)[0]}"
        built = f", {self.built} built and loaded" if self.built else ""
        limit = f"{compiler.MAX_THREADGROUP_BYTES // 1024} KiB of threadgroup memory"
        large = f", {self.too_large} want over {limit}, which no pipeline has" if self.too_large else ""
        return f"ok      {self.path.name} [{seconds}]: {self.kernels} kernels{built}{large}"


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


def read(path: Path, roots: Sequence[Path], build: bool = False) -> Result:
    """One file through everything that judges a source and, if it is to be built, to a loaded library."""
    flat, result = Flat(path, roots), Result(path)
    start = time.monotonic()
    try:
        kernels = compiler.check(flat.text, house_rules=False)
        result.kernels = len(kernels)
        result.too_large = sum(kernel.threadgroup_bytes > compiler.MAX_THREADGROUP_BYTES for kernel in kernels)
        result.reading = time.monotonic() - start
        if build:
            result.built = _loaded(flat.text)
            result.building = time.monotonic() - start - result.reading
    except (CompileError, ToolchainError) as error:
        result.problem = flat.placed(str(error))
    return result


def _loaded(source: str) -> int:
    """Build a sample of the source's kernels and load it: how many there are."""
    runtime.load()
    with tempfile.TemporaryDirectory(prefix="softmetal-") as folder:
        library = compiler.sample(source, Path(folder), house_rules=False)
        try:
            loaded = ctypes.CDLL(str(library.path), mode=os.RTLD_NOW)
            entries = [getattr(loaded, kernel.symbol) for kernel in library.kernels.values()]
        except (OSError, AttributeError) as error:
            raise ToolchainError(f"the library does not load: {error}") from error
    return len(entries)


def read_within(path: Path, roots: Sequence[Path], build: bool, limit: float) -> Result:
    """`read` in a process of its own, stopped with all that it started after `limit` seconds."""
    packages = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([packages, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", __spec__.name, json.dumps([str(path), [str(root) for root in roots], build])]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Result(path, problem=f"no result within {limit:.0f} s")
    if process.returncode:
        return Result(path, problem=f"the front end itself failed, exit status {process.returncode}")
    return Result(path, **json.loads(output))


def report(folders: Sequence[Path], roots: Sequence[Path], build: bool, limit: float, jobs: int) -> int:
    """Print a line a file, then the share. Returns how many were refused."""
    roots, results = [root.resolve() for root in roots], []
    with ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(lambda path: read_within(path, roots, build, limit), files(folders)):
            results.append(result)
            print(result, flush=True)
    refused = sum(result.problem is not None for result in results)
    kernels, built = sum(result.kernels for result in results), sum(result.built for result in results)
    compiled = f"; {built} of them, one of each template, compiled with all checks and loaded" if build else ""
    print(f"{len(results) - refused} of {len(results)} files, {kernels} kernels read{compiled}")
    return refused


if __name__ == "__main__":
    _path, _roots, _build = json.loads(sys.argv[1])
    _result = read(Path(_path), [Path(root) for root in _roots], _build)
    print(json.dumps({name: value for name, value in vars(_result).items() if name != "path"}))
