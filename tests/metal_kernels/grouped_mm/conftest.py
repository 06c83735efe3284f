"""The grouped_mm kernels, installed on the software device with torch 2.13's stock beneath (on a Mac: on the GPU)."""

import pytest
import torch
from family import Family, installed


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
        self.close(y, a, b, offs, what)
        return y

    def close(self, y, a, b, offs=None, what: object = "") -> None:
        """Raises unless y is the product that the conformance table's reference has."""
        self.assert_close("grouped_mm", y, a, b, offs, what=what)


@pytest.fixture(scope="module")
def grouped():
    with installed("grouped_mm") as installation:
        family = Grouped(installation, "grouped_mm", ("geometry", "host", "routing", "check", "bench"))
        for dtype in family.modules.grouped_mm.KERNEL.dtypes:  # the first use of each is checked, which launches too
            x = torch.ones(16, 16).to("mps", dtype)
            torch.topk(x, 1) if dtype.is_floating_point else torch.histc(x, 1)
        installation.reset_counters()
        yield family


@pytest.fixture
def close(grouped):
    return grouped.close
