"""The numbers: how far a value is from its reference.

Everything is accumulated in float64 on the CPU, block by block, so that comparing a long video costs a few blocks of
memory and not another copy of it. Elements that are not finite on both sides are counted and left out of the means.

Definitions, over the elements finite on both sides, d = value - reference:
    elements     of complex numbers, each part is one
    PSNR         10 log10(R^2 / mean(d^2)) in dB, R the data range; infinite when d is zero everywhere
    max rel      max |d| / max(|reference|, R / 1000): the floor keeps elements near zero from deciding it
    cosine       <value, reference> / (|value| |reference|); 1 when both are zero, 0 when one is
"""
import math
import sys
from dataclasses import dataclass

import torch

from .. import given
from .values import ParityError, check_alike, on_cpu

BLOCK = 1 << 20  # elements a block: 8 MiB in float64
RELATIVE_FLOOR = 1e-3  # of the data range
LARGEST = sys.float_info.max
WIDE = {torch.int64, torch.uint64}  # integers that float64 does not hold
# Beyond these the squares of float64 numbers leave its range; no other dtype has such numbers.
SQUARED = 2.0**-480, 2.0**480


@dataclass(frozen=True)
class Side:
    """What one side holds: counts of NaN and infinities, and the least and greatest finite element."""

    elements: int
    nan: int
    inf: int
    minimum: float
    maximum: float


@dataclass(frozen=True)
class Frame:
    """One picture of a batch or video. `tensor` and `index` say where it is: `value.tensors[tensor][index]`."""

    tensor: int
    index: tuple
    max_abs: float
    squared: float
    compared: int
    unlike: int

    @property
    def mean_squared(self):
        return self.squared / self.compared if self.compared else 0.0


@dataclass(frozen=True)
class Metrics:
    """See the module's docstring for the definitions.

    unit      what the frames' `squared` is in squares of: 1, but for numbers whose squares float64 can't hold.
    compared  elements finite on both sides.
    unlike    elements that are NaN or infinite on one side and not the same on the other.
    """

    elements: int
    compared: int
    unlike: int
    data_range: float
    data_range_source: str
    psnr: float
    max_abs: float
    mean_abs: float
    max_rel: float
    rel_floor: float
    cosine: float
    value: Side
    reference: Side
    frames: tuple
    unit: float = 1.0

    def frame_psnr(self, frame):
        """A single frame's PSNR in dB, with the data range of the whole."""
        return psnr(frame.squared, frame.compared, self.data_range, self.unit)

    def worst(self):
        """Position in `frames` of the one farthest from its reference: most unlike elements, then lowest PSNR."""
        return max(range(len(self.frames)), key=lambda i: (self.frames[i].unlike, self.frames[i].mean_squared))


def compare(value, reference, data_range=0.0, tick=lambda: None):
    """`Metrics` of a `Value` against another of the same kind and shapes.

    data_range  the R of PSNR; 0 chooses by kind: 1 for images and masks, else the peak-to-peak of the reference.
    tick        called once a block; raise from it to cancel.

    Raises ParityError for what can't be compared: kinds or shapes that differ, a side that is all NaN, no element that
    is finite on both sides, a negative data range.
    """
    check_alike(value, reference)
    sides = [_survey(one, tick) for one in (value, reference)]
    for one, side in zip((value, reference), sides, strict=True):
        if side.nan == side.elements:
            raise ParityError(
                f"{one.name} is all NaN (every one of its {side.elements:,} elements), there is nothing to compare: "
                "look for the node that first makes NaN."
            )
    peak, source = _data_range(value.kind, sides[1], data_range)
    unit = _unit(sides)
    total = _Sums(RELATIVE_FLOOR * (peak / unit), unit)
    frames = []
    for number, (one, other) in enumerate(zip(value.tensors, reference.tensors, strict=True)):
        for index in frame_indices(value.kind, one):
            sums = _Sums(total.floor, unit)
            for left, right, apart in _blocks_of(one[index], other[index], tick):
                sums.add(left, right, apart)
            frames.append(Frame(number, index, _in_full(sums.max_abs, unit), sums.squared, sums.compared, sums.unlike))
            total.merge(sums)
    if total.compared == 0:
        raise ParityError(
            f"{value.name} and {reference.name} have no element that is finite on both sides ({sides[0].nan:,} and "
            f"{sides[1].nan:,} NaN, {sides[0].inf:,} and {sides[1].inf:,} infinite): there is nothing to compare."
        )
    return Metrics(
        elements=value.numel,
        compared=total.compared,
        unlike=total.unlike,
        data_range=peak,
        data_range_source=source,
        psnr=psnr(total.squared, total.compared, peak, unit),
        max_abs=_in_full(total.max_abs, unit),
        mean_abs=_in_full(total.absolute / total.compared, unit),
        max_rel=total.max_rel,
        rel_floor=RELATIVE_FLOOR * peak,
        cosine=total.cosine(),
        value=sides[0],
        reference=sides[1],
        frames=tuple(frames),
        unit=unit,
    )


def psnr(squared, count, data_range, unit=1.0):
    """Peak signal-to-noise ratio in dB from a sum of squared errors, in squares of `unit`; inf for no error, NaN for no
    element."""
    if count == 0:
        return math.nan
    if squared == 0:
        return math.inf
    return 20 * math.log10(data_range) - 10 * (math.log10(squared) - math.log10(count)) - 20 * math.log10(unit)


def frame_indices(kind, tensor):
    """Indices of the pictures in a tensor: images of a batch, frames of a video latent [B, C, T, H, W]."""
    if kind in ("IMAGE", "LATENT") and tensor.ndim == 4 or kind == "MASK" and tensor.ndim == 3:
        return [(i,) for i in range(tensor.shape[0])]
    if kind == "LATENT" and tensor.ndim == 5:
        return [(b, slice(None), t) for b in range(tensor.shape[0]) for t in range(tensor.shape[2])]
    return [()]


