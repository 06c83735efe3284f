"""From the strides of a softmax to launches of softmax.metal: integers only, no tensors.

The dimensions other than the reduced one are merged to as few as their strides allow; what is left are rows of `length`
elements. Then one of softmax.metal's forms is chosen (see there), and work too large for one launch is cut along the
outermost dimension. Everything counts elements. `a`, `b` are the inputs (forward has only `a`), `out` the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

SIMD = 32
VECTOR_BYTES = 16
MAX_LENGTH = 2**31  # softmax.metal numbers the elements of a row, and its last block's overhang, in 32 bits
MAX_ROW_THREADS = 1024

# Everything that was chosen and not derived.
GROUP_THREADS = 256  # of a group that holds several rows
COLUMN_THREADS = 256  # softmax.metal: column_threads
COLUMN_BATCH = 4  # softmax.metal: column_batch
HELD_VECTORS = {1: (1, 2, 4), 2: (1, 2)}  # by number of inputs: vectors of each that a thread may hold
# Elements of each input that a thread of a large group holds, where so few are possible: 32 take 95 registers on an
# H200 (through NVPTX), and as few threads then run at once.
HELD_ELEMENTS = 16
LONG_WHOLE = 8  # vectors that a thread may hold of a row of whole vectors of four elements, where there are many rows
LOOPED_VECTORS = {1: 2, 2: 1}  # by number of inputs: vectors of each in flight where a row is read in a loop
UNALIGNED = 512  # rows shorter than this that start inside vectors are read by elements: most would be at an end
BUSY_ROWS = 512  # rows enough to keep a GPU busy with a small group each; with fewer, groups as large as the row allows
BUSY_THREADS = 2**17  # threads enough to do so: short rows are then shared by fewer lanes, which hold more of them,
FEWEST_LANES = 8  # but not by fewer than read 128 adjacent bytes at once
SMALL_GROUP = 128  # threads: with fewer than BUSY_ROWS rows, one that so many can hold in two vectors each gets no more
SPLIT_ROWS = 256  # fewer rows than this, if they do not fit into registers, are split over groups
SPLIT_BLOCK = 2048  # elements of each input that a group reads at once: a row of a vocabulary makes about 70 groups
SPLIT_ALL = 2**18  # about as many threads as one launch of a split softmax is to have: all should run at once
MAX_CHUNKS = 128  # of a row: each SIMD-group of the second launch merges their states again, four for each lane
LOOPED_THREADS = 512
DEEP_THREADS = 2**15  # columns are shared by several threads until there are so many threads
MAX_DEPTH = 32  # threads that share a column, so that at least eight columns lie side by side: a whole sector of memory
FEW_COLUMNS = 64  # so few long columns are rows, even if they are not adjacent
LONG_COLUMN = 4096
# What keeps one launch far below the half second after which an M1's watchdog stops it: 2 GiB read twice, written once.
MAX_ELEMENTS = 2**29


@dataclass(frozen=True)
class Dim:
    """A dimension of the rows: its size and its strides in the inputs and the output."""

    size: int
    a: int
    b: int
    out: int

    @property
    def strides(self) -> tuple[int, int, int]:
        return self.a, self.b, self.out


@dataclass(frozen=True)
class Launch:
    """One launch of softmax.metal.

    form      "rows", "whole", "looped", "split" (which stands for "partial" and then "apply"), "whole_split" or
              "columns".
    count     the number at the end of the kernel's name.
    header    SoftmaxLaunch.
    dims      SoftmaxDims, flat.
    groups    threadgroups in all, group_size threads each; none is partial.
    states    states that "partial" hands to "apply".
    """

    form: str
    count: int
    header: tuple[int, ...]
    dims: tuple[int, ...]
    groups: int
    group_size: int
    states: int = 0


@dataclass(frozen=True)
class _Problem:
    """rows: the dimensions of the rows, outermost first; at least one. along: the reduced dimension, of size `length`.
    offsets: from the bound tensors to the first row. skews: elements by which the bound tensors lie past a vector's
    boundary. vector: elements of a vector. inputs: 1 or 2."""

    rows: tuple[Dim, ...]
    along: Dim
    offsets: tuple[int, int, int]
    skews: tuple[int, int, int]
    vector: int
    inputs: int

    @property
    def length(self) -> int:
        return self.along.size

    @property
    def count(self) -> int:
        return math.prod(dim.size for dim in self.rows)


@lru_cache(maxsize=1024)
def plan(
    sizes: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    out_strides: tuple[int, ...],
    dim: int,
    skews: tuple[int, ...],
    out_skew: int,
    vector: int,
    form: str | None = None,
) -> tuple[Launch, ...]:
    """The launches that fill the whole output.

    sizes        of inputs and output; no dimension is of size 0, and sizes[dim] is at most MAX_LENGTH.
    strides      of each input: one forward, two (gradient, output) backward.
    dim          0 <= dim < len(sizes); for a 0-dim tensor 0.
    skews        of each input: elements by which its first one lies past a boundary of `vector` elements.
    vector       elements of a vector: 16 bytes of the narrower of the input's and the output's dtype.
    form         take this one in any case (for self-checks and tests); "rows" and "whole" only if a row fits into
                 registers, "whole" and "whole_split" for rows of whole vectors.
    """
    inputs = len(strides)
    sizes, out_strides = sizes or (1,), out_strides or (1,)
    a, b = ((own or (1,)) for own in (strides[0], strides[-1]))
    dims = [Dim(*values) for values in zip(sizes, a, b, out_strides, strict=True)]
    along = dims.pop(dim)
    if along.size == 1:
        along = Dim(1, 1, 1, 1)
    problem = _Problem(merge(dims), along, (0, 0, 0), (skews[0], skews[-1], out_skew), vector, inputs)
    return tuple(_choose(piece, form) for piece in cut(problem))


def merge(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """`dims` (outermost first) with each that continues the one after it, in all tensors, taken into that one."""
    merged: list[Dim] = []  # innermost first
    for dim in reversed([dim for dim in dims if dim.size != 1]):
        if merged:
            inner = merged[-1]
            if all(step == own * inner.size for step, own in zip(dim.strides, inner.strides, strict=True)):
                merged[-1] = replace(inner, size=inner.size * dim.size)
                continue
        merged.append(dim)
    return tuple(reversed(merged)) or (Dim(1, 0, 0, 0),)


def cut(problem: _Problem) -> list[_Problem]:
    """`problem` in pieces along its outermost dimension, and those in turn, until each is small enough for one launch.

    Pieces of a sole dimension are multiples of 64 rows, so that columns can still be taken side by side.
    """
    if problem.count * problem.length <= MAX_ELEMENTS or problem.count == 1:
        return [problem]
    first, *rest = problem.rows
    inner = math.prod(dim.size for dim in rest) * problem.length
    step = max(MAX_ELEMENTS // inner, 1)
    step = max(step // 64 * 64, 1) if not rest else step
    pieces = []
    for begin in range(0, first.size, step):
        size = min(step, first.size - begin)
        rows = (replace(first, size=size), *rest) if size > 1 or not rest else tuple(rest)
        offsets = tuple(offset + begin * stride for offset, stride in zip(problem.offsets, first.strides, strict=True))
        pieces += cut(replace(problem, rows=rows, offsets=offsets))
    return pieces


def _choose(problem: _Problem, form: str | None) -> Launch:
    if form == "columns" or (form is None and _side_by_side(problem)):
        return _columns(problem)
    vectors = _has_vectors(problem)
    lead = problem.vector - 1 if vectors and not _starts_on_vectors(problem) else 0
    pieces = -(-(lead + problem.length) // problem.vector)
    fits = pieces <= HELD_VECTORS[problem.inputs][-1] * MAX_ROW_THREADS
    if form in ("rows", "whole") or (form is None and fits):
        return _held(problem, vectors, pieces, form)
    if form is None and _is_long_whole(problem, vectors, pieces):
        threads = -(-pieces // (LONG_WHOLE * SIMD)) * SIMD
        return _held_by(problem, vectors, LONG_WHOLE, threads, threads, "whole")
    if form in ("split", "whole_split") or (form is None and problem.count < SPLIT_ROWS):
        return _split(problem, vectors, form)
    return Launch(
        "looped", LOOPED_VECTORS[problem.inputs], _header(problem, vectors, LOOPED_THREADS), _flat(problem),
        problem.count, LOOPED_THREADS,
    )  # fmt: skip


def _side_by_side(problem: _Problem) -> bool:
    """Whether neighbouring threads take neighbouring rows, instead of neighbouring elements of a row."""
    adjacent = all(stride == 1 for stride in _used(problem, problem.along))
    return not adjacent and (problem.count >= FEW_COLUMNS or problem.length <= LONG_COLUMN)


def _has_vectors(problem: _Problem) -> bool:
    """Whether the rows can be read and written in 16-byte vectors.

    Elements are adjacent, and rows start equally far past a vector's boundary in all tensors; and unless they all start
    on one, they are long enough that ends which are no whole vectors do not matter.
    """
    return (
        all(stride == 1 for stride in _used(problem, problem.along))
        and problem.length >= (problem.vector if _starts_on_vectors(problem) else max(UNALIGNED, 2 * problem.vector))
        and _congruent(problem, problem.skews)
        and _congruent(problem, problem.offsets)
        and all(_congruent(problem, dim.strides) for dim in problem.rows)
    )


def _congruent(problem: _Problem, values: tuple[int, int, int]) -> bool:
    a, b, out = (value % problem.vector for value in values)
    return a == out and (b == out or problem.inputs == 1)


def _starts_on_vectors(problem: _Problem) -> bool:
    return (problem.skews[0] + problem.offsets[0]) % problem.vector == 0 and all(
        dim.a % problem.vector == 0 for dim in problem.rows
    )


def _used(problem: _Problem, dim: Dim) -> tuple[int, ...]:
    """The strides that the kernel follows: forward has no `b`."""
    return dim.strides if problem.inputs == 2 else (dim.a, dim.out)


def _held(problem: _Problem, vectors: bool, pieces: int, form: str | None) -> Launch:
    """A row in the registers of some lanes, a SIMD-group, or a threadgroup. pieces: vectors in a row."""
    counts = HELD_VECTORS[problem.inputs]
    shared = [(count, _power_of_two(-(-pieces // count))) for count in counts if pieces <= count * SIMD]
    if shared and form != "whole":
        busy = [(n, lanes) for n, lanes in shared if lanes >= FEWEST_LANES and problem.count * lanes >= BUSY_THREADS]
        return _held_by(problem, vectors, *(busy[-1] if busy else shared[0]), GROUP_THREADS)
    fitting = [count for count in counts if pieces <= count * MAX_ROW_THREADS]
    light = [count for count in fitting if count * problem.vector <= HELD_ELEMENTS]
    if problem.count >= BUSY_ROWS:
        count = (light or fitting[:1])[-1]
    else:
        count = 2 if pieces <= 2 * SMALL_GROUP else fitting[0]
    threads = -(-pieces // (count * SIMD)) * SIMD
    if form != "rows" and _is_whole(problem, vectors):
        return _held_by(problem, vectors, count, threads, threads, "whole")
    return _held_by(problem, vectors, count, threads, threads)


def _held_by(
    problem: _Problem, vectors: bool, count: int, row_threads: int, group_size: int, form: str = "rows"
) -> Launch:  # fmt: skip
    groups = -(-problem.count * row_threads // group_size)
    return Launch(form, count, _header(problem, vectors, row_threads), _flat(problem), groups, group_size)


def _split(problem: _Problem, vectors: bool, form: str | None) -> Launch:
    count = LOOPED_VECTORS[problem.inputs]
    threads = SPLIT_BLOCK // (count * problem.vector)
    blocks = -(-(problem.length + problem.vector - 1) // SPLIT_BLOCK)
    chunk_blocks = max(-(-blocks * problem.count // (SPLIT_ALL // threads)), -(-blocks // MAX_CHUNKS))
    chunks = -(-blocks // chunk_blocks)
    header = _header(problem, vectors, threads, chunks, chunk_blocks)
    groups = problem.count * chunks
    whole = form != "split" and chunk_blocks == 1 and _is_whole(problem, vectors)
    return Launch("whole_split" if whole else "split", count, header, _flat(problem), groups, threads, states=groups)


def _is_whole(problem: _Problem, vectors: bool) -> bool:
    """Whether the rows are one dimension of whole vectors."""
    return (
        vectors and len(problem.rows) == 1 and _starts_on_vectors(problem) and problem.length % problem.vector == 0
    )  # fmt: skip


def _is_long_whole(problem: _Problem, vectors: bool, pieces: int) -> bool:
    return (
        _is_whole(problem, vectors) and problem.vector == 4 and problem.inputs == 1 and problem.count >= SPLIT_ROWS
        and pieces <= LONG_WHOLE * MAX_ROW_THREADS
    )  # fmt: skip


def _columns(problem: _Problem) -> Launch:
    innermost, v = problem.rows[-1], problem.vector
    others = (*problem.rows[:-1], problem.along)
    wide = (
        all(stride == 1 for stride in _used(problem, innermost))
        and innermost.size % v == 0
        and all(stride % v == 0 for dim in others for stride in _used(problem, dim))
        and all(
            (skew + offset) % v == 0
            for skew, offset in list(zip(problem.skews, problem.offsets, strict=True))[:: 3 - problem.inputs]
        )
    )
    count = v if wide else 1
    threads, depth = problem.count // count, 1
    while depth < MAX_DEPTH and threads * depth < DEEP_THREADS and 2 * depth * COLUMN_BATCH <= problem.length:
        depth *= 2
    groups = -(-threads * depth // COLUMN_THREADS)
    return Launch("columns", count, _header(problem, False, depth), _flat(problem), groups, COLUMN_THREADS)


def _header(
    problem: _Problem, vectors: bool, row_threads: int, chunks: int = 0, chunk_blocks: int = 0
) -> tuple[int, ...]:
    return (
        problem.count, problem.length, *problem.offsets, *problem.along.strides, int(vectors), problem.skews[0],
        row_threads, chunks, chunk_blocks, len(problem.rows) - 1, problem.rows[-1].size, *problem.rows[-1].strides,
    )  # fmt: skip


def _flat(problem: _Problem) -> tuple[int, ...]:
    """The dimensions that the header has not, or where there is none the bytes that a buffer must have."""
    outer = problem.rows[-2::-1] if len(problem.rows) > 1 else (Dim(1, 0, 0, 0),)
    return tuple(value for dim in outer for value in (dim.size, *dim.strides))


def _power_of_two(n: int) -> int:
    """The smallest one that is not below n."""
    return 1 << (n - 1).bit_length()
