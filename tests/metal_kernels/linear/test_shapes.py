"""The table of public models' layers, and hypothesis over shapes, strides and offsets."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def test_the_table(table):
    """96 distinct shapes, each with a model's layer beside it, from a small router to a vocabulary."""
    layers = table["layers"]
    shapes = {(entry["N"], entry["K"]) for entry in layers}
    assert len(layers) == len(shapes) == 96
    assert all(set(entry) == {"N", "K", "model", "layer"} for entry in layers)
    assert {entry["model"] for entry in layers} == set(table["sources"])
    assert {n for n, _ in shapes} >= {32, 151936, 262208}


@st.composite
def matrices(draw, rows, columns):
    """(sizes, strides, offset, elements of storage) of a matrix: transposed, with gaps, repeated, anywhere."""
    layout = draw(st.sampled_from(("dense", "dense", "transposed", "gaps", "steps", "repeated", "overlapping")))
    strides = {
        "dense": (columns, 1),
        "transposed": (1, rows),
        "gaps": (columns + draw(st.sampled_from((1, 3, 8, 16))), 1),
        "steps": (2 * columns + 1, 2),
        "repeated": draw(st.sampled_from(((0, 1), (1, 0), (0, 0)))),
        "overlapping": (1, 1),
    }[layout]
    offset = draw(st.sampled_from((0, 0, 1, 3, 8)))
    last = offset + sum(max(size - 1, 0) * stride for size, stride in zip((rows, columns), strides, strict=True))
    return (rows, columns), strides, offset, last + 1


@st.composite
def calls(draw):
    rows = draw(st.sampled_from((1, 1, 2, 3, 4, 5, 8, 9, 16)))
    outputs = draw(st.sampled_from((1, 2, 3, 4, 5, 8, 31, 32, 33, 65)))
    length = draw(st.sampled_from((1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 100, 256, 257, 520)))
    x, weight = draw(matrices(rows, length)), draw(matrices(outputs, length))
    bias = draw(st.sampled_from((None, 0, 1, 2)))
    return x, weight, bias, draw(st.sampled_from(DTYPES))


def build(lin, matrix, dtype, seed):
    sizes, strides, offset, elements = matrix
    return lin.random(elements, dtype=dtype, seed=seed).as_strided(sizes, strides, offset)


def compare(lin, call):
    x, weight, bias_stride, dtype = call
    outputs = weight[0][0]
    bias = None
    if bias_stride is not None:
        bias = lin.random(outputs * max(bias_stride, 1) + 1, dtype=dtype, seed=3)[1:].as_strided(
            (outputs,), (bias_stride,), 1
        )
    lin.check(build(lin, x, dtype, 1), build(lin, weight, dtype, 2), bias)


OPTIONS = dict(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(max_examples=200, **OPTIONS)
@given(call=calls())
def test_any_view(lin, call):
    compare(lin, call)


@pytest.mark.full
@settings(max_examples=3000, **OPTIONS)
@given(call=calls())
def test_any_view_at_length(lin, call):
    compare(lin, call)
