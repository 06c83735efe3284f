"""All rows: what ships for the self-test, and what only the tests run."""

from __future__ import annotations

from . import library
from .rows import fp8, grouped_mm, linear, pad, quantize, softmax

CASES: tuple[library.Case, ...] = (
    *library.COMPACT,
    *pad.rows(),
    *softmax.rows(),
    *linear.rows(),
    *grouped_mm.rows(),
    *fp8.rows(),
    *quantize.rows(),
)


def groups(size: str, cases: tuple[library.Case, ...] = CASES) -> dict[str, list[library.Case]]:
    """ "softmax bfloat16" -> its cases of this size, each once."""
    found: dict[str, dict[str, library.Case]] = {}
    for case in cases:
        if case.size == size:
            found.setdefault(f"{case.op} {str(case.dtype).removeprefix('torch.')}", {})[case.id] = case
    return {name: list(group.values()) for name, group in found.items()}
