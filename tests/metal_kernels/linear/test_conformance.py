"""linear against the CPU in float64: ranks, forced forms, special values. Cases by the hundred: tests/conformance."""

import pytest
import torch
import torch.nn.functional as F

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(params=DTYPES, ids=str)
def random(request, lin):
    seeds = iter(range(10**6))
    return lambda *sizes: lin.random(*sizes, dtype=request.param, seed=next(seeds))


@pytest.mark.parametrize(
    "sizes", [(), (1,), (7,), (1, 1), (2, 3), (3, 1), (1, 1, 1), (2, 2, 3), (2, 1, 3, 2), (1, 16, 1, 1)], ids=str
)
def test_ranks(lin, random, sizes):
    for k in (32, 33):
        lin.check(random(*sizes, k), random(9, k), random(9))
    # Dimensions that no single stride describes
    if len(sizes) > 1:
        x = random(*sizes, 2, 32)[..., 1, :].transpose(0, 1)
        lin.check(x, random(9, 32), random(9))


@pytest.mark.parametrize("form", ["vectors", "long", "matrices", "straight", "deep", "elements", "columns"])
@pytest.mark.parametrize("rows", [1, 3, 8, 13])
def test_every_form_on_the_same_arguments(lin, random, form, rows):
    """Also where it would not be chosen."""
    if form in lin.modules.geometry.TWO_BYTES and random(1).dtype.itemsize != 2:
        form = None  # matrices are of types of two bytes
    for n, k in ((5, 4096), (41, 64), (70, 104)):
        lin.check(random(rows, k), random(n, k), random(n), form, form=form)


def test_special_values_stay_in_their_row_and_output(lin, random):
    x, weight, bias = random(5, 64), random(20, 64), random(20)
    x[1, 7], x[3, 9] = torch.inf, torch.nan
    weight[2, 5], weight[11, 63] = torch.nan, -torch.inf
    bias[17] = torch.inf
    for layout in (weight, weight.t().contiguous().t(), weight[:, :63]):
        lin.check(x[:, : layout.shape[1]], layout, bias)


def test_overflow_of_the_output(lin):
    """The sums are in float: half overflows only in the result, and products beyond its range may cancel."""
    x = torch.full((2, 64), 300.0, dtype=torch.float16)
    weight = torch.full((3, 64), 300.0, dtype=torch.float16)
    weight[1, ::2] = -300.0
    y = lin.check(x, weight)
    assert y[:, 0].isinf().all() and (y[:, 1] == 0).all()


def test_more_than_16_rows_are_stocks(lin, random, close):
    for sizes in ((17,), (2**16 + 1,), (33000, 2)):
        x, weight, bias = random(*sizes, 3), random(5, 3), random(5)
        before = lin.taken, lin.passed
        y = F.linear(lin.twin(x), lin.twin(weight), lin.twin(bias))
        assert (lin.taken, lin.passed) == (before[0], before[1] + 1)
        close(y, x, weight, bias)


def test_the_plain_function(lin, random, close):
    """Without patching, any number of rows, and an error that says what it takes."""
    linear = lin.metal_kernels.linear.linear
    x, weight, bias = random(2, 30, 8), random(5, 8), random(5)
    with lin.metal_kernels.using(linear="off"):
        close(linear(*map(lin.twin, (x, weight, bias))), x, weight, bias)
        close(linear(*map(lin.twin, (x[:, 0], weight))), x[:, 0], weight)
    with pytest.raises(ValueError, match=r"linear takes x \[..., K\].*not \(2, 8\).*\(5, 7\)"):
        linear(lin.twin(x[:, 0]), lin.twin(random(5, 7)))
    with pytest.raises(ValueError, match="cpu"):
        linear(x, lin.twin(weight))
