"""The linear kernels, installed on the software device with torch 2.13's stock beneath it (on a Mac: on the GPU)."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from family import Family, installed


class Linear(Family):
    """With the comparison with the CPU in float64."""

    def check(self, x, weight, bias=None, what: object = "", form: str | None = None) -> torch.Tensor:
        """F.linear of the mps twins, through torch and taken by our kernel, against the CPU in float64. With `form`
        through host.compute(), whose form is forced.
        """
        what = (what, tuple(x.shape), tuple(weight.shape), weight.stride(), weight.storage_offset(), x.dtype)
        tensors = [self.twin(t) for t in (x, weight, bias)]
        if form is not None:
            y = self.modules.host.compute(*tensors, form=form)
        else:
            before = self.taken
            y = F.linear(*tensors)
            assert self.taken == before + 1, ("went to stock", what)
        assert y.is_contiguous() and y.dtype == x.dtype, what
        self.close(y, x, weight, bias, what)
        return y

    def close(self, y, x, weight, bias=None, what: object = "") -> None:
        """Raises unless y is the layer's output that the conformance table's reference has."""
        self.assert_close("linear", y, x, weight, bias, what=what)


@pytest.fixture(scope="module")
def lin():
    with installed("linear") as installation:
        family = Linear(installation, "linear", ("geometry", "host", "check", "bench", "repair"))
        for dtype in family.dtypes:  # the self-check of each dtype, before anything is recorded
            F.linear(torch.zeros(1, 1, dtype=dtype, device="mps"), torch.zeros(1, 1, dtype=dtype, device="mps"))
        installation.reset_counters()
        yield family


@pytest.fixture
def close(lin):
    return lin.close


@pytest.fixture(scope="session")
def table():
    """shapes.json: the layers of public models."""
    return json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
