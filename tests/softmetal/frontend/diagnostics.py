"""The front end's error, worded as Metal's compiler words it: program_source:LINE:COLUMN: error: ..."""

import re

SOURCE_NAME = "program_source"
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+):(?:(?:\{[\d:-]+\})*:)? "
    r"(?P<kind>fatal error|error|note|warning): (?P<text>.*)$"
)


class CompileError(Exception):
    """The source is not valid Metal. The text lists one diagnostic a line, errors first seen first."""


def message(line: int, text: str, column: int = 1) -> str:
    return f"{SOURCE_NAME}:{line}:{column}: error: {text}"


_SPACES = (("1", "device"), ("3", "threadgroup"), ("4", "constant"))
_ELEMENTS = (
    ("unsigned char", "uchar"),
    ("unsigned short", "ushort"),
    ("unsigned int", "uint"),
    ("unsigned long", "ulong"),
)


def metal_types(text: str) -> str:
    """Clang's names of types as Metal names them: vectors, address spaces, half, bfloat."""
    for number, word in _SPACES:
        text = text.replace(f"__attribute__((address_space({number})))", word)
    text = text.replace("_Float16", "half").replace("__bf16", "bfloat")
    for long, short in _ELEMENTS:
        text = text.replace(long, short)
    # "float device * __attribute__((ext_vector_type(4)))" is clang's way to say "device float4 *"
    text = re.sub(r"\b(\w+)((?: const)?(?: \w+)? [*&]) ?__attribute__\(\(ext_vector_type\((\d)\)\)\)", r"\1\3\2", text)
    text = re.sub(r"\b(\w+) __attribute__\(\(ext_vector_type\((\d)\)\)\)", r"\1\2", text)
    text = re.sub(r"\b(\w+)( const)? (device|threadgroup|constant) ([*&])", r"\2 \3 \1 \4", text).strip()
    text = re.sub(r"\b(?:msl::)?bools<(\d)>", r"bool\1", text)
    text = re.sub(r"(?:metal::)?packed_vec<(\w+), (\d)>", r"packed_\1\2", text)
    text = re.sub(r"\bmetal::(?=atomic<|simdgroup_matrix<)", "", text)
    return text.replace("const constant", "constant").replace("  ", " ")


def _readable(text: str) -> str:
    """Clang's words for what this front end made of Metal's words, turned back."""
    for number, word in _SPACES:
        text = re.sub(rf"address space '{number}'", f"address space '{word}'", text)
    text = text.replace("generic address space", "address space 'thread'")
    return metal_types(text.replace("msl_user::", ""))


def error_lines(output: str) -> set[int]:
    """Lines of the source in which clang found errors, or to which an error in the library leads."""
    return {int(place["line"]) for _, place, _ in _placed(output) if place["file"] == SOURCE_NAME}


def from_clang(output: str, source: str, lines: set[int] | None = None) -> str:
    """Clang's diagnostics (those in `lines`, if any are) with the user's own line below each."""
    placed = _placed(output)
    chosen = [p for p in placed if int(p[1]["line"]) in lines] if lines else []
    text = [
        line for error, place, notes in chosen or placed for line in _explained(error, place, notes, source.split("\n"))
    ]
    return "\n".join(text) if text else _readable(output.strip())


def _placed(output: str) -> list[tuple[re.Match, re.Match, list[re.Match]]]:
    """(error, where it is, its notes in the source). An error inside the library is at the call that led to it."""
    diagnostics = [m for m in map(_DIAGNOSTIC.match, output.split("\n")) if m and m["kind"] != "warning"]
    # An entry's own troubles only repeat what is wrong with its kernel.
    generated = {(m["line"], m["column"]) for m in diagnostics if "msl_type" in m["text"]}
    diagnostics = [m for m in diagnostics if (m["line"], m["column"]) not in generated] or diagnostics
    result: list[tuple[re.Match, re.Match, list[re.Match]]] = []
    for diagnostic in diagnostics:
        if diagnostic["kind"] != "note":
            result.append((diagnostic, diagnostic, []))
        elif result and diagnostic["file"] == SOURCE_NAME:
            error, place, notes = result[-1]
            notes.append(diagnostic)
            if place["file"] != SOURCE_NAME:
                result[-1] = (error, diagnostic, notes)
    return result


def _explained(error: re.Match, place: re.Match, notes: list[re.Match], lines: list[str]) -> list[str]:
    text = _shown(place, error["kind"], error["text"], lines)
    for note in notes:
        if note is not place:
            text += _shown(note, "note", note["text"], lines)
    return text


def _shown(place: re.Match, kind: str, text: str, lines: list[str]) -> list[str]:
    text = re.sub(r" \[-Werror.*\]$", "", text)
    text = re.sub(r"^static assertion failed due to requirement '.*?msl::.*?': ", "", text)  # the library's own
    number = int(place["line"])
    name = SOURCE_NAME if place["file"] == SOURCE_NAME else "<metal_stdlib>"
    shown = [f"{name}:{number}:{place['column']}: {kind}: {_readable(text)}"]
    if name == SOURCE_NAME and 0 < number <= len(lines):
        shown.append("    " + lines[number - 1].strip())
    return shown
