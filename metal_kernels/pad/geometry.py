"""From a pad of a strided tensor to launches of pad.metal: integers only, no tensors.

A `Pad` is checked and cropped here, its output is laid out as the CPU kernel lays it out, and its dimensions are
merged and
widened until pad.metal's form is reached (see there): rows of adjacent output elements under few outer dimensions.
Everything counts elements, whose size may grow on the way: a pad that leaves whole 16-byte units alone moves units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

VECTOR = 16  # bytes that a thread moves at once
GROUP_THREADS = 128  # pad.metal: group_threads
VECTORS_PER_THREAD = 2  # pad.metal: vectors_per_thread
GROUP_VECTORS = GROUP_THREADS * VECTORS_PER_THREAD
DENSE_OUTER = 3  # pad.metal: dense_outer
MIN_PERIOD = 256  # vectors that lie side by side: neighbouring threads read and write neighbouring memory
# Vectors of a thread where there are threads enough: finding its place is a third of its work then; with more, the last
# threads run longer alone. 32 at most in pad.metal.
MAX_STEPS = 4
BUSY_THREADS = 2**19

# A launch numbers its elements, and a row or a period past them, in 31 bits.
MAX_ELEMENTS = 2**30 - 4 * GROUP_VECTORS * VECTOR
# What keeps one launch far below the half second after which an M1's watchdog stops it: at 30 GB/s each way for rows of
# adjacent elements; at a cache line of 128 bytes read for each element where they are scattered.
MAX_DENSE_BYTES = 2**32
MAX_STRIDED_ELEMENTS = 2**27


@dataclass(frozen=True)
class Dim:
    """One dimension of the output: `left` fill, `extent` positions of the input `stride` apart, fill up to `size`."""

    size: int
    left: int
    extent: int
    stride: int

    @property
    def padded(self) -> bool:
        return self.size != self.extent


@dataclass(frozen=True)
class Launch:
    """One launch of pad.metal: the kernel's name, its PadLaunch without the fill, its PadDims, threads in all and of
    a group."""

    kernel: str
    header: tuple[int, ...]
    dims: tuple[int, ...]
    threads: int
    group_size: int


@dataclass(frozen=True)
class Crop:
    """What is left of the input once negative pads are cut off. lefts, rights: what is then added, first dimension
    first.
    """

    offset: int
    sizes: tuple[int, ...]
    lefts: tuple[int, ...]
    rights: tuple[int, ...]

    @property
    def grows(self) -> bool:
        """Whether any pad is positive. If none is, the CPU kernel returns a clone of the cropped view."""
        return any(self.lefts) or any(self.rights)

    @property
    def out_sizes(self) -> tuple[int, ...]:
        return tuple(left + size + right for left, size, right in zip(self.lefts, self.sizes, self.rights, strict=True))


@lru_cache(maxsize=512)
def crop(sizes: tuple[int, ...], strides: tuple[int, ...], pad: tuple[int, ...]) -> Crop | None:
    """The crop that `pad` (last dimension first, as aten::constant_pad_nd takes it) makes; None where the CPU
    kernel raises.

    A negative pad cuts its own side even where the other side is padded, so it may not be larger than what is there.
    """
    rank = len(sizes)
    if len(pad) % 2 or len(pad) > 2 * rank:
        return None
    kept, lefts, rights, offset = list(sizes), [0] * rank, [0] * rank, 0
    for k in range(len(pad) // 2):
        d, left, right = rank - 1 - k, pad[2 * k], pad[2 * k + 1]
        kept[d] += min(left, 0) + min(right, 0)
        if kept[d] < 0:
            return None
        offset -= min(left, 0) * strides[d]
        lefts[d], rights[d] = max(left, 0), max(right, 0)
    return Crop(offset, tuple(kept), tuple(lefts), tuple(rights))


def is_channels_last(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether suggest_memory_format() says channels_last (rank 4) or channels_last_3d (rank 5) for these strides.

    Channels first, then the spatial dimensions from the last one on, then the batch: each stride must reach past the
    dimension before. A batch of single values, whose strides say nothing, counts as contiguous.
    """
    rank = len(sizes)
    if rank not in (4, 5) or strides[1] == 0:
        return False
    reach = 0
    for d in (1, *range(rank - 1, 1, -1), 0):
        if sizes[d] == 0 or strides[d] < reach or (d == 0 and reach == strides[1]):
            return False
        reach = strides[d] * max(sizes[d], 1)
    return True


