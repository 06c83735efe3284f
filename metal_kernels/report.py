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
    patcher = installation.patcher
    hidden = [op for op in switch.kernel.ops if op in patcher.overrides and patcher.hidden(op)]
    if state == "patched" and hidden:
        reason = f"but another pack now answers for {_named(hidden)}"
    held = [op for op in switch.kernel.ops if op in installation.held_elsewhere]
    if state == "patched" and held:
        reason = f"{reason}; another pack holds {_named(held)}"
    ops = {}
    for op in switch.kernel.ops:
        counters = patcher.counters.get(op)
        ops[op] = {
            "registered": op in patcher.overrides,
            **(counters.as_dict() if counters else {"taken": 0, "passed": 0}),
        }
    return {
        "title": switch.kernel.title, "state": state, "reason": reason, "mode": switch.effective, "registered":
        switch.registered, "checked": sorted(str(dtype).removeprefix("torch.") for dtype in switch.checked),
        "repairs": switch.kernel.repairs, "ops": ops, "held": held + hidden, "entries": {
            name: entry.counters.as_dict() for name, entry in installation.entries.items() if entry.switch is switch
        },
    }  # fmt: skip


def _named(ops: list[str]) -> str:
    return ", ".join(f"aten::{op}" for op in ops)


def _notes(installation: Installation) -> list[str]:
    notes = []
    if installation.environment.obstacle:
        notes.append(f"Nothing is patched. {installation.environment.obstacle}")
    if installation.environment.untested:
        notes.append(installation.environment.untested)
    return notes


def text(report: dict[str, object]) -> str:
    """The report as lines for people."""
    environment = report["environment"]
    where = [f"torch {environment['torch']}"]
    where.append(f"macOS {environment['macos']}" if environment["macos"] else environment["system"])
    where += [environment[key] for key in ("chip", "device") if environment[key]]
    lines = ["Metal Kernels on " + ", ".join(where)]
    seen: set[str] = set()
    for name, kernel in report["kernels"].items():
        lines.append(f"  {name} [{kernel['mode']}]: {_state(kernel, environment['obstacle'])}")
        for op, counts in kernel["ops"].items():
            # Kernels may share an op: each line has what this kernel took, the first also what nobody took.
            taken = counts.get("taken_by_kernel", {}).get(name, 0)
            if taken or (counts["passed"] and op not in seen):
                lines.append(f"    aten::{op}: {taken} taken, {counts['passed']} passed to stock, {_shapes(counts)}")
            seen.add(op)
        for entry, counts in kernel["entries"].items():
            if counts["taken"] or counts["passed"]:
                lines.append(f"    {entry}: {counts['taken']} taken, {counts['passed']} passed on, {_shapes(counts)}")
    lines += [f"  Note: {note}" for note in report["notes"]]
    return "\n".join(lines)


def _state(kernel: dict[str, object], obstacle: str | None) -> str:
    """The state with its reason; without it where a note gives it for all kernels at once."""
    if obstacle is not None and kernel["reason"] == obstacle:
        return kernel["state"]
    reason = kernel["reason"].rstrip(".")
    return f"{kernel['state']}, {reason}" if reason.startswith("but ") else f"{kernel['state']} ({reason})"


def _shapes(counts: dict[str, object]) -> str:
    more = "more than " if counts["shapes_full"] else ""
    return f"{more}{counts['distinct_shapes']} distinct shape{'' if counts['distinct_shapes'] == 1 else 's'}"
