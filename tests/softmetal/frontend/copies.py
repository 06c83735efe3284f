"""Copies of structures out of and into device, constant and threadgroup memory: Metal has them, C++ has not.

clang refuses `S s = p[i];` and `p[i] = s;` for a structure S in another address space, and says exactly where. Those
expressions become msl::load(p[i]) and msl::store(p[i], s), and the text is compiled again; whatever else clang refuses
stays refused.
"""

import re

_DIAGNOSTIC = re.compile(
    r"^[^:\n]+:\d+:\d+:(?:(?P<ranges>(?:\{[\d:-]+\})*):)? (?P<kind>error|note|fatal error|warning): (?P<text>.*)$"
)
_RANGE = re.compile(r"\{(\d+):(\d+)-(\d+):(\d+)\}")
_SPACED = r"'(?:const )?(?:device|threadgroup|constant|(?:const )?__attribute__\(\(address_space\(\d\)\)\)) "
_IMPLICIT = re.compile(
    rf"no viable conversion from {_SPACED}|"
    rf"assigning to '[^']*' from incompatible type {_SPACED}[^'*]*'|"
    "no matching (?:conversion for functional-style cast|constructor for initialization)"
)
_OPERANDS = re.compile(
    rf"incompatible operand types \(|invalid operands to binary expression \(.*{_SPACED}|"
    "cannot convert between vector and non-scalar values"
)
_BUILT_IN = re.compile(
    rf"{_SPACED}(?:bool|u?char|u?short|u?int|u?long|unsigned \w+|float|half|bfloat|_Float16|__bf16)'"
)
ROUNDS = 12  # an expression in an expression takes one more


def spell_copies(text: str, diagnostics: str) -> str | None:
    """The text with the refused copies spelled out, or None if no error is about such a copy."""
    edits: list[tuple[int, int, str, str, tuple[int, int] | None]] = []
    for error, notes in errors(diagnostics):
        ranges = offsets(text, error)
        this = any("'this' object is in address space" in note for note in notes)
        spaced = this or any("in address space" in note for note in notes)
        if error["text"].startswith("no viable overloaded '='") and len(ranges) == 2 and spaced:
            (start, left), (right, end) = ranges
            if this and text[left:right].strip() == "=":
                edits.append((start, end, "msl::store(", ")", (left, right)))
            elif not this:
                edits.append((right, end, "msl::load(", ")", None))
        elif _IMPLICIT.match(error["text"]) and ranges and (spaced or re.search(_SPACED, error["text"])):
            edits.append((*ranges[-1], "msl::load(", ")", None))
        elif _OPERANDS.match(error["text"]) and not _BUILT_IN.search(error["text"]):
            edits += [(*r, "msl::load(", ")", None) for r in ranges]
    return _apply(text, edits) if edits else None


def errors(diagnostics: str) -> list[tuple[re.Match, list[str]]]:
    """(error, texts of its notes) for each error."""
    found: list[tuple[re.Match, list[str]]] = []
    for match in filter(None, map(_DIAGNOSTIC.match, diagnostics.split("\n"))):
        if match["kind"] == "error":
            found.append((match, []))
        elif match["kind"] == "note" and found:
            found[-1][1].append(match["text"])
    return found


def offsets(text: str, error: re.Match) -> list[tuple[int, int]]:
    """The ranges of an error, as offsets in the text."""
    lines, found = text.split("\n"), []
    for first, column, last, end in (map(int, numbers) for numbers in _RANGE.findall(error["ranges"] or "")):
        before = sum(len(line) + 1 for line in lines[: first - 1])
        between = sum(len(line) + 1 for line in lines[first - 1 : last - 1])
        found.append((before + column - 1, before + between + end - 1))
    return found


def _apply(text: str, edits) -> str:
    """Edits that do not overlap, the innermost first; the others are found again in the next round."""
    taken: list[tuple[int, int, str, str, tuple[int, int] | None]] = []
    for edit in sorted(set(edits), key=lambda e: (e[1] - e[0], e[0])):
        if not text[edit[0] : edit[1]].startswith("msl::load(") and all(
            edit[1] <= t[0] or edit[0] >= t[1] for t in taken
        ):
            taken.append(edit)
    for start, end, before, after, comma in sorted(taken, reverse=True):
        inner = text[start:end]
        if comma:
            left, right = comma
            newlines = "".join(c for c in text[left:right] if c == "\n")
            inner = f"{text[start:left]}, {newlines}{text[right:end]}"
        text = text[:start] + before + inner + after + text[end:]
    return text
