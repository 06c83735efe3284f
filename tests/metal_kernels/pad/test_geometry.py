"""Checks, layouts and launches as plain integers: a reference model of pad.metal carries the launches out in Python."""

import math
import random

import pytest
import torch


@pytest.fixture
def geometry():
    import importlib

    from pack import load

    module = importlib.import_module(f"{load().metal_kernels.__name__}.pad.geometry")
    module.plan.cache_clear()  # limits are patched here
    yield module
    module.plan.cache_clear()


HEADER = (
    "out_offset in_offset out_skew in_skew count readable_begin readable_end gap_margin windows pieces period "
    "period_magic period_shift period_rows steps width magic shift left extent stride outer"
).split()
DIM = "size magic shift left extent stride".split()


def named_dims(launch) -> list[dict]:
    return [dict(zip(DIM, launch.dims[k : k + len(DIM)], strict=True)) for k in range(0, len(launch.dims), len(DIM))]


def divide(n: int, magic: int, shift: int) -> int:
    return ((n << 1) % 2**32 * magic >> 32) >> shift


def carry_out(launches, source: list, count: int) -> list:
    """What pad.metal's header and dims mean, element by element: the output as indices of `source`'s elements, -1
    for fill.

    Units wider than an element stand for their elements in order.
    """
    out = [None] * count
    for launch, unit in launches:
        header = dict(zip(HEADER, launch.header, strict=True))
        dims = named_dims(launch)
        for e in range(header["count"]):
            row = divide(e, header["magic"], header["shift"])
            x = e - row * header["width"] - header["left"]
            inside, at = 0 <= x < header["extent"], header["in_offset"] + x * header["stride"]
            for dim in dims[: header["outer"]]:
                rest = divide(row, dim["magic"], dim["shift"])
                i = row - rest * dim["size"] - dim["left"]
                inside = inside and 0 <= i < dim["extent"]
                at += i * dim["stride"]
                row = rest
            for k in range(unit):
                position = (header["out_offset"] + e) * unit + k
                assert out[position] is None, "written twice"
                out[position] = source[at * unit + k] if inside else -1
    assert None not in out, "never written"
    return out


def expected(x: torch.Tensor, pad) -> torch.Tensor:
    return torch.constant_pad_nd(x, pad, -1)


