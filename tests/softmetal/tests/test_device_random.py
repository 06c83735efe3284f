"""Random numbers on mps: own generators, seeds and states, and the CPU's stream left alone."""

import pytest
import softmetal
import torch
import torch.nn.functional as F


@pytest.fixture(autouse=True)
def device():
    softmetal.activate()
    torch.mps.manual_seed(0)


DRAWS = [
    lambda: torch.rand(5, device="mps"),
    lambda: torch.randn(5, device="mps"),
    lambda: torch.randint(0, 9, (5,), device="mps"),
    lambda: torch.randperm(9, device="mps"),
    lambda: torch.rand_like(torch.ones(5, device="mps")),
    lambda: torch.randn_like(torch.ones(5, device="mps")),
    lambda: torch.ones(5, device="mps").uniform_(),
    lambda: torch.ones(5, device="mps").normal_(),
    lambda: torch.ones(5, device="mps").exponential_(),
    lambda: torch.bernoulli(torch.full((50,), 0.5, device="mps")),
    lambda: torch.multinomial(torch.ones(9, device="mps"), 4),
    lambda: F.dropout(torch.ones(50, device="mps")),
    lambda: F.alpha_dropout(torch.ones(50, device="mps"), training=True),
    lambda: F.rrelu(-torch.ones(5, device="mps"), training=True),
    lambda: torch.poisson(torch.ones(9, device="mps") * 5),
    lambda: torch.normal(torch.ones(5, device="mps"), 2.0),
    lambda: torch.randint_like(torch.ones(9, device="mps"), 50),
    lambda: torch._standard_gamma(torch.ones(5, device="mps")),
    lambda: F.gumbel_softmax(torch.ones(5, device="mps")),
    lambda: torch.empty(5, device="mps").cauchy_(),
    lambda: torch.nn.init.trunc_normal_(torch.empty(5, device="mps")),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_repeats_and_the_cpu_stream_stands_still(draw):
    before = torch.get_rng_state()
    torch.mps.manual_seed(7)
    first, second = draw(), draw()
    torch.mps.manual_seed(7)
    again = draw()
    assert first.device.type == "mps"
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_torch_manual_seed_seeds_mps_too():
    torch.manual_seed(3)
    first = torch.rand(4, device="mps")
    torch.rand(100)  # the CPU's draws do not move mps
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="mps"), first)


def test_states_are_saved_and_restored():
    state = torch.mps.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = torch.rand(4, device="mps")
    torch.mps.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="mps"), first)
    torch.mps.seed()
    assert not torch.equal(torch.rand(4, device="mps"), first)


def test_generators():
    generator = torch.Generator("mps")
    assert generator.device.type == "mps"
    assert generator.manual_seed(5) is generator and generator.initial_seed() == 5
    before = torch.mps.get_rng_state()
    first = torch.randn(4, device="mps", generator=generator)
    assert torch.equal(torch.mps.get_rng_state(), before)
    state = generator.get_state()
    second = torch.randn(4, device="mps", generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.randn(4, device="mps", generator=generator), second)
    generator.manual_seed(5)
    assert torch.equal(torch.ones(4, device="mps").normal_(generator=generator), first)
    assert isinstance(generator.seed(), int)


def test_generators_of_the_wrong_device_raise():
    with pytest.raises(RuntimeError, match="Expected a 'mps' device type for generator but found 'cpu'"):
        torch.randn(4, device="mps", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected "):
        torch.randn(4, generator=torch.Generator("mps"))


def test_dropout_trains():
    x = torch.ones(1000, device="mps", requires_grad=True)
    y = F.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 300 < int((y > 0).sum()) < 700
