"""The pad kernel, installed on the software device with torch 2.13's faulty stock beneath it (on a Mac: on the GPU)."""

import pytest
import torch
from family import Family, installed


class Padding(Family):
    """With the comparison with the CPU kernel."""

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
    with installed("pad") as installation:
        yield Padding(installation, "pad", ("geometry", "host", "check", "bench"))
