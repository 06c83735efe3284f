"""RESULTS.md from the JSON of a run, written beside this file: `python -m gpu.report RUN.json [MORE.json ...]`.

A run may be several commands (speed, checks, the conformance table), each with its own JSON: of one plan, on one
device.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path

from .bars import (
    ALLOWED_SHARE,
    BARS,
    MLX,
    PEAK,
    PYTORCH,
    best_peer,
    geomean,
    one_token,
    peer_time,
    right,
    verdict,
)

HERE = Path(__file__).resolve().parent
CONFORMANCE = "conformance"  # the table of conformance.py


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def summary(tables: dict[str, list[dict]], run: dict) -> list[str]:
    """A row for each table: geomeans of our time over the others'."""
    rows = []
    for table, its in tables.items():
        others = ([row["copy"] for row in its], [row.get("torch") for row in its],
                  *([peer_time(row, peer) for row in its] for peer in (MLX, PYTORCH)))  # fmt: skip
        over = [geomean([r["ours"] / o for r, o in zip(its, other, strict=True) if o]) for other in others]
        shares = [_of_peak(row, run) for row in its]
        cells = [_number(value) for value in over]
        rows.append([table, str(len(its)), *cells, _number(geomean([s for s in shares if s]))])
    header = ["table", "rows", "ours / copy", "ours / torch", f"ours / {MLX}", f"ours / {PYTORCH}", "bytes over peak"]
    return _table(header, rows)


def _of_peak(row: dict, run: dict) -> float | None:
    peak = PEAK.get(run["device"])
    return row["moved"] / (row["ours"] * 1e-6) / peak if peak else None


def bars(tables: dict[str, list[dict]]) -> list[str]:
    """A row for each bar, and whether the misses are few and small enough."""
    ones = one_token([row for its in tables.values() for row in its])
    rows, counted, missed, far = [], 0, 0, 0
    for table, its in tables.items():
        for bar in BARS.get(table, ()):
            found = verdict(bar, its, ones)
            if not found.ratios:
                rows.append([table, bar.text, _number(bar.most), "0", "", "", "no such time in this run", ""])
                continue
            counted += 1 if bar.overall else len(found.ratios)
            missed, far = missed + found.missed, far + found.far
            rows.append([
                table, bar.text, _number(bar.most), str(len(found.ratios)), _number(geomean(found.ratios)),
                _number(max(found.ratios)), str(found.missed), str(found.far),
            ])  # fmt: skip
    header = ["table", "bar", "most", "rows", "geomean", "worst", "missed", "by more than 15%"]
    share = missed / counted if counted else 0.0
    said = f"{missed} of {counted} misses ({share:.0%}), {far} of them beyond 1.15 times the bar; allowed: "
    return [*_table(header, rows), "", f"{said}{ALLOWED_SHARE:.0%}, and none beyond."]


def details(table: str, its: list[dict], run: dict) -> list[str]:
    rows = []
    for row in its:
        peers = [peer_time(row, peer) for peer in (MLX, PYTORCH)]
        best = best_peer(row)
        times = (row["ours"], row["copy"], row.get("torch"), *peers)
        ratios = (row["ours"] / row["copy"], row["ours"] / best if best else None, _of_peak(row, run))
        rows.append([row["name"], *map(_number, times), *map(_number, ratios)])
    header = ["", "ours", "copy", "torch", MLX, PYTORCH, "ours / copy", "ours / best peer", "bytes over peak"]
    return ["", f"### {table}", "", *_table(header, rows)]


def peers_text(rows: list[dict]) -> list[str]:
    """How many of the peers' launches there are, and which did not compute the operation."""
    calls = [(row, peer) for row in rows for peer in row.get("peers", ())]
    if not calls:
        return ["The peers' own kernels were not in this run."]
    wrong = [f"* {peer['peer']} {peer['title']} {row['name']}: {peer.get('text') or peer['error']}"
             for row, peer in calls if not right(peer)]  # fmt: skip
    return [
        f"{MLX} and {PYTORCH}: {len(calls)} launches of their own Metal kernels, compiled by the same front end and "
        "launched by their own rules (peers/). Where a peer has two kernels for a row, the faster is shown. Their "
        f"results are checked too; not counted because they are wrong: {len(wrong)}.",
        *wrong,
    ]


