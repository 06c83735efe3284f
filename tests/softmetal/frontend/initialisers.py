"""Initialisers that Metal takes and clang does not: found where clang refuses them; then the text is compiled again.

f({x, y}) for a vector parameter is f(float2{x, y}); float2 v(x, y) is float2 v = float2(x, y); a structure of another
address space that is passed by value is copied first (copies.py). A constant of the program with a constructor, which
clang does not call for an object in constant memory, becomes a constant expression outside of it: its value is the
same, and taking its address as a `constant` pointer is refused.
"""

import re

from .copies import errors, offsets
from .diagnostics import metal_types

_NO_FUNCTION = re.compile(r"no matching (?:member )?function for call to|no matching constructor for initialization")
_LIST_FOR = re.compile(
    r"cannot convert initializer list argument to '[^']*'(?: \(aka '(?:const )?metal::vec<([\w ]+), (\d)>'\))"
)
_NO_CONSTRUCTOR = re.compile(
    r"no matching constructor for initialization of 'const __attribute__\(\(address_space\(4\)\)\) |"
    r"no matching constructor for initialization of 'constant "
)


_EXCESS = re.compile(r"excess elements in scalar initializer")
_SPACED_ARGUMENT = re.compile(
    r"no known conversion from '(?P<type>[^'*\[]*\b(?:device|threadgroup|constant|address_space\(\d\)\)\)) ?[^'*\[]*)' "
    r"(?:\(aka '[^']*'\) )?to .* for (?P<number>\d+)\w\w argument"
)
_BUILT_IN = re.compile(r"\b(?:bool|char|short|int|long|float|half|bfloat|_Float16|__bf16)\b(?! ?[>,])")
_CONSTANT_MEMBER = re.compile(
    r"\bstatic (?:constexpr constant|constant constexpr) "
    r"(?!(?:bool|u?char|u?short|u?int|u?long|float|half|bfloat|unsigned)\b)(?=[\w:<>, ]+ \w+ ?[={])"
)


def spell_initialisers(text: str, diagnostics: str) -> str | None:
    """The text with the refused initialisers spelled out, or None if no error is about one."""
    edits: set[tuple[int, int, str]] = set()  # from, to, what stands there then
    for error, notes in errors(diagnostics):
        ranges = offsets(text, error) if error["ranges"] else []
        if not ranges:
            continue
        if _NO_CONSTRUCTOR.match(error["text"]):
            edits |= _as_expression(text, ranges[0][0])
            edits |= {(m.start(), m.end(), "static constexpr const ") for m in _CONSTANT_MEMBER.finditer(text)}
        elif _EXCESS.match(error["text"]):
            edits |= _as_call(text, ranges[0][0])
        elif _NO_FUNCTION.match(error["text"]):
            kinds = {(metal_types(m[1]), int(m[2])) for m in map(_LIST_FOR.search, notes) if m}
            spaced = [m for m in map(_SPACED_ARGUMENT.search, notes) if m and not _BUILT_IN.search(m["type"])]
            arguments = _arguments(text, ranges[0][1])
            edits |= _typed_lists(text, arguments, kinds)
            edits |= _loaded(text, arguments, {int(m["number"]) for m in spaced})
    for start, end, spelling in apart(edits):
        text = text[:start] + spelling + text[end:]
    return text if edits else None


def apart(edits: set[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """From the last to the first; of those that overlap one, the others being found again in the next round."""
    taken: list[tuple[int, int, str]] = []
    for edit in sorted(edits, reverse=True):
        if not taken or edit[1] <= taken[-1][0]:
            taken.append(edit)
    return taken


def _as_expression(text: str, inside: int) -> set[tuple[int, int, str]]:
    """The declaration round this place, `constant` made `constexpr const`."""
    start = max(text.rfind(mark, 0, inside) for mark in ";{}\n") + 1
    word = re.search(r"\bconstant\b", text[start:inside])
    if not word or "static" in text[start:inside]:
        return set()
    spelling = "const" if re.search(r"\bconstexpr\b", text[start:inside]) else "constexpr const"
    return {(start + word.start(), start + word.end(), spelling)}


def _as_call(text: str, inside: int) -> set[tuple[int, int, str]]:
    """`const int2 at(0, row);`: the arguments of a vector's declaration as a conversion."""
    opening, depth = inside, 1
    while depth and opening and text[opening - 1] not in ";{}":
        opening -= 1
        depth += (text[opening] == ")") - (text[opening] == "(")
    found = re.search(r"\b(\w+)\s*\Z", text[max(opening - 400, 0) : opening])
    if depth or not found:
        return set()
    end = max(opening - 400, 0) + found.end(1)
    return {(end, end, f" = msl::make<msl::plain<decltype({found[1]})>>")}


def _arguments(text: str, after: int) -> list[tuple[int, int]]:
    """Where the arguments of the call stand whose parenthesis opens at or after this place."""
    at, depth, found = text.find("(", after), 0, []
    if at < 0 or text[after:at].strip():
        return []
    start = at + 1
    for index in range(at, len(text)):
        character = text[index]
        depth += (character in "({[") - (character in ")}]")
        if depth == 0 or (depth == 1 and character == ","):
            found.append((start, index))
            start = index + 1
        if depth == 0:
            break
    return [(end - len(text[start:end].lstrip()), end) for start, end in found]


def _typed_lists(text: str, arguments: list[tuple[int, int]], kinds: set[tuple[str, int]]) -> set[tuple[int, int, str]]:
    lists = [(start, end) for start, end in arguments if text[start:end].startswith("{")]
    return {
        (start, start, f"{element}{count}")
        for start, end in lists
        for element, count in kinds
        if len(_arguments("(" + text[start + 1 : end].rstrip()[:-1] + ")", 0)) == count
    }


def _loaded(text: str, arguments: list[tuple[int, int]], numbers: set[int]) -> set[tuple[int, int, str]]:
    """Structures in device, constant or threadgroup memory that are passed by value."""
    chosen = [arguments[number - 1] for number in numbers if number <= len(arguments)]
    return {(a, b, f"msl::load({text[a:b]})") for a, b in chosen if not text[a:b].startswith("msl::load(")}
