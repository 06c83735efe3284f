"""grouped_mm.metal itself: the same bits under every schedule, only its own bytes, no host sync, what is read."""

import dataclasses

import pytest
import torch

SEEDS = (0, 17, 12345)
ENDS = (0, 3, 9, 9, 37)


def products(grouped, dtype):
    """Every form and layout of tiles, and the routing; results as CPU tensors of bytes."""
    compute, twin = grouped.modules.host.compute, grouped.twin
    offs = twin(grouped.ends(*ENDS))
    a, b = grouped.random(40, 72, dtype=dtype), grouped.random(5, 72, 72, seed=1, dtype=dtype)
    found = [compute(twin(a), twin(b).mT, offs, form=form) for form in ("vectors", "columns", "tiles")]
    found.append(compute(twin(a), twin(b), offs, form="columns"))
    for x in (twin(a), twin(a.t().contiguous().t())):
        found += [compute(x, twin(b), offs, form="tiles"), compute(x, twin(b).mT, offs, form="tiles")]
    found.append(compute(twin(a).t(), twin(a), offs))
    found.append(compute(twin(b), twin(b)))
    # One row of a long K, which SIMD-groups share
    long = grouped.random(2, 8, 4096, seed=2, dtype=dtype)
    found.append(compute(twin(long[0, :1]), twin(long).mT, twin(grouped.ends(0, 1))))
    for width in (70, 1000):
        found += grouped.modules.routing.run_topk(twin(grouped.random(5, width, dtype=dtype)), 9)
    return [t.cpu().contiguous().view(torch.uint8) for t in found]


def test_same_bits_under_every_schedule(grouped):
    """And under each every element of the output is written: strict=True looks."""
    from softmetal import shader

    for dtype in grouped.dtypes:
        runs = []
        for seed in SEEDS:
            with shader.schedule(seed=seed, strict=True):
                runs.append(products(grouped, dtype))
        for run in runs[1:]:
            assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


