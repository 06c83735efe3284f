"""The self-check of grouped_mm: every kernel of grouped_mm.metal against the CPU in float64, or exactly."""

from __future__ import annotations

import torch

from ..selfcheck import expect_close, expect_identical, generator
from .host import compute
from .routing import GROUP_BINS, run_histc, run_topk

ENDS = (0, 3, 9, 9, 37)  # of 40 rows: two empty groups, a tile and more, and rows that belong to none
ROWS, OUTPUTS, LENGTH = 40, 70, 72  # no multiples of a tile
# Of values of about 1: twice the rounding of the output, which for float32 drowns in that of the sums.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def selfcheck(dtype: torch.dtype) -> None:
    """Every form for `dtype` and topk, or for an integer histc. Raises SelfCheckFailure."""
    if not dtype.is_floating_point:
        return _check_histc(dtype)
    source = generator()

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, dtype=torch.float64, device="cpu", generator=source).to(dtype)

    tolerance, groups = TOLERANCE[dtype], len(ENDS)
    offs = torch.tensor(ENDS, dtype=torch.int32, device="cpu").to("mps")
    a, b = random(ROWS, LENGTH), random(groups, OUTPUTS, LENGTH) / LENGTH**0.5
    expected = torch.zeros(ROWS, OUTPUTS, dtype=torch.float64, device="cpu")
    begin = 0
    for group, end in enumerate(ENDS):
        expected[begin:end] = a[begin:end].double() @ b[group].double().t()
        begin = end
    a, b = a.to("mps"), b.to("mps")
    for form in ("vectors", "columns", "tiles"):
        y = compute(a, b.mT, offs, form=form)
        expect_close(y, expected.to(dtype), f"{form}, groups of rows", rtol=tolerance, atol=tolerance)
    plain = b.mT.contiguous()[:, :, :64].contiguous()
    for form in ("columns", "tiles"):
        y = compute(a, plain, offs, form=form)
        expect_close(y, expected[:, :64].to(dtype), f"{form}, plain weights", rtol=tolerance, atol=tolerance)
    a, b = random(ROWS, LENGTH), random(ROWS, OUTPUTS + 2) / 3
    expected = torch.stack([
        a[begin:end].double().t() @ b[begin:end].double() for begin, end in zip((0, *ENDS[:-1]), ENDS, strict=True)
    ])  # fmt: skip
    y = compute(a.to("mps").t(), b.to("mps"), offs)
    expect_close(y, expected.to(dtype), "tiles, groups of K", rtol=2 * tolerance, atol=2 * tolerance)
    _check_routing(random)


def _check_routing(random) -> None:
    for candidates in (70, 1000):
        x = random(3, candidates)
        x[1, 40] = torch.nan
        for largest in (True, False):
            values, indices = run_topk(x.to("mps"), 8, -1, largest)
            what = f"topk of {candidates}"
            expect_identical(values, torch.topk(x, 8, -1, largest)[0], what)
            expect_close(values, x.gather(1, indices.to("cpu")), f"the indices of {what}", rtol=0.0, atol=0.0)


def _check_histc(dtype: torch.dtype) -> None:
    """One threadgroup, and many; elements outside of the edges; edges that the elements give."""
    x = torch.arange(0, 43, dtype=dtype, device="cpu") % 9
    for bins in (7, GROUP_BINS + 1):
        counted = torch.bincount(x[x < 7].to(torch.int64) * bins // 7, minlength=bins)
        expected = counted.to(dtype)
        expect_identical(run_histc(x.to("mps"), bins, 0, 7), _with_last(x, expected, 7), f"histc in {bins} bins")
    expected = torch.bincount(x.to(torch.int64), minlength=9).to(dtype)
    expect_identical(run_histc(x.to("mps"), 9), expected, "histc between the least and the greatest element")


def _with_last(x: torch.Tensor, counts: torch.Tensor, high: int) -> torch.Tensor:
    """`high` itself is in the last bin."""
    counts[-1] += (x == high).sum()
    return counts
