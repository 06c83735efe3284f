"""What the tests of one kernel family share: the family installed, its modules, twins on mps, and the tolerance."""
import contextlib
import importlib
import sys
import types

import torch
from pack import load

EPS = 2.0**-24


class Family:
    """A family's modules, the mps twin of a CPU tensor, and how many calls went where. The families' own add checks."""

    def __init__(self, installation, name, modules):
        self.installation, self.name, self.metal_kernels = installation, name, load().metal_kernels
        package = f"{self.metal_kernels.__name__}.{name}"
        self.family = importlib.import_module(package)
        loaded = {module: importlib.import_module(f"{package}.{module}") for module in modules}
        self.modules = types.SimpleNamespace(**{name: self.family, **loaded})
        self.dtypes = self.family.KERNEL.dtypes
        self._twin = importlib.import_module(f"{self.metal_kernels.__name__}.conformance.inputs").twin

    @property
    def taken(self) -> int:
        """Calls that the family's kernels ran since the module's tests began."""
        return self.installation.taken().get(self.name, 0)

    @property
    def passed(self) -> int:
        """Calls that went to stock."""
        return self.installation.passed().get(self.name, 0)

    def twin(self, x):
        """The same storage, sizes, strides and offset on mps, moved as bytes; what is no tensor as it is."""
        return self._twin(x, "mps")

    @staticmethod
    def random(*sizes, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
        """Normal values, on the CPU."""
        return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


@contextlib.contextmanager
def installed(name, alone=False):
    """The Installation with the family `name` on, torch 2.13's stock beneath it (on a Mac: the GPU's). No kernel of it
    may fail meanwhile. alone: the only family that is installed."""
    metal_kernels = load().metal_kernels
    if sys.platform != "darwin":
        import softmetal

        softmetal.activate(faults="2.13")
    metal_kernels.uninstall()
    installation = metal_kernels._installation
    if alone:
        family = importlib.import_module(f"{metal_kernels.__name__}.{name}")
        installation = type(installation)([family.KERNEL])
    installation.install()
    installation.set_mode(**{name: "on"})
    installation.reset_counters()
    try:
        yield installation
        assert installation.switches[name].failure is None
    finally:
        installation.set_mode(**{name: "auto"})
        installation.uninstall()


def assert_within(actual, expected, budget, what: object, ulps: float = 0.5) -> None:
    """Within `ulps` of the output's dtype (its rounding) and the budget, both tensors in float64.

    What an Apple GPU flushes (float32 below its smallest normal) may be zero. NaN and infinities are as expected.
    """
    actual = actual.detach().cpu()
    assert actual.shape == expected.shape, what
    finfo = torch.finfo(actual.dtype)
    got, rounded = actual.double(), expected.to(actual.dtype).double()
    special = ~rounded.isfinite()
    assert torch.equal(got.isnan(), rounded.isnan()), (what, "NaN")
    assert torch.equal(got[special].nan_to_num(nan=0.5), rounded[special].nan_to_num(nan=0.5)), (what, "infinity")
    larger = torch.maximum(got.abs(), expected.abs()).clamp(min=finfo.tiny)
    ulp = torch.exp2(larger.log2().floor()) * finfo.eps
    allowed = ulps * ulp + budget.nan_to_num(0, 0, 0) + torch.finfo(torch.float32).tiny
    excess = ((got - expected).abs() / allowed)[~special]
    assert not excess.numel() or excess.max() <= 1.0001, (what, f"{excess.max():.2f} times the tolerance")
