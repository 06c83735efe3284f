"""PyTorch's own samples of topk and histc, against the CPU; how many of them are ours is counted."""

import pytest
import torch


def opinfo(name: str):
    from torch.testing._internal.common_methods_invocations import op_db

    (op,) = (op for op in op_db if op.name == name and not op.variant_test_name)
    return op


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_every_sample_of_topk(grouped, dtype):
    op, ours = opinfo("topk"), 0
    for sample in op.sample_inputs("cpu", dtype):
        x = sample.input.detach()
        values, indices = torch.topk(x, *sample.args, **sample.kwargs)
        before = grouped.taken
        actual, where = op(grouped.twin(x), *sample.args, **sample.kwargs)
        ours += grouped.taken - before
        dim = sample.args[1] if len(sample.args) > 1 else -1
        is_sorted = sample.args[3] if len(sample.args) > 3 else True
        if x.dim():
            assert torch.equal(x.gather(dim, where.cpu()), actual.cpu())
        if not is_sorted:
            values, actual = values.sort(dim).values, actual.cpu().sort(dim).values
        assert torch.equal(actual.cpu(), values) and where.shape == indices.shape
    assert ours >= 1 if dtype.is_floating_point else not ours


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_every_sample_of_histc(grouped, dtype):
    """The samples are of floats; truncated, they count as float64 does, which is exact for integers this small."""
    checked = 0
    for sample in opinfo("histc").sample_inputs("cpu", torch.float32):
        x = (sample.input.detach() * 3).abs().to(dtype)
        low, high = (int(sample.kwargs.get(edge, 0)) for edge in ("min", "max"))
        bins = sample.kwargs.get("bins", 100)
        if dtype is torch.uint8 and low < 0:
            continue
        expected = torch.histc(x.double(), bins, low, high)
        before = grouped.taken
        actual = torch.histc(grouped.twin(x), bins, low, high)
        assert grouped.taken == before + 1
        if int(expected.max()) <= 255 and exact(x, bins, low, high):
            assert torch.equal(actual.cpu().double(), expected), sample
            checked += 1
    assert checked >= 5


def exact(x, bins, low, high):
    """Whether no element lies on the edge of a bin, where float64 may round to either side."""
    if low == high and x.numel():
        low, high = int(x.min()), int(x.max())
    if low == high:
        low, high = low - 1, high + 1
    return not ((x.long() - low) * bins % (high - low))[(x > low) & (x < high)].eq(0).any()
