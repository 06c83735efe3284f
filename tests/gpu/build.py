"""The build step: `python -m gpu.build OUT` writes what the run step needs.

    OUT/plan.json    the cases: inputs, launches (kernel, arguments, threads, group size), other operations, results
    OUT/*.ptx        the kernels that those launch, a few to a file so that a GPU's driver can compile them side by side

Needs no GPU. The kernels are the pack's .metal files, unchanged, through the software device's front end.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from . import conformance
from .cases import Case, all_cases
from .paths import Executed
from .peers import Peers
from .peers.call import TooManyGroups
from .peers.source import prepare

FORMAT = 3
MOST_BYTES = 48 * 2**20  # of what is carried to the GPU; the rest of 64 MiB is for the library beside it
METAL = Path(__file__).resolve().parents[2] / "metal_kernels"
ENTRIES_PER_FILE = 8
SIMD = 32
MAX_BLOCK = 1024  # target_nvptx.h: constant_bytes
CUDA_GRID = (2**31 - 1, 65535, 65535)
_COLLECTIVE = re.compile(r"\b(?:shfl|vote|mma|movmatrix|redux|bar\.warp)\.")


def source_digests() -> dict[str, str]:
    """family -> hash of its .metal file: what PTX was made of."""
    return {p.parent.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(METAL.glob("*/*.metal"))}


def record_all(
    cases: list[Case], peers: Peers | None = None, rows: Sequence = (), executed: Executed | None = None
) -> tuple[list[dict], dict[str, str]]:
    """(the cases as plan.json has them, sources by digest). peers: what they launch for the cases that are timed.
    rows: of the conformance table, replayed too. executed: notes the host code that the sanitised ones go through."""
    import softmetal
    from pack import load

    from .calls import record
    from .recorder import Recorder

    softmetal.activate(faults="2.13")
    library = load().metal_kernels
    families = ("pad", "softmax", "linear", "grouped_mm")
    libraries = [getattr(library, name).host.LIBRARY for name in families] + [library.fp8.formats.LIBRARY]
    recorder, made, executed = Recorder(), [], executed or Executed(METAL)
    with recorder.installed(libraries):
        for case in cases:
            with executed.watching() if case.table == "small" else contextlib.nullcontext():
                recording, inputs, results = record(library, recorder, case)
            made.append(
                {
                    "name": case.name, "family": case.family, "op": case.op, "table": case.table, "row": case.row,
                    "args": [_plain(value) for value in case.args], "inputs": inputs, "results": results,
                    "storages": recording.storages, "steps": recording.steps, "moved": case.moved, "flops": case.flops,
                    "form": case.form, "sanitised": case.table == "small",
                    "peers": list(peers.calls(case, results)) if peers and case.table == "speed" else [],
                }
            )  # fmt: skip
        made += conformance.record_all(library, recorder, rows, executed)
    return made, recorder.sources


def _plain(value):
    return {"input": True} if hasattr(value, "fill") else list(value) if isinstance(value, tuple) else value


def peers_sources(made: list[dict], peers: Peers) -> dict[str, str]:
    """The peers' texts by their digest, with the kernels that the cases launch; takes them out of the cases."""
    wanted: dict[str, set[str]] = {}
    origins: dict[str, tuple] = {}
    for call in (call for case in made for call in case["peers"]):
        origins |= {digest: (call["peer"], source) for digest, source in call.pop("sources").items()}
        for step in call["steps"]:
            wanted.setdefault(step["library"], set()).add(step["kernel"])
    return {digest: prepare(peers.folders[peer], source, wanted[digest]) for digest, (peer, source) in origins.items()}


