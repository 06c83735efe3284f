"""From the shapes and strides of a grouped product to one launch of grouped_mm.metal: integers only, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..sharing import sharing

MAX_SIZE = 2**31 - 1  # of rows, outputs and K: offs counts in 32 bits
MAX_TILES = 2**24  # along one dimension of a launch, so that its threads can be numbered
VECTOR_BYTES = 16

SIMD = 32
COLUMN_SIMDGROUPS = 8  # grouped_mm.metal: column_simdgroups
BLOCK_ROWS = 2  # grouped_mm.metal: block_rows
WIDE_BYTES = 8  # of neighbouring outputs in a lane of "columns". 16 would leave too few SIMD-groups for 2048 outputs
VECTOR_OUTPUTS = 4  # grouped_mm.metal: vector_outputs

TILE_ROWS = 32  # grouped_mm.metal: tile_rows. Small, as a prompt of 512 tokens leaves 16 rows to one of 256 experts
TILE_OUTPUTS = 64  # grouped_mm.metal: tile_outputs
TILE_THREADS = 128  # grouped_mm.metal: tile_threads

# Rows up to which the weight is read by vectors: each group's weights once for two of its rows. Tiles read them once
# for 32, but multiply 32 rows wherever there is one.
FEW_ROWS = 16
FEW_ROWS_A_GROUP = 2
MAX_FEW_ROWS = 512

# "vectors": K is shared by up to 4 SIMD-groups, as long as all of them run at once and each has a vector in every lane
# to read. A few more than that would leave the last ones alone; then two share it. So many run at once on an H200,
# where this was measured (through NVPTX): tests/gpu/notes.md has what else was tried.
RESIDENT_SIMDGROUPS = 4224
VECTOR_SIMDGROUPS = 4  # grouped_mm.metal: vector_simdgroups. Small, so that it ends without waiting for many

ROWS, LENGTH, NOTHING = range(3)  # what offs divides; grouped_mm.metal: kind_rows, kind_length


@dataclass(frozen=True)
class Strided:
    """An operand as the kernels see it, in elements. step: along K, or of y along the outputs. skew: past 16 bytes."""

    group: int
    row: int
    step: int
    skew: int = 0


@dataclass(frozen=True)
class Problem:
    """y[r, n] = sum over k of x[r, k] * weight[g][n, k]; see grouped_mm.metal."""

    kind: int
    rows: int
    outputs: int
    length: int
    groups: int


@dataclass(frozen=True)
class Launch:
    """form: of the kernel; layout: the end of its name. header: GroupedLaunch. threads, group_size: of the grid."""

    form: str
    layout: str
    header: tuple[int, ...]
    threads: tuple[int, ...]
    group_size: tuple[int, ...]


def has_few_rows(problem: Problem) -> bool:
    """Whether the rows are so few that reading the weights takes the time."""
    return problem.kind == ROWS and (
        problem.rows <= FEW_ROWS or problem.rows <= min(FEW_ROWS_A_GROUP * problem.groups, MAX_FEW_ROWS)
    )


def has_vectors(operand: Strided, vector: int, groups: int = 1) -> bool:
    """Whether its rows are adjacent elements that start on 16-byte boundaries. groups: 1 for an x without groups."""
    return (
        operand.step == 1
        and operand.row % vector == 0
        and operand.skew == 0
        and (groups == 1 or operand.group % vector == 0)
    )


def fits(problem: Problem) -> bool:
    """Whether one launch can number its threads."""
    return (
        max(problem.rows, problem.outputs, problem.length, problem.groups) <= MAX_SIZE
        and problem.outputs <= MAX_TILES * TILE_OUTPUTS
        and problem.groups <= MAX_TILES
    )


@lru_cache(maxsize=1024)
def plan(
    problem: Problem, x: Strided, weight: Strided, y: Strided, offs_step: int, vector: int, form: str | None = None
) -> Launch:
    """The launch. No size of `problem` is 0.

    vector   elements of 16 bytes.
    form     take this one in any case, for self-checks and tests; "vectors" only where they can be.
    """
    if form is None:
        form = "tiles"
        if has_few_rows(problem):
            vectors = has_vectors(x, vector) and has_vectors(weight, vector, problem.groups)
            form = "vectors" if vectors else "columns"
    parts, layout = 1, ""
    if form == "tiles":
        layout = "".join(
            ("_along" if operand.step == 1 else other) for operand, other in ((x, "_rows"), (weight, "_columns"))
        )
        threads, group_size = _tiles(problem), (TILE_THREADS, 1, 1)
    else:
        width = vector * WIDE_BYTES // VECTOR_BYTES
        wide = form == "columns" and _is_wide(weight, width, problem.groups)
        layout = "_wide" if wide else ""
        per_simdgroup = VECTOR_OUTPUTS if form == "vectors" else SIMD * (width if wide else 1)
        simdgroups = -(-problem.outputs // per_simdgroup)
        group = VECTOR_SIMDGROUPS if form == "vectors" else COLUMN_SIMDGROUPS
        if form == "vectors":
            busy, steps = simdgroups * _busy_rows(problem), problem.length // (SIMD * vector)
            parts = sharing(busy, steps, RESIDENT_SIMDGROUPS, VECTOR_SIMDGROUPS, crowded=2)
            groups = -(-simdgroups * parts // group)
        else:
            groups = simdgroups
        threads, group_size = (groups * group * SIMD, problem.rows), (group * SIMD, 1)
    header = (
        problem.kind, problem.rows, problem.outputs, problem.length, problem.groups, offs_step, x.group, x.row, x.step,
        x.skew, weight.group, weight.row, weight.step, weight.skew, y.group, y.row, y.step, parts,
    )  # fmt: skip
    return Launch(form, layout, header, threads, group_size)


def _busy_rows(problem: Problem) -> int:
    """Of the blocks of rows, so many work: one for each group that has rows, as far as anyone knows here."""
    return max(min(problem.rows, problem.groups), -(-problem.rows // BLOCK_ROWS))


def _is_wide(weight: Strided, width: int, groups: int) -> bool:
    """Whether `width` adjacent outputs' weights can be read at once, wherever along K."""
    return (
        weight.row == 1
        and weight.step % width == 0
        and weight.skew % width == 0
        and (groups == 1 or weight.group % width == 0)
    )


def _tiles(problem: Problem) -> tuple[int, int, int]:
    columns = -(-problem.outputs // TILE_OUTPUTS)
    rows, groups = -(-problem.rows // TILE_ROWS), problem.groups
    if problem.kind == ROWS:
        # Each group begins a tile, and so do the rows past the last end. Which tile is whose, the device finds out.
        rows = problem.rows // TILE_ROWS + min(problem.groups + 1, problem.rows)
        groups = 1
    return (columns * TILE_THREADS, rows, groups)
