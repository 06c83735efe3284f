"""The kernels themselves: schedules, which one runs, what they read, and the self-check."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

SCHEDULES = (0, 1, 17, 12345)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 16])
@pytest.mark.parametrize("layout", ["vectors", "elements", "columns"])
def test_same_bits_under_every_schedule(lin, launches, layout, rows, dtype):
    from softmetal import shader

    x, bias = lin.random(rows, 2056, dtype=dtype), lin.random(21, dtype=dtype)
    weight = lin.random(21, 2056, dtype=dtype)
    if layout == "elements":
        x, weight = x[:, 1:], weight[:, 1:]
    elif layout == "columns":
        weight = weight.t().contiguous().t()
    results = []
    for seed in SCHEDULES:
        with shader.schedule(seed=seed, strict=True):
            results.append(lin.check(x, weight, bias).cpu())
    assert all(torch.equal(result.view(torch.uint8), results[0].view(torch.uint8)) for result in results)
    assert {record.kernel.split("_")[1] for record in launches} == {layout}


def test_the_result_of_a_row_does_not_depend_on_a_gap_behind_it(lin):
    """Rows of a tile that are not there are read from the last row, and dropped."""
    x, weight = lin.random(16, 256), lin.random(9, 256)
    for few, many in ((5, 8), (9, 16)):
        a = F.linear(lin.twin(x[:few].contiguous()), lin.twin(weight))
        b = F.linear(lin.twin(x[:many].contiguous()), lin.twin(weight))
        assert torch.equal(a.cpu(), b[:few].cpu())


def test_which_kernel_runs(lin, launches):
    """By the layout of the weight; x is brought into its form."""
    bf16 = torch.bfloat16
    x, weight = lin.random(3, 64, dtype=bf16), lin.random(40, 64, dtype=bf16)
    expected = []
    for a, w, kernel in (
        (x, weight, "vectors_bfloat_4x8"),
        (x[:1], weight, "vectors_bfloat_1x4"),
        (lin.random(2, 65, dtype=bf16)[:, 1:], weight, "vectors_bfloat_2x4"),
        (lin.random(64, 9, dtype=bf16).t(), weight, "vectors_bfloat_8x4"),
        (x[:, :60], weight[:, :60], "elements_bfloat_8x2"),
        (x[:, 8:], weight[:, 8:], "vectors_bfloat_4x8"),
        (x[:, 4:], weight[:, 4:], "elements_bfloat_8x2"),
        (x, lin.random(64, 40, dtype=bf16).t(), "columns_bfloat_4x32"),
        (x[:1], lin.random(64, 40, dtype=bf16).t(), "columns_bfloat_1x32"),
        (x[:1, ::2], weight[:, ::2], "elements_bfloat_1x2"),
        (x[:, :1], weight[:, :1], "elements_bfloat_8x2"),
    ):
        lin.check(a, w)
        expected.append(f"linear_{kernel}")
    assert [record.kernel for record in launches] == expected


def test_every_kernel_is_reachable(lin, launches):
    for dtype in lin.dtypes:
        lin.modules.check.selfcheck(dtype)
    names = {"float", "half", "bfloat"}
    tiles = lin.modules.geometry.TILES
    every = {
        f"linear_{form}_{name}_{tile.rows}x{tile.outputs}"
        for form in tiles for tile in tiles[form] for name in names
        if form not in lin.modules.geometry.TWO_BYTES or name != "float"
    }  # fmt: skip
    assert {record.kernel for record in launches} == every


def test_small_weights_share_the_length_among_simdgroups(lin):
    plan = lin.modules.geometry.plan

    def sharing(rows, outputs, length):
        """(SIMD-groups that share K, those that share the rows of x)"""
        return plan(rows, outputs, length, (length, 1), (length, 1), None, True, 8).header[-2:]

    assert sharing(1, 512, 2048) == (8, 1)
    assert sharing(1, 512, 256) == (1, 1)  # a piece is 8 elements, and 32 lanes have one each
    assert sharing(1, 4096, 4096) == (4, 1)
    assert sharing(1, 3072, 8192) == (4, 1)  # not 8: more than run at once
    assert sharing(1, 12288, 4096) == sharing(1, 17408, 5120) == (1, 1)
    assert sharing(1, 21504, 3072) == (2, 1)  # a few more than run at once, so many more
    assert sharing(1, 21504, 256) == sharing(1, 151936, 32768) == (1, 1)
    assert sharing(8, 4096, 4096) == (8, 1) and sharing(8, 12288, 4096) == (4, 1)
    assert sharing(8, 2048, 4096) == (4, 2)
    assert sharing(9, 512, 2048) == (4, 2)
    assert sharing(16, 512, 4096) == (4, 2) and sharing(16, 151936, 4096) == (1, 1)
    for rows, simdgroup_outputs in ((1, 4), (2, 4), (3, 8), (5, 8), (9, 4)):
        for outputs in (1, 5, 333, 1097, 2047):
            launch = plan(rows, outputs, 4096, (4096, 1), (4096, 1), None, True, 8)
            simdgroups = -(-outputs // simdgroup_outputs) * launch.header[-1] * launch.header[-2]
            group = launch.group_threads // 32
            assert 0 <= launch.groups * group - simdgroups < group
            assert group == 8 or (rows == 1 and group == 4 and launch.header[-2] <= 4)


def test_rows_a_power_of_two_apart(lin, launches):
    """With one row of x, every other threadgroup goes through K backwards; all of it, shared or not."""
    for dtype in lin.dtypes:
        for outputs, stride in ((37, 8192), (6000, 256)):
            weight = lin.random(outputs, stride, dtype=dtype)
            for length in (stride, stride - 88, stride // 2 + 8, 8):
                lin.check(lin.random(1, length, dtype=dtype), weight[:, :length], what=length)
    assert all(record.kernel.endswith("_1x4") for record in launches)


def test_gaps_between_rows_are_not_read(lin, launches):
    """Bytes that were never written: the device reports a kernel that reads them."""
    from softmetal import shader

    for dtype in lin.dtypes:
        for columns in (32, 30):
            storage = torch.empty(6, 64, dtype=dtype, device="mps")
            data = lin.random(6, columns, dtype=dtype)
            storage[:, 16 : 16 + columns].copy_(lin.twin(data))
            view = storage[:, 16 : 16 + columns]
            for rows in (1, 3):
                x = lin.random(rows, columns, dtype=dtype)
                with shader.schedule(strict=True):
                    y = F.linear(lin.twin(x), view)
                    z = F.linear(view[:rows], lin.twin(data))
                assert torch.equal(y.cpu(), F.linear(lin.twin(x), lin.twin(data)).cpu())
                assert torch.equal(z.cpu(), F.linear(lin.twin(data[:rows]), lin.twin(data)).cpu())


def test_strides_past_32_bits(lin):
    """By name: dimensions of size one make any stride cost nothing, and expanded ones repeat a few bytes."""
    weight = lin.random(8, 1).as_strided((1, 8), (2**40, 1))
    lin.check(lin.random(2, 8), weight)
    lin.check(lin.random(8).as_strided((1, 8, 1), (2**34, 1, 2**36)), lin.random(5, 1))


@pytest.mark.full
def test_offsets_past_32_bits_are_followed(lin, close):
    """Real memory: two rows of a weight more than 2^31 elements apart, along both forms."""
    stride = 2**31 + 8
    storage = torch.zeros(stride + 64, dtype=torch.bfloat16, device="mps")
    data = lin.random(2, 64, dtype=torch.bfloat16)
    storage[:64], storage[stride:] = data[0].to("mps"), data[1].to("mps")
    for rows in (1, 3):
        x = lin.random(rows, 64, dtype=torch.bfloat16)
        close(F.linear(lin.twin(x), storage.as_strided((2, 64), (stride, 1))), x, data)
        x = lin.random(rows, 2, dtype=torch.bfloat16)
        close(F.linear(lin.twin(x), storage.as_strided((64, 2), (1, stride))), x, data.t())


def test_no_host_sync_and_bounded_caches(lin):
    from softmetal import counters

    x, weight, bias = (torch.zeros(*sizes, device="mps") for sizes in ((4, 600), (3, 600), (3,)))
    counters.reset()
    before = lin.taken
    for k in range(1, 600):
        F.linear(x[:2, :k], weight[:, :k], bias)
    assert lin.taken == before + 599
    assert counters.host_copies() == counters.synchronizations() == 0
    assert counters.calls("aten::linear") == 0
    assert lin.modules.geometry.plan.cache_info().maxsize <= 1024


@pytest.mark.parametrize("form", ["vectors", "long", "matrices", "straight", "deep", "elements", "columns"])
def test_selfcheck_notices_a_wrong_launch(lin, monkeypatch, form):
    """A length one step short, in one of the forms only."""
    host = lin.modules.host
    real = host.plan

    def wrong(*args):
        launch = real(*args)
        header = list(launch.header)
        if launch.form == form:
            header[2] -= 16
        return dataclasses.replace(launch, header=tuple(header))

    monkeypatch.setattr(host, "plan", wrong)
    with pytest.raises(lin.metal_kernels.kernel.SelfCheckFailure, match=f"{form}, "):
        lin.modules.check.selfcheck(torch.float16)


def test_bench_cases_are_layers_of_the_table(lin, table):
    """The real shapes are large for the software device: on meta."""
    cases = list(lin.modules.bench.cases("meta"))
    assert {case.op for case in cases} == {"linear"}
    shapes = {(entry["N"], entry["K"]) for entry in table["layers"]}
    for case in cases:
        rows, outputs = case.call().shape
        assert case.shape.startswith(f"{rows}x") and rows in (1, 8) and outputs in {n for n, _ in shapes}
    assert {(n, k) for _, n, k in lin.modules.bench.LAYERS} <= shapes


def test_letting_many_rows_pass_is_cheap(lin):
    """Within three times the design number of 5 us, as tests/metal_kernels/bench_dispatch.py measures it."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[1] / "bench_dispatch.py"
    spec = importlib.util.spec_from_file_location("bench_dispatch", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    x, weight, bias = (torch.zeros(*sizes, device="mps") for sizes in ((2, 9, 16), (16, 16), (16,)))
    best = {}
    for _ in range(6):
        for patched in (False, True):
            lin.metal_kernels.uninstall()
            if patched:
                lin.metal_kernels.install()
            seconds = bench.seconds(lambda: torch._C._nn.linear(x, weight, bias))
            best[patched] = min(best.get(patched, 1.0), seconds)
    lin.metal_kernels.install()
    cost = (best[True] - best[False]) * 1e6
    print(f"linear of 18 rows falls through for {cost:.2f} us; bar {bench.BARS['linear']} us")
    assert cost < bench.LIMIT * bench.BARS["linear"]
