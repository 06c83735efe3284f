"""Every dtype, rank, kind of pad and layout against the CPU kernel: bits and strides, and no call to stock."""

import pytest
import torch

# By kind, a pad for each rank: (left, right) of the last dimension first.
PADS = {
    "positive": lambda rank: (1, 2) * rank,
    "negative": lambda rank: (-1, 0) + (0, -1) * (rank - 1),
    "mixed": lambda rank: ((-1, 3) + (2, -2)) * (rank // 2) + (-2, 1) * (rank % 2),
    "zero": lambda rank: (0, 0) * rank,
    "asymmetric": lambda rank: ((0, 5) + (3, 0) + (0, 1))[: 2 * rank],
    "empty list": lambda rank: (),
}


def sizes_of(rank: int) -> tuple[int, ...]:
    """Small, and the last dimension long enough for whole vectors of one-byte elements while there are few others."""
    return (2, 3, 2, 3, 2, 4, 5)[7 - rank : 6] + ((37,) if rank <= 3 else (19,) if rank <= 5 else (5,))


def contiguous(make, sizes):
    return make(sizes)


def transposed(make, sizes):
    return make(sizes[::-1]).permute(*reversed(range(len(sizes))))


def sliced(make, sizes):
    """Every other element along the first dimension, from an offset that no vector starts at, with gaps after each
    row.
    """
    x = make((2 * sizes[0] + 1, *sizes[1:-1], sizes[-1] + 3)) if len(sizes) > 1 else make((2 * sizes[0] + 4,))
    x = x[1::2]
    return x[..., 1 : 1 + sizes[-1]] if len(sizes) > 1 else x[: sizes[0]]


def channels_last(make, sizes):
    """channels_last at rank 4; elsewhere the same thought: the second dimension varies fastest."""
    if len(sizes) == 4:
        return make(sizes).contiguous(memory_format=torch.channels_last)
    return make((*sizes[:1], *sizes[2:], *sizes[1:2])).movedim(-1, 1) if len(sizes) > 1 else make(sizes)


def channels_last_3d(make, sizes):
    if len(sizes) == 5:
        return make(sizes).contiguous(memory_format=torch.channels_last_3d)
    return make((*sizes[2:], *sizes[:2])).permute(*_rotation(len(sizes))) if len(sizes) > 2 else make(sizes)


def _rotation(rank: int) -> tuple[int, ...]:
    return (rank - 2, rank - 1, *range(rank - 2))


def expanded(make, sizes):
    """Stride 0 in the first and, where there are more, in the last dimension."""
    return make((1, *sizes[1:-1], 1) if len(sizes) > 1 else (1,)).expand(sizes)


def empty_dims(make, sizes):
    """A dimension of size 0: the last one up to rank 3, the first one beyond."""
    return make((*sizes[:-1], 0) if len(sizes) <= 3 else (0, *sizes[1:]))


LAYOUTS = (contiguous, transposed, sliced, channels_last, channels_last_3d, expanded, empty_dims)
DTYPES = (
    "float32 float16 bfloat16 complex64 complex32 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
).split()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("name", DTYPES)
def test_table(padding, name, layout):
    dtype = getattr(torch, name)
    assert dtype in padding.dtypes
    value = 1 if name == "float8_e8m0fnu" else 0  # it has no zero: the CPU refuses the default fill
    checked = 0
    for rank in range(1, 8):
        x = layout(lambda sizes: padding.random(sizes, dtype), sizes_of(rank))
        assert x.dim() == rank
        for pads in PADS.values():
            pad = pads(rank)
            if layout is empty_dims and any(p < 0 for p in pad):
                # There is nothing to crop where the size is 0; crop the others.
                empty = list(x.shape).index(0)
                k = 2 * (rank - 1 - empty)
                pad = tuple(0 if i in (k, k + 1) else p for i, p in enumerate(pad))
            padding.check(x, pad, value)
            checked += 1
    assert checked == 7 * len(PADS)


def test_layouts_are_what_they_are_called(padding):
    def make(sizes):
        return padding.random(sizes, torch.float32)

    for rank in range(1, 8):
        sizes = sizes_of(rank)
        for layout in LAYOUTS:
            x = layout(make, sizes)
            if layout is not empty_dims:
                assert x.shape == sizes, layout
        assert expanded(make, sizes).stride()[-1] == 0
        assert 0 in empty_dims(make, sizes).shape
        if rank > 1:
            assert not transposed(make, sizes).is_contiguous()
            assert sliced(make, sizes).storage_offset() and not sliced(make, sizes).is_contiguous()
    assert channels_last(make, sizes_of(4)).is_contiguous(memory_format=torch.channels_last)
    assert channels_last_3d(make, sizes_of(5)).is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("itemsize, dtype", [(1, torch.uint8), (2, torch.int16), (4, torch.int32), (8, torch.int64)])
def test_every_shift_against_the_vectors(padding, itemsize, dtype):
    """Left pads and row lengths through all residues of 16 bytes, with the input at all of them too."""
    lanes = 16 // itemsize
    storage = padding.random((3 * 5 * lanes * 4,), dtype)
    for left in range(lanes + 1):
        for length in (3 * lanes - 1, 3 * lanes, 3 * lanes + 1):
            for offset in {0, 1, lanes - 1}:
                x = storage[offset : offset + 3 * length].view(3, length)
                padding.check(x, (left, (5 - left) % lanes, 1, 0), 1)


def test_sixteen_byte_elements(padding):
    """complex128 does not exist on MPS, but whole 16-byte units move as one element."""
    x = padding.random((3, 5, 8), torch.float32)
    padding.check(x, (4, 8, 1, 2), 1.5)
    padding.check(x.transpose(0, 1), (4, 0, -1, 2), 1.5)


def test_sixteen_dimensions(padding):
    x = padding.random((2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 3), torch.int16)
    padding.check(x, (1, 0) * 16)
    padding.check(x.permute(*reversed(range(16))), (1, 0, 0, 0, 0, 1) * 5)


def test_scalars(padding):
    padding.check(torch.tensor(3.5), ())
    padding.check(torch.ones(3)[1], ())


@pytest.mark.parametrize(
    "sizes", [(1, 3, 1, 5), (2, 1, 3, 4), (3, 2, 1, 1), (1, 1, 1, 1), (2, 3, 1, 4, 1), (1, 1, 2, 1, 3)]
)
def test_ambiguous_memory_formats(padding, sizes):
    """Strides of dimensions of size 1 decide what suggest_memory_format() says."""
    x = padding.random(sizes, torch.float32)
    format = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    for y in (
        x,
        x.contiguous(memory_format=format),
        x.transpose(1, -1).contiguous().transpose(1, -1),
        x.transpose(0, 1),
    ):
        for pad in ((1, 1), (0, 0, 2, 0), (1, 0, 0, 1, 1, 1), (-1, 1) if sizes[-1] > 1 else (1, 0), ()):
            padding.check(y, pad)
