"""From the shape and strides of a linear to one launch of linear.metal: integers only, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..sharing import full_waves, fullness, sharing

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
STRAIGHT_OUTPUTS, STRAIGHT_WEIGHTS = 2560, 2**21  # for so many outputs and weights;
# with two rows where "vectors" is a little more than one wave, with three and four where its waves are so much emptier
STRAIGHT_CROWDED, STRAIGHT_FULLER = 1.25, 1.25
STRAIGHT_PARTS = (1, 2, 3, 4, 6, 8)  # SIMD-groups that may share K there: a threadgroup has 5 or 7 once only
MATRIX_RESIDENT = 3168  # SIMD-groups with a matrix's registers, or those of several rows, that run at once
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


TWO_BYTES = ("matrices", "straight", "deep")  # forms for types of two bytes only

# Several outputs share what is read of x, and rows * outputs is at most 32: sums are registers. Chosen on an H200 (by
# NVPTX) over the 96 layers of tests/metal_kernels/linear/shapes.json; tests/gpu/notes.md has what else was tried. Up
# to 8 rows: two SIMD-groups with 4 rows each beat one with 8, whose sums leave too few SIMD-groups at once.
TILES = {
    "vectors": (
        Tile(1, 4, 1, 5280, 5280), Tile(2, 4, 2, 2048, 4096), Tile(4, 8, 1, 1536, 2112), Tile(8, 4, 1, 1536, 2112),
    ),
    "long": (Tile(4, 4, 1, 1536, 2112),),
    "matrices": (Tile(16, 32, 1, 5280, 5280),),
    "straight": (Tile(8, 16, 2, 3168, 3168),),
    "deep": (Tile(8, 16, 3, 2112, 2112),),
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
    shared = Shared(1, 1, GROUP_SIMDGROUPS, -(-outputs // SIMD)) if form == "columns" else (
        _shared(form, tile, rows, outputs, length // (1 if form == "elements" else vector))
    )  # fmt: skip
    header = (
        rows, outputs, length, *x_strides, *weight_strides,
        bias_stride or 0, int(bias_stride is not None), shared.parts, shared.blocks,
    )  # fmt: skip
    return Launch(form, tile, header, shared.groups, shared.group * SIMD)


@dataclass(frozen=True)
class Shared:
    """How a product is cut up.

    parts, blocks   SIMD-groups that share K, and rows of x.
    group, groups   SIMD-groups in a threadgroup, and threadgroups.
    waves           so many times as many SIMD-groups as run at once. fullness: how busy they keep a GPU (`sharing`).
    """

    parts: int
    blocks: int
    group: int
    groups: int
    waves: float = 0.0
    fullness: float = 1.0


def _shared(form: str, tile: Tile, rows: int, outputs: int, pieces: int) -> Shared:
    blocks = 1 << (-(-rows // tile.rows) - 1).bit_length()
    simdgroups = -(-outputs // tile.outputs) * blocks
    steps = pieces // {"straight": 2 * MATRIX_LANES, "deep": 3 * MATRIX_LANES, "matrices": MATRIX_LANES}.get(form, SIMD)
    group, resident = GROUP_SIMDGROUPS, tile.resident
    if form in ("straight", "deep"):
        parts = full_waves(simdgroups, steps, resident, [n for n in STRAIGHT_PARTS if n * blocks <= GROUP_SIMDGROUPS])
        group = GROUP_SIMDGROUPS // (parts * blocks) * parts * blocks
    elif form == "vectors" and tile.rows == 1:
        parts = sharing(simdgroups, steps, resident, GROUP_SIMDGROUPS, crowded=2)
        group = max(parts, ROW_SIMDGROUPS)
    else:
        parts = _parts(tile, simdgroups, steps, GROUP_SIMDGROUPS // blocks)
        resident = min(resident, MATRIX_RESIDENT)
    busy = simdgroups * parts
    return Shared(parts, blocks, group, -(-busy // group), busy / resident, fullness(busy, resident))


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
    if not vectors:
        along_outputs, along_length = weight_strides
        return "columns" if outputs > 1 and length > 1 and along_outputs < along_length else "elements"
    form = "long" if 2 < rows <= LONG_ROWS and outputs * length >= LONG_WEIGHTS else "vectors"
    if vector != MATRIX_VECTOR or rows == 1:
        return form
    if rows >= MATRIX_ROWS:
        return "matrices" if outputs >= MATRIX_OUTPUTS else form
    if rows >= STRAIGHT_ROWS:
        if outputs < STRAIGHT_OUTPUTS or outputs * length < STRAIGHT_WEIGHTS:
            return form
        deep = TILES["deep"][0]
        return "deep" if -(-outputs // deep.outputs) * GROUP_SIMDGROUPS <= deep.resident else "straight"
    straight, other = (
        _shared(each, _tile(each, rows), rows, outputs, length // vector) for each in ("straight", form)
    )
    if rows == 2:
        return "straight" if 1 < other.waves < STRAIGHT_CROWDED and length > SIMD * vector else form
    return "straight" if straight.fullness > STRAIGHT_FULLER * other.fullness else form
