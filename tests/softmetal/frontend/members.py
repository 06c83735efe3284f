"""Members that Metal's types have and the library's have not, spelled as it has them.

The elements of an array or a vector of bool and the columns of a matrix in whatever address space it lies (a[i] is
a.msl_elements[i], m[i] is m.msl_columns[i], b[i] is msl::elements(b)[i]), the colours and swizzles of a vector of
bool (b.r is b.x, b.yx is (msl::swizzle<1, 0>(b))), and its compound assignments outside the thread's own memory. clang
refuses all of them and says where; then the text is compiled again.
"""

import re

from .copies import errors, offsets
from .initialisers import apart

_COMPONENTS = re.compile(r"no member named '(?P<names>[xyzw]{1,4}|[rgba]{1,4})' in 'msl::bools<\d>'")
_SUBSCRIPT = re.compile(r"type '.*\b(array|matrix)<.* does not provide a subscript operator")
_BOOL_SUBSCRIPT = re.compile(r"no viable overloaded operator\[\] for type '.*\bmsl::bools<\d>'\)?$")
_BOOL_COMPOUND = re.compile(r"no viable overloaded '(?P<operator>[|&^])='")
_INSIDE = {"array": ".msl_elements", "matrix": ".msl_columns"}
_ASSIGNMENT = re.compile(r"\s*([|&^]?)=(?!=)")
_MEMBER = re.compile(r"\s*(?P<access>\.|->)\s*(?P<names>[xyzwrgba]+)\b")


def spell_members(text: str, diagnostics: str) -> str | None:
    """The text with the refused members spelled out, or None if no error is about one."""
    edits: set[tuple[int, int, str]] = set()  # from, to, what stands there then
    for error, notes in errors(diagnostics):
        ranges = offsets(text, error) if error["ranges"] else []
        if not ranges:
            continue
        start, end = ranges[0]
        if subscript := _SUBSCRIPT.match(error["text"]):
            edits.add((end, end, _INSIDE[subscript[1]]))
        elif _COMPONENTS.match(error["text"]) and (member := _MEMBER.match(text, end)):
            edits.add(_components(text, start, end, member))
        elif _BOOL_SUBSCRIPT.match(error["text"]):
            edits.add((start, end, f"msl::elements({text[start:end]})"))
        elif (compound := _BOOL_COMPOUND.match(error["text"])) and any("'this' object" in note for note in notes):
            value = text[slice(*ranges[1])]
            edits.add((start, ranges[1][1], f"msl::combine({text[start:end]}, {value}, MSL_OPERATOR({compound[1]}))"))
    for start, end, spelling in apart(edits):
        text = text[:start] + spelling + text[end:]
    return text if edits else None


def _components(text: str, start: int, end: int, member: re.Match) -> tuple[int, int, str]:
    """One component by its colour, or several: read, or assigned."""
    indices = ["xyzwrgba".index(name) % 4 for name in member["names"]]
    if len(indices) == 1:
        return member.start("names"), member.end("names"), "xyzw"[indices[0]]
    vector = f"*({text[start:end]})" if member["access"] == "->" else text[start:end]
    chosen = f"<{', '.join(map(str, indices))}>({vector}"
    assignment = _ASSIGNMENT.match(text, member.end())
    if not assignment:
        return start, member.end(), f"(msl::swizzle{chosen}))"
    stop, depth = assignment.end(), 0
    while depth or text[stop] not in ";,)":
        depth += (text[stop] in "({[") - (text[stop] in ")}]")
        stop += 1
    value = text[assignment.end() : stop].strip()
    if assignment[1]:
        value = f"(msl::swizzle{chosen})) {assignment[1]} ({value})"
    return start, stop, f"(msl::set_swizzle{chosen}, {value}))"
