"""_grouped_mm against the CPU in float64: forced forms, special values. Cases by the hundred: tests/conformance."""

import pytest
import torch
from conformance.rows.grouped_mm import ENDS  # of 45 rows

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FORMS = ("vectors", "columns", "tiles")


@pytest.fixture(params=DTYPES, ids=str)
def random(request, grouped):
    seeds = iter(range(10**6))
    return lambda *sizes: grouped.random(*sizes, dtype=request.param, seed=next(seeds))


def experts(random, groups, length, outputs, layout):
    """[groups, length, outputs]: as experts lie, transposed; plain; or a part of a larger one."""
    if layout == "transposed":
        return random(groups, outputs, length).mT
    if layout == "plain":
        return random(groups, length, outputs)
    if layout == "slice":
        return random(groups, outputs + 3, length + 16)[:, 2:-1, 8:-8].mT
    return random(1, outputs, length).expand(groups, -1, -1).mT


@pytest.mark.parametrize("form", FORMS)
def test_every_form_on_the_same_arguments(grouped, random, form):
    """Also where it would not be chosen."""
    for ends in ENDS.values():
        offs = grouped.ends(*ends)
        grouped.check(random(45, 40), experts(random, len(offs), 40, 72, "transposed"), offs, ends, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [1, 7, 8, 31, 33, 100])
def test_lengths_and_widths_that_are_no_multiples(grouped, random, form, length):
    """Their strides are: more is not allowed."""
    offs = grouped.ends(2, 2, 9)
    a, b = random(11, 104)[:, :length], random(3, 5, 104)[..., :length].mT
    grouped.check(a, b, offs, form=form)
    if form != "vectors":
        grouped.check(a, random(3, length, 8)[..., :5], offs, form=form)
        grouped.check(a, random(3, length, 312)[..., :300], offs, form=form)
    if length > 1:
        assert a.stride(0) == 104
        grouped.check(a, b, offs)


def test_no_outputs_no_length_no_groups(grouped, random):
    grouped.check(random(4, 16), random(3, 16, 8)[..., :0], grouped.ends(1, 2, 4))
    grouped.check(random(4, 8)[:, :0], random(3, 8, 8)[:, :0], grouped.ends(1, 2, 4))
    grouped.check(random(16, 8)[:0].t(), random(0, 8), grouped.ends(0, 0))
    grouped.check(random(4, 16), random(16, 8), grouped.ends())


def test_the_result_lies_as_stocks_does(grouped, random):
    for outputs in (8, 5):
        a, b, offs = random(6, 16), random(2, outputs, 16).mT, grouped.ends(2, 6)
        expected = torch._grouped_mm(a, b, offs=offs)
        assert grouped.check(a, b, offs).stride() == expected.stride()
        a, b = random(6, 16), random(16, 16)[:, :outputs]
        expected = torch._grouped_mm(a, b, offs=offs)
        assert grouped.check(a, b, offs).stride() == expected.stride()


def test_ends_of_any_stride_and_offset(grouped, random):
    offs = grouped.ends(0, 9, 3, 9, 5, 9)[::2]
    for rows in (7, 40):
        grouped.check(random(rows, 16), random(3, 8, 16).mT, offs)


def test_special_values_stay_in_their_row_group_and_output(grouped, random):
    a, b = random(9, 64), random(3, 20, 64)
    a[1, 7], a[3, 9] = torch.inf, torch.nan
    b[0, 5, 3], b[2, 11, 63] = torch.nan, -torch.inf
    for form in FORMS:
        grouped.check(a, b.mT, grouped.ends(2, 5, 8), form=form)


def test_overflow_of_the_output(grouped):
    """The sums are in float: half overflows only in the result, and products beyond its range may cancel."""
    a = torch.full((2, 64), 300.0, dtype=torch.float16)
    b = torch.full((1, 8, 64), 300.0, dtype=torch.float16)
    b[0, 1, ::2] = -300.0
    for form in FORMS:
        y = grouped.check(a, b.mT, grouped.ends(2), form=form)
        assert y[:, 0].isinf().all() and (y[:, 1] == 0).all()


def test_the_plain_function(grouped, close):
    """Without patching, and an error that says what it takes."""
    grouped_mm = grouped.modules.grouped_mm.grouped_mm
    a, b, offs = grouped.random(5, 16), grouped.random(2, 16, 8), grouped.ends(2, 4)
    with grouped.metal_kernels.using(grouped_mm="off"):
        close(grouped_mm(*map(grouped.twin, (a, b, offs))), a, b, offs)
        close(grouped_mm(grouped.twin(b.mT), grouped.twin(b)), b.mT, b)
    with pytest.raises(ValueError, match=r"grouped_mm takes .* not \(5, 16\) .*offs=None"):
        grouped_mm(grouped.twin(a), grouped.twin(b))
