"""RESULTS.md from a run's JSON: `python -m gpu.report RUN.json [--sanitizer NAME=TEXT ...]`, written beside this file.

Bars are the project's, per table: a row's time over the copy of the same bytes, or over the row of one token.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ALLOWED_BEYOND = 1.15  # a miss may be at most so far past its bar


@dataclass(frozen=True)
class Bar:
    """The most that `ours` may be, over `copy` or over the same layer's row of one token."""

    most: float
    over: str
    text: str


BARS = {
    "pad": Bar(1.15, "copy", "at most 1.15 times the copy"),
    "softmax": Bar(1.2, "copy", "at most 1.2 times the copy, at attention shapes"),
    "linear M=1": Bar(1 / 0.97, "copy", "the copy rate (0.97) from 32 MiB of weights on"),
    "linear M=8": Bar(1.3, "one", "at most 1.3 times one row, where N and K are 4096 and more"),
    "grouped decode": Bar(1.05, "copy", "at most 1.05 times the copy of the experts in use"),
    "fp8 linear M=1": Bar(1.25, "copy", "at most 1.25 times the copy"),
    "fp8 linear M=4": Bar(1.3, "one", "at most 1.3 times one row"),
    "fp8 linear M=1024": Bar(1.15, "torch", "at most 1.15 times torch's bfloat16 product"),
    "fp8 quantise": Bar(1.2, "copy", "at most 1.2 times the copy"),
    "fp8 dequantise": Bar(1.2, "copy", "at most 1.2 times the copy"),
}
ATTENTION = 2**22  # elements from which a softmax is one of attention's
COUNTED = {  # rows to which the bar applies
    "softmax": lambda row: row["moved"] >= 2 * ATTENTION * 2 and "dim 1" not in row["name"],
    "linear M=1": lambda row: row["moved"] >= 32 * 2**20,
    "linear M=8": lambda row: min(map(int, re.search(r"x(\d+) (\d+)", row["name"]).groups())) >= 4096,
}


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def one_token(rows: list[dict]) -> dict[tuple, float]:
    """(kind, shape) -> time of the row with M = 1."""
    return {_layer(row): row["ours"] for row in rows if row["row"].endswith("M=1")}


def _layer(row: dict) -> tuple:
    """The layer of a linear's row, without its number of rows."""
    return (row["row"].rpartition(" ")[0], re.sub(r"\b\d+x(\d+) (\d+)", r"\1 \2", row["name"]))


def ratio(row: dict, bar: Bar, ones: dict[tuple, float]) -> float | None:
    """The row's time over what its bar is measured against; None where there is no such time."""
    other = {"copy": row.get("copy"), "torch": row.get("torch"), "one": ones.get(_layer(row))}[bar.over]
    return row["ours"] / other if other else None


def verdict(table: str, rows: list[dict], ones: dict[tuple, float]) -> tuple[list[float], int, int]:
    """(ratios of the rows that the bar counts, how many miss it, how many miss it by too much)"""
    bar, counted = BARS[table], COUNTED.get(table, lambda row: True)
    ratios = [r for row in rows if counted(row) and (r := ratio(row, bar, ones)) is not None]
    missed = [r for r in ratios if r > bar.most]
    return ratios, len(missed), sum(r > bar.most * ALLOWED_BEYOND for r in missed)


def text(run: dict, sanitizer: dict[str, str]) -> str:
    """RESULTS.md."""
    rows = run.get("speed", [])
    tables: dict[str, list[dict]] = {}
    for row in rows:
        tables.setdefault(row["row"], []).append(row)
    checked = run.get("check", [])
    wrong = [row for row in checked if not row["ok"]]
    ones = one_token(rows)
    lines = [
        "# The kernels on a real GPU",
        "",
        f"Device: **{run['device']}**, through NVPTX; torch {run['torch']}, CUDA {run['cuda']}. "
        f"Run of {run['date']}; PTX built {run['built']}.",
        "",
        "Every figure here is of that GPU. It stands in for an Apple GPU where that is fair (SIMD-groups of 32, "
        "coalescing, bytes moved) and says nothing of Apple's caches or matrix units: `simdgroup_matrix` runs on its "
        "tensor cores.",
        "",
        "Made by `python -m gpu.build`, `python -m gpu.run` and `python -m gpu.report` (see `tests/gpu/__init__.py`); "
        "all figures are in `results.json` beside this file.",
        "",
        "## Right",
        "",
        f"{len(checked)} calls compared with float64 on the GPU and, sampled, on the CPU; moves and casts bit for bit. "
        f"They reach every kernel by its host name. Wrong: **{len(wrong)}**.",
        "",
        *[f"* {row['name']}: {row.get('text') or row['error']}" for row in wrong],
        "| compute-sanitizer, every kernel | |",
        "|---|---|",
        *[f"| {name} | {said} |" for name, said in sanitizer.items()],
        "",
        "## Fast",
        "",
        "Microseconds, medians of 31 graph replays over buffers that together are far larger than the L2. copy: the "
        "same bytes copied on the device. torch: its CUDA operation. `ours / copy` and `ours / torch` are geomeans.",
        "",
        "| table | rows | ours / copy | ours / torch | bar | counted | geomean | worst | missed | by more than 15% |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for table, its in tables.items():
        beside = [geomean([r["ours"] / r[k] for r in its if r.get(k)]) for k in ("copy", "torch")]
        cells = [table, str(len(its)), *(f"{b:.2f}" if b == b else "" for b in beside)]
        if table in BARS:
            ratios, missed, far = verdict(table, its, ones)
            worst = max(ratios, default=math.nan)
            cells += [BARS[table].text, str(len(ratios)), f"{geomean(ratios):.2f}", f"{worst:.2f}"]
            cells += [str(missed), str(far)]
        else:
            cells += [""] * 6
        lines.append(f"| {' | '.join(cells)} |")
    for table, its in tables.items():
        if len(its) > 30:
            continue  # the 96 layers: in results.json
        lines += ["", f"### {table}", "", "| | ours | copy | torch | ours / copy |", "|---|---|---|---|---|"]
        for row in its:
            torch = f"{row['torch']:.2f}" if row.get("torch") else ""
            lines.append(
                f"| {row['name']} | {row['ours']:.2f} | {row['copy']:.2f} | {torch} | {row['ours'] / row['copy']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.report", description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--sanitizer", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args(arguments)
    run = json.loads(options.run.read_text())
    sanitizer = dict(item.split("=", 1) for item in options.sanitizer)
    run["sanitizer"] = sanitizer
    (options.out / "results.json").write_text(json.dumps(run) + "\n")
    notes = HERE / "notes.md"  # by hand: what was tried, what is not in the run
    added = "\n" + notes.read_text() if notes.exists() else ""
    (options.out / "RESULTS.md").write_text(text(run, sanitizer) + added)
    return 0


if __name__ == "__main__":
    sys.exit(main())
