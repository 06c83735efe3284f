"""The run step: `python -m gpu.run OUT --json RESULT` on a machine with an NVIDIA GPU.

Needs torch and numpy, and of this repository only the folder tests/gpu and OUT. Writes its results as it goes, so that
a run that is cut short leaves what it has.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import time
import traceback
from pathlib import Path

import torch

from .driver import Driver, GpuError, find_gpu
from .plan import Instance, Plan, dtype_of, fill
from .replay import comparable, judge, library
from .replay import fill as fill_row


def check_case(case: dict, functions: dict, driver: Driver, on_cpu: bool) -> float:
    """Largest error over its tolerance. on_cpu: make the values there (for the sanitizer's initcheck)."""
    from .references import check

    instance = Instance(case, functions, driver)
    fill(instance, torch.Generator("cpu" if on_cpu else "cuda").manual_seed(len(case["name"])))
    instance.run()
    torch.cuda.synchronize()
    return check(case["op"], instance.arguments(), instance.results, instance.inputs)


def check_all(cases, functions, driver, deadline, rows: list[dict], on_cpu=False, table=None) -> None:
    """Adds to `rows` as it goes. table: metal_kernels.conformance, for the cases that are rows of it."""
    for case in cases:
        if time.monotonic() > deadline:
            break
        row = {"name": case["name"], "table": case["table"], "family": case["family"], "form": case["form"]}
        try:
            if "conformance" in case:
                row["error"], row["ok"] = judge(table, case, Instance(case, functions, driver)), True
            else:
                row["error"] = check_case(case, functions, driver, on_cpu)
                row["ok"] = row["error"] <= 1.0
        except Exception as error:  # whatever it is, it is this case's result
            row |= {"ok": False, "error": None, "text": f"{type(error).__name__}: {str(error)[:300]}"}
        if not row["ok"]:
            print("WRONG", row, flush=True)
            if "CUDA error" in row.get("text", "") or "CUDA_ERROR" in row.get("text", ""):
                raise GpuError(f"{case['name']}: {row['text']}")
        rows.append(row)
        if sum(case["storages"]) > 2**30:
            torch.cuda.empty_cache()


class HostOperations(Instance):
    """Its operations of torch's are computed on the CPU and their results copied there: a sanitizer that looks at our
    kernels alone sees a copy's writes, and not those of torch's kernels. What an operation does not read is not copied
    to the CPU: nobody may have written it."""

    def _operation(self, step):
        written = {reference["storage"] for reference in step["out"]}
        overwritten = written if step["op"] in ("copy_", "zero_", "fill_") else set()
        parts = {r["storage"] for r in step["out"] if math.prod(r["shape"]) * dtype_of(r).itemsize < self._size(r)}
        for number in parts & overwritten:  # the rest of it is kept, so it goes to the CPU and has to have been written
            self.storages[number].copy_(torch.full(self.storages[number].shape, 0xA5, dtype=torch.uint8))
        read = (_storages(step["args"]) - overwritten) | parts

        def run():
            there = self.storages
            here = [s.cpu() if n in read else torch.zeros(s.shape, dtype=s.dtype) for n, s in enumerate(there)]
            self.storages = here
            try:
                Instance._operation(self, step)()
            finally:
                self.storages = there
            for number in written:
                there[number].copy_(here[number])

        return run

    def _size(self, reference: dict) -> int:
        return self.case["storages"][reference["storage"]]


def _storages(value) -> set[int]:
    """The numbers of the storages that an operation's arguments name."""
    if isinstance(value, list):
        return set().union(*map(_storages, value))
    return {value["storage"]} if isinstance(value, dict) and "storage" in value else set()


def run_all(cases, functions, driver, table) -> None:
    """For the sanitizer: the launches of the cases that are marked for it, on values made on the CPU."""
    for case in cases:
        instance = HostOperations(case, functions, driver)
        if "conformance" in case:
            fill_row(table, case, instance)
        else:
            fill(instance, torch.Generator("cpu").manual_seed(1))
        instance.run()
    torch.cuda.synchronize()
    print(f"{len(cases)} calls launched", flush=True)


def time_all(cases, functions, driver, deadline, rows: list[dict], with_torch=True) -> None:
    """Adds to `rows` as it goes."""
    from .speed import Copies, instances, microseconds, moved_bytes, torch_call

    copies = Copies()
    for case in cases:
        if time.monotonic() > deadline:
            print(f"out of time after {len(rows)} of {len(cases)} rows", flush=True)
            break
        moved = moved_bytes(case)
        row = {
            "name": case["name"],
            "row": case["row"],
            "family": case["family"],
            "moved": moved,
            "flops": case["flops"],
        }
        made = instances(case, functions, driver)
        row["ours"] = microseconds([instance.run for instance in made])
        row["copy"] = copies.microseconds(moved)
        if with_torch:
            try:
                calls = [torch_call(case, instance) for instance in made]
                row["torch"] = microseconds(calls) if calls[0] else None
            except (RuntimeError, NotImplementedError) as error:
                row["torch"], row["torch_error"] = None, str(error)[:200]
        del made
        row["peers"] = [time_peer(call, functions, driver) for call in case["peers"]]
        rows.append(row)


def time_peer(call: dict, functions: dict, driver: Driver) -> dict:
    """A peer's own kernels on the same shapes; and whether they compute the same, by the same references."""
    from .references import check
    from .speed import instances, microseconds

    row = {"peer": call["peer"], "title": call["title"], "us": None, "error": None}
    try:
        made = instances(call, functions, driver)
        row["us"] = microseconds([instance.run for instance in made])
        row["error"] = check(call["op"], made[0].arguments(), made[0].results, made[0].inputs)
    except (AssertionError, RuntimeError) as error:
        row["text"] = f"{type(error).__name__}: {str(error)[:300]}"
        print("PEER", call["peer"], call["title"], call["op"], row["text"], flush=True)
    return row


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.run", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="what python -m gpu.build wrote")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument(
        "--do",
        action="append",
        choices=("check", "speed", "launch"),
        help="default: check and speed. launch: for the sanitizer, every kernel and host path",
    )
    parser.add_argument("--table", action="append", help="speed, large, small, conformance; all unless given")
    parser.add_argument("--only", default="", help="cases with this in their name, table or row")
    parser.add_argument("--seconds", type=float, default=540, help="stop beginning new cases after this many")
    parser.add_argument("--no-torch", action="store_true", help="do not time torch's operations")
    parser.add_argument("--no-peers", action="store_true", help="do not time the peers' kernels")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except GpuError as error:
        print(f"gpu.run: {error}", file=sys.stderr)
        return 3


