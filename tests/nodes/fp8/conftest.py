"""The real comfy-kitchen with the kernel `fp8` in it, on the software device with torch 2.13's stock beneath."""
import importlib
import sys
from pathlib import Path

import pytest
import torch
from pack import load

sys.path.insert(0, str(Path(__file__).parent))


class Kitchen:
    """The package, ours in it, and what the tests ask of both."""

    def __init__(self, kernels):
        self.kernels = kernels
        name = f"{load().__name__}.nodes.fp8.kitchen"
        self.ours = importlib.import_module(name)
        self.backend, self.layouts, self.private, self.rules = (
            importlib.import_module(f"{name}.{part}") for part in ("backend", "layouts", "private", "rules"))
        self.package = importlib.import_module("comfy_kitchen")
        self.registry = self.package.registry
        self.tensor = importlib.import_module("comfy_kitchen.tensor")
        self.eager = importlib.import_module("comfy_kitchen.backends.eager")

    def counts(self, name):
        """(taken, passed) of an entry since the counters were reset."""
        counters = self.kernels.entry("fp8", name).counters.as_dict()
        return counters["taken"], counters["passed"]

    def function_counts(self, function):
        return self.counts(f"comfy_kitchen::{function}")

    def snapshot(self):
        """All that registering can change in comfy-kitchen."""
        registry = self.registry
        table = self.private.handlers(torch.ops.aten.linear.default)
        return (dict(registry._backends), {name: set(of) for name, of in registry._capabilities.items()},
                dict(registry._constraints), list(registry._priority), set(registry._disabled),
                dict(registry._unavailable), dict(table))


@pytest.fixture(scope="module")
def package():
    """`Kitchen`, with nothing of ours in the package."""
    if sys.platform != "darwin":
        import softmetal

        softmetal.activate(faults="2.13")
    kernels = load().metal_kernels
    kernels.uninstall()
    kernels.install()
    kernels.set_mode(fp8="on")
    yield Kitchen(kernels)
    failure = kernels._installation.switches["fp8"].failure
    kernels.set_mode(fp8="auto")
    kernels.uninstall()
    assert failure is None


@pytest.fixture
def kitchen(package):
    """`Kitchen`, installed; counters at zero."""
    package.ours.uninstall()
    package.ours.install()
    assert package.ours.report()["problems"] == []
    package.kernels.reset_counters()
    yield package
    package.ours.uninstall()
