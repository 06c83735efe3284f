"""Seeded data and comparisons."""
import torch


def randn(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def same(actual, expected):
    """Bit for bit, with shape and dtype; tuples part by part."""
    if isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            same(*pair)
        return
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[expected.element_size()]
    assert torch.equal(actual.contiguous().view(integers).cpu(), expected.contiguous().view(integers))


def to_mps(x):
    """A CPU tensor's twin, moved as bytes where it is FP8."""
    return x.view(torch.uint8).to("mps").view(x.dtype) if x.element_size() == 1 else x.to("mps")
