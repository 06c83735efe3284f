"""The pad kernel, installed on the software device with torch 2.13's faulty stock beneath it (on a Mac: on the GPU)."""

import importlib
import sys
import types

import pytest
import torch


class Padding:
    """What the tests of pad use: the modules, the mps twin of a CPU tensor, and the comparison with the CPU kernel."""

    def __init__(self, metal_kernels):
        self.metal_kernels = metal_kernels
        names = ("geometry", "host", "check", "bench")
        self.modules = types.SimpleNamespace(
            pad=metal_kernels.pad, **{n: importlib.import_module(f"{metal_kernels.__name__}.pad.{n}") for n in names}
        )
        self.dtypes = metal_kernels.pad.DTYPES

    @property
    def taken(self) -> int:
        """Calls that our kernel ran since the module's tests began."""
        return self.metal_kernels.taken().get("pad", 0)

    @staticmethod
    def twin(x: torch.Tensor) -> torch.Tensor:
        """The same storage, sizes, strides and offset on mps. Moved as bytes: stock cannot copy every dtype or
        layout.
        """
        storage = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
        return storage.to("mps").view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())

    @staticmethod
    def memory(x: torch.Tensor) -> torch.Tensor:
        """The bytes of a dense tensor in memory order, on the CPU."""
        return x.detach().as_strided((x.numel(),), (1,)).view(torch.uint8).cpu()

    def assert_same(self, actual: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
        """Bit for bit and stride for stride."""
        assert (actual.shape, actual.stride(), actual.dtype) == (expected.shape, expected.stride(), expected.dtype), (
            what
        )
        if expected.numel():
            assert torch.equal(self.memory(actual), self.memory(expected)), what

    def check(self, x: torch.Tensor, pad, value=0) -> torch.Tensor | None:
        """Pad the mps twin of `x` through torch and compare with the CPU; our kernel must have taken the call."""
        try:
            expected = torch.constant_pad_nd(x, pad, value)
        except RuntimeError:
            cut = self.modules.geometry.crop(tuple(x.shape), x.stride(), tuple(pad))
            if cut is None or 0 not in cut.out_sizes:
                raise
            with pytest.raises(RuntimeError):  # torch 2.9's CPU pads nothing to nothing
                torch.constant_pad_nd(self.twin(x), pad, value)
            return None
        before = self.taken
        actual = torch.constant_pad_nd(self.twin(x), pad, value)
        what = (tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, tuple(pad), value)
        assert self.taken == before + 1, ("went to stock", what)
        self.assert_same(actual, expected, what)
        return actual

    def random(self, sizes, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
        """A contiguous CPU tensor of random bytes: NaN payloads, infinities and subnormals included."""
        return self.modules.check.random_bits(tuple(sizes), dtype, torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def padding():
    from pack import load

    metal_kernels = load().metal_kernels
    if sys.platform != "darwin":
        import softmetal

        softmetal.activate(faults="2.13")
    metal_kernels.uninstall()
    metal_kernels.install()
    metal_kernels.set_mode(pad="on")
    metal_kernels.reset_counters()
    yield Padding(metal_kernels)
    assert "failed" not in str(metal_kernels.status()["kernels"])
    metal_kernels.set_mode(pad="auto")
    metal_kernels.uninstall()


@pytest.fixture
def launches(padding):
    """The launches of pad.metal that a test makes, recorded by the software device."""
    from softmetal import shader

    with shader.launches.record() as records:
        yield records


@pytest.fixture
def faultless_stock():
    """Beneath our kernel a stock that does what the CPU does: what it raises is then the CPU's error."""
    import softmetal

    with softmetal.profile(faults=None):
        yield
