"""The fp8 kernel, installed on the software device with torch 2.13's stock beneath it (on a Mac: on the GPU)."""

import pytest
import torch
from family import Family, installed

MODULES = ("bench", "cast", "check", "formats", "linear", "moves", "quantize", "scaled_mm")


class Fp8(Family):
    """With comparisons with the CPU."""

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
        return super().random(*sizes, dtype=dtype, seed=seed)


@pytest.fixture(scope="module")
def fp8():
    with installed("fp8", alone=True) as installation:
        yield Fp8(installation, "fp8", MODULES)


@pytest.fixture
def host_copies():
    """How often the host has waited for data since the call, softmetal's count."""
    from softmetal import counters

    counters.reset()
    return counters.host_copies
