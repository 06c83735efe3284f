"""Every dtype, layout, dim and form against the CPU in float64; forward and backward, and no call to stock."""

import pytest
import torch

DTYPES = ("float32", "float16", "bfloat16")


def contiguous(make, sizes):
    return make(sizes)


def transposed(make, sizes):
    return make(sizes[::-1]).permute(*reversed(range(len(sizes))))


def sliced(make, sizes):
    """Gaps between rows, an offset that no vector starts at, every other element of the first dimension."""
    x = make((2 * sizes[0] + 1, *sizes[1:-1], sizes[-1] + 3)) if len(sizes) > 1 else make((2 * sizes[0] + 4,))
    return x[1::2][..., 1 : 1 + sizes[-1]] if len(sizes) > 1 else x[1::2][: sizes[0]]


def offset(make, sizes):
    """Contiguous, from an odd element on."""
    n = torch.Size(sizes).numel()
    return make((n + 5,))[5:].view(sizes)


def channels_last(make, sizes):
    """The second dimension varies fastest."""
    return make((*sizes[:1], *sizes[2:], *sizes[1:2])).movedim(-1, 1) if len(sizes) > 1 else make(sizes)


def expanded(make, sizes):
    """Stride 0 in the first and, where there are more, in the last dimension."""
    return make((1, *sizes[1:-1], 1) if len(sizes) > 1 else (1,)).expand(sizes)


LAYOUTS = (contiguous, transposed, sliced, offset, channels_last, expanded)
SIZES = ((37,), (6, 45), (4, 19, 24), (3, 5, 18, 16), (2, 3, 4, 17, 8))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("name", DTYPES)
def test_every_dim_of_every_layout(softmaxing, name, layout):
    dtype = getattr(torch, name)
    for sizes in SIZES:
        x = layout(lambda sizes: softmaxing.random(sizes, dtype), sizes)
        assert x.shape == sizes
        for dim in range(-1, x.dim() - 1):
            softmaxing.check(x, dim)


# Lengths about the places where another form, another number of lanes or another number of vectors is chosen.
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 77, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024)
LENGTHS += (1025, 1027, 2048, 4096, 4099)


@pytest.mark.parametrize("name", DTYPES)
def test_lengths(softmaxing, name):
    dtype = getattr(torch, name)
    for length in LENGTHS:
        softmaxing.check(softmaxing.random((3, length), dtype), -1)
        softmaxing.check(softmaxing.random((length, 3), dtype), 0)


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


def test_nothing_and_one(softmaxing):
    for sizes in ((0,), (0, 5), (5, 0), (3, 0, 2), (2, 3, 0)):
        for dim in range(len(sizes)):
            softmaxing.check(torch.empty(sizes), dim)
    for dim in (0, -1):
        softmaxing.check(torch.tensor(3.5), dim)
    for rank in range(1, 6):
        softmaxing.check(torch.full((1,) * rank, 2.0), rank - 1)


def test_many_dimensions(softmaxing):
    x = softmaxing.random((2, 1, 3, 1, 2, 1, 2, 1, 3, 1, 2, 20))
    softmaxing.check(x.permute(*reversed(range(12))), 0)
    softmaxing.check(x.permute(4, 2, 0, 8, 6, 10, 11, 1, 3, 5, 7, 9), 6)
    softmaxing.check(x.permute(4, 2, 0, 8, 6, 10, 11, 1, 3, 5, 7, 9), 2)
