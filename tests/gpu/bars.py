"""The bars that the kernels are held to, table by table, and which rows meet them.

A bar compares a row's time with another time of the same run: the copy of the same bytes, torch's operation, the same
layer with one row, or the best of the peers' own kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

MLX, PYTORCH, TORCH = "MLX", "PyTorch 2.15", "torch"
PEAK = {"NVIDIA H200": 4.8e12}  # bytes a second; NVIDIA's data sheet of the H200
ALLOWED_BEYOND = 1.15  # a miss may be at most so far past its bar
ALLOWED_SHARE = 0.05  # and of so many of all rows
ATTENTION = 2**22  # elements from which a softmax is one of attention's


def best_peer(row: dict, of: tuple[str, ...] = (MLX, PYTORCH)) -> float | None:
    """The shortest time of these peers for a row; None where none of them has it."""
    times = [peer["us"] for peer in row.get("peers", ()) if peer["peer"] in of and peer["us"] and right(peer)]
    times += [row["torch"]] if TORCH in of and row.get("torch") else []
    return min(times, default=None)


def right(peer: dict) -> bool:
    """Whether a peer computed the operation. Our own tolerance is half a place of the result's dtype; of one that left
    its results zero, or in another order, the error is hundreds of it at least."""
    return peer["error"] is not None and peer["error"] <= 100.0


def peer_time(row: dict, peer: str) -> float | None:
    return best_peer(row, (peer,))


def _layer(row: dict) -> tuple:
    """The layer of a linear's row, without its number of rows."""
    return (row["row"].rpartition(" ")[0], re.sub(r"\b\d+x(\d+) (\d+)", r"\1 \2", row["name"]))


def _in_bfloat16(row: dict) -> tuple | None:
    """The layer of an FP8 linear's row with bfloat16 weights."""
    found = re.search(r"x(\d+) (\d+)", row["name"])
    return ("linear", f"linear {found[1]} {found[2]} bfloat16") if found else None


def one_token(rows: list[dict]) -> dict[tuple, float]:
    """(kind, shape) -> time of the row with M = 1."""
    return {_layer(row): row["ours"] for row in rows if row["row"].endswith("M=1")}


@dataclass(frozen=True)
class Bar:
    """The most that `ours` may be over another time.

    over      "copy", "torch", "one" (the same layer's row of one token), "bfloat16" (the row of one token of the same
              layer with bfloat16 weights), "peer" (the best of `of`).
    counted   the rows to which it applies.
    overall   it is the geomean that is held to `most`, not each row.
    """

    most: float
    over: str
    text: str
    counted: Callable[[dict], bool] = lambda row: True
    of: tuple[str, ...] = (MLX, PYTORCH)
    overall: bool = False

    def ratio(self, row: dict, ones: dict[tuple, float]) -> float | None:
        """The row's time over what the bar is measured against; None where there is no such time."""
        if self.over == "peer":
            other = best_peer(row, self.of)
        else:
            other = {
                "copy": row.get("copy"), "torch": row.get("torch"), "one": ones.get(_layer(row)),
                "bfloat16": ones.get(_in_bfloat16(row)),
            }[self.over]  # fmt: skip
        return row["ours"] / other if other else None


def _attention(row: dict) -> bool:
    return row["moved"] >= 4 * ATTENTION and "dim 1" not in row["name"]


def _vocabulary(row: dict) -> bool:
    found = re.match(r"_(?:log_)?softmax (\d+)x(\d+) ", row["name"])
    return bool(found) and int(found[1]) <= 8 and int(found[2]) >= 100000


def _large_layer(row: dict) -> bool:
    return min(map(int, re.search(r"x(\d+) (\d+)", row["name"]).groups())) >= 4096


ALL = (MLX, PYTORCH, TORCH)
BARS: dict[str, tuple[Bar, ...]] = {
    "pad": (Bar(1.15, "copy", "at most 1.15 times the copy"), Bar(1.0, "peer", "not slower than the best peer")),
    "softmax": (
        Bar(1.2, "copy", "attention shapes: at most 1.2 times the copy", _attention),
        Bar(0.5, "peer", "one to eight vocabulary rows: half the best peer's time", _vocabulary, ALL),
        Bar(1.0, "peer", "not slower than the best of MLX, PyTorch 2.15 and torch", of=ALL),
    ),
    "linear M=1": (
        Bar(1 / 0.97, "copy", "32 MiB of weights and more: 0.97 of the copy rate", lambda r: r["moved"] >= 32 * 2**20),
        Bar(1.0, "peer", "geomean better than the best of MLX, PyTorch 2.15 and torch", of=ALL, overall=True),
        Bar(1.05, "peer", "no shape over 1.05 times the best of the three", of=ALL),
    ),
    "linear M=2": (Bar(1.0, "peer", "not slower than the best peer"),),
    "linear M=4": (Bar(1.0, "peer", "not slower than the best peer"),),
    "linear M=8": (
        Bar(1.3, "one", "N and K of 4096 and more: at most 1.3 times one row", _large_layer),
        Bar(1.0, "peer", "not slower than the best peer"),
    ),
    "grouped decode": (
        Bar(1.05, "copy", "at most 1.05 times the copy of the experts in use"),
        Bar(1.0, "peer", "not slower than the best peer"),
    ),
    "grouped prefill": (Bar(1.0, "peer", "not slower than the best peer"),),
    "grouped along K": (Bar(1.0, "peer", "not slower than the best peer"),),
    "fp8 linear M=1": (
        Bar(1.25, "copy", "at most 1.25 times the copy"),
        Bar(1 / 1.7, "bfloat16", "N and K of 4096 and more: 1.7 times as fast as our bfloat16 GEMV", _large_layer),
        Bar(1.0, "peer", "not slower than the best peer"),
    ),
    "fp8 linear M=2": (Bar(1.0, "peer", "not slower than the best peer"),),
    "fp8 linear M=4": (
        Bar(1.3, "one", "at most 1.3 times one row"),
        Bar(1.0, "peer", "not slower than the best peer"),
    ),
    "fp8 linear M=8": (Bar(1.0, "peer", "not slower than the best peer"),),
    "fp8 linear M=16": (Bar(1.0, "peer", "not slower than the best peer"),),
    "fp8 linear M=1024": (Bar(1.15, "torch", "at most 1.15 times torch's bfloat16 product"),),
    "fp8 quantise": (Bar(1.2, "copy", "at most 1.2 times the copy"),),
    "fp8 dequantise": (Bar(1.2, "copy", "at most 1.2 times the copy"),),
    "scaled_mm": (Bar(1.0, "peer", "not slower than the best peer"),),
}


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


@dataclass(frozen=True)
class Verdict:
    """Of a bar: the ratios of the rows that it counts, how many miss it, and how many by too much."""

    bar: Bar
    ratios: list[float]
    missed: int
    far: int


def verdict(bar: Bar, rows: list[dict], ones: dict[tuple, float]) -> Verdict:
    ratios = [r for row in rows if bar.counted(row) and (r := bar.ratio(row, ones)) is not None]
    held = [geomean(ratios)] if bar.overall and ratios else ratios
    missed = [r for r in held if r > bar.most]
    return Verdict(bar, ratios, len(missed), sum(r > bar.most * ALLOWED_BEYOND for r in missed))
