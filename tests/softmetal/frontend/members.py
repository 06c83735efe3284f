"""Members that Metal's types have and clang's have not, spelled as clang has them.

The components of a vector of bool (b.x is b[0]), and the elements of an array and the columns of a matrix in whatever
address space it lies (a[i] is a.msl_elements[i], m[i] is m.msl_columns[i]). clang refuses both and says where; then the
text is compiled again.
"""

import re

from .copies import errors, offsets
from .initialisers import apart

_COMPONENT = re.compile(r"illegal vector component name '([xyzwrgba])'")
_SUBSCRIPT = re.compile(r"type '.*\b(array|matrix)<.* does not provide a subscript operator")
_INSIDE = {"array": ".msl_elements", "matrix": ".msl_columns"}
_ASSIGNMENT = re.compile(r"\s*([|&^]?)=(?!=)")
_DOT = re.compile(r"\s*\.\s*[xyzwrgba]\b")


def spell_members(text: str, diagnostics: str) -> str | None:
    """The text with the refused members spelled out, or None if no error is about one."""
    edits: set[tuple[int, int, str]] = set()  # from, to, what stands there then
    for error, _ in errors(diagnostics):
        component, subscript = _COMPONENT.match(error["text"]), _SUBSCRIPT.match(error["text"])
        ranges = offsets(text, error) if component or subscript else []
        if component and ranges:
            end = ranges[0][1]
            dot = _DOT.match(text, end)
            if dot:
                edits.add(_component(text, *ranges[0], dot.end(), "xyzwrgba".index(component[1]) % 4))
        elif subscript and ranges:
            edits.add((ranges[0][1], ranges[0][1], _INSIDE[subscript[1]]))
    for start, end, spelling in apart(edits):
        text = text[:start] + spelling + text[end:]
    return text if edits else None


def _component(text: str, start: int, end: int, after: int, index: int) -> tuple[int, int, str]:
    """A component that is read, or assigned: clang writes a wrong store for an element of a vector of bool."""
    assignment = _ASSIGNMENT.match(text, after)
    if not assignment:
        return end, after, f"[{index}]"
    stop, depth = assignment.end(), 0
    while depth or text[stop] not in ";,)":
        depth += (text[stop] in "({[") - (text[stop] in ")}]")
        stop += 1
    vector, value = text[start:end], text[assignment.end() : stop].strip()
    if assignment[1]:
        value = f"{vector}[{index}] {assignment[1]} ({value})"
    return start, stop, f"msl::set_component<{index}>({vector}, {value})"