def blocks(shape, limit=BLOCK):
    """Index tuples that tile a tensor of this shape, each block at most `limit` elements."""
    if math.prod(shape) <= limit:
        yield ()
        return
    inner = math.prod(shape[1:])
    step = max(1, limit // inner)
    for start in range(0, shape[0], step):
        if step > 1 or inner <= limit:
            yield (slice(start, start + step),)
        else:
            for rest in blocks(shape[1:], limit):
                yield (start, *rest)


def as_float64(tensor):
    """On the CPU in float64; complex numbers as pairs."""
    tensor = on_cpu(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float64)


def _blocks_of(one, other, tick):
    """Blocks of both sides in float64, and how far they are apart where float64 does not hold their numbers."""
    for index in blocks(one.shape):
        tick()
        left, right = one[index], other[index]
        apart = _apart(left, right) if {left.dtype, right.dtype} & WIDE else None
        yield as_float64(left), as_float64(right), apart


def _apart(left, right):
    """|left - right| of 64-bit integers, whose low bits float64 drops: by their halves, which it holds."""
    (high, low), (other_high, other_low) = _halves(left), _halves(right)
    return ((high - other_high) + (low - other_low)).abs_()


def _halves(tensor):
    tensor = on_cpu(tensor)
    if tensor.dtype not in WIDE:
        return tensor.to(torch.float64), 0.0
    bits = tensor.contiguous().view(torch.int64)
    high = bits >> 32
    if tensor.dtype == torch.uint64:
        high &= 0xFFFFFFFF
    return high.to(torch.float64) * 2.0**32, (bits & 0xFFFFFFFF).to(torch.float64)


def _survey(value, tick):
    """NaN and infinity counts and the finite range of a whole value."""
    elements = nan = inf = 0
    least, most = math.inf, -math.inf
    for tensor in value.tensors:
        for index in blocks(tensor.shape):
            tick()
            block = as_float64(tensor[index])
            elements += block.numel()
            nan += int(block.isnan().sum())
            inf += int(block.isinf().sum())
            finite = block[block.isfinite()]
            if finite.numel():
                least, most = min(least, float(finite.min())), max(most, float(finite.max()))
    return Side(elements, nan, inf, least if most >= least else math.nan, most if most >= least else math.nan)


def _data_range(kind, reference, asked):
    """R and where it comes from."""
    what = "give a number above zero, or 0 to choose it by the kind of value."
    asked = given.number("data_range", asked, what)
    if not math.isfinite(asked) or asked < 0:
        raise ParityError(f"data_range is {asked:g}: {what}")
    if asked > 0:
        return asked, "as given"
    if kind == "IMAGE":
        return 1.0, "images are 0 to 1"
    if kind == "MASK":
        return 1.0, "masks are 0 to 1"
    if reference.maximum > reference.minimum:
        return min(reference.maximum - reference.minimum, LARGEST), "peak to peak of the reference"
    if reference.maximum != 0 and math.isfinite(reference.maximum):
        return abs(reference.maximum), "magnitude of the reference, which is constant"
    return 1.0, "1, since the reference is zero everywhere"


def _unit(sides):
    """What to count in: 1, or where a square would leave float64's range a power of two near the largest number."""
    ends = [abs(end) for side in sides for end in (side.minimum, side.maximum) if math.isfinite(end)]
    largest = max(ends, default=0.0)
    if largest == 0 or SQUARED[0] < largest < SQUARED[1]:
        return 1.0
    return math.ldexp(1.0, math.frexp(largest)[1] - 1)


def _in_full(number, unit):
    """Back from units; two opposite numbers may be farther apart than float64 can say."""
    return min(number * unit, LARGEST)


class _Sums:
    """Running sums over blocks of float64, all but the counts in units of `unit`."""

    def __init__(self, floor, unit):
        self.floor, self.unit = floor, unit
        self.compared = self.unlike = 0
        self.absolute = self.squared = self.max_abs = self.max_rel = 0.0
        self.dot = self.left = self.right = 0.0

    def add(self, left, right, apart=None):
        """apart: how far they are from each other, where that is not the difference of the two."""
        finite = left.isfinite() & right.isfinite()
        if not finite.all():
            # NaN beside NaN and an infinity beside the same infinity agree; anything else not finite does not.
            same = (left == right) | (left.isnan() & right.isnan())
            self.unlike += int((~finite & ~same).sum())
            left, right = left[finite], right[finite]
            apart = None if apart is None else apart[finite]
        if left.numel() == 0:
            return
        if self.unit != 1:
            left, right = left / self.unit, right / self.unit
            apart = None if apart is None else apart / self.unit
        error = (left - right).abs_() if apart is None else apart
        self.compared += error.numel()
        self.absolute += float(error.sum())
        self.squared += float(error.square().sum())
        self.max_abs = max(self.max_abs, float(error.max()))
        self.max_rel = max(self.max_rel, float(error.div_(right.abs().clamp_(min=self.floor)).max()))
        self.dot += float((left * right).sum())
        self.left += float(left.square().sum())
        self.right += float(right.square().sum())

    def merge(self, other):
        for name in ("compared", "unlike", "absolute", "squared", "dot", "left", "right"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)

    def cosine(self):
        if self.squared == 0:
            return 1.0
        if self.left == 0 or self.right == 0:
            return 1.0 if self.left == self.right else 0.0
        return max(-1.0, min(1.0, self.dot / math.sqrt(self.left) / math.sqrt(self.right)))
