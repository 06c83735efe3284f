"""What `status()` says, as data and as text: the environment, each kernel's state and counters, and notes."""

from __future__ import annotations

from .installation import Installation
from .switches import Switch


def status(installation: Installation) -> dict[str, object]:
    """JSON-serialisable. Keys: installed, environment, kernels, notes, text (all of it for people)."""
    report: dict[str, object] = {
        "installed": installation.installed,
        "environment": installation.environment.as_dict(),
        "kernels": {switch.kernel.name: _kernel(installation, switch) for switch in installation.switches},
        "notes": _notes(installation),
    }
    report["text"] = text(report)
    return report


def _kernel(installation: Installation, switch: Switch) -> dict[str, object]:
    state, reason = switch.state
    if not installation.installed:
        obstacle = installation.environment.obstacle
        state, reason = ("unavailable", obstacle) if obstacle else ("stock", "not installed")
    ops = {}
    for op in switch.kernel.ops:
        counters = installation.patcher.counters.get(op)
        ops[op] = {
            "registered": op in installation.patcher.overrides,
            **(counters.as_dict() if counters else {"taken": 0, "passed": 0}),
        }
    return {
        "title": switch.kernel.title, "state": state, "reason": reason, "mode": switch.effective, "registered":
        switch.registered, "checked": sorted(str(dtype).removeprefix("torch.") for dtype in switch.checked),
        "repairs": switch.kernel.repairs, "ops": ops,
    }  # fmt: skip


def _notes(installation: Installation) -> list[str]:
    notes = []
    if installation.environment.obstacle:
        notes.append(f"Nothing is patched. {installation.environment.obstacle}")
    if installation.environment.untested:
        notes.append(installation.environment.untested)
    for op in installation.patcher.overrides:
        if installation.patcher.hidden(op):
            key = installation.patcher.dispatch_key
            notes.append(f"Another pack has patched aten::{op} on {key} after this one: its kernel runs, not ours.")
    return notes


def text(report: dict[str, object]) -> str:
    """The report as lines for people."""
    environment = report["environment"]
    where = [f"torch {environment['torch']}"]
    where.append(f"macOS {environment['macos']}" if environment["macos"] else environment["system"])
    where += [environment[key] for key in ("chip", "device") if environment[key]]
    lines = ["Metal Kernels on " + ", ".join(where)]
    for name, kernel in report["kernels"].items():
        lines.append(f"  {name} [{kernel['mode']}]: {kernel['state']} ({kernel['reason'].rstrip('.')})")
        for op, counts in kernel["ops"].items():
            if counts["taken"] or counts["passed"]:
                lines.append(
                    f"    aten::{op}: {counts['taken']} taken, {counts['passed']} passed to stock, {_shapes(counts)}"
                )
    lines += [f"  Note: {note}" for note in report["notes"]]
    return "\n".join(lines)


def _shapes(counts: dict[str, object]) -> str:
    more = "more than " if counts["shapes_full"] else ""
    return f"{more}{counts['distinct_shapes']} distinct shape{'' if counts['distinct_shapes'] == 1 else 's'}"
