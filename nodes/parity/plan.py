"""Which parts of the input a parity check runs: the whole of it, its centre, or tile after tile.

Positions are in the input's own units: pixels of an IMAGE, cells of a LATENT. They are multiples of `step`, so that a
tile of pixels is a whole number of latent cells and both sides cut at the same places.
"""
from dataclasses import dataclass
from fractions import Fraction

import torch

from ..given import choice
from .values import ParityError

WHOLE, CROP, TILES = "whole", "centre crop", "tiles"
REGIONS = (WHOLE, CROP, TILES)


@dataclass(frozen=True)
class Window:
    """One part: what is run (`top` to `bottom`, `left` to `right`) and the part of it that is kept (`keep_*`).

    A tile is run with a margin round what is kept: at its edge a VAE sees padding where the picture went on.
    """

    top: int
    bottom: int
    left: int
    right: int
    keep_top: int
    keep_bottom: int
    keep_left: int
    keep_right: int

    @property
    def height(self):
        return self.bottom - self.top

    @property
    def width(self):
        return self.right - self.left


def windows(height, width, region, size, step=1):
    """The `Window`s of an input; `size` is the longest edge of a crop or of what a tile keeps.

    Raises ParityError when nothing is left of the input, Unfit for another region.
    """
    choice("region", region, REGIONS)
    if height < step or width < step:
        raise ParityError(f"The input is {width} x {height}: this VAE needs at least {step} x {step}.")
    if region == WHOLE:
        return [Window(0, height, 0, width, 0, height, 0, width)]
    size = max(step, size // step * step)
    if region == CROP:
        (top, bottom), (left, right) = _centre(height, size, step), _centre(width, size, step)
        return [Window(top, bottom, left, right, top, bottom, left, right)]
    margin = -(-size // 8 // step) * step
    rows, columns = _edges(height, size, step, margin), _edges(width, size, step, margin)
    return [
        Window(top, bottom, left, right, keep_top, keep_bottom, keep_left, keep_right)
        for top, bottom, keep_top, keep_bottom in rows
        for left, right, keep_left, keep_right in columns
    ]


def kept(result, window, axes):
    """What a window keeps of its result, whatever the scale between input and result. `axes`: height's and width's.

    Raises ParityError when the result's size is no multiple or fraction of the window's.
    """
    spans = (
        (axes[0], window.height, window.top, window.keep_top, window.keep_bottom),
        (axes[1], window.width, window.left, window.keep_left, window.keep_right),
    )
    for axis, length, start, keep_start, keep_stop in spans:
        scale = Fraction(result.shape[axis], length)
        first, last = (keep_start - start) * scale, (keep_stop - start) * scale
        if first.denominator != 1 or last.denominator != 1:
            raise ParityError(
                f"A tile of {length} came out as {result.shape[axis]}, so this VAE's tiles can't be put together: "
                f"choose region '{WHOLE}' or '{CROP}'."
            )
        result = result.narrow(axis, int(first), int(last - first))
    return result


def assemble(parts, places, axes):
    """Put the kept parts together again: a row of tiles along the width, the rows along the height."""
    rows = {}
    for part, window in zip(parts, places, strict=True):
        rows.setdefault(window.keep_top, []).append(part)
    return torch.cat([torch.cat(row, axes[1]) for row in rows.values()], axes[0])


def _centre(length, size, step):
    size = min(size, length // step * step)
    start = (length - size) // 2
    return start, start + size


def _edges(length, size, step, margin):
    """(start, stop, keep start, keep stop) of the tiles along one axis, of about equal size."""
    first = length % step // 2  # as ComfyUI trims a picture to a whole number of cells: evenly on both sides
    cells = length // step
    count = -(-cells * step // size)
    cuts = [first + cells * i // count * step for i in range(count + 1)]
    last = cuts[-1]
    return [(max(first, a - margin), min(last, b + margin), a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