def _run(options) -> int:
    sources = Path(__file__).resolve().parents[2] / "metal_kernels"
    plan = Plan(options.out, sources if sources.is_dir() else None)
    name = find_gpu()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    begin = time.monotonic()
    deadline, do = begin + options.seconds, options.do or ["check", "speed"]
    cases = [c for c in plan.cases if options.only in f"{c['name']} {c['row']} {c['table']} {c['family']}"]
    cases = [c for c in cases if not options.table or c["table"] in options.table]
    if do == ["launch"]:
        cases = [c for c in cases if c["sanitised"]]
    if options.no_peers or "speed" not in do:
        cases = [case | {"peers": []} for case in cases]
    driver = Driver()
    functions = plan.load(driver, cases)
    print(f"{name}: {len(functions)} kernels compiled after {time.monotonic() - begin:.0f} s", flush=True)
    result = {
        "device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "built": plan.data["built"],
        "sources": plan.data["sources"], "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernels": {key: driver.registers(function) for key, (function, _) in functions.items()},
    }  # fmt: skip
    try:
        table = library(sources.parent) if any("conformance" in case for case in cases) else None
        if "launch" in do:
            run_all(cases, functions, driver, table)
        if "speed" in do:
            timed = [c for c in cases if c["table"] == "speed"]
            result["speed"] = []
            time_all(timed, functions, driver, deadline, result["speed"], not options.no_torch)
        if "check" in do:
            result["check"] = []
            judged = [c for c in cases if "conformance" not in c or comparable(table, c, plan.data)]
            result["set aside"] = len(cases) - len(judged)  # replay.casts_beyond_range
            check_all(judged, functions, driver, deadline, result["check"], table=table)
            result["skipped"] = len(judged) - len(result["check"])
    except Exception:
        result["crash"] = traceback.format_exc()
        raise
    finally:
        result["seconds"] = time.monotonic() - begin
        if options.json:
            options.json.write_text(json.dumps(result))
    wrong = [row for row in result.get("check", []) if not row["ok"]]
    print(f"{len(result.get('check', []))} checked, {len(wrong)} wrong; {len(result.get('speed', []))} timed; "
          f"{result['seconds']:.0f} s")  # fmt: skip
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
