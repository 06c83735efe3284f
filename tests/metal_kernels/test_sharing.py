"""metal_kernels/sharing.py: how many SIMD-groups share K."""

import pytest
from pack import load

module = load().metal_kernels.sharing
sharing = module.sharing


@pytest.mark.parametrize(
    ("simdgroups", "steps", "most", "expected"),
    [
        (100, 64, 8, 8),  # few outputs: as many as a threadgroup has
        (600, 64, 8, 4),  # 8 would not run at once
        (100, 3, 8, 2),  # each keeps a step
        (100, 1, 8, 1),
        (1300, 64, 8, 1),
        (5000, 64, 8, 1),
    ],
)
def test_as_many_share_k_as_run_at_once(simdgroups, steps, most, expected):
    assert sharing(simdgroups, steps, resident=2400, most=most) == expected


def test_a_few_more_than_run_at_once_are_made_many_where_that_pays():
    assert [sharing(n, 64, 1000, 8, crowded=2) for n in (1000, 1001, 1999, 2000)] == [1, 2, 2, 1]
    assert sharing(1500, 1, 1000, 8, crowded=2) == 1


@pytest.mark.parametrize(
    ("simdgroups", "steps", "expected"),
    [
        (256, 64, 8),  # one wave, as full as can be
        (768, 64, 4),  # 3072 of 3168
        (864, 64, 3),  # 2592 of 3168; 4 would leave a second wave nearly empty
        (1088, 64, 8),  # three waves, 0.92 full
        (1920, 64, 3),  # two waves, 0.91 full: 8 would be hardly fuller
        (9496, 64, 1),
        (256, 3, 3),  # each keeps a step
        (256, 1, 1),
        (256, 0, 1),
    ],
)
def test_waves_are_as_full_as_can_be(simdgroups, steps, expected):
    assert module.full_waves(simdgroups, steps, 3168, (1, 2, 3, 4, 6, 8)) == expected


def test_fullness_counts_the_last_wave_whole():
    assert [module.fullness(n, 100) for n in (50, 100, 101, 200)] == [0.5, 1.0, 0.505, 1.0]
