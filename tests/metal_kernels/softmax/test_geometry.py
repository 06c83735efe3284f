"""How a softmax is spread over threads: integers only."""

import pytest


@pytest.fixture(scope="module")
def geometry(pack_geometry):
    return pack_geometry


@pytest.fixture(scope="module")
def pack_geometry():
    import importlib

    from pack import load

    return importlib.import_module(f"{load().metal_kernels.__name__}.softmax.geometry")


def contiguous(sizes):
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def plan(geometry, sizes, dim, *, itemsize=4, inputs=1, strides=None, skew=0, **options):
    strides = strides or contiguous(sizes)
    arguments = (tuple(sizes), (strides,) * inputs, contiguous(sizes), dim % len(sizes))
    return geometry.plan(*arguments, (skew,) * inputs, skew, 16 // itemsize, **options)


# What issue and bars ask for: which form, and how many threads there are for how little work.
@pytest.mark.parametrize(
    "sizes, dim, itemsize, form",
    [
        ((4096, 4096), -1, 4, "whole"),
        ((4096, 4096), -1, 2, "whole"),
        ((4096, 4098), -1, 2, "rows"),
        ((8, 1024, 77), -1, 2, "rows"),
        ((64, 1000), -1, 4, "whole"),
        ((1, 128256), -1, 4, "whole_split"),
        ((8, 248320), -1, 2, "whole_split"),
        ((1, 128257), -1, 4, "split"),
        ((4096, 32000), -1, 4, "whole"),
        ((4096, 151936), -1, 2, "looped"),
        ((1, 64, 256, 256), 1, 2, "columns"),
        ((2**20, 8), -1, 4, "rows"),
        ((2**20, 8, 3), 1, 4, "columns"),
        ((100000, 3), 0, 4, "split"),
    ],
)
def test_forms(geometry, sizes, dim, itemsize, form):
    for launch in plan(geometry, sizes, dim, itemsize=itemsize):
        assert launch.form == form


def test_few_short_rows_take_small_groups_of_two_vectors_a_thread(geometry):
    for length, threads, count in ((516, 96, 2), (1000, 128, 2), (1024, 128, 2), (1028, 288, 1)):
        (launch,) = plan(geometry, (64, length), -1)
        assert (launch.form, launch.group_size, launch.count) == ("whole", threads, count)


def test_contiguous_rows_take_vectors_wherever_they_start(geometry):
    for length in (600, 1000, 4096, 4099):
        for skew in (0, 1, 3):
            (launch,) = plan(geometry, (64, length), -1, skew=skew)
            assert launch.header[8] == 1 and launch.header[9] == skew
    # Short ones only from a vector's boundary on.
    for length, skew, vectors in ((8, 0, 1), (80, 0, 1), (80, 1, 0), (77, 0, 0), (2, 0, 0)):
        (launch,) = plan(geometry, (64, length), -1, skew=skew)
        assert launch.header[8] == vectors
    # Rows that start differently in input and output do not, nor do elements with gaps.
    (launch,) = plan(geometry, (64, 1000), -1, strides=(1001, 1))
    assert launch.header[8] == 0
    (launch,) = plan(geometry, (64, 1000), -1, strides=(1008, 1))
    assert launch.header[8] == 1


def test_dimensions_merge(geometry):
    for sizes, dim, count in (((2, 3, 4, 50), -1, 1), ((2, 3, 50, 4), 2, 2), ((2, 1, 3, 50), 3, 1), ((50,), 0, 1)):
        (launch,) = plan(geometry, sizes, dim)
        assert launch.header[13] == count - 1 and len(launch.dims) == 4 * max(count - 1, 1)


def test_one_launch_covers_a_row_in_registers(geometry):
    """Lanes times vectors reach the end of the longest row, from the worst start on, and groups are whole."""
    for itemsize in (2, 4):
        vector = 16 // itemsize
        for inputs in (1, 2):
            for length in range(1, 3000, 7):
                for skew in (0, vector - 1):
                    (launch,) = plan(geometry, (5, length), -1, itemsize=itemsize, inputs=inputs, skew=skew)
                    threads = launch.header[10]
                    assert launch.form == ("whole" if threads > 32 and length % vector == 0 and not skew else "rows")
                    assert launch.count * threads * vector >= length + (skew if launch.header[8] else 0)
                    assert launch.groups * launch.group_size >= 5 * threads
                    assert launch.group_size % 32 == 0 and launch.group_size % threads == 0
                    assert launch.group_size <= 1024


@pytest.mark.parametrize("sizes, dim", [((2**31, 5), 1), ((2**31, 40), 1), ((40, 2**31), 0), ((3, 2**20, 2**12), 1)])
def test_rows_up_to_2_to_the_31(geometry, sizes, dim):
    launches = plan(geometry, sizes, dim, itemsize=2)
    rows = sizes[0] * sizes[1] * (sizes[2] if len(sizes) > 2 else 1) // sizes[dim]
    assert sum(launch.header[0] for launch in launches) == rows
    for launch in launches:
        assert launch.header[0] * launch.header[1] <= geometry.MAX_ELEMENTS
        assert launch.groups * launch.group_size < 2**32


@pytest.mark.parametrize("rows", [1, 3, 255])
def test_lengths_up_to_2_to_the_31(geometry, rows):
    for itemsize in (2, 4):
        for inputs in (1, 2):
            launches = plan(geometry, (rows, 2**31), -1, itemsize=itemsize, inputs=inputs)
            assert sum(launch.header[0] for launch in launches) == rows
            for launch in launches:
                chunks, chunk_blocks = launch.header[11:13]
                block = launch.count * (16 // itemsize) * launch.group_size
                assert launch.form == "split" and chunks <= geometry.MAX_CHUNKS
                assert (chunks - 1) * chunk_blocks * block < 2**31 <= chunks * chunk_blocks * block < 2**32
                assert launch.states == launch.groups == launch.header[0] * chunks


def test_few_rows_make_many_groups(geometry):
    """One row of a vocabulary over enough groups for a large GPU, and many rows over no more than run at once."""
    for itemsize in (2, 4):
        (launch,) = plan(geometry, (200, 151936), -1, itemsize=itemsize)
        assert geometry.SPLIT_ALL // 2 < launch.groups * launch.group_size <= geometry.SPLIT_ALL * 1.5
    for length in (128256, 151936, 248320):
        (launch,) = plan(geometry, (1, length), -1)
        assert launch.groups >= 40


def test_constants_are_those_of_the_shader(geometry):
    from pathlib import Path

    text = Path(geometry.__file__).with_name("softmax.metal").read_text()
    assert f"constexpr uint column_threads = {geometry.COLUMN_THREADS};" in text
    assert f"constexpr int column_batch = {geometry.COLUMN_BATCH};" in text
    for line in ("long rows;", "long dims; ", "long out_stride;"):
        assert line in text
