"""Forms forced where geometry.py would not choose them, and half_to_float. Cases by the hundred: tests/conformance."""

import pytest
import torch

DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("form", ["rows", "looped", "split", "columns"])
@pytest.mark.parametrize("name", DTYPES)
def test_every_form(softmaxing, launches, form, name):
    """Forms that geometry.py would keep for larger work, forced on small: several blocks, chunks, groups and tails."""
    dtype = getattr(torch, name)
    for x, dim in (
        (softmaxing.random((2, 5003), dtype), 1),
        (softmaxing.random((2, 4096), dtype), 1),
        (softmaxing.random((7, 130), dtype), 1),
        (softmaxing.random((3, 2 * 4099), dtype)[:, 1::2], 1),
        (softmaxing.random((2, 300, 24), dtype), 1),
        (softmaxing.random((2 * 300 * 3 + 1,), dtype)[1:].view(2, 300, 3), 1),
        (softmaxing.random((1, 1), dtype), 0),
    ):
        softmaxing.check(x, dim, form=form)
    ran = {record.kernel.split("softmax_")[-1].removeprefix("backward_").split("_")[0] for record in launches}
    assert ran == ({"partial", "apply"} if form == "split" else {form})


@pytest.mark.parametrize("form", ["whole", "whole_split"])
@pytest.mark.parametrize("name", DTYPES)
def test_rows_of_whole_vectors(softmaxing, launches, form, name):
    """Rows with a stride too; the last vectors of a threadgroup have no row."""
    dtype = getattr(torch, name)
    for sizes in ((2, 4096), (3, 5008), (5, 16), (3, 2064)):
        x = softmaxing.random(sizes, dtype)
        softmaxing.check(x[:, :2056], 1, form=form)
    assert all("softmax_whole" in record.kernel or "backward_whole" in record.kernel for record in launches)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_to_float(softmaxing, name):
    """float32 results of half inputs, which stock refuses, and back."""
    dtype = getattr(torch, name)
    with softmaxing.metal_kernels.using(softmax="off"), pytest.raises(RuntimeError):
        torch._softmax(softmaxing.twin(softmaxing.random((3, 40), dtype)), 1, True)
    for x, dim in (
        (softmaxing.random((5, 20), dtype), 1),
        (softmaxing.random((4, 333), dtype), 1),
        (softmaxing.random((3, 2051), dtype), 1),
        (softmaxing.random((3, 100, 16), dtype), 1),
        (softmaxing.random((3, 100, 5), dtype), 1),
    ):
        softmaxing.check(x, dim, half_to_float=True)
    for form in ("looped", "split"):
        softmaxing.check(softmaxing.random((2, 4100), dtype), 1, form=form, half_to_float=True)


def test_many_dimensions(softmaxing):
    x = softmaxing.random((2, 1, 3, 1, 2, 1, 2, 1, 3, 1, 2, 20))
    softmaxing.check(x.permute(*reversed(range(12))), 0)
    softmaxing.check(x.permute(4, 2, 0, 8, 6, 10, 11, 1, 3, 5, 7, 9), 6)
    softmaxing.check(x.permute(4, 2, 0, 8, 6, 10, 11, 1, 3, 5, 7, 9), 2)


def test_a_vocabulary_is_split_over_threadgroups(softmaxing, launches):
    softmaxing.check(softmaxing.random((1, 128256), torch.float16), -1)
    names = [record.kernel.split("softmax_")[-1].removeprefix("backward_") for record in launches[-8:]]
    forms = {name.split("_half")[0] for name in names}
    assert forms == {"whole_partial", "whole_apply"}
