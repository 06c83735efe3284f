"""How many SIMD-groups share K, so that a product with few outputs keeps a whole GPU busy. Integers only."""

from __future__ import annotations

from collections.abc import Sequence

NEARLY = 0.93  # more sharing costs something too


def sharing(simdgroups: int, steps: int, resident: int, most: int, *, crowded: int = 1) -> int:
    """So many share the K of each of `simdgroups` tiles of outputs: a power of two, up to `most`.

    steps     of one SIMD-group along K; each that shares it keeps one at least.
    resident  SIMD-groups that run at once: there are no more of them, as the last few of more would run alone.
    crowded   the answer where there are more than `resident` without sharing, but not twice as many: 2 makes the last
              ones many, and short.
    """
    if resident < simdgroups < 2 * resident and steps > 1:
        return crowded
    parts = 1
    while 2 * parts <= min(most, steps) and simdgroups * 2 * parts <= resident:
        parts *= 2
    return parts


def full_waves(simdgroups: int, steps: int, resident: int, counts: Sequence[int]) -> int:
    """As `sharing`, where SIMD-groups may run in several waves of `resident`: the first of `counts`, ascending from 1,
    with which the waves are nearly as full as with the best of them."""
    full = {parts: fullness(simdgroups * parts, resident) for parts in counts if parts <= max(1, steps)}
    best = max(full.values())
    return next(parts for parts, each in full.items() if each >= best * NEARLY)


def fullness(simdgroups: int, resident: int) -> float:
    """How much of a GPU that runs `resident` SIMD-groups at once is busy with so many, the last wave counted as long as
    the others: 1 where all waves are full."""
    return simdgroups / (-(-simdgroups // resident) * resident)
