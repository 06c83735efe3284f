"""linear against the CPU in float64: rows x dtype x layout x bias, the sizes at the edges, and special values."""

import pytest
import torch
import torch.nn.functional as F

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def transposed(random, n, k):
    return random(k, n).t()


def sliced_columns(random, n, k):
    return random(n, k + 24)[:, 16 : 16 + k]


def odd_slice(random, n, k):
    return random(n + 1, k + 3)[1:, 3:]


def stepped(random, n, k):
    return random(2 * n, 3 * k)[::2, 1::3]


def transposed_slice(random, n, k):
    return random(k + 2, n + 5)[1:-1, 3:-2].t()


def expanded(random, n, k):
    return random(1, k).expand(n, k)


def one_value(random, n, k):
    return random(1, 1).expand(n, k)


def offset(random, n, k):
    return random(n * k + 1)[1:].view(n, k)


LAYOUTS = {
    f.__name__: f
    for f in (transposed, sliced_columns, odd_slice, stepped, transposed_slice, expanded, one_value, offset)
} | {"contiguous": lambda random, n, k: random(n, k)}


@pytest.fixture(params=DTYPES, ids=str)
def random(request, lin):
    seeds = iter(range(10**6))
    return lambda *sizes: lin.random(*sizes, dtype=request.param, seed=next(seeds))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 16])
def test_rows_and_layouts_of_the_weight(lin, random, rows, layout):
    for n, k in ((37, 64), (5, 301), (1, 24), (66, 1), (33, 2)):
        weight = LAYOUTS[layout](random, n, k)
        lin.check(random(rows, k), weight, None, layout)
        lin.check(random(rows, k), weight, random(n), layout)


@pytest.mark.parametrize("rows", range(17))
def test_every_number_of_rows(lin, random, rows):
    lin.check(random(rows, 40), random(19, 40), random(19))


@pytest.mark.parametrize("layout", ["transposed", "stepped", "offset", "expanded", "odd_slice"])
@pytest.mark.parametrize("rows", [1, 5])
def test_layouts_of_the_input(lin, random, rows, layout):
    for k in (48, 35):
        x = LAYOUTS[layout](random, rows, k)
        lin.check(x, random(21, k), random(21), layout)
        lin.check(x, random(k, 21).t(), random(21), layout)


def test_layouts_of_the_bias(lin, random):
    for bias in (random(34)[::2], random(18)[1:], random(1).expand(17), random(17, 3)[:, 1]):
        for rows in (1, 6):
            lin.check(random(rows, 32), random(17, 32), bias)
            lin.check(random(rows, 32), random(32, 17).t(), bias)


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


@pytest.mark.parametrize(
    ("sizes", "n"),
    [((0, 8), 5), ((3, 0), 5), ((3, 8), 0), ((0,), 5), ((0, 0), 0), ((2, 0, 8), 5), ((2, 1, 0), 3), ((0, 3, 0), 4)],
    ids=str,
)
def test_empty(lin, random, sizes, n):
    for bias in (None, random(n)):
        lin.check(random(*sizes), random(n, sizes[-1]), bias)


def test_a_vector_as_weight(lin, random):
    for sizes in ((40,), (3, 40), (2, 2, 40)):
        lin.check(random(*sizes), random(40))


@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [(1, 3, 32768), (1, 2, 32767), (3, 2, 40000), (1, 1, 70001), (16, 33, 4096)],
)
def test_long_rows(lin, random, rows, n, k):
    lin.check(random(rows, k), random(n, k), random(n))
    lin.check(random(rows, k), random(k, n).t(), random(n))


def test_many_outputs(lin):
    n = 65537
    for rows, k, dtype in ((1, 16, torch.bfloat16), (2, 7, torch.float32)):
        x, bias = lin.random(rows, k, dtype=dtype), lin.random(n, dtype=dtype)
        lin.check(x, lin.random(n, k, dtype=dtype), bias)
        lin.check(x, lin.random(k, n, dtype=dtype).t(), bias)


def test_a_vocabulary(lin):
    lin.check(lin.random(1, 8, dtype=torch.bfloat16), lin.random(151936, 8, dtype=torch.bfloat16))


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 8])
def test_a_whole_vocabulary(lin, rows):
    lin.check(lin.random(rows, 1024, dtype=torch.bfloat16), lin.random(151936, 1024, dtype=torch.bfloat16))


@pytest.mark.parametrize("form", ["vectors", "elements", "columns"])
@pytest.mark.parametrize("rows", [1, 3, 8, 13])
def test_every_form_on_the_same_arguments(lin, random, form, rows):
    """Also where it would not be chosen."""
    for n, k in ((5, 4096), (41, 64)):
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
