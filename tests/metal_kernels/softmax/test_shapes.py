"""Any shape, strides, offset and dim that hypothesis thinks of, and the shapes that models have."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@st.composite
def strided(draw):
    """(sizes, strides, offset, dim, dtype): dims in any memory order, with gaps, repeats (stride 0) and an offset."""
    rank = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    sizes[draw(st.integers(0, rank - 1))] = draw(st.sampled_from((1, 3, 16, 17, 24, 40, 65, 130, 300)))
    order = draw(st.permutations(range(rank)))
    strides, reach = [0] * rank, draw(st.sampled_from((1, 1, 1, 2, 4)))
    for d in order:
        strides[d] = 0 if draw(st.integers(0, 9)) == 0 else reach
        reach = max(reach, 1) * sizes[d] + draw(st.sampled_from((0, 0, 0, 1, 4, 8)))
    dtype = draw(st.sampled_from((torch.float32, torch.float16, torch.bfloat16)))
    return sizes, strides, draw(st.sampled_from((0, 0, 1, 3, 4, 8))), draw(st.integers(-rank, rank - 1)), dtype


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strided())
def test_any_strides(softmaxing, case):
    sizes, strides, offset, dim, dtype = case
    reach = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    x = softmaxing.random((reach,), dtype).as_strided(sizes, strides, offset)
    softmaxing.check(x, dim)


ATTENTION = ((2, 5, 1024), (2, 3, 4608), (1, 2, 20480), (8, 33, 77), (3, 4, 64, 257))
VOCABULARIES = (128256, 129280, 151936, 201088, 248320)


@pytest.mark.parametrize("sizes", ATTENTION)
def test_attention(softmaxing, sizes):
    for dtype in softmaxing.dtypes:
        softmaxing.check(softmaxing.random(sizes, dtype), -1)


@pytest.mark.parametrize("length", VOCABULARIES)
def test_vocabularies(softmaxing, launches, length):
    """One row and three, split over threadgroups."""
    dtype = softmaxing.dtypes[VOCABULARIES.index(length) % 3]
    for rows in (1, 3) if length == 151936 else (1,):
        softmaxing.check(softmaxing.random((rows, length), dtype), -1)
    assert {record.kernel.split("softmax_")[-1].removeprefix("backward_").split("_")[0] for record in launches} == {
        "partial",
        "apply",
    }


def test_k_of_32768(softmaxing):
    for dtype in softmaxing.dtypes:
        softmaxing.check(softmaxing.random((2, 32768), dtype), -1)


@pytest.mark.parametrize("sizes, dim", [((2**16 + 1, 5), 1), ((2**16 + 1, 20), 1), ((3, 2**16 + 1), 0)])
def test_more_rows_than_16_bits(softmaxing, sizes, dim):
    softmaxing.check(softmaxing.random(sizes, torch.float16), dim)


def test_channels_of_a_picture(softmaxing):
    softmaxing.check(softmaxing.random((1, 19, 32, 33), torch.float16), 1)
    softmaxing.check(softmaxing.random((2, 16, 32, 32)).contiguous(memory_format=torch.channels_last), 1)
