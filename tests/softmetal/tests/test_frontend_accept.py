"""Valid Metal compiles: the forms in which kernels are written, declared and instantiated (frontend_accept.metal)."""

from pathlib import Path

import pytest
from softmetal.frontend import compile

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
PARTS = dict(
    part.split("\n", 1) for part in Path(__file__).with_name("frontend_accept.metal").read_text().split("//// ")[1:]
)


@pytest.mark.parametrize("name", PARTS)
def test_compiles(name):
    library = compile(HEAD + PARTS[name])
    assert name == "no kernel" or "f" in library.kernels


def test_there_are_many():
    assert len(PARTS) >= 35


def test_unchecked_build_compiles():
    library = compile(HEAD + PARTS["collectives"], checked=False)
    assert not library.checked and "f" in library.kernels
