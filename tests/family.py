"""What the tests of one kernel family share: the family installed, its modules, twins on mps, the judgement."""

import contextlib
import importlib
import sys
import types

import torch
from pack import load


class Family:
    """A family's modules, the mps twin of a CPU tensor, and how many calls went where. The families' own add checks."""

    def __init__(self, installation, name, modules):
        self.installation, self.name, self.metal_kernels = installation, name, load().metal_kernels
        package = f"{self.metal_kernels.__name__}.{name}"
        self.family = importlib.import_module(package)
        loaded = {module: importlib.import_module(f"{package}.{module}") for module in modules}
        self.modules = types.SimpleNamespace(**{name: self.family, **loaded})
        self.dtypes = self.family.KERNEL.dtypes
        self.conformance = importlib.import_module(f"{self.metal_kernels.__name__}.conformance")

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
        return self.conformance.twin(x, "mps")

    def assert_close(self, op: str, actual: torch.Tensor, *arguments: object, what: object = "") -> None:
        """`actual` is the result of the conformance table's `op` on these arguments, within the tolerance there."""
        operation = self.conformance.OPERATIONS[op]
        expected = operation.reference(*(t.detach().cpu() if isinstance(t, torch.Tensor) else t for t in arguments))
        self.conformance.compare(actual, expected, operation.tolerance, str(what))

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


@contextlib.contextmanager
def stock_of(family: Family, version: str, **options):
    """Inside: the stock of torch `version` on the software device, with the pack on it, `family` in auto mode."""
    import softmetal

    pack = family.metal_kernels
    pack.uninstall()
    pack.set_mode(**{family.name: "auto"})
    try:
        with softmetal.profile(faults=version, **options):
            pack.install()
            yield
    finally:
        pack.uninstall()
        pack.install()
        pack.set_mode(**{family.name: "on"})
