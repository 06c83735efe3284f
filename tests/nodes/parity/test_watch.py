"""The watch: it sees every torch call, counts arithmetic, and gives both sides the same random numbers."""
from importlib import import_module

import pytest
import torch
from pack import NAME, load

load()
watching = import_module(f"{NAME}.nodes.parity.watch")
Watch = watching.Watch
F = torch.nn.functional


def test_it_can_stop_between_any_two_torch_calls():
    calls = []

    def tick(flops):
        calls.append(flops)
        if len(calls) == 5:
            raise KeyboardInterrupt

    x = torch.ones(4)
    done = 0
    with pytest.raises(KeyboardInterrupt), Watch(tick):
        for _ in range(100):
            x = x + 1
            done += 1
    assert done == 4
    assert torch.overrides._get_current_function_mode_stack() == [], "nothing is left switched on"


@pytest.mark.parametrize("run, flops", [
    (lambda: torch.nn.Conv2d(3, 8, 3, padding=1)(torch.ones(2, 3, 5, 6)), 2 * 2 * 8 * 5 * 6 * 3 * 9),
    (lambda: torch.nn.Conv2d(4, 8, 1, groups=2)(torch.ones(1, 4, 5, 5)), 2 * 8 * 25 * 2),
    (lambda: torch.nn.Conv3d(3, 8, 3)(torch.ones(1, 3, 4, 5, 6)), 2 * 8 * 2 * 3 * 4 * 3 * 27),
    (lambda: F.conv_transpose2d(torch.ones(1, 4, 5, 5), torch.ones(4, 2, 2, 2), stride=2), 2 * 4 * 25 * 2 * 4),
    (lambda: torch.nn.Linear(7, 9)(torch.ones(5, 7)), 2 * 5 * 7 * 9),
    (lambda: torch.ones(2, 3, 4) @ torch.ones(2, 4, 5), 2 * 2 * 3 * 4 * 5),
    (lambda: torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
    (lambda: F.scaled_dot_product_attention(*[torch.ones(1, 2, n, 4) for n in (3, 5, 5)]), 2 * 2 * 2 * 3 * 5 * 4),
    (lambda: torch.relu(torch.ones(8)), 0),
])
def test_arithmetic_is_counted(run, flops):
    with Watch() as watch:
        run()
    assert watch.work.flops == flops


@pytest.mark.parametrize("draw", [
    lambda: torch.randn(3, 4),
    lambda: torch.randn((3, 4), dtype=torch.bfloat16),
    lambda: torch.randn(size=(3, 4), generator=torch.Generator().manual_seed(99)),
    lambda: torch.rand(5, device="cpu"),
    lambda: torch.randn_like(torch.zeros(3, dtype=torch.float16)),
    lambda: torch.rand_like(torch.zeros(3)),
    lambda: torch.zeros(6).normal_(2, 3),
    lambda: torch.zeros(6, dtype=torch.bfloat16).uniform_(-1, 1),
])
def test_random_numbers_are_the_same_every_time_and_leave_the_users_alone(draw):
    state = torch.get_rng_state()
    with Watch():
        first, after = draw(), draw()
    with Watch():
        second = draw()
    outside = draw()
    torch.set_rng_state(state)
    assert torch.equal(first, second)
    assert not torch.equal(first, after)
    assert (first.dtype, first.shape) == (outside.dtype, outside.shape)
    with Watch():
        draw()
    assert torch.equal(torch.get_rng_state(), state)


def test_calls_and_written_elements_are_counted_and_views_are_free():
    x = torch.ones(4, 6)
    with Watch() as watch:
        x.reshape(24)
        x[1:3]
        assert watch.work.elements == 0
        x.mul_(2)
        x + 1
        torch.cat([x, x])
    assert watch.work.elements == 24 + 24 + 48 and watch.work.calls == 5


def test_half_precision_noise_is_float32_noise_rounded():
    with Watch():
        wide = torch.randn(64)
    with Watch():
        narrow = torch.randn(64, dtype=torch.bfloat16)
    assert torch.equal(narrow, wide.to(torch.bfloat16))


def test_in_place_noise_has_its_parameters():
    with Watch():
        drawn = torch.zeros(10000).normal_(5, 0.5)
    assert drawn.mean() == pytest.approx(5, abs=0.05) and drawn.std() == pytest.approx(0.5, abs=0.05)


def test_a_draw_into_an_out_tensor_is_left_to_torch():
    out = torch.zeros(4)
    with Watch():
        torch.randn(4, out=out)
    assert out.abs().sum() > 0


def test_it_knows_whether_given_weights_took_part():
    layer, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with Watch(weights=tuple(layer.parameters())) as watch:
        other(torch.ones(1, 2))
        assert not watch.used
        layer(torch.ones(1, 2))
    assert watch.used
