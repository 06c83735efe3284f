"""From the shape and strides of a linear to one launch of linear.metal: integers only, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..sharing import sharing

MAX_ROWS = 16  # of x. More rows are a matrix product, and stock's is good at those
MAX_OUTPUTS = 2**26  # so that a launch has at most 2^31 threads
MAX_LENGTH = 2**31 - 1  # pieces of a row are counted in 32 bits
VECTOR_BYTES = 16

SIMD = 32
GROUP_SIMDGROUPS = 8  # linear.metal: group_simdgroups
ROW_SIMDGROUPS = 4  # of a threadgroup with one row of x, unless more of them share K
GROUP_THREADS = SIMD * GROUP_SIMDGROUPS
COLUMN_STEPS = 8  # linear.metal: column_steps
MATRIX_LANES = 4  # lanes that share a row in "matrices"
MATRIX_VECTOR = 8  # elements of a vector there: types of two bytes
MATRIX_ROWS = 9  # from so many rows on,
MATRIX_OUTPUTS = 2048  # and outputs
STRAIGHT_ROWS = 5  # from so many on and up to 8 the matrices come straight from memory,
STRAIGHT_OUTPUTS, STRAIGHT_WEIGHTS = 2560, 2**21  # for so many outputs and weights
LONG_ROWS, LONG_WEIGHTS = 8, 2**26  # "long" is for 3 to 8 rows of x and so many weights
SINGLE_ROWS = 4  # of x: more are shared by two SIMD-groups


@dataclass(frozen=True)
class Tile:
    """An instantiation, and how K is shared where there are few outputs.

    rows      of x, at most; more are shared by two or four SIMD-groups. outputs: of a SIMD-group.
    flight    pieces of each output's weights in flight in a lane.
    fill      K is shared by 2, 4 or 8 SIMD-groups while there are fewer SIMD-groups than this,
    resident  or a few more than this, the number that run at once: the rest would run alone.
    """

    rows: int
    outputs: int
    flight: int
    fill: int = 4096
    resident: int = 5280


# Several outputs share what is read of x, and rows * outputs is at most 32: sums are registers. Chosen on an H200 (by
# NVPTX) over the 96 layers of tests/metal_kernels/linear/shapes.json; tests/gpu/notes.md has what else was tried. Up
# to 8 rows: two SIMD-groups with 4 rows each beat one with 8, whose sums leave too few SIMD-groups at once.
TILES = {
    "vectors": (
        Tile(1, 4, 1, 5280, 5280), Tile(2, 4, 2, 2048, 4096), Tile(4, 8, 1, 1536, 2112), Tile(8, 4, 1, 1536, 2112),
    ),
    "long": (Tile(4, 4, 1, 1536, 2112),),
    "matrices": (Tile(16, 32, 1, 5280, 5280),),
    "straight": (Tile(8, 16, 1, 3168, 3168),),
    "elements": (Tile(1, 2, 4, 3072, 4096), Tile(8, 2, 4, 1536, 2112)),
    "columns": (Tile(1, SIMD, COLUMN_STEPS), Tile(4, SIMD, COLUMN_STEPS), Tile(16, SIMD, COLUMN_STEPS)),
}


@dataclass(frozen=True)
class Launch:
    """form, tile: the kernel, as in TILES. header: linear.metal's LinearLaunch. groups: of so many threads."""

    form: str
    tile: Tile
    header: tuple[int, ...]
    groups: int
    group_threads: int = GROUP_THREADS


@lru_cache(maxsize=1024)
def plan(
    rows: int,
    outputs: int,
    length: int,
    x_strides: tuple[int, int],
    weight_strides: tuple[int, int],
    bias_stride: int | None,
    aligned: bool,
    vector: int,
    form: str | None = None,
) -> Launch:
    """The launch for x [rows, length] and weight [outputs, length]; none of them is 0.

    x_strides, weight_strides   along rows or outputs, and along K; in elements.
    bias_stride                 None: there is no bias.
    aligned                     x and the weight both start on a 16-byte boundary.
    vector                      elements of 16 bytes.
    form                        take this one in any case, for self-checks and tests; "vectors" only where they can be.
    """
    if form is None:
        vectors = (
            aligned
            and has_vectors(rows, length, x_strides, vector)
            and has_vectors(outputs, length, weight_strides, vector)
        )
        form = _form(rows, outputs, length, weight_strides, vectors, vector)
    tile = _tile(form, rows)
    parts, blocks, group = 1, 1 << (-(-rows // tile.rows) - 1).bit_length(), GROUP_SIMDGROUPS
    if form == "columns":
        groups = -(-outputs // SIMD)
    else:
        simdgroups = -(-outputs // tile.outputs) * blocks
        pieces = length // (1 if form == "elements" else vector)
        lanes = {"straight": 2 * MATRIX_LANES, "matrices": MATRIX_LANES}.get(form, SIMD)
        if form == "vectors" and tile.rows == 1:
            parts = sharing(simdgroups, pieces // lanes, tile.resident, GROUP_SIMDGROUPS, crowded=2)
            group = max(parts, ROW_SIMDGROUPS)
        else:
            parts = _parts(tile, simdgroups, pieces // lanes, GROUP_SIMDGROUPS // blocks)
        groups = -(-simdgroups * parts // group)
    header = (
        rows, outputs, length, *x_strides, *weight_strides,
        bias_stride or 0, int(bias_stride is not None), parts, blocks,
    )  # fmt: skip
    return Launch(form, tile, header, groups, group * SIMD)


def _tile(form: str, rows: int) -> Tile:
    """The first that has so many rows, or half of them and another SIMD-group to share them with."""
    tiles = TILES[form]
    wanted = -(-rows // 2) if rows > SINGLE_ROWS and form in ("vectors", "long") else rows
    return next((tile for tile in tiles if tile.rows >= wanted), tiles[-1])


def _parts(tile: Tile, simdgroups: int, steps: int, most: int) -> int:
    """How many SIMD-groups, up to `most`, share a K of so many steps of one SIMD-group. Each keeps one at least."""
    if tile.fill == tile.resident:
        return sharing(simdgroups, steps, tile.resident, most)
    parts = 1
    while 2 * parts <= most and 2 * parts <= steps:
        busy = simdgroups * parts
        if tile.fill <= busy <= tile.resident or busy >= tile.resident * 3 // 2:
            break
        parts *= 2
    return parts


def has_vectors(rows: int, length: int, strides: tuple[int, int], vector: int) -> bool:
    """Whether `rows` rows of `length` elements can be read in vectors, if the first one starts on a boundary."""
    return length % vector == 0 and strides[1] == 1 and (rows == 1 or strides[0] % vector == 0)


def _form(
    rows: int, outputs: int, length: int, weight_strides: tuple[int, int], vectors: bool, vector: int
) -> str:  # fmt: skip
    if vectors:
        if rows >= MATRIX_ROWS and outputs >= MATRIX_OUTPUTS and vector == MATRIX_VECTOR:
            return "matrices"
        if STRAIGHT_ROWS <= rows < MATRIX_ROWS and outputs >= STRAIGHT_OUTPUTS and (
            vector == MATRIX_VECTOR and outputs * length >= STRAIGHT_WEIGHTS
        ):
            return "straight"
        return "long" if 2 < rows <= LONG_ROWS and outputs * length >= LONG_WEIGHTS else "vectors"
    along_outputs, along_length = weight_strides
    return "columns" if outputs > 1 and length > 1 and along_outputs < along_length else "elements"
