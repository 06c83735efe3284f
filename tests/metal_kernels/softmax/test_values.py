"""Rows with infinities and NaN, the ends of the range of values, and rows that differ from each other by much."""

import itertools

import pytest
import torch

INF, NAN = float("inf"), float("nan")
SPECIALS = {
    "all -inf": lambda x: x.fill_(-INF),
    "one -inf": lambda x: x.select(-1, 0).fill_(-INF),
    "all but one -inf": lambda x: x.narrow(-1, 1, x.shape[-1] - 1).fill_(-INF),
    "first half -inf": lambda x: x.narrow(-1, 0, -(-x.shape[-1] // 2)).fill_(-INF),
    "last half -inf": lambda x: x.narrow(-1, x.shape[-1] // 2, x.shape[-1] - x.shape[-1] // 2).fill_(-INF),
    "+inf": lambda x: x.select(-1, x.shape[-1] - 1).fill_(INF),
    "+inf and -inf": lambda x: (x.select(-1, 0).fill_(-INF), x.select(-1, 1).fill_(INF)),
    "all +inf": lambda x: x.fill_(INF),
    "NaN": lambda x: x.select(-1, x.shape[-1] // 2).fill_(NAN),
    "NaN among -inf": lambda x: (x.fill_(-INF), x.select(-1, x.shape[-1] // 2).fill_(NAN)),
    "all NaN": lambda x: x.fill_(NAN),
    "one finite": lambda x: (x.fill_(-INF), x.select(-1, x.shape[-1] - 1).fill_(2.0)),
}
FORMS = {"rows": (3, 2600), "short rows": (9, 40), "looped": (3, 5000), "split": (3, 5000), "columns": (6, 300)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPECIALS)
def test_specials(softmaxing, form, kind):
    """In the middle row; those beside it stay as they are. As the CPU has it, element by element."""
    forced = form.split()[-1]
    for dtype in softmaxing.dtypes:
        x = softmaxing.random(FORMS[form], dtype)
        SPECIALS[kind](x[1])
        softmaxing.check(x, 1, form=forced)
        wide = softmaxing.random((2, FORMS[form][1], 16), dtype)
        SPECIALS[kind](wide[1, :, 3])
        if form == "columns":
            softmaxing.check(wide, 1, form=forced)


def test_whole_row_of_minus_infinity_is_nan_through_torch(softmaxing):
    x = softmaxing.random((4, 50))
    x[2] = -INF
    y = torch.softmax(softmaxing.twin(x), -1).cpu()
    assert y[2].isnan().all() and not y[[0, 1, 3]].isnan().any()


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 30.0, 1e4, 1e30])
def test_ranges(softmaxing, scale):
    for sizes, dim in (((4, 100), 1), ((2, 3000), 1), ((50, 7), 0)):
        softmaxing.check(softmaxing.random(sizes, torch.float32, scale=scale), dim)
    for form in ("looped", "split"):
        softmaxing.check(softmaxing.random((2, 5000), torch.float32, scale=scale), 1, form=form)


def test_largest_values(softmaxing):
    for dtype in softmaxing.dtypes:
        top = torch.finfo(dtype).max
        for values in itertools.product((top, -top, 0.0), repeat=3):
            softmaxing.check(torch.tensor([values + (0.5,) * 30], dtype=dtype), 1)


def test_rising_and_falling_rows(softmaxing):
    """The maximum of an online softmax changes at every block, or never again."""
    for form in ("looped", "split", "columns", "rows"):
        x = torch.linspace(-60, 60, 5000)
        softmaxing.check(torch.stack((x, x.flip(0))), 1, form=form)


def test_infinite_and_nan_gradients(softmaxing):
    for value in (INF, -INF, NAN):
        grad = softmaxing.random((3, 40))
        grad[1, 5] = value
        for name in ("softmax", "log_softmax"):
            y = getattr(torch, name)(softmaxing.random((3, 40), seed=4), 1)
            y[1, 7] = -INF if name == "log_softmax" else 0.0
            expected = getattr(torch, f"_{name}_backward_data")(grad, y, 1, torch.float32)
            actual = softmaxing.run(f"{name}_backward", (softmaxing.twin(grad), softmaxing.twin(y)), 1, torch.float32)
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-6, equal_nan=True)