class Kernels:
    """The kernels that launches need, each in the variants of the target that they need. theirs: sources of others."""

    def __init__(self, sources: dict[str, str], theirs: dict[str, str] | None = None):
        self._sources = sources | (theirs or {})
        self._theirs = set(theirs or ())
        self._libraries: dict[tuple, object] = {}
        self.used: dict[str, dict] = {}  # key -> signature, with the largest group that it is launched in

    def library(self, digest: str, partial: bool, tensors: bool):
        from softmetal import frontend

        key = (digest, partial, tensors)
        if key not in self._libraries:
            options = {"partial_simdgroups": partial, "constant_tensors": tensors}
            ours = digest not in self._theirs
            compiled = frontend.compile(self._sources[digest], target="nvptx", house_rules=ours, **options)
            self._libraries[key] = (compiled, entries(compiled.path.read_text()))
        return self._libraries[key]

    def place(self, step: dict) -> None:
        """Put the launch's key into `step`, and note what it needs."""
        digest, name = step["library"], step["kernel"]
        compiled, texts = self.library(digest, False, False)
        if name not in compiled.kernels:
            raise KeyError(f"{name} is not among the kernels of its source")
        kernel = compiled.kernels[name]
        values = dict(enumerate(step["args"]))
        tensors = any(
            a.address_space == "constant" and not a.is_reference and "storage" in values.get(a.index, {})
            for a in kernel.arguments
        )
        apart = step.pop("divergent", False) or has_partial_simdgroups(step)
        partial = bool(_COLLECTIVE.search(texts[1][kernel.symbol])) and apart
        if partial and step["group"][1] * step["group"][2] > 1 and step["threads"][0] % step["group"][0]:
            raise ValueError(f"{name}: a partial threadgroup of two dimensions numbers its lanes otherwise on this GPU")
        for extent, group, most in zip(step["threads"], step["group"], CUDA_GRID, strict=True):
            if -(-extent // group) > most:
                raise TooManyGroups(f"{name}: {extent} threads in groups of {group} are more groups than CUDA has")
        key = f"{name}{'.partial' if partial else ''}{'.tensors' if tensors else ''}"
        if self.used.get(key, {}).get("library", digest) != digest:  # two sources have a kernel of this name
            key += f".{digest[:8]}"
        step["kernel"] = key
        if key not in self.used:
            compiled, texts = self.library(digest, partial, tensors)
            self.used[key] = {
                "library": digest,
                "symbol": compiled.kernels[name].symbol,
                "max_threads": 0,
                "variant": (partial, tensors),
                "args": [_passed(a, tensors) for a in kernel.arguments],
            }
        signature = self.used[key]
        signature["max_threads"] = max(signature["max_threads"], math.prod(step["group"]))

    def write(self, out: Path) -> dict[str, dict]:
        """Write the PTX files; returns key -> signature as plan.json has it."""
        by_library: dict[tuple, list[str]] = {}
        for key, signature in self.used.items():
            by_library.setdefault((signature["library"], *signature["variant"]), []).append(key)
        written = {}
        for (digest, partial, tensors), keys in by_library.items():
            _, (head, texts) = self.library(digest, partial, tensors)
            for start in range(0, len(keys), ENTRIES_PER_FILE):
                some = keys[start : start + ENTRIES_PER_FILE]
                parts = [head]
                for key in some:
                    signature = self.used[key]
                    parts.append(limited(texts[signature["symbol"]], signature["max_threads"]))
                text = "\n".join(parts)
                file = f"{digest}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.ptx"
                (out / file).write_text(text)
                for key in some:
                    signature = self.used[key]
                    written[key] = {
                        "file": file, "symbol": signature["symbol"], "args": signature["args"],
                        "max_threads": signature["max_threads"],
                    }  # fmt: skip
        return written


def _passed(argument, tensors: bool) -> dict:
    """How target_nvptx.h's entry takes a buffer."""
    if argument.address_space == "device" or (tensors and not argument.is_reference):
        return {"index": argument.index, "as": "pointer", "size": 8}
    size = argument.element_size if argument.is_reference else MAX_BLOCK
    return {"index": argument.index, "as": "value", "size": size}


def has_partial_simdgroups(step: dict) -> bool:
    """Whether a threadgroup of the launch ends inside a SIMD-group."""
    group, threads = step["group"], step["threads"]
    last = [extent % size or size for extent, size in zip(threads, group, strict=True)]
    return bool(math.prod(group) % SIMD or math.prod(last) % SIMD)


def entries(text: str) -> tuple[str, dict[str, str]]:
    """A PTX module as (what comes before the first function, entry by symbol)."""
    missing = re.search(r"^\.extern \.func.*? (\w+)\s*\(\s*$", text, re.M)
    if missing:
        raise ValueError(f"the PTX calls {missing[1]}, which is nowhere")
    starts = [m.start() for m in re.finditer(r"^(?:\.visible \.entry|\.func|\.visible \.func) ", text, re.M)]
    if not starts:
        return text, {}
    found = {}
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        body = text[start : text.rindex("\n}", start, end) + 2]
        name = re.match(r"\.visible \.entry (\w+)\(", body)
        if not name:
            raise ValueError(f"a function was not inlined: {body.splitlines()[0]}")
        found[name[1]] = body
    return text[: starts[0]], found


def limited(entry: str, threads: int) -> str:
    """The entry with the largest threadgroup that it is launched in, from which its registers are counted."""
    return re.sub(r"^\)(?=[^\n]*\n)", f")\n.maxntid {threads}", entry, count=1, flags=re.M)


def build(out: Path, cases: list[Case], peers: Peers | None = None, rows: Sequence = ()) -> dict:
    """Write OUT, and return the plan."""
    from pack import load

    made, sources = record_all(cases, peers, rows)
    kernels = Kernels(sources, peers_sources(made, peers) if peers else {})
    left_out = {}  # rows of the conformance table that CUDA cannot launch
    for case in made:
        try:
            for step in (step for call in (case, *case["peers"]) for step in call["steps"] if "kernel" in step):
                kernels.place(step)
                del step["library"]
        except TooManyGroups as error:
            if case["table"] != conformance.TABLE:
                raise
            left_out[case["name"]] = str(error)
    made = [case for case in made if case["name"] not in left_out]
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.ptx"), *out.glob("plan.json")]:
        old.unlink()
    plan = {
        "format": FORMAT,
        "built": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "saturates": load().metal_kernels.fp8.formats.saturates(),
        "sources": source_digests(),
        "kernels": kernels.write(out),
        "left out": left_out,
        "cases": made,
    }
    (out / "plan.json").write_text(json.dumps(plan))
    return plan


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.build", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="append", help="speed, large, small or conformance; all unless given")
    parser.add_argument("--only", default="", help="cases whose name, table or row has this in it")
    parser.add_argument("--peers", type=Path, metavar="MLX", help="MLX's sources: its kernels beside ours (peers/)")
    parser.add_argument("--peers-torch", type=Path, metavar="PYTORCH", help="PyTorch 2.15's sources, likewise")
    options = parser.parse_args(arguments)
    cases = [c for c in all_cases() if not options.table or c.table in options.table]
    cases = [c for c in cases if options.only in f"{c.name} {c.row} {c.table} {c.family}"]
    try:
        peers = Peers(options.peers, options.peers_torch) if options.peers or options.peers_torch else None
    except FileNotFoundError as error:
        print(f"gpu.build: {error}", file=sys.stderr)
        return 2
    rows = conformance.rows() if not options.table or conformance.TABLE in options.table else []
    rows = [row for row in rows if options.only in f"{row.id} {conformance.TABLE}"]
    plan = build(options.out, cases, peers, rows)
    for name, why in plan["left out"].items():
        print(f"left out: {name}: {why}")
    size = sum(path.stat().st_size for path in options.out.iterdir())
    if size > MOST_BYTES:
        print(f"gpu.build: {options.out} has {size / 2**20:.0f} MiB, too many to carry", file=sys.stderr)
        return 1
    print(f"{len(plan['cases'])} cases, {len(plan['kernels'])} kernels, {size / 2**20:.1f} MiB in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
