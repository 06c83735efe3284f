"""softmax.metal itself: the same bits under every schedule, nothing but its own bytes, 64 bits, no host sync."""

import dataclasses

import pytest
import torch

CASES = {
    "lanes": ((9, 23), 1, None),
    "a SIMD-group": ((5, 203), 1, None),
    "a threadgroup": ((3, 2601), 1, None),
    "looped": ((2, 9001), 1, "looped"),
    "split": ((2, 9001), 1, "split"),
    "columns": ((2, 300, 5), 1, None),
    "wide columns": ((2, 150, 24), 1, None),
    "tiny rows": ((300, 3), 1, None),
}
SEEDS = (0, 1, 17, 12345)


def results(softmaxing, x, dim, form):
    """All four kernels' results for a CPU tensor x."""
    host, twin = softmaxing.modules.host, softmaxing.twin
    grad = twin(softmaxing.random(x.shape, x.dtype, seed=1))
    found = []
    for name in ("softmax", "log_softmax"):
        y = host.compute(name, (twin(x),), dim, x.dtype, form=form)
        found += [y, host.compute(f"{name}_backward", (grad, y), dim, x.dtype, form=form)]
    return [tensor.cpu() for tensor in found]


@pytest.mark.parametrize("case", CASES)
def test_same_bits_under_every_schedule(softmaxing, case):
    """And under each every element of the output is written: strict=True looks."""
    from softmetal import shader

    sizes, dim, form = CASES[case]
    for dtype in softmaxing.dtypes:
        x = softmaxing.random(sizes, dtype)
        runs = []
        for seed in SEEDS:
            with shader.schedule(seed=seed, strict=True):
                runs.append(results(softmaxing, x, dim, form))
        for run in runs[1:]:
            assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(runs[0], run, strict=True))


def test_views_are_read_inside_their_rows_only(softmaxing):
    """The elements between the rows were never written: the device reports a kernel that reads them."""
    from softmetal import shader

    for dtype in softmaxing.dtypes:
        for width, start in ((40, 3), (37, 1), (48, 8), (600, 16)):
            storage = torch.empty(6, width + 30, dtype=dtype, device="mps")
            view = storage[:, start : start + width]
            data = softmaxing.random((6, width), dtype)
            view.copy_(softmaxing.twin(data))
            with shader.schedule(strict=True):
                for dim in (0, 1):
                    for name in ("softmax", "log_softmax"):
                        actual = softmaxing.run(name, (view,), dim, dtype)
                        expected = getattr(torch, name)(data.double(), dim)
                        tolerance = 2 * torch.finfo(dtype).eps
                        torch.testing.assert_close(actual.cpu().double(), expected, rtol=4 * tolerance, atol=tolerance)


@pytest.fixture
def small_launches(softmaxing, monkeypatch):
    """Work of more than 200 elements is cut into several launches."""
    geometry = softmaxing.modules.geometry
    monkeypatch.setattr(geometry, "MAX_ELEMENTS", 200)
    geometry.plan.cache_clear()
    yield
    geometry.plan.cache_clear()


def test_work_cut_into_launches(softmaxing, small_launches, launches):
    for sizes, dim in (((9, 23), 1), ((5, 203), 1), ((300, 3), 1), ((2, 37, 24), 1), ((3, 4, 5, 6), 0), ((7, 300), 0)):
        softmaxing.check(softmaxing.random(sizes), dim)
        softmaxing.check(softmaxing.random(sizes).transpose(0, -1), dim)
        softmaxing.check(softmaxing.random((sizes[0] * 2, *sizes[1:]), torch.float16)[::2, ..., 1:], dim)
    assert len(launches) > 200


@pytest.mark.full
@pytest.mark.parametrize("stride", [2**31 + 5, 2**32 + 8])
def test_strides_past_32_bits_are_followed(softmaxing, stride):
    """Rows, columns and a row's elements more than 2^31 elements apart, in real memory."""
    storage = torch.empty(stride + 64, dtype=torch.float16, device="mps")
    data = softmaxing.random((2, 48), torch.float16)
    storage[:48], storage[stride : stride + 48] = softmaxing.twin(data[0].clone()), softmaxing.twin(data[1].clone())
    rows = storage.as_strided((2, 48), (stride, 1))
    for x, like in ((rows, data), (rows.t(), data.t())):
        for dim in (0, 1):
            for name in ("softmax", "log_softmax"):
                actual = softmaxing.run(name, (x,), dim, x.dtype).cpu().double()
                torch.testing.assert_close(actual, getattr(torch, name)(like.double(), dim), rtol=2e-3, atol=1e-3)
                y = actual.half()
                gradient = softmaxing.run(f"{name}_backward", (x, softmaxing.twin(y)), dim, x.dtype).cpu().double()
                expected = getattr(torch, f"_{name}_backward_data")(like.double(), y.double(), dim, torch.float64)
                torch.testing.assert_close(gradient, expected, rtol=2e-3, atol=1e-3)


def test_no_host_sync_and_bounded_caches(softmaxing):
    from softmetal import counters

    x = torch.randn(3, 700, device="mps", requires_grad=True)
    long = torch.randn(1, 20000, device="mps")
    counters.reset()
    for n in range(1, 700, 3):
        torch.softmax(x[:, :n], -1).backward(x[:, :n].detach())
    torch.log_softmax(long, -1)
    assert counters.host_copies() == counters.synchronizations() == 0
    info = softmaxing.modules.geometry.plan.cache_info()
    assert info.currsize <= info.maxsize <= 1024


def test_memory_of_a_call(softmaxing):
    """The output, and for a split row a scratch of a few KiB; nothing stays behind."""
    from softmetal import counters

    x = torch.randn(1, 151936, device="mps")
    torch.softmax(x, -1)
    torch.mps.empty_cache()
    before = torch.mps.current_allocated_memory()
    y = torch.softmax(x, -1)
    assert torch.mps.current_allocated_memory() - before <= y.nbytes + 2**15  # allocations are rounded up to pages
    del y
    assert torch.mps.current_allocated_memory() == before
    assert counters.calls("aten::_softmax") == 0


def test_selfcheck_of_every_dtype(softmaxing):
    for dtype in softmaxing.dtypes:
        softmaxing.modules.check.selfcheck(dtype)


@pytest.mark.parametrize("form", ["rows", "looped", "split", "columns"])
def test_selfcheck_notices_a_flaw_in_one_form(softmaxing, monkeypatch, form):
    """Each element of a row, or column, is taken for its first one's."""
    host = softmaxing.modules.host
    real = host.plan

    def flawed(*args):
        return tuple(
            dataclasses.replace(launch, header=(*launch.header[:5], 0, *launch.header[6:8], 0, *launch.header[9:]))
            if launch.form == form
            else launch
            for launch in real(*args)
        )

    monkeypatch.setattr(host, "plan", flawed)
    what = {"looped": "loop", "columns": "columns"}.get(form, form)
    with pytest.raises(softmaxing.metal_kernels.kernel.SelfCheckFailure, match=what):
        softmaxing.modules.check.selfcheck(torch.float32)
