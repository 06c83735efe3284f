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
    """An instantiation. rows: of x; outputs: of a SIMD-group; flight: pieces of each output in flight in a lane."""

    rows: int
    outputs: int
    flight: int


# outputs * flight is 4 (vectors) or 8 (elements): loads enough in flight for the memory. rows * outputs is at most 32:
# sums are registers. Several outputs share what is read of x. 16 rows are bound by arithmetic, not by loads.
TILES = {
    "vectors": (Tile(1, 1, 4), Tile(2, 2, 2), Tile(4, 4, 1), Tile(8, 4, 1), Tile(16, 2, 1)),
    "elements": (Tile(1, 1, 8), Tile(4, 2, 4), Tile(16, 2, 4)),
    "columns": (Tile(1, SIMD, COLUMN_STEPS), Tile(4, SIMD, COLUMN_STEPS), Tile(16, SIMD, COLUMN_STEPS)),
}

# Small weights: K is shared by 2, 4 or 8 SIMD-groups while there are fewer than this many (a large GPU runs thousands
# at once), as long as each has one full flight to read.
BUSY_SIMDGROUPS = 4096


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
    tile = next(tile for tile in TILES[form] if tile.rows >= rows)
    parts = 1
    if form == "columns":
        groups = -(-outputs // SIMD)
    else:
        simdgroups = -(-outputs // tile.outputs)
        flight = SIMD * tile.flight * (vector if form == "vectors" else 1)
        while parts < GROUP_SIMDGROUPS and simdgroups * parts < BUSY_SIMDGROUPS and length >= 2 * parts * flight:
            parts *= 2
        groups = -(-simdgroups * parts // GROUP_SIMDGROUPS)
    header = (
        rows, outputs, length, *x_strides, *weight_strides, bias_stride or 0, int(bias_stride is not None), parts,
    )  # fmt: skip
    return Launch(form, tile.rows, header, groups)


def has_vectors(rows: int, length: int, strides: tuple[int, int], vector: int) -> bool:
    """Whether `rows` rows of `length` elements can be read in vectors, if the first one starts on a boundary."""
    return length % vector == 0 and strides[1] == 1 and (rows == 1 or strides[0] % vector == 0)


def _form(outputs: int, length: int, weight_strides: tuple[int, int], vectors: bool) -> str:
    if vectors:
        return "vectors"
    along_outputs, along_length = weight_strides
    return "columns" if outputs > 1 and length > 1 and along_outputs < along_length else "elements"
