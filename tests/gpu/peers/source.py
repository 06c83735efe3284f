"""A peer's source made fit to be compiled: what it includes in its place, of its kernels those that are measured, and
function constants given as their host code gives them."""

from __future__ import annotations

import hashlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from softmetal.frontend import CompileError, toolchain
from softmetal.frontend.survey import Flat

_INSTANTIATION = re.compile(r'\btemplate\s*\[\[\s*host_name\(((?:\s*"[^"]*")+)\s*\)\s*\]\][^;]*;')
_CONSTANT = re.compile(r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\(\s*(\w+)\s*\)\s*\]\]\s*;")
_CONDITION = re.compile(r",\s*function_constant\(\s*\w+\s*\)(?=\s*\]\])")
# The front end compiles a source in a namespace of its own, where the global one has metal and nothing of the source's.
_GLOBAL = re.compile(r"(?<![\w>:)\]])::(?!metal\b)(?=\w)")
_MARKER = re.compile(r"^#(?: \d+|pragma METAL)[^\n]*$", re.M)


class Folder:
    """A checkout, or a part of one. `kernels`: where below it the .metal files may be."""

    def __init__(self, path: Path, kernels: tuple[str, ...]):
        self.path = path.resolve()
        found = [self.path / place for place in kernels if (self.path / place).is_dir()]
        if not found:
            raise FileNotFoundError(f"{path} has none of {', '.join(kernels)}: it is no folder of this peer's sources")
        self.kernels = found[0]
        # What an include may be relative to: every folder between the kernels and the checkout, and the one above it.
        between = [self.kernels, *self.kernels.parents]
        self.roots = between[: between.index(self.path) + 2]

    def flat(self, source: Source) -> str:
        """source.text, or the file that it names, with everything included from this folder in its place."""
        if source.text is None:
            return Flat(self.kernels / source.file, self.roots).text
        with tempfile.TemporaryDirectory(prefix="gpu-peers-") as scratch:
            path = Path(scratch) / source.file
            path.write_text(source.text)
            return Flat(path, self.roots).text


@dataclass(frozen=True)
class Source:
    """A file of a peer's, with the values of its function constants by their index; text: instead of the file's."""

    file: str
    constants: tuple[tuple[int, str], ...] = ()
    text: str | None = None

    def digest(self, peer: str) -> str:
        return hashlib.sha256(repr((peer, self)).encode()).hexdigest()[:16]


def prepare(folder: Folder, source: Source, wanted: set[str]) -> str:
    """The text to compile, with the kernels of these host names and no others. Raises KeyError if one is not there."""
    made = toolchain.preprocess(folder.flat(source))
    if made.returncode:
        raise CompileError(f"{source.file}: {made.stderr}")
    found: set[str] = set()

    def keep(match: re.Match) -> str:
        name = "".join(re.findall(r'"([^"]*)"', match[1]))
        if name not in wanted or name in found:
            return ""
        found.add(name)
        return match[0]

    text = _INSTANTIATION.sub(keep, _GLOBAL.sub("", _MARKER.sub("", made.stdout)))
    if wanted - found:
        raise KeyError(f"{source.file} has no kernel {', '.join(sorted(wanted - found))}")
    values = {str(index): value for index, value in source.constants}

    def given(match: re.Match) -> str:
        return f"constant constexpr {match[1]} {match[2]} = {values[match[3]]};" if match[3] in values else match[0]

    return "#include <metal_stdlib>\n" + _CONDITION.sub("", _CONSTANT.sub(given, text))
