"""The same numbers on the CPU and on mps, and whether two results are the same."""

import torch


def both(*shape, seed=0, dtype=torch.float32):
    """The same random numbers on the CPU and on mps."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return x, x.to("mps")


def same(actual, expected):
    assert actual.device.type == "mps"
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)
