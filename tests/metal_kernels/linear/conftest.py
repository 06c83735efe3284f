"""The linear kernels, installed on the software device with torch 2.13's stock beneath it (on a Mac: on the GPU)."""

import importlib
import json
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

EPS = 2.0**-24


class Linear:
    """What the tests of linear use: the modules, the mps twin of a CPU tensor, and the comparison with the CPU."""

    def __init__(self, metal_kernels):
        self.metal_kernels = metal_kernels
        names = ("geometry", "host", "check", "bench", "repair")
        self.modules = types.SimpleNamespace(
            linear=metal_kernels.linear,
            **{n: importlib.import_module(f"{metal_kernels.__name__}.linear.{n}") for n in names},
        )
        self.dtypes = self.modules.host.DTYPES

    @property
    def taken(self) -> int:
        """Calls that our kernels ran since the module's tests began."""
        return self.metal_kernels.taken().get("linear", 0)

    @property
    def passed(self) -> int:
        """Calls that went to stock."""
        return self.metal_kernels.passed().get("linear", 0)

    @staticmethod
    def twin(x: torch.Tensor | None) -> torch.Tensor | None:
        """The same storage, sizes, strides and offset on mps."""
        if x is None:
            return None
        storage = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
        return storage.to("mps").view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())

    @staticmethod
    def random(*sizes, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
        return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)

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
        assert_close(y, x, weight, bias, what)
        return y


def assert_close(actual, x, weight, bias=None, what: object = "") -> None:
    """Half an ulp of the output's dtype, its one rounding, and what rounding in float on the way may add up to.

    That is 2^-24 of the sum of the products' magnitudes for each rounding; of n of them most cancel, which leaves about
    sqrt(n), and a few. NaN and infinities are as expected.
    """
    doubles = [None if t is None else t.detach().cpu().double() for t in (x, weight, bias)]
    expected = F.linear(*doubles)
    magnitude = F.linear(*(None if t is None else t.abs() for t in doubles))
    budget = (4 + x.shape[-1] ** 0.5 / 2) * EPS * magnitude
    actual = actual.detach().cpu()
    assert actual.shape == expected.shape, what
    got, rounded = actual.double(), expected.to(actual.dtype).double()
    special = ~rounded.isfinite()
    assert torch.equal(got.isnan(), rounded.isnan()), (what, "NaN")
    assert torch.equal(got[special].nan_to_num(nan=0.5), rounded[special].nan_to_num(nan=0.5)), (what, "infinity")
    finfo = torch.finfo(actual.dtype)
    larger = torch.maximum(got.abs(), expected.abs()).clamp(min=finfo.tiny)
    ulp = torch.exp2(larger.log2().floor()) * finfo.eps
    excess = ((got - expected).abs() / (0.5 * ulp + budget + torch.finfo(torch.float32).tiny))[~special]
    assert not excess.numel() or excess.max() <= 1.0001, (what, f"{excess.max():.2f} times the tolerance")


@pytest.fixture(scope="session")
def close():
    """assert_close()"""
    return assert_close


@pytest.fixture(scope="module")
def lin():
    from pack import load

    metal_kernels = load().metal_kernels
    if sys.platform != "darwin":
        import softmetal

        softmetal.activate(faults="2.13")
    metal_kernels.uninstall()
    metal_kernels.install()
    metal_kernels.set_mode(linear="on")
    for dtype in metal_kernels.linear.KERNEL.dtypes:  # the self-check of each dtype, before anything is recorded
        F.linear(torch.zeros(1, 1, dtype=dtype, device="mps"), torch.zeros(1, 1, dtype=dtype, device="mps"))
    metal_kernels.reset_counters()
    yield Linear(metal_kernels)
    assert metal_kernels.status()["kernels"]["linear"]["state"] != "failed"
    metal_kernels.set_mode(linear="auto")
    metal_kernels.uninstall()


@pytest.fixture
def launches(lin):
    """The launches of linear.metal that a test makes, recorded by the software device."""
    from softmetal import shader

    with shader.launches.record() as records:
        yield records


@pytest.fixture
def faultless_stock():
    """Beneath our kernel a stock that does what the CPU does: what it raises is then the CPU's error."""
    import softmetal

    with softmetal.profile(faults=None):
        yield


@pytest.fixture(scope="session")
def table():
    """shapes.json: the layers of public models."""
    return json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
