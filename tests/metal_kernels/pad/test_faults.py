"""The reported inputs: wrong on stock first, then right with the pack."""

import pytest
import torch
import torch.nn.functional as F

VERSIONS = ("2.9", "2.12", "2.13", "2.14")


@pytest.fixture(params=VERSIONS)
def faulty(request, padding):
    import softmetal

    with softmetal.profile(faults=request.param):
        yield request.param


def both(padding, x, pad):
    """(CPU's, stock's, ours)"""
    on_device = padding.twin(x)
    with padding.metal_kernels.using(pad="off"):
        stock = F.pad(on_device, pad)
    before = padding.taken
    ours = F.pad(on_device, pad)
    assert padding.taken == before + 1
    return F.pad(x, pad), stock, ours


@pytest.fixture
def randn():
    generator = torch.Generator().manual_seed(0)
    return lambda *sizes: torch.randn(sizes, generator=generator)


def test_report_1_video_frames_replaced_by_the_fill(padding, faulty, randn):
    x = randn(1, 1, 4, 256, 256)
    expected, stock, ours = both(padding, x, (0, 0, 0, 0, 2, 0))
    assert not stock.cpu().any(), "stock must show the fault: all six frames are fill"
    padding.assert_same(ours, expected)


def test_report_1_control(padding, faulty, randn):
    """64 * 1023 is clean on stock too, 64 * 1024 is not."""
    for rows, clean in ((1023, True), (1024, False)):
        expected, stock, ours = both(padding, randn(1, 1, 4, 64, rows), (0, 0, 0, 0, 2, 0))
        assert torch.equal(stock.cpu(), expected) is clean
        padding.assert_same(ours, expected)


def test_report_2_bfloat16_nan(padding, faulty, randn):
    x = randn(1, 8, 1, 256, 384).bfloat16()
    expected, stock, ours = both(padding, x, (0, 0, 0, 0, 2, 0))
    assert stock.cpu().isnan().any()
    padding.assert_same(ours, expected)


def test_long_vectors(padding, faulty, randn):
    expected, stock, ours = both(padding, randn(2**17), (1, 1))
    assert not torch.equal(stock.cpu(), expected)
    padding.assert_same(ours, expected)


def test_empty_pad_list(padding, faulty, randn):
    x = randn(3, 4)
    with padding.metal_kernels.using(pad="off"), pytest.raises(RuntimeError):
        torch.constant_pad_nd(padding.twin(x), ())
    padding.check(x, ())


def test_driver_memory(padding, faulty):
    """Stock keeps driver memory for each distinct shape; ours keeps none for a hundred of them, and waits for
    nothing.
    """
    from softmetal import counters

    x = torch.zeros(1, 2, 3, 70, 70, device="mps")
    y = torch.zeros_like(x)

    def growth(shapes):
        torch.mps.empty_cache()
        start = counters.memory()["outside"]
        for n in shapes:
            F.pad(x[..., :n], (1, 1, 1, 1, 2, 0))
            F.pad(y[..., :n, :], (0, 0, 0, 0, 2, 0))
        torch.mps.empty_cache()
        return counters.memory()["outside"] - start

    with padding.metal_kernels.using(pad="off"):
        assert growth(range(1, 6)) > 0
    growth(range(6, 7))  # the self-check of a first call reads results back
    counters.reset()
    assert growth(range(10, 60)) == 0
    assert counters.host_copies() == 0
    assert counters.calls("aten::constant_pad_nd") == 0


def test_auto_patches_where_stock_is_faulty(padding):
    """The table decides; for 2.14 stock itself is asked."""
    import softmetal

    need = padding.metal_kernels.pad.KERNEL.need
    detect = __import__("importlib").import_module(f"{padding.metal_kernels.__name__}.environment").detect
    padding.metal_kernels.uninstall()
    try:
        for version, patch in (("2.9", True), ("2.12", True), ("2.13", True), ("2.14", True), ("2.15", False)):
            with softmetal.profile(faults=version):
                answer = need(detect())
                assert answer.patch is patch, (version, answer)
                assert ("probed" in answer.reason) is (version == "2.14")
        with softmetal.profile(faults=None):
            assert padding.modules.check.stock_is_right()
    finally:
        padding.metal_kernels.install()
