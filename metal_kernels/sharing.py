"""How many SIMD-groups share K, so that a product with few outputs keeps a whole GPU busy. Integers only."""

from __future__ import annotations


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
