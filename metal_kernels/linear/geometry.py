"""From the shape and strides of a linear to one launch of linear.metal: integers only, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

MAX_ROWS = 16  # of x. More rows are a matrix product, and stock's is good at those
MAX_OUTPUTS = 2**26  # so that a launch has at most 2^31 threads
MAX_LENGTH = 2**31 - 1  # pieces of a row are counted in 32 bits
VECTOR_BYTES = 16

SIMD = 32
GROUP_SIMDGROUPS = 8  # linear.metal: group_simdgroups
GROUP_THREADS = SIMD * GROUP_SIMDGROUPS
COLUMN_STEPS = 8  # linear.metal: column_steps


@dataclass(frozen=True)
class Tile:
    """An instantiation, and how K is shared where there are few outputs.

    rows      of x, at most; more are shared by two SIMD-groups. outputs: of a SIMD-group.
    flight    pieces of each output's weights in flight in a lane.
    fill      K is shared by 2, 4 or 8 SIMD-groups while there are fewer SIMD-groups than this,
    resident  or a few more than this, the number that run at once: the rest would run alone.
    """

    rows: int
    outputs: int
    flight: int
    fill: int = 3072
    resident: int = 4096


# outputs * flight is at least 4: loads enough in flight for the memory. Several outputs share what is read of x, and
# rows * outputs is at most 32: sums are registers. Chosen on an H200 (through NVPTX) over the 96 layers of
# tests/metal_kernels/linear/shapes.json: with one row 1.02 times the time of the best tile and sharing for each layer,
# with 8 rows, which are bound by arithmetic, 1.08 times.
TILES = {
    "vectors": (Tile(1, 4, 1), Tile(2, 4, 2, 2048), Tile(4, 8, 1, 1536, 2112), Tile(8, 4, 1, 1536, 2112)),
    "elements": (Tile(1, 2, 4), Tile(8, 2, 4, 1536, 2112)),
    "columns": (Tile(1, SIMD, COLUMN_STEPS), Tile(4, SIMD, COLUMN_STEPS), Tile(16, SIMD, COLUMN_STEPS)),
}


@dataclass(frozen=True)
class Launch:
    """form, rows: of the kernel, as in TILES. header: linear.metal's LinearLaunch. groups: of GROUP_THREADS threads."""

    form: str
    rows: int
    header: tuple[int, ...]
    groups: int


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
        form = _form(outputs, length, weight_strides, vectors)
    tiles = TILES[form]
    tile = next((tile for tile in tiles if tile.rows >= rows), tiles[-1])
    parts, blocks = 1, 1 if rows <= tile.rows else 2
    if form == "columns":
        groups = -(-outputs // SIMD)
    else:
        simdgroups = -(-outputs // tile.outputs) * blocks
        parts = _parts(tile, simdgroups, length // (vector if form == "vectors" else 1), GROUP_SIMDGROUPS // blocks)
        groups = -(-simdgroups * parts // GROUP_SIMDGROUPS)
    header = (
        rows, outputs, length, *x_strides, *weight_strides,
        bias_stride or 0, int(bias_stride is not None), parts, blocks,
    )  # fmt: skip
    return Launch(form, tile.rows, header, groups)


def _parts(tile: Tile, simdgroups: int, pieces: int, most: int) -> int:
    """How many SIMD-groups, up to `most`, share a K of so many pieces. Each lane keeps a piece at least."""
    parts = 1
    while 2 * parts <= most and 2 * parts * SIMD <= pieces:
        busy = simdgroups * parts
        if tile.fill <= busy <= tile.resident or busy >= tile.resident * 3 // 2:
            break
        parts *= 2
    return parts


def has_vectors(rows: int, length: int, strides: tuple[int, int], vector: int) -> bool:
    """Whether `rows` rows of `length` elements can be read in vectors, if the first one starts on a boundary."""
    return length % vector == 0 and strides[1] == 1 and (rows == 1 or strides[0] % vector == 0)


def _form(outputs: int, length: int, weight_strides: tuple[int, int], vectors: bool) -> str:
    if vectors:
        return "vectors"
    along_outputs, along_length = weight_strides
    return "columns" if outputs > 1 and length > 1 and along_outputs < along_length else "elements"
