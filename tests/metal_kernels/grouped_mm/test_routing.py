"""topk and histc: values, order, ties, NaN and counts as on the CPU; what is left to stock."""

import pytest
import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def bits(x):
    return x.contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])


def check_topk(grouped, x, k, largest=True):
    """Values bit for bit the CPU's; indices those of a stable sort: of equal values the lowest ones, in order."""
    before = grouped.taken
    values, indices = torch.topk(grouped.twin(x), k, largest=largest)
    assert grouped.taken == before + 1, ("went to stock", x.shape, k)
    values, indices = values.cpu(), indices.cpu()
    expected = torch.topk(x, k, largest=largest).values
    what = (tuple(x.shape), x.dtype, k, largest)
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{what}: {text}")
    # Stable, descending or ascending, NaN greatest: the order that is ours to keep among equals.
    order = torch.sort(x.float(), dim=-1, descending=largest, stable=True).indices[..., :k]
    assert torch.equal(indices, order), what
    assert torch.equal(bits(values), bits(x).gather(-1, indices)), what
    assert values.is_contiguous() and indices.is_contiguous() and indices.dtype == torch.int64


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("candidates", [100, 1200])
def test_ties_and_special_values(grouped, dtype, largest, candidates):
    x = (grouped.random(6, candidates) * 2).round().to(dtype)
    x[1, ::7], x[2, 3], x[2, 50] = torch.nan, torch.inf, -torch.inf
    x[3] = torch.nan
    x[4] = torch.tensor([0.0, -0.0]).repeat(candidates // 2)
    x[5, 10:] = torch.finfo(dtype).smallest_normal * torch.arange(candidates - 10).flip(0) / candidates  # subnormals
    check_topk(grouped, x.to(dtype), 30, largest)
    negative_nan = torch.full((1, 40), -1, dtype=torch.int16 if dtype.itemsize == 2 else torch.int32).view(dtype)
    check_topk(grouped, torch.cat((negative_nan, x[:1, :40]), 1), 32, largest)


def test_every_value_of_16_bits_in_order(grouped):
    for dtype in (torch.float16, torch.bfloat16):
        values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
        x = values[torch.randperm(2**16, generator=torch.Generator().manual_seed(0))].view(dtype).view(256, 256)
        for largest in (True, False):
            check_topk(grouped, x, 32, largest)


def test_layouts(grouped):
    x = grouped.random(6, 5, 40)
    for view in (x, x.transpose(0, 1), x.transpose(1, 2), x[:, 2], x[::2, 1:, 3:], x[0, 0], x[:, :1].expand(6, 5, 40)):
        check_topk(grouped, view, 3)
    twin = grouped.twin(x)
    before = grouped.taken
    assert torch.equal(torch.topk(twin, 3, dim=2)[1].cpu(), torch.topk(x, 3, dim=2)[1])
    assert torch.equal(torch.topk(twin, 3, sorted=False)[0].cpu(), torch.topk(x, 3)[0])
    assert grouped.taken == before + 2


def test_gradient_of_topk(grouped):
    x = grouped.random(5, 30)
    twin, x = grouped.twin(x).requires_grad_(), x.requires_grad_()
    for leaf in (twin, x):
        torch.topk(leaf, 4).values.square().sum().backward()
    torch.testing.assert_close(twin.grad.cpu(), x.grad)


def test_what_topk_leaves_to_stock(grouped):
    x = grouped.random(40, 40)
    before = grouped.taken
    for tensor, k, options in (
        (x, 33, {}), (x, 3, {"dim": 0}), (grouped.random(2, 4097), 3, {}), (x.int(), 3, {}), (torch.tensor(3.0), 1, {}),
    ):  # fmt: skip
        values, _ = torch.topk(grouped.twin(tensor), k, **options)
        assert torch.equal(values.cpu(), torch.topk(tensor, k, **options)[0])
    for k, options in ((41, {}), (-1, {}), (3, {"dim": 5})):
        with pytest.raises((RuntimeError, IndexError)) as expected:
            torch.topk(x, k, **options)
        with pytest.raises(expected.type) as actual:
            torch.topk(grouped.twin(x), k, **options)
        assert str(actual.value) == str(expected.value)
    assert grouped.taken == before


def counted(x, bins, low, high):
    """In Python's integers."""
    values = x.flatten().tolist()
    if low == high and values:
        low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    counts = [0] * bins
    for value in values:
        if low <= value <= high:
            counts[min((value - low) * bins // (high - low), bins - 1)] += 1
    info = torch.iinfo(x.dtype)
    return torch.tensor([(c - info.min) % (info.max - info.min + 1) + info.min for c in counts], dtype=x.dtype)


def check_histc(grouped, x, bins, low=0, high=0):
    before = grouped.taken
    actual = torch.histc(grouped.twin(x), bins, low, high)
    assert grouped.taken == before + 1, "went to stock"
    assert actual.dtype == x.dtype
    assert torch.equal(actual.cpu(), counted(x, bins, low, high)), (tuple(x.shape), x.dtype, bins, low, high)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_histc(grouped, dtype):
    x = torch.randint(0, 100, (500,), generator=torch.Generator().manual_seed(0)).to(dtype)
    for bins, low, high in ((100, 0, 99), (10, 0, 0), (7, 20, 60), (100, 3, 3), (1, 0, 99), (5000, 0, 99), (64, 0, 63)):
        check_histc(grouped, x, bins, low, high)
        check_histc(grouped, x[::3].view(-1, 1).t(), bins, low, high)
    check_histc(grouped, x[:0], 5)
    check_histc(grouped, x[:1], 5)
    check_histc(grouped, x[0], 5, 0, 9)
    check_histc(grouped, torch.full((300,), 5, dtype=dtype), 4)  # wraps in 8 bits


def test_histc_of_extremes(grouped):
    info = torch.iinfo(torch.int64)
    x = torch.tensor([info.min, info.min // 2, -1, 0, 1, info.max // 2, info.max, 2**40, -(2**40)])
    for bins, low, high in ((4, -(2**62), 2**62 - 1), (3, 0, info.max), (1000, -(2**40), 2**40), (5, 2**40, 2**40 + 1)):
        check_histc(grouped, x, bins, low, high)


def test_histc_of_floats_is_stocks(grouped):
    x = grouped.random(50)
    before = grouped.taken
    assert torch.equal(torch.histc(grouped.twin(x), 5).cpu(), torch.histc(x, 5))
    assert grouped.taken == before


def test_the_plain_functions(grouped):
    module = grouped.modules.grouped_mm
    x = grouped.random(3, 20)
    with grouped.metal_kernels.using(grouped_mm="off"):
        assert torch.equal(module.topk(grouped.twin(x), 4)[1].cpu(), torch.topk(x, 4)[1])
        assert module.histc(grouped.twin(torch.tensor([1, 2, 2])), 3, 0, 2).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="topk takes .* k=33"):
        module.topk(grouped.twin(x), 33)
    with pytest.raises(ValueError, match="histc takes .*float32"):
        module.histc(grouped.twin(x), 3)
