"""metal_kernels/sharing.py: how many SIMD-groups share K."""

import pytest
from pack import load

sharing = load().metal_kernels.sharing.sharing


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
