"""Stock's F.linear: lost biases and strided weights, by version."""

import pytest
import softmetal
import torch
import torch.nn.functional as F


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stock(*tensors):
    return F.linear(*(t.to("mps") for t in tensors)).cpu()


def agree(actual, expected):
    return torch.allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("profile", ["2.9", "2.12", "2.13", {"linear-batch-bias"}], ids=str)
def test_bias_is_lost_past_65536_batches(profile):
    """Report 3."""
    softmetal.activate(profile)
    x, w, b = random(65537, 2, 32), random(32, 32, seed=1), random(32, seed=2)
    y, expected = stock(x, w, b), F.linear(x, w, b)
    assert agree(y[:65536], expected[:65536])
    assert agree(y[65536:], F.linear(x[65536:], w)) and not agree(y[65536:], expected[65536:])
    assert agree(stock(x[:65536], w, b), expected[:65536])
    assert agree(stock(x.view(-1, 32), w, b), expected.view(-1, 32))
    assert agree(stock(x, w), F.linear(x, w))


@pytest.mark.parametrize("profile", [None, "2.14", "2.15"])
def test_bias_is_kept_elsewhere(profile):
    softmetal.activate(profile)
    x, w, b = random(65537, 1, 4), random(3, 4, seed=1), random(3, seed=2)
    assert agree(stock(x, w, b), F.linear(x, w, b))


@pytest.mark.parametrize(
    ("profile", "macos", "lost"),
    [
        ("2.13", "26.0", True),
        ("2.12", "26.1", True),
        ("2.13", "15.5", False),
        ("2.14", "26.0", False),
        (None, "26.0", False),
    ],
)
def test_bias_is_dropped_for_vectors_on_macos_26(profile, macos, lost):
    softmetal.activate(profile, macos=macos)
    x, w, b = random(80, 1, 2), random(192, 2, seed=1), random(192, seed=2)
    assert agree(stock(x, w, b), F.linear(x, w)) == lost
    assert agree(stock(x, w, b), F.linear(x, w, b)) != lost
    assert agree(stock(x[:, 0], w, b), F.linear(x[:, 0], w, b))


@pytest.mark.parametrize("profile", ["2.9", {"linear-strided-weight"}], ids=str)
def test_a_transposed_weight_is_misread(profile):
    """Report 4."""
    softmetal.activate(profile)
    x, w = random(64, 128), random(128, 384, seed=1)
    there = F.linear(x.to("mps"), w.to("mps").t()).cpu()
    assert not agree(there, F.linear(x, w.t()))
    assert agree(F.linear(x.to("mps"), w.to("mps").t().contiguous()).cpu(), F.linear(x, w.t()))


@pytest.mark.parametrize("profile", [None, "2.12", "2.13", "2.14", "2.15"])
def test_a_transposed_weight_is_right_elsewhere(profile):
    softmetal.activate(profile)
    x, w = random(64, 128), random(128, 384, seed=1)
    assert agree(F.linear(x.to("mps"), w.to("mps").t()).cpu(), F.linear(x, w.t()))