def test_histc_has_the_same_counts_under_every_schedule(grouped):
    from softmetal import shader

    x = torch.randint(0, 50, (700,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    for bins in (50, 5000):
        runs = []
        for seed in SEEDS:
            with shader.schedule(seed=seed, strict=True):
                runs.append(grouped.modules.routing.run_histc(grouped.twin(x), bins, 0, 49).cpu())
        assert all(torch.equal(runs[0], run) for run in runs[1:])


def test_views_are_read_inside_their_rows_only(grouped, close):
    """What lies between the rows was never written: the device reports a kernel that reads it."""
    from softmetal import shader

    for dtype in grouped.dtypes:
        for length in (40, 37):
            a = torch.empty(40, 64, dtype=dtype, device="mps")[:, 8 : 8 + length]
            b = torch.empty(3, 24, 64, dtype=dtype, device="mps")[:, 1:-1, 16 : 16 + length]
            x, w = grouped.random(40, length, dtype=dtype), grouped.random(3, 22, length, seed=1, dtype=dtype)
            a.copy_(grouped.twin(x)), b.copy_(grouped.twin(w))
            offs = grouped.ends(2, 2, 39)
            with shader.schedule(strict=True):
                for form in ("vectors", "columns", "tiles"):
                    close(grouped.modules.host.compute(a, b.mT, grouped.twin(offs), form=form), x, w.mT, offs, form)


def test_only_the_active_experts_weights_are_read(grouped):
    """The others' were never written, and reading them is reported."""
    from softmetal import shader

    weight = torch.empty(64, 24, 512, dtype=torch.bfloat16, device="mps")
    chosen = (3, 17, 18, 60)
    for expert in chosen:
        weight[expert] = 1.0
    offs = grouped.twin(torch.tensor([sum(c <= e for c in chosen) for e in range(64)], dtype=torch.int32))
    x = torch.ones(4, 512, dtype=torch.bfloat16, device="mps")
    for form in ("vectors", "columns", "tiles"):
        with shader.schedule(strict=True):
            assert (grouped.modules.host.compute(x, weight.mT, offs, form=form).cpu() == 512).all()


def test_which_form_is_chosen(grouped, launches):
    def names(rows, groups, transposed=True, length=64):
        del launches[:]
        b = torch.zeros(groups, 16, length) if transposed else torch.zeros(groups, length, 16)
        ends = grouped.ends(*[min(rows, g) for g in range(groups)])
        a, b, offs = map(grouped.twin, (torch.zeros(rows, length), b.mT if transposed else b, ends))
        torch._grouped_mm(a, b, offs=offs)
        return [record.kernel for record in launches]

    assert names(8, 256) == names(1, 4) == names(16, 1) == names(512, 256) == ["grouped_vectors_float"]
    assert names(8, 32, transposed=False) == ["grouped_columns_float_wide"]
    assert names(17, 8) == names(513, 256) == ["grouped_tiles_float_along_along"]
    assert names(40, 8, transposed=False) == ["grouped_tiles_float_along_columns"]


def test_rows_in_pairs_and_a_length_that_simdgroups_share(grouped, launches):
    """Groups of 0, 2, 3, 1 and 2 rows; outputs and K that fill no block and no vector."""
    for dtype in grouped.dtypes:
        a, b = grouped.random(8, 4104, dtype=dtype), grouped.random(6, 21, 4104, seed=1, dtype=dtype)
        a, b = a[:, :4101], b[..., :4101]
        grouped.check(a, b.mT, grouped.ends(0, 2, 5, 5, 6, 8), what=dtype)
        grouped.check(a, b.mT, grouped.ends(1, 4, 2, 9, 0, 7), what="ends that do not ascend")
    assert {record.kernel.rpartition("_")[0] for record in launches} == {"grouped_vectors"}
    assert {record.group_size for record in launches} == {(128, 1, 1)}


def test_more_groups_than_are_looked_at_at_once(grouped):
    sizes = [int(g in (3, 255, 256, 299, 517)) + (g == 256) for g in range(600)]
    ends = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    a, b = grouped.random(8, 64), grouped.random(600, 12, 64, seed=1)  # two rows past the last end
    grouped.check(a, b.mT, ends)
    grouped.check(a, b.contiguous().mT, torch.where(torch.arange(600) % 7 == 5, 0, ends).to(torch.int32))


def test_how_many_simdgroups_share_the_length(grouped):
    geometry = grouped.modules.geometry

    def sharing(rows, groups, outputs, length):
        problem = geometry.Problem(geometry.ROWS, rows, outputs, length, groups)
        operands = [geometry.Strided(0, length, 1), geometry.Strided(outputs * length, length, 1)]
        launch = geometry.plan(problem, *operands, geometry.Strided(0, outputs, 1), 1, 8)
        parts, group = launch.header[-1], launch.group_size[0] // 32
        assert launch.form == "vectors" and group == 4 >= parts and launch.threads[1] == rows
        assert 0 <= launch.threads[0] // 32 - -(-outputs // 4) * parts < group
        return parts

    assert sharing(8, 256, 1024, 2048) == 2 and sharing(8, 256, 2048, 512) == 1
    assert sharing(4, 32, 3584, 2048) == 1 and sharing(4, 32, 2048, 1792) == 2
    assert sharing(4, 32, 5760, 2880) == 2  # a few more than run at once, so many more
    assert sharing(64, 256, 1024, 2048) == 1 and sharing(1, 8, 64, 4096) == 4
    assert sharing(16, 1, 64, 4096) == 4 and sharing(1, 8, 64, 256) == 1


def test_no_host_sync(grouped):
    """Not in the experts of a model, forward and backward, nor in its router."""
    from softmetal import counters

    x = torch.randn(8, 32, device="mps", requires_grad=True)
    w = torch.randn(16, 24, 32, device="mps", requires_grad=True)
    logits = torch.randn(8, 16, device="mps")
    counters.reset()
    chosen = torch.topk(logits, 1).indices.flatten()
    order = chosen.argsort()
    counts = torch.histc(chosen.int(), bins=16, min=0, max=15)
    y = torch._grouped_mm(x[order], w.mT, offs=counts.cumsum(0, dtype=torch.int32))
    y.backward(torch.ones_like(y))
    torch._grouped_mm(w, w.mT)
    torch.histc(chosen, bins=5000)
    assert counters.host_copies() == counters.synchronizations() == 0
    assert counters.calls("aten::_grouped_mm") == counters.calls("aten::topk") == counters.calls("aten::histc") == 0
    reference = torch.stack([w[e] @ row for e, row in zip(chosen[order].tolist(), x[order], strict=True)])
    torch.testing.assert_close(y, reference, rtol=1e-5, atol=1e-5)


def test_memory_of_a_call_and_bounded_caches(grouped):
    a, b = torch.zeros(8, 64, device="mps"), torch.zeros(4, 640, 64, device="mps")
    offs = grouped.twin(grouped.ends(2, 4, 6, 8))
    torch._grouped_mm(a, b.mT, offs=offs)
    torch.mps.empty_cache()
    before = torch.mps.current_allocated_memory()
    y = torch._grouped_mm(a, b.mT, offs=offs)
    assert torch.mps.current_allocated_memory() - before <= y.nbytes + 2**14  # allocations are rounded up to pages
    info = grouped.modules.geometry.plan.cache_info()
    assert info.maxsize <= 1024


def test_selfcheck_of_every_dtype(grouped):
    for dtype in grouped.modules.grouped_mm.KERNEL.dtypes:
        grouped.modules.check.selfcheck(dtype)


@pytest.mark.parametrize("form", ["vectors", "columns", "tiles"])
def test_selfcheck_notices_a_flaw_in_one_form(grouped, monkeypatch, form):
    """The first weight along K is taken for all of them."""
    host = grouped.modules.host
    real = host.plan

    def flawed(*args):
        launch = real(*args)
        if launch.form != form:
            return launch
        at = 11 if form == "vectors" else 12  # weight_row, weight_step
        return dataclasses.replace(launch, header=(*launch.header[:at], 0, *launch.header[at + 1 :]))

    monkeypatch.setattr(host, "plan", flawed)
    with pytest.raises(grouped.metal_kernels.kernel.SelfCheckFailure, match=form):
        grouped.modules.check.selfcheck(torch.float32)