def is_gapless(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether every element between the tensor's first and last is the tensor's own (some may be so twice: expanded
    ones).
    """
    reach = 1
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size > 1):
        if stride > reach:
            return False
        reach += (size - 1) * stride
    return True


@lru_cache(maxsize=512)
def plan(
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    pad: tuple[int, ...],
    out_strides: tuple[int, ...],
    itemsize: int,
    in_skew: int,
    out_skew: int,
    wide_offsets: bool = False,
) -> tuple[Launch, ...]:
    """The launches that fill the whole output.

    sizes, strides   of the input; `pad` must be one that crop() accepts, and the output must have elements.
    out_strides      of the output, which is dense in some order of its dimensions.
    itemsize         bytes of an element: 1, 2, 4, 8 or 16.
    in_skew, out_skew   bytes by which the first element lies past a 16-byte boundary.
    wide_offsets     take the 64-bit kernels in any case (for tests).
    """
    cut = crop(sizes, strides, pad)
    out_sizes = cut.out_sizes
    readable = None
    if is_gapless(sizes, strides):
        readable = (0, 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size))
    # The output's memory order, outermost first. Dimensions of size 1 have no say in it.
    order = sorted((d for d in range(len(sizes)) if out_sizes[d] != 1), key=lambda d: -out_strides[d])
    dims = [Dim(out_sizes[d], cut.lefts[d], cut.sizes[d], strides[d]) for d in order]
    if 0 in cut.sizes:  # nothing but fill
        dims = [Dim(math.prod(out_sizes), 0, 0, 1)]
    problem = widen(_Problem(tuple(merge(dims)), itemsize, cut.offset, 0, in_skew, out_skew, readable))
    return tuple(_encode(piece, wide_offsets) for piece in split(problem))


@dataclass(frozen=True)
class _Problem:
    """dims: outermost first, the last one the row. Offsets from the bound tensors in elements of `itemsize` bytes,
    skews of the
    bound tensors in bytes. readable: the range of elements, from the input's first one, that are all its own; None
    with gaps."""

    dims: tuple[Dim, ...]
    itemsize: int
    in_offset: int
    out_offset: int
    in_skew: int
    out_skew: int
    readable: tuple[int, int] | None

    @property
    def count(self) -> int:
        return math.prod(dim.size for dim in self.dims)

    @property
    def dense(self) -> bool:
        return self.dims[-1].stride == 1 and len(self.dims) - 1 <= DENSE_OUTER


def merge(dims: list[Dim]) -> list[Dim]:
    """`dims` (outermost first) with every unpadded dimension that continues the one before it taken into that one.

    A stride with no step to take, or with all its steps in fill, is set to what suits its neighbours. At least one
    is left.
    """
    merged: list[Dim] = []
    for dim in reversed(dims):  # innermost first
        if merged and not merged[-1].padded:
            inner = merged[-1]
            if dim.extent == 1 or dim.stride == inner.stride * inner.size:
                n = inner.size
                merged[-1] = Dim(dim.size * n, dim.left * n, dim.extent * n, inner.stride)
                continue
        merged.append(dim)
    merged = merged or [Dim(1, 0, 1, 1)]
    if merged[0].extent <= 1:
        merged[0] = replace(merged[0], stride=1)
    return [replace(dim, stride=0) if k and dim.extent == 1 else dim for k, dim in enumerate(merged)][::-1]


def widen(problem: _Problem) -> _Problem:
    """The same bytes in the widest elements, up to 16 bytes, that every length, offset and skew is a multiple of."""
    *outer, row = problem.dims
    if row.stride != 1:
        return problem
    size = problem.itemsize
    counts = [row.size, row.left, row.extent, problem.in_offset, problem.out_offset, *(dim.stride for dim in outer)]
    unit = math.gcd(VECTOR, problem.in_skew, problem.out_skew, *(size * n for n in counts))
    ratio = unit // size
    if ratio <= 1:
        return problem
    return replace(
        problem,
        dims=(
            *(replace(dim, stride=dim.stride // ratio) for dim in outer),
            Dim(row.size // ratio, row.left // ratio, row.extent // ratio, 1),
        ),
        itemsize=unit,
        in_offset=problem.in_offset // ratio,
        out_offset=problem.out_offset // ratio,
        readable=problem.readable and tuple(bound // ratio for bound in problem.readable),
    )


def split(problem: _Problem) -> list[_Problem]:
    """`problem` in pieces along its outermost dimension, and those in turn, until each is small enough for one
    launch.
    """
    limit = min(MAX_ELEMENTS, MAX_DENSE_BYTES // problem.itemsize) if problem.dense else MAX_STRIDED_ELEMENTS
    if problem.count <= limit:
        return [problem]
    first, *rest = problem.dims
    inner = math.prod(dim.size for dim in rest)
    step = max(limit // inner, 1)
    pieces = []
    for begin in range(0, first.size, step):
        size = min(step, first.size - begin)
        # Positions of the input that fall into [begin, begin + size).
        low = min(max(begin - first.left, 0), first.extent)
        high = min(max(begin + size - first.left, 0), first.extent)
        piece = replace(
            problem,
            dims=(Dim(size, max(first.left - begin, 0) if high > low else 0, high - low, first.stride), *rest),
            in_offset=problem.in_offset + low * first.stride,
            out_offset=problem.out_offset + begin * inner,
        )
        if size == 1 and rest:
            # One index is no dimension: either it has data, and the others are the problem, or all of it is fill.
            dims = tuple(rest) if high > low else (Dim(inner, 0, 0, 1),)
            pieces += split(replace(piece, dims=dims, in_offset=piece.in_offset if high > low else 0))
        else:
            pieces.append(piece)
    return pieces


def divisor(d: int) -> tuple[int, int]:
    """(magic, shift) with which pad.metal's divide() divides any n < 2^31 by d, for 1 <= d < 2^31."""
    shift = (d - 1).bit_length()
    return -(-(1 << (31 + shift)) // d), shift


def walk(count: int, width: int, lanes: int) -> tuple[int, int, int, int]:
    """How threads walk down the `count` vectors of an output of rows of `width` elements: (vectors and rows of a
    period, steps of a thread, threads). A period is a whole number of rows and of vectors, of an even number of them:
    where it ends, a sector of memory does.
    """
    rows = lanes // math.gcd(width, lanes)
    period = rows * width // lanes
    times = -(-MIN_PERIOD // period)
    times += times * period % 2
    rows, period = rows * times, period * times
    periods = -(-count // period)
    if periods == 1:
        return count, 0, 1, count
    steps = min(max(count // BUSY_THREADS, 1), MAX_STEPS)
    walks = -(-periods // steps)
    return period, rows, -(-periods // walks), walks * period


def _encode(problem: _Problem, wide_offsets: bool) -> Launch:
    size, lanes = problem.itemsize, VECTOR // problem.itemsize
    *outer, row = problem.dims
    in_skew = (problem.in_skew + problem.in_offset * size) % VECTOR // size
    out_skew = (problem.out_skew + problem.out_offset * size) % VECTOR // size
    outer = outer[::-1]
    number = len(outer)
    pieces, period, rows, steps, threads = 0, 1, 0, 1, 0
    if problem.dense:
        period, rows, steps, threads = walk(-(-(problem.count + out_skew) // lanes), row.size, lanes)
        outer = outer or [Dim(1, 0, 1, row.extent)]
        if outer[0].extent == 1:
            outer[0] = replace(outer[0], stride=row.extent)
        # Two rows that meet in a vector lie so in the input too, unless there are gaps between them or other planes.
        adjacent = outer[0].stride == row.extent and (outer[0].padded or len(outer) == 1)
        pieces = int(0 < row.extent and not (adjacent and problem.readable and row.extent >= lanes))
        outer[-1] = replace(outer[-1], size=outer[-1].size + 1)  # what is past the end is no first row
        outer += [Dim(2, 0, 1, 0)] * (DENSE_OUTER - len(outer))
    else:
        threads = -(-(problem.count + out_skew) // (lanes * GROUP_VECTORS)) * GROUP_THREADS
    last = sum(dim.size * dim.stride for dim in outer) + row.extent * row.stride
    last += rows * outer[0].stride if rows else 0
    wide = wide_offsets or last >= 2**31 - 2 * VECTOR
    # Windows read whole vectors: round inwards, and no farther than offsets can reach.
    reach = 2**62 if wide else 2**31 - 2 * VECTOR
    begin, end, margin = -reach, reach, lanes
    if problem.readable:
        begin, end = (bound - problem.in_offset + in_skew for bound in problem.readable)
        begin, end, margin = max(-(-begin // lanes) * lanes, -reach), min(end // lanes * lanes, reach), 0
    windows = max(end - begin - (lanes if lanes > 1 else 0), 0)
    header = (
        problem.out_offset, problem.in_offset, out_skew, in_skew, problem.count, begin, end, margin, windows, pieces,
        period, *divisor(period), rows, steps,
        row.size, *divisor(row.size), row.left, row.extent, row.stride, number,
    )  # fmt: skip
    dims = tuple(n for dim in outer for n in (dim.size, *divisor(dim.size), dim.left, dim.extent, dim.stride))
    return Launch(
        kernel=f"pad_{'dense' if problem.dense else 'strided'}_{size}{'_int64' if wide else ''}",
        header=header,
        dims=dims or (1, *divisor(1), 0, 1, 0),  # a list must not be empty, even if no dimension is read from it
        threads=threads,
        group_size=GROUP_THREADS,
    )
