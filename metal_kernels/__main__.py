"""`python -m metal_kernels status | selftest | bench`, each with --json: what a user of a Mac runs first.

Exit status: 0 all is well, 1 a self-check failed, 2 wrong usage, 3 nothing can run on this machine (it says why).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from . import KERNELS, _installation, benchmark, install, selftest, status
from .benchmark import GPU
from .environment import build

T = TypeVar("T")

CANNOT_RUN = 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m metal_kernels", description="Metal kernels for PyTorch's MPS backend."
    )
    parser.add_argument("command", choices=("status", "selftest", "bench"), help="what to do")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    return {"status": _status, "selftest": _selftest, "bench": _bench}[options.command](options.json)


def _status(as_json: bool) -> int:
    install()
    report = status()
    _print(report, as_json, lambda: report["text"])
    return 0


def _selftest(as_json: bool) -> int:
    """Every kernel in every dtype against the CPU, whether this torch needs the kernel or not; on a GPU stock too."""
    if (obstacle := _obstacle(as_json)) is not None:
        return obstacle
    install()
    compare_stock = _installation.environment.device == GPU  # stock of the software device says nothing of a Mac's
    found = selftest.lines(KERNELS)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some dtypes experimental; the table is about the kernels
        results = selftest.run(_installation, _progress(found, (line.label for line in found)), compare_stock)
    failed = sum(not result["passed"] for result in results)
    report = {
        **_where(), "results": results, "passed": len(results) - failed, "failed": failed,
        "seconds": time.perf_counter() - start,
    }  # fmt: skip

    def text() -> str:
        header = ("kernel", "dtype", "state", "result", "of tolerance") + ("stock",) * compare_stock
        rows = [
            (r["kernel"], r["dtype"], r["state"], "ok" if r["passed"] else "FAILED", _worst(r["worst"]))
            + ((r["stock"],) if compare_stock else ())
            for r in results
        ]
        reasons = [f"{r['kernel']} {r['dtype']}: {why}" for r in results for why in r["all"]]
        if any(r["state"] == "stock" for r in results):
            reasons.append("state stock: this torch does not need the kernel; it was switched on for the test.")
        summary = f"{len(results) - failed} passed, {failed} failed, in {report['seconds']:.0f} s"
        return "\n".join([_headline(report), "", _table(header, rows), "", *reasons, summary])

    _print(report, as_json, text)
    return 1 if failed else 0


def _worst(share: float | None) -> str:
    """What only the self-check looked at has none."""
    return "" if share is None else selftest.percent(share)


def _bench(as_json: bool) -> int:
    """Medians of stock and patched, case by case, with a synchronize after every run; beside them the least cost."""
    if (obstacle := _obstacle(as_json)) is not None:
        return obstacle
    install()
    results = []
    for kernel in KERNELS:
        with _installation.registered(kernel.name):
            cases = list(kernel.bench("mps")) if kernel.bench else []
            labels = (f"aten::{case.op} {case.shape}" for case in cases)
            results += [benchmark.time_case(_installation, kernel, case) for case in _progress(cases, labels)]
    report = {**_where(), "note": benchmark.chip_note(_installation), "results": results}

    def text() -> str:
        header = ("op", "shape", "dtype", "stock", "patched", "moves", "computes", "of bandwidth", "auto")
        rows = [
            (
                r["op"], r["shape"], r["dtype"], _ms(r["stock_ms"]), _ms(r["patched_ms"]),
                _scaled(r["bytes"], 1e6, "MB"), _scaled(r["flops"], 1e9, "GFLOP"), _percent(r["bandwidth_share"]),
                r["auto"] or "-",
            )
            for r in results
        ]  # fmt: skip
        runs = f"medians of up to {benchmark.REPEATS} runs"
        return "\n".join([_headline(report), "", _table(header, rows), "", report["note"], runs])

    _print(report, as_json, text)
    return 0


def _obstacle(as_json: bool) -> int | None:
    obstacle = _installation.environment.obstacle
    if obstacle is None:
        return None
    _print({**_where(), "obstacle": obstacle}, as_json, lambda: f"Nothing to run. {obstacle}")
    return CANNOT_RUN


def _where() -> dict[str, object]:
    """Which build and which device produced the figures."""
    return {
        "build": build(),
        **_installation.environment.as_dict(),
    }


def _progress(items: Sequence[T], labels: Iterable[str]) -> Iterator[T]:
    """The items, with a bar on a terminal's error stream that says which is at work and is gone at the end."""
    shown = sys.stderr.isatty()
    for done, (item, label) in enumerate(zip(items, labels, strict=True)):
        if shown:
            filled = 20 * done // len(items)
            print(f"\r\033[K[{'#' * filled}{'.' * (20 - filled)}] {label}", end="", file=sys.stderr, flush=True)
        yield item
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _headline(report: dict[str, object]) -> str:
    macos = [f"macOS {report['macos']}"] if report["macos"] else []
    return ", ".join([report["build"], *macos, *(str(report[key]) for key in ("chip", "device") if report[key])])


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} ms"


def _scaled(value: int | None, unit: float, name: str) -> str:
    return f"{value / unit:.3g} {name}" if value else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """In Markdown, to be pasted into an issue, and aligned, to be read in a terminal."""
    rows = list(rows)
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = [header, tuple("-" * width for width in widths), *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def _print(report: dict[str, object], as_json: bool, text: Callable[[], str]) -> None:
    print(json.dumps(report, indent=2) if as_json else text())


if __name__ == "__main__":
    sys.exit(main())
