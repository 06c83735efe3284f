"""The fp8 kernel, installed on the software device with torch 2.13's stock beneath it (on a Mac: on the GPU)."""

import importlib
import sys
import types

import pytest
import torch

MODULES = ("bench", "cast", "check", "formats", "linear", "moves", "quantize", "scaled_mm")


class Fp8:
    """What the tests of fp8 use: the modules, the mps twin of a CPU tensor, and comparisons with the CPU."""

    def __init__(self, metal_kernels, installation):
        self.metal_kernels, self.installation = metal_kernels, installation
        name = f"{metal_kernels.__name__}.fp8"
        self.family = importlib.import_module(name)
        self.modules = types.SimpleNamespace(**{m: importlib.import_module(f"{name}.{m}") for m in MODULES})
        self.dtypes = tuple(self.modules.formats.CODES)

    @property
    def taken(self) -> int:
        """Calls that our kernel ran since the module's tests began."""
        return self.installation.taken().get("fp8", 0)

    @staticmethod
    def twin(x: torch.Tensor) -> torch.Tensor:
        """The same storage, sizes, strides and offset on mps, moved as bytes."""
        storage = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
        return storage.to("mps").view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())

    def bits(self, x: torch.Tensor) -> torch.Tensor:
        """The elements' bits in order, on the CPU; of float32 and others as int tensors."""
        x = x.detach()
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return x.view(integers[x.element_size()]).cpu().contiguous()

    def assert_same(self, actual, expected, what: object = "") -> None:
        """Bit for bit, with shape, dtype and strides; or equal values that are no tensors."""
        if not isinstance(expected, torch.Tensor):
            assert repr(actual) == repr(expected), what
            return
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), what
        assert actual.stride() == expected.stride(), what
        assert torch.equal(self.bits(actual), self.bits(expected)), what

    def every_byte(self, dtype: torch.dtype) -> torch.Tensor:
        """All 256 values of an FP8 dtype, [16, 16] on the CPU."""
        return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(16, 16).view(dtype)

    def random(self, sizes, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
        """Normal values in an FP8 dtype, on the CPU."""
        return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(scope="module")
def fp8():
    from pack import load

    metal_kernels = load().metal_kernels
    if sys.platform != "darwin":
        import softmetal

        softmetal.activate(faults="2.13")
    metal_kernels.uninstall()
    family = importlib.import_module(f"{metal_kernels.__name__}.fp8")
    installation = importlib.import_module(f"{metal_kernels.__name__}.installation").Installation([family.KERNEL])
    installation.install()
    installation.set_mode(fp8="on")
    yield Fp8(metal_kernels, installation)
    failure = installation.switches["fp8"].failure
    installation.uninstall()
    assert failure is None


@pytest.fixture
def no_faults():
    """Fails a test whose kernels did anything wrong on the software device, even if a fallback hid it."""
    from softmetal import shader

    shader.fault_log.clear()
    yield
    assert not shader.fault_log


@pytest.fixture
def host_copies():
    """How often the host has waited for data since the call, softmetal's count."""
    from softmetal import counters

    counters.reset()
    return counters.host_copies
