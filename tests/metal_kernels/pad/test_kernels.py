"""pad.metal itself: both paths under several schedules, 64-bit offsets, outputs cut into launches, nothing but its
own bytes.
"""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

CASES = {
    "causal": ((1, 2, 3, 9, 70), (1, 1, 1, 1, 2, 0)),
    "temporal": ((1, 2, 3, 8, 64), (0, 0, 0, 0, 2, 0)),
    "crop": ((4, 9, 70), (-1, -1, -1, 2)),
    "long row": ((3, 5000), (7, 1)),
    "short rows": ((300, 3), (1, 1)),
    "several groups": ((40, 33, 65), (1, 0, 0, 1)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", ["dense", "transposed"])
def test_same_bits_under_every_schedule(padding, case, layout):
    from softmetal import shader

    sizes, pad = CASES[case]
    x = padding.random(sizes, torch.float16)
    x = x.transpose(0, -1) if layout == "transposed" else x
    for seed in (0, 1, 17, 12345):
        with shader.schedule(seed=seed, strict=True):
            padding.check(x, pad, 1.5)


def test_every_element_size_reaches_every_path(padding, launches):
    """By the names of the kernels that ran."""
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.complex64):
        x = padding.random((4, 6, 8), dtype)
        padding.check(x, (1, 1))
        padding.check(x.transpose(0, 2), (1, 1))
    x = padding.random((4, 6, 8), torch.float32)
    padding.check(x, (0, 0, 1, 0))
    ran = {record.kernel for record in launches}
    assert ran >= {f"pad_{path}_{size}" for path in ("dense", "strided") for size in (1, 2, 4, 8)} | {"pad_dense_16"}


def test_rows_of_whole_units_in_any_order_of_many_dimensions(padding, launches):
    """More outer dimensions than pad_dense has: the strided kernel moves 16 bytes at a time where rows allow."""
    x = padding.random((2, 3, 2, 3, 2, 8), torch.float32).permute(4, 2, 0, 3, 1, 5)
    padding.check(x, (0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 2))
    assert [record.kernel for record in launches] == ["pad_strided_16"]


@pytest.fixture
def wide_offsets(padding, monkeypatch):
    """The 64-bit kernels for everything."""
    host, plan = padding.modules.host, padding.modules.geometry.plan
    monkeypatch.setattr(host, "plan", lambda *args: plan(*args, wide_offsets=True))


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_wide_offsets(padding, wide_offsets, launches, itemsize):
    dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[itemsize]
    for sizes, pad in CASES.values():
        x = padding.random(sizes, dtype)
        padding.check(x, pad, 1)
        padding.check(x[..., 1:], pad, 1)
        padding.check(x.transpose(0, -1), pad, 1)
    assert all(record.kernel.endswith("_int64") for record in launches)
    assert len(launches) > 2 * len(CASES)


@pytest.mark.parametrize("limit", [100, 4096])
def test_outputs_cut_into_launches(padding, monkeypatch, launches, limit):
    geometry = padding.modules.geometry
    monkeypatch.setattr(geometry, "MAX_ELEMENTS", limit)
    monkeypatch.setattr(geometry, "MAX_STRIDED_ELEMENTS", limit)
    geometry.plan.cache_clear()
    try:
        for sizes, pad in (CASES["causal"], CASES["crop"], CASES["long row"], CASES["temporal"]):
            x = padding.random(sizes, torch.float16)
            padding.check(x, pad, 1)
            padding.check(x.transpose(0, -1), pad, 1)
    finally:
        geometry.plan.cache_clear()
    assert len(launches) > 10


def test_inputs_past_32_bits(padding, launches):
    """8 GiB and more by name, a few bytes in memory: expanded inputs cropped to their far ends, and strides past
    2^31.
    """
    row = padding.random((5,), torch.uint8)
    x = row.expand(2**33, 5)
    for pad in ((1, 1, 2 - 2**33, 1), (1, -1, -(2**32), 3 - 2**32), (0, 0, -(2**33), 2)):
        padding.check(x, pad, 1)
    # Sizes of one make strides of any length cost nothing.
    y = row.as_strided((1, 5, 1), (2**40, 1, 2**34))
    padding.check(y, (1, 1, 1, 2, 1, 0), 1)


@pytest.mark.full
@pytest.mark.parametrize("stride", [2**31 + 5, 2**32 + 7])
def test_strides_past_32_bits_are_followed(padding, launches, stride):
    """Real memory this time: two rows more than 2^31 bytes apart, dense and strided."""
    storage = torch.zeros(stride + 64, dtype=torch.uint8, device="mps")
    data = torch.arange(1, 25, dtype=torch.uint8)
    storage[:24], storage[stride : stride + 24] = data.to("mps"), (data + 100).to("mps")
    expected = F.pad(torch.stack((data, data + 100)), (1, 2, 1, 0))
    F.pad(storage[:24], (1, 1))  # the first use is checked, which launches too
    launches.clear()
    x = storage.as_strided((2, 24), (stride, 1))
    padding.assert_same(F.pad(x, (1, 2, 1, 0)), expected)
    x = storage.as_strided((24, 2), (1, stride))
    padding.assert_same(F.pad(x, (1, 0, 1, 2)), F.pad(torch.stack((data, data + 100), 1), (1, 0, 1, 2)))
    assert all(record.kernel.endswith("_int64") for record in launches) and len(launches) == 2


@pytest.mark.full
def test_an_output_past_31_bits(padding, launches):
    """2.1e9 one-byte elements with a shifted row: more than one launch."""
    n = 2**31 + 12345
    y = F.pad(torch.arange(251, dtype=torch.uint8).to("mps"), (n, 3), value=7)
    assert len(launches) > 1
    assert torch.equal(y[n : n + 251].cpu(), torch.arange(251, dtype=torch.uint8))
    assert int((y != 7).sum()) == 250


def test_no_host_sync_and_bounded_caches(padding):
    from softmetal import counters

    x = torch.zeros(3, 600, device="mps")
    counters.reset()
    geometry, host = padding.modules.geometry, padding.modules.host
    for n in range(1, 600):
        F.pad(x[:, :n], (1, 2), value=float(n))
    assert counters.host_copies() == counters.synchronizations() == 0
    for cache in (geometry.plan, geometry.crop, host._fill_bits):
        info = cache.cache_info()
        assert info.currsize <= info.maxsize <= 512


def test_inputs_with_gaps_are_read_inside_their_rows_only(padding):
    """The bytes between the rows were never written: the device reports a kernel that reads them."""
    from softmetal import shader

    for dtype in (torch.uint8, torch.float16, torch.float32):
        storage = torch.empty(6, 64, dtype=dtype, device="mps")
        view = storage[:, 3:40]
        data = padding.random((6, 37), dtype)
        view.copy_(padding.twin(data))
        with shader.schedule(strict=True):
            padding.assert_same(F.pad(view, (1, 1)), F.pad(data, (1, 1)))
            padding.assert_same(F.pad(view, (-1, 1, 1, 0)), F.pad(data, (-1, 1, 1, 0)))


def test_views_whose_bits_are_not_their_values(padding):
    z = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
    m = padding.twin(z)
    padding.assert_same(F.pad(m.conj(), (1, 1)), F.pad(z.conj(), (1, 1)))
    padding.assert_same(F.pad(m.conj().imag, (1, 1)), F.pad(z.conj().imag, (1, 1)))
    host = padding.modules.host  # and if the dispatcher hands such a view on
    padding.assert_same(host.constant_pad_nd(m.conj(), (1, 1)), F.pad(z.conj(), (1, 1)))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_selfcheck_of_every_dtype(padding):
    for dtype in padding.dtypes:
        padding.modules.check.selfcheck(dtype)


@pytest.mark.parametrize("path", ["dense", "strided"])
def test_selfcheck_notices_a_wrong_move(padding, monkeypatch, path):
    """A wrong address in one of the paths only."""
    host = padding.modules.host
    real = host.plan

    def wrong(*args):
        (launch,) = real(*args)
        header = list(launch.header)
        if path == "strided" and "strided" in launch.kernel:
            header[20] = 0  # stride: each row repeats its first element
        elif path == "dense" and "dense" in launch.kernel and header[1]:
            header[1] -= 1  # in_offset: a crop begins one element early,
            header[3] -= 1  # and in_skew with it
        return (dataclasses.replace(launch, header=tuple(header)),)

    monkeypatch.setattr(host, "plan", wrong)
    with pytest.raises(padding.metal_kernels.kernel.SelfCheckFailure, match="bytes differ"):
        padding.modules.check.selfcheck(torch.float32)


def test_bench_cases(padding):
    """The real shapes are large for the software device: one of each kind, made small."""
    cases = list(padding.modules.bench.cases("meta"))
    assert len(cases) == 6 and {case.op for case in cases} == {"constant_pad_nd"}
    assert cases[0].call().shape == (1, 96, 8, 242, 418)
    assert cases[2].call().shape == (1, 96, 4, 238, 414)
