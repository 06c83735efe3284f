"""Hypothesis over shapes, strides, offsets, pads and element sizes."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DTYPES = (torch.uint8, torch.bool, torch.float16, torch.int32, torch.float32, torch.complex64)


@st.composite
def views(draw):
    """A strided view of a flat storage: permuted dense dimensions, gaps, overlaps (stride 0 and others), any offset."""
    rank = draw(st.integers(0, 6))
    sizes = draw(st.lists(st.sampled_from((0, 1, 1, 2, 3, 4, 7, 16, 33)), min_size=rank, max_size=rank))
    if math.prod(max(size, 1) for size in sizes) > 5000:
        sizes = [min(size, 3) for size in sizes]
    order = draw(st.permutations(range(rank)))
    strides, reach = [0] * rank, 1
    for d in order:
        stride = draw(st.sampled_from(("dense", "dense", "dense", "gap", "zero", "overlap")))
        strides[d] = {"dense": reach, "gap": reach + 3, "zero": 0, "overlap": max(reach - 1, 0)}[stride]
        reach = max(reach, strides[d] * max(sizes[d], 1))
    offset = draw(st.sampled_from((0, 0, 1, 3, 8)))
    return sizes, strides, offset


@st.composite
def calls(draw):
    sizes, strides, offset = draw(views())
    pad = []
    for size in reversed(sizes[draw(st.integers(0, len(sizes))) :]):
        left = draw(st.integers(-min(size, 2), 4))
        right = draw(st.integers(-min(size + min(left, 0), 2), 9))
        pad += [left, right]
    return sizes, strides, offset, pad, draw(st.sampled_from(DTYPES)), draw(st.sampled_from((0, 1)))


def compare(padding, call):
    sizes, strides, offset, pad, dtype, value = call
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size)
    x = padding.random((last + 1,), dtype).as_strided(sizes, strides, offset)
    padding.check(x, pad, value)


OPTIONS = dict(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(max_examples=250, **OPTIONS)
@given(call=calls())
def test_any_view(padding, call):
    compare(padding, call)


@pytest.mark.full
@settings(max_examples=5000, **OPTIONS)
@given(call=calls())
def test_any_view_at_length(padding, call):
    compare(padding, call)