@pytest.mark.parametrize("limit", [2**31 - 2**15, 50], ids=["one launch", "many launches"])
def test_launches_do_what_the_cpu_does(geometry, monkeypatch, limit):
    monkeypatch.setattr(geometry, "MAX_ELEMENTS", limit)
    monkeypatch.setattr(geometry, "MAX_STRIDED_ELEMENTS", min(limit, 2**27))
    draw = random.Random(3)
    for _ in range(150):
        rank = draw.randint(0, 6)
        sizes = [draw.choice((1, 2, 3, 4, 8)) for _ in range(rank)]
        order = draw.sample(range(rank), rank)
        gap = draw.choice((0, 0, 1))
        storage = torch.arange(math.prod(size + gap for size in sizes) + 1)
        x = storage[:-1].view([sizes[d] + gap for d in order]).permute([order.index(d) for d in range(rank)])
        x = x[tuple(slice(gap, None) for _ in sizes)]
        pad = [draw.choice((0, 0, 1, 2, 4, -1)) for _ in range(2 * draw.randint(0, rank))]
        cut = geometry.crop(tuple(x.shape), x.stride(), tuple(pad))
        try:
            reference = expected(x, pad)
        except RuntimeError:
            assert cut is None or 0 in cut.out_sizes  # torch 2.9's CPU pads nothing to nothing
            continue
        assert cut.out_sizes == tuple(reference.shape)
        if not reference.numel():
            continue
        itemsize, base = draw.choice((1, 2, 4, 8, 16)), draw.choice((0, 0, 1)) * 16 + x.storage_offset()
        plan = geometry.plan(
            tuple(x.shape), x.stride(), tuple(pad), reference.stride(), itemsize, base * itemsize % 16, 0
        )
        launches = [(launch, int(launch.kernel.split("_")[2]) // itemsize) for launch in plan]
        assert len(plan) == 1 or limit == 50
        got = carry_out(launches, storage.tolist()[x.storage_offset() :], reference.numel())
        assert got == reference.as_strided((reference.numel(),), (1,)).tolist(), (x.shape, x.stride(), pad)


def test_division_by_multiplication_is_exact(geometry):
    draw = random.Random(0)
    divisors = [*range(1, 300), *(2**k + d for k in range(8, 31) for d in (-1, 0, 1)), 2**31 - 1]
    divisors += [draw.randrange(1, 2**31) for _ in range(2000)]
    for d in divisors:
        magic, shift = geometry.divisor(d)
        assert 0 < magic < 2**32 and 0 <= shift < 32
        near = [k * d + r for k in (0, 1, (2**31 - 1) // d) for r in (-1, 0, 1)]
        for n in [0, 2**31 - 1, 2**31 - 2, *near, *(draw.randrange(2**31) for _ in range(20))]:
            if 0 <= n < 2**31:
                assert divide(n, magic, shift) == n // d, (n, d)


def test_channels_last_is_what_suggest_memory_format_says(geometry):
    """Seen from outside: the strides that empty() gives for the format that the CPU's pad asks for."""
    draw = random.Random(1)
    for _ in range(3000):
        rank = draw.choice((3, 4, 4, 5, 5, 6))
        sizes = [draw.choice((0, 1, 1, 2, 3)) for _ in range(rank)]
        strides = [draw.choice((0, 1, 1, 2, 3, 6, 12, 24)) for _ in range(rank)]
        x = torch.zeros(400).as_strided(sizes, strides)
        y = torch.constant_pad_nd(x, (1, 1))
        format = torch.contiguous_format
        if geometry.is_channels_last(tuple(sizes), tuple(strides)):
            format = torch.channels_last if rank == 4 else torch.channels_last_3d
        assert y.stride() == torch.empty(y.shape, memory_format=format).stride(), (sizes, strides)


def test_the_video_pad_is_one_dense_launch(geometry):
    """Wan's causal pad in fp16 walks down in periods of rows, and reads across their ends; that in time alone moves
    whole units.
    """
    sizes, strides = (1, 96, 6, 240, 416), (57507840, 599040, 99840, 416, 1)

    def kernels(pad):
        out = [s + pad[2 * k] + pad[2 * k + 1] for k, s in zip((4, 3, 2, 1, 0), sizes, strict=True)]
        out_strides = [math.prod(out[d + 1 :]) for d in range(5)]
        return geometry.plan(sizes, strides, pad, tuple(out_strides), 2, 0, 0)

    (causal,) = kernels((1, 1, 1, 1, 2, 0, 0, 0, 0, 0))
    header = dict(zip(HEADER, causal.header, strict=True))
    assert causal.kernel == "pad_dense_2" and header["pieces"] == 0 and header["steps"] == geometry.MAX_STEPS
    assert causal.threads * geometry.MAX_STEPS >= 96 * 8 * 242 * 418 * 2 // 16
    assert (header["period"], header["period_rows"]) == (418, 8)
    (temporal,) = kernels((0, 0, 0, 0, 2, 0, 0, 0, 0, 0))
    assert temporal.kernel == "pad_dense_16"


def test_rows_that_meet_elsewhere_are_made_in_pieces(geometry):
    """Short rows, gaps between rows, rows of other planes; not rows one after the other, and not mere fill."""

    def pieces(sizes, strides, pad):
        out = geometry.crop(sizes, strides, pad).out_sizes
        out_strides = tuple(math.prod(out[d + 1 :]) for d in range(len(out)))
        (launch,) = geometry.plan(sizes, strides, pad, out_strides, 2, 0, 0)
        return dict(zip(HEADER, launch.header, strict=True))["pieces"]

    assert [pieces((9, 3), (3, 1), (1, 1)), pieces((9, 31), (40, 1), (1, 1))] == [1, 1]
    assert pieces((4, 9, 31), (9 * 33, 33, 1), (1, 1)) == 1
    assert [pieces((9, 31), (31, 1), (1, 1)), pieces((9, 31), (31, 1), (1, 1, 2, 0))] == [0, 0]
    assert pieces((9, 0), (1, 1), (31, 2)) == 0


def test_a_period_is_whole_rows_and_whole_vectors(geometry):
    """And all vectors belong to one thread each."""
    shapes = ((200000, 418, 8), (200000, 130, 4), (5000, 7, 16), (200000, 1, 1), (40, 1000, 2), (200000, 333, 16))
    for count, width, lanes in shapes:
        period, rows, steps, threads = geometry.walk(count, width, lanes)
        assert 1 <= steps <= geometry.MAX_STEPS
        if period == count:
            assert (steps, threads) == (1, count)
            continue
        assert rows * width == period * lanes and period >= geometry.MIN_PERIOD and period % 2 == 0
        vectors = [t + t // period * (steps - 1) * period + s * period for t in range(threads) for s in range(steps)]
        assert len(set(vectors)) == len(vectors) and set(vectors) >= set(range(count))


def test_limits_of_a_launch(geometry):
    """Outputs past 2^31 elements, inputs past 2^31 offsets, and rows past both: every number within what 32 bits
    hold.
    """
    G = 2**30
    cases = [
        # sizes, strides, pad, itemsize
        ((3, 2 * G), (2 * G, 1), (1, 1), 1),
        ((5 * G,), (1,), (1, 0), 1),
        ((G, 3), (3, 1), (1, 1), 2),
        ((7, 5, G // 2), (5 * G // 2, G // 2, 1), (0, 0, 1, 1), 4),
        ((4, G), (1, 4), (1, 1), 2),
        ((3, 3), (3 * G, G), (1, 1), 4),
        ((8 * G, 2), (0, 0), (0, 0, 1, 1), 1),
        ((1, 1, 1, 65536, 65536), (0, 0, 0, 65536, 1), (1, 1, 1, 1, 2, 0), 16),
    ]
    kernels = set()
    for sizes, strides, pad, itemsize in cases:
        out = geometry.crop(sizes, strides, pad).out_sizes
        out_strides = tuple(math.prod(out[d + 1 :]) for d in range(len(out)))
        plan = geometry.plan(sizes, strides, pad, out_strides, itemsize, 0, 0)
        written = 0
        kernels |= {launch.kernel for launch in plan}
        for launch in plan:
            header = dict(zip(HEADER, launch.header, strict=True))
            unit = int(launch.kernel.split("_")[2])
            dims = named_dims(launch)
            overhang = max(geometry.GROUP_VECTORS * 16 // unit, header["width"], header["period"] * 16 // unit)
            assert header["count"] + header["out_skew"] + overhang < 2**31
            assert 0 < launch.threads <= 2**32 - 1 and launch.group_size == geometry.GROUP_THREADS
            reach = (header["extent"] - 1) * header["stride"] + sum((d["extent"] - 1) * d["stride"] for d in dims)
            assert launch.kernel.endswith("_int64") or reach < 2**31 - 2**15
            if "dense" in launch.kernel:
                assert header["count"] * unit <= geometry.MAX_DENSE_BYTES
            else:
                assert header["count"] <= geometry.MAX_STRIDED_ELEMENTS
            assert header["out_offset"] * unit == written, "launches follow each other"
            written += header["count"] * unit
        assert written == math.prod(out) * itemsize
    assert {"pad_dense_1", "pad_strided_2", "pad_strided_4_int64", "pad_dense_16"} <= kernels


def test_wrong_pads(geometry):
    for pad in ((1,), (1, 1, 1), (0, 0) * 3, (-4, 0), (0, -4), (-2, -2), (9, -4), (-4, 9)):
        assert geometry.crop((2, 3), (3, 1), pad) is None
    assert geometry.crop((2, 3), (3, 1), (-3, 4)).out_sizes == (2, 4)
    assert geometry.crop((), (), ()).out_sizes == ()
