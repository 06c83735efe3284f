"""Implicit conversions that clang makes and Metal refuses: from and to bfloat, and between kinds of vectors.

They are read from clang's AST, template instantiations included. It comes as text: a tenth of
the JSON, and as regular.
"""

import re

from .diagnostics import SOURCE_NAME, CompileError, message, metal_types
from .masks import WORDS, Masks

_NODE = re.compile(
    r"^(?P<indent>[ |`-]*)(?P<node>[A-Z]\w+) 0x[0-9a-f]+ (?:(?:prev|parent) 0x[0-9a-f]+ )*"
    r"<(?P<range>(?:[^<>]|<[^<>]*>)*)>(?P<rest>.*)$"
)
_POSITION = re.compile(
    r"(?: *(?:line:(?P<newline>\d+):(?P<column1>\d+)|col:(?P<column2>\d+)|"
    r"(?P<file>[^<>,:]+):(?P<line>\d+):(?P<column3>\d+))|<[^<>]*>[:\d]*)"
)
_OWN_POSITION = re.compile(rf" {_POSITION.pattern} ")
_TYPE = re.compile(r"'([^']*)'(?::'([^']*)')?")
_COMPUTED = re.compile(r"ComputeLHSTy='([^']*)'(?::'([^']*)')?")
_VECTOR = re.compile(r"[a-z]+[234]")
_INTEGERS = {"bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"}
_ARITHMETIC = ("<FloatingCast>", "<IntegralToFloating>", "<FloatingToIntegral>", "<FloatingToBoolean>")
# Lines that can matter: those that tell a new line or file, and those that convert, compare or combine.
_OF_NOTE = re.compile(
    rf":\d+:\d|{WORDS}|<FloatingCast>|<IntegralToFloating>|<FloatingToIntegral>|<FloatingToBoolean>|<BitCast>|"
    "<AddressSpaceConversion>|CompoundAssignOperator"
)
_EXPLICIT = {"CStyleCastExpr", "CXXFunctionalCastExpr", "CXXStaticCastExpr", "CXXReinterpretCastExpr"}


class _Reader:
    """Where the dump is: it prints a file or line only when that changes."""

    def __init__(self):
        self.file, self.line, self.column = SOURCE_NAME, 1, 1

    def move(self, match: re.Match) -> tuple[str, int, int]:
        if match["file"]:
            self.file, self.line = match["file"].strip(), int(match["line"])
        elif match["newline"]:
            self.line = int(match["newline"])
        column = match["column1"] or match["column2"] or match["column3"]
        self.column = int(column) if column else self.column
        return self.file, self.line, self.column


def _type(text: str, pattern: re.Pattern = _TYPE) -> str:
    match = pattern.search(text)
    if not match:
        return ""
    return re.sub(
        r"\b(?:const|volatile|device|threadgroup|constant) ?\b", "", metal_types(match[2] or match[1])
    ).strip()


def _full_type(text: str) -> str:
    match = _TYPE.search(text)
    return metal_types(match[1]) if match else ""


def check_conversions(dump: str, house_rules: bool = True) -> None:
    """Raise CompileError, one line for each place, if the AST holds a conversion that Metal refuses.

    Public sources which Apple's compiler takes convert bfloat to float (PyTorch's) and to bool (MLX's masked products),
    and integers to bfloat (MLX's arange), implicitly, so Metal allows these. This project's rule for its own kernels is
    stricter, so that the type in which a kernel accumulates is always written out.
    """
    lines = dump.split("\n")
    reader, masks, errors = _Reader(), Masks(lines), {}
    outer = None  # the conversion on the line before: (file, line, its type, kind of cast)
    for index, text in enumerate(lines):
        if not outer and not _OF_NOTE.search(text):
            continue
        node = _NODE.match(text)
        if not node:
            continue
        places = [reader.move(position) for position in _POSITION.finditer(node["range"])]
        place = places[0] if places else (reader.file, reader.line, reader.column)
        rest = node["rest"]
        own = _OWN_POSITION.match(rest)
        if own:
            reader.move(own)
        if wrong := masks.problem(index, node["node"], rest):
            errors.setdefault(place, wrong)
        inner = _type(rest)
        if outer:
            problem = _problem(inner, outer[1], outer[2])
            if problem and (house_rules or not _metal_allows(inner, outer[1], outer[2])):
                errors.setdefault(outer[0], problem)
        outer = None
        if (
            node["node"] == "ImplicitCastExpr"
            and "part_of_explicit_cast" not in rest
            and any(kind in rest for kind in _ARITHMETIC)
        ):
            outer = (place, inner, "implicit")
        elif (node["node"] == "ImplicitCastExpr" or node["node"] in _EXPLICIT) and "<BitCast>" in rest:
            outer = (place, inner, "bits")
        elif node["node"] in _EXPLICIT and "<AddressSpaceConversion>" in rest:
            errors.setdefault(place, f"cast to '{_full_type(rest)}' converts between mismatching address spaces")
        elif node["node"] == "CompoundAssignOperator":
            computed = _type(rest, _COMPUTED)
            if ("bfloat" in inner) != ("bfloat" in computed):
                errors.setdefault(place, _refused(computed, inner))
    own_errors = [
        message(line, text, column) for (file, line, column), text in sorted(errors.items()) if file == SOURCE_NAME
    ]
    if own_errors:
        raise CompileError("\n".join(own_errors))


def _problem(source: str, target: str, kind: str) -> str | None:
    if kind == "implicit":
        return _refused(source, target) if ("bfloat" in source) != ("bfloat" in target) else None
    if not (_VECTOR.fullmatch(source) or _VECTOR.fullmatch(target)):
        return None
    return (
        f"conversion from '{source}' to '{target}' would reinterpret the bits of a vector: "
        "write it as a call, float4(x), or use as_type"
    )


def _metal_allows(source: str, target: str, kind: str) -> bool:
    own = (source == "bfloat" and target in ("float", "bool")) or (source in _INTEGERS and target == "bfloat")
    return kind == "implicit" and own


def _refused(source: str, target: str) -> str:
    name = target if target.isidentifier() else "T"
    return f"implicit conversion from '{source}' to '{target}' is not allowed in Metal: write {name}(x)"
