"""The grouped_mm kernels, installed on the software device with torch 2.13's stock beneath (on a Mac: on the GPU)."""

import pytest
import torch
from family import EPS, Family, assert_within, installed


class Grouped(Family):
    """With the comparison with the CPU in float64."""

    def __init__(self, *args):
        super().__init__(*args)
        self.dtypes = self.modules.host.DTYPES

    @staticmethod
    def ends(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    def check(self, a, b, offs=None, what: object = "", form: str | None = None) -> torch.Tensor:
        """torch._grouped_mm of the mps twins, taken by our kernel; or with `form` compute(), whose form is forced."""
        what = (what, tuple(a.shape), a.stride(), tuple(b.shape), b.stride(), a.dtype)
        twins = [self.twin(t) for t in (a, b, offs)]
        if form is not None:
            y = self.modules.host.compute(*twins, form=form)
        else:
            before = self.taken
            y = torch._grouped_mm(twins[0], twins[1], offs=twins[2])
            assert self.taken == before + 1, ("went to stock", what)
        assert y.dtype == a.dtype, what
        assert_close(y, a, b, offs, what)
        return y


def spans(offs: torch.Tensor, size: int) -> list[tuple[int, int]]:
    """[begin, end) of each group as the kernels define it: ends within [0, size], none before an earlier one."""
    found, begin = [], 0
    for end in offs.tolist():
        end = max(begin, min(max(end, 0), size))
        found.append((begin, end))
        begin = end
    return found


def reference(a, b, offs=None) -> torch.Tensor:
    """In float64, group by group; zero past the last end."""
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    if offs is None:
        return a @ b
    if a.dim() == 2 and b.dim() == 2:
        if not len(offs):
            return a.new_zeros(0, a.shape[0], b.shape[1])
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in spans(offs, a.shape[1])])
    y = torch.zeros(a.shape[-2], b.shape[-1], dtype=torch.float64)
    for group, (i, j) in enumerate(spans(offs, a.shape[0] if a.dim() == 2 else b.shape[1])):
        if a.dim() == 2:
            y[i:j] = a[i:j] @ b[group]
        else:
            y[:, i:j] = a[group] @ b[:, i:j]
    return y


def assert_close(actual, a, b, offs=None, what: object = "") -> None:
    """Half an ulp of the output's dtype, its one rounding, and what rounding in float on the way may add up to.

    That is 2^-24 of the sum of the products' magnitudes for each rounding; of n of them most cancel, which leaves about
    sqrt(n), and a few. NaN and infinities are as expected.
    """
    expected = reference(a, b, offs)
    budget = (4 + a.shape[-1] ** 0.5 / 2) * EPS * reference(a.abs(), b.abs(), offs)
    assert_within(actual, expected, budget, what)


@pytest.fixture(scope="session")
def close():
    """assert_close()"""
    return assert_close


@pytest.fixture(scope="module")
def grouped():
    with installed("grouped_mm") as installation:
        family = Grouped(installation, "grouped_mm", ("geometry", "host", "routing", "check", "bench"))
        for dtype in family.modules.grouped_mm.KERNEL.dtypes:  # the first use of each is checked, which launches too
            x = torch.ones(16, 16).to("mps", dtype)
            torch.topk(x, 1) if dtype.is_floating_point else torch.histc(x, 1)
        installation.reset_counters()
        yield family
