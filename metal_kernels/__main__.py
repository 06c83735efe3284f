"""`python -m metal_kernels status | selftest | bench`, each with --json: what a user of a Mac runs first.

Exit status: 0 all is well, 1 a self-check failed, 2 wrong usage, 3 nothing can run on this machine (it says why).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from . import KERNELS, _installation, install, selfcheck, selftest, status
from .environment import build
from .kernel import Case, Kernel
from .switches import OFF, ON

T = TypeVar("T")

CANNOT_RUN = 3
GPU = "Apple GPU"  # environment.device
REPEATS = 30  # of each call; fewer, but MINIMUM, when they would take longer than SECONDS
MINIMUM, SECONDS = 3, 2.0


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
        header = ("kernel", "dtype", "state", "result", "worst error") + ("stock",) * compare_stock
        rows = [
            (r["kernel"], r["dtype"], r["state"], "ok" if r["passed"] else "FAILED", _worst(r["worst_ulps"]))
            + ((r["stock"],) if compare_stock else ())
            for r in results
        ]
        reasons = [f"{r['kernel']} {r['dtype']}: {why}" for r in results for why in r["all"]]
        summary = f"{len(results) - failed} passed, {failed} failed, in {report['seconds']:.0f} s"
        return "\n".join([_headline(report), "", _table(header, rows), "", *reasons, summary])

    _print(report, as_json, text)
    return 1 if failed else 0


def _worst(ulps: float | None) -> str:
    """In units of the last place of the output's dtype; what only the self-check looked at has none."""
    return "" if ulps is None else "exact" if ulps == 0 else f"{ulps:.2f} ulp"


def _bench(as_json: bool) -> int:
    """Medians of stock and patched, case by case, with a synchronize after every run."""
    if (obstacle := _obstacle(as_json)) is not None:
        return obstacle
    install()
    results = []
    for kernel in KERNELS:
        with _installation.registered(kernel.name):
            cases = list(kernel.bench("mps")) if kernel.bench else []
            labels = (f"aten::{case.op} {case.shape}" for case in cases)
            results += [_time(kernel, case) for case in _progress(cases, labels)]
    report = {**_where(), "results": results}

    def text() -> str:
        rows = [(r["op"], r["shape"], r["dtype"], _ms(r["stock_ms"]), _ms(r["patched_ms"])) for r in results]
        table = _table(("op", "shape", "dtype", "stock", "patched"), rows)
        return f"{_headline(report)}\n\n{table}\n\nmedians of up to {REPEATS} runs"

    _print(report, as_json, text)
    return 0


def _time(kernel: Kernel, case: Case) -> dict[str, object]:
    times = {}
    for name, mode in (("stock_ms", OFF), ("patched_ms", ON)):
        with _installation.switches.using({kernel.name: mode}):
            times[name] = _median(case.call)
    return {"op": f"aten::{case.op}", "shape": case.shape, "dtype": selfcheck.name_of(case.dtype), **times}


def _median(call: Callable[[], object]) -> float | None:
    """Milliseconds; None where the call is not possible (stock lacks the op or the dtype)."""
    try:
        _milliseconds(call)  # the first run compiles
        times = [_milliseconds(call) for _ in range(MINIMUM)]
        while len(times) < REPEATS and sum(times) < SECONDS * 1e3:
            times.append(_milliseconds(call))
    except (RuntimeError, TypeError):
        return None
    return statistics.median(times)


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    torch.mps.synchronize()
    return (time.perf_counter() - start) * 1e3


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