def right_text(run: dict) -> list[str]:
    """What was compared with what, and what was wrong."""
    checked = run.get("check", [])
    rows = [row for row in checked if row["table"] == CONFORMANCE]
    wrong = [row for row in checked if not row["ok"]]
    count, all_calls = len(checked) - len(rows), run.get("calls")
    some = f"{count} calls" if all_calls is None else f"All {count} calls" if count == all_calls else (
        f"**Only {count} of {all_calls} calls**")  # fmt: skip
    lines = [
        f"{some} compared with float64 on the GPU and, sampled, on the CPU; moves and casts bit for bit. They reach "
        "every kernel by its host name.",
    ]
    if rows:
        aside = run.get("set aside", 0)
        said = f" {aside} rows are set aside, as the CPU's casts of this torch are not those of the torch that built "
        lines += [
            "",
            f"{len(rows)} rows of the conformance table replayed with the same inputs, each result whole against its "
            "reference (float64 on the CPU, or bit for bit the CPU's)." + (said + "the plan." if aside else ""),
        ]
    lines += ["", f"Wrong: **{len(wrong)}**.", ""]
    return lines + [f"* {row['name']}: {row.get('text') or row['error']}" for row in wrong]


def merged(runs: list[dict]) -> dict:
    """One run of the results of several commands. Raises ValueError if they are of different plans or devices."""
    for run in runs[1:]:
        for key in ("device", "built", "sources"):
            if run[key] != runs[0][key]:
                raise ValueError(
                    f"these are no parts of one run: {key} is {runs[0][key]} in one and {run[key]} in another"
                )
    whole = dict(runs[0])
    whole["speed"] = [row for run in runs for row in run.get("speed", [])]
    whole["check"] = []
    for run in runs:  # what two of them compared counts once; of a name there may be several calls
        before, here = Counter(map(_call, whole["check"])), Counter()
        for row in run.get("check", []):
            here[_call(row)] += 1
            if here[_call(row)] > before[_call(row)] or not row["ok"]:
                whole["check"].append(row)
    whole["set aside"] = sum(run.get("set aside", 0) for run in runs)
    return whole


def _call(row: dict) -> tuple:
    return row["table"], row["family"], row["name"], row.get("form")


def calls(plan: dict) -> int:
    """How many calls of a plan are to be compared, the conformance table's apart."""
    return sum(case["table"] != CONFORMANCE for case in plan["cases"])


def condensed(run: dict) -> dict:
    """The run for results.json: of the checks that passed, how many there were and the worst error of each table."""
    tables: dict[str, dict] = {}
    for row in run.get("check", []):
        table = tables.setdefault(f"{row['table']} {row['family']}", {"calls": 0, "worst": 0.0})
        table["calls"] += 1
        table["worst"] = max(table["worst"], row["error"] or 0.0) if row["ok"] else table["worst"]
    return run | {"check": {"tables": tables, "wrong": [row for row in run.get("check", []) if not row["ok"]]}}


def text(run: dict, sanitizer: dict[str, str]) -> str:
    """RESULTS.md."""
    rows = run.get("speed", [])
    tables: dict[str, list[dict]] = {}
    for row in rows:
        tables.setdefault(row["row"], []).append(row)
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
        *right_text(run),
        "",
        *_table(["compute-sanitizer, every kernel and host path", ""], [list(item) for item in sanitizer.items()]),
        "",
        "## Fast",
        "",
        "Microseconds, medians of 31 graph replays over buffers that together are far larger than the L2. copy: the "
        "same bytes copied on the device. torch: its CUDA operation. Ratios of a table are geomeans. bytes over peak: "
        "the bytes that must be moved, in our time, over the memory's peak rate.",
        "",
        *peers_text(rows),
        "",
        *summary(tables, run),
        "",
        "### Bars",
        "",
        *bars(tables),
    ]  # fmt: skip
    for table, its in tables.items():
        if len(its) <= 30:  # the 96 layers: in results.json
            lines += details(table, its, run)
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.report", description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--sanitizer", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--plan", type=Path, help="what python -m gpu.build wrote: whether all its calls were compared")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args(arguments)
    try:
        run = merged([json.loads(path.read_text()) for path in options.run])
    except ValueError as error:
        print(f"gpu.report: {error}", file=sys.stderr)
        return 2
    if options.plan:
        run["calls"] = calls(json.loads((options.plan / "plan.json").read_text()))
    sanitizer = dict(item.split("=", 1) for item in options.sanitizer)
    run["sanitizer"] = sanitizer
    (options.out / "results.json").write_text(json.dumps(condensed(run)) + "\n")
    notes = HERE / "notes.md"  # by hand: what was tried, what is not in the run
    added = "\n" + notes.read_text() if notes.exists() else ""
    (options.out / "RESULTS.md").write_text(text(run, sanitizer) + added)
    return 0


if __name__ == "__main__":
    sys.exit(main())
