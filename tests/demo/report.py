"""What the demo prints, and what it writes as JSON."""
import json
import math

from .memory import NAMES

MIB = 2**20
EXPLAIN = {
    "current": "live tensors",
    "reserved": "the allocator's pool",
    "driver": "all of the process's Metal memory",
    "outside": "driver - reserved: what MPSGraph keeps",
}


def as_json(results, checks):
    """The whole run as JSON text; numbers that JSON has no name for (inf, NaN) as strings."""
    document = {
        "device": results["repaired"]["device"],
        "reference": "CPU, float32",
        "phases": results,
        "checks": [check.as_dict() for check in checks],
        "passed": all(check.passed for check in checks),
    }
    return json.dumps(_plain(document), indent=1, allow_nan=False)


def as_text(results, checks):
    """The table that `make demo` prints."""
    cpu, stock, repaired = (results[phase] for phase in ("cpu", "stock", "repaired"))
    device, work, pads = repaired["device"], cpu["workload"], cpu["pads"]
    frames, height, width = work["picture"][2:]
    lines = [
        "",
        f"Device      {device['kind']}: {device['name']}",
        f"Stock MPS   {device['stock']}; torch {device['torch']}",
        f"Model       {work['model']}, {work['parameters']:,} parameters, {work['dtype']}",
        f"Decode      latent {tuple(work['latent'])} to {frames} frames of {width}x{height}",
        f"Pads        {pads['calls']} calls, {pads['past_threshold']} past the threshold of {pads['threshold']}, "
        f"{pads['faulty_by_rule']} of them faulty on stock (counted on the CPU)",
        f"The pack    {repaired['kernel']['state']}: {repaired['kernel']['reason']}",
        "",
        _row("", "CPU", "stock", "repaired"),
        _row("PSNR to the CPU", "reference", _db(stock["psnr_db"]), _db(repaired["psnr_db"])),
        _row("decode time", *(f"{r['seconds']:.1f} s" for r in (cpu, stock, repaired))),
        _row("pad calls by our kernel", "", *(r["pad_calls"]["metal_kernels"] for r in (stock, repaired))),
        _row("pad calls by stock", "", *(r["pad_calls"]["stock"] for r in (stock, repaired))),
        *(_row(f"peak {name} ({stock['memory']['method'][name]})", "",
               *(_mib(r["memory"]["peak"][name]) for r in (stock, repaired)), EXPLAIN[name]) for name in NAMES),
        _row("driver growth", "", *(_mib(r["memory"]["driver_growth"]) for r in (stock, repaired)),
             "after the decode, less before it, pool emptied"),
        "",
        f"All but the CPU column: {device['kind']}." + (
            " Its times and bytes are a simulation's, not a Mac's." if device["kind"] == "software Metal" else ""),
        "",
    ]
    width = max(len(check.name) for check in checks)
    lines += [f"{'ok  ' if c.passed else 'FAIL'}  {c.name:<{width}}  {c.found}  (wanted {c.wanted})" for c in checks]
    return "\n".join(lines)


def _row(name, cpu, stock, repaired, note=""):
    return f"{name:<28}{cpu:>11}{stock:>13}{repaired:>13}   {note}".rstrip()


def _db(value):
    return f"{value:.2f} dB"


def _mib(value):
    return "n/a" if value is None else f"{value / MIB:.1f} MiB"


def _plain(value):
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
