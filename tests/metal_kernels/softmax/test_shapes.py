"""Any shape, strides, offset and dim that hypothesis thinks of, and how vocabularies are split."""

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


def test_a_vocabulary_is_split_over_threadgroups(softmaxing, launches):
    softmaxing.check(softmaxing.random((1, 128256), torch.float16), -1)
    forms = {record.kernel.split("softmax_")[-1].removeprefix("backward_").split("_")[0] for record in launches[-8:]}
    assert forms == {"partial", "apply"}
