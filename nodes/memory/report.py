"""A session as plain data, as text and as a table."""
import json

from . import advice
from .source import COUNTED, NAMES, environment
from .units import duration, size

SCHEMA = 1
WHAT = {
    "current": "live tensors",
    "reserved": "the pool of torch's allocator",
    "driver": "all Metal memory of this process",
    "outside": "driver - reserved, read together",
    "footprint": "the whole process",
}
SAMPLED, COUNTED_BY_TORCH, NOT_AVAILABLE = "sampled", "counted", "not available"
COLUMNS = ("node", "time", *NAMES, "outside grew", "kernels", "note")


def nothing(reason):
    """The data of a report that has nothing to tell, and why."""
    reason = reason[:1].upper() + reason[1:].rstrip(".") + "."
    return {"schema": SCHEMA, "available": False, "reason": reason}


def collect(session):
    """The data, JSON-serialisable; bytes and seconds throughout, null for a number that can't be had here."""
    name_of = session.prompt.name
    outcome = session.outcome
    failed = outcome is not None and outcome.kind != "success"
    calls = session.calls
    growing = advice.growth(session, lambda node_id: _full_name(session, node_id), calls.leaking(), calls.state)
    data = {
        "schema": SCHEMA,
        "available": True,
        "final": outcome is not None,
        "prompt_id": session.prompt.prompt_id,
        "outcome": None if outcome is None else outcome.kind,
        "failure": {"node": outcome.node_id, "name": name_of(outcome.node_id) if outcome.node_id else None,
                    "message": outcome.message} if failed else None,
        "environment": environment(),
        "seconds": session.seconds,
        "interval_seconds": session.interval,
        "readings": dict(session.readings),
        "recommended_maximum": session.recommended,
        "footprint_kind": session.source.footprint_kind,
        "numbers": {name: _number(session, name) for name in NAMES},
        "nodes": [_node(session, node) for node in session.nodes.values()],
        "growth": growing,
        "out_of_memory": advice.out_of_memory(outcome.message) if failed else None,
        "trouble": session.trouble,
        "timeline": {"columns": ["seconds", "current", "reserved", "driver", "outside"],
                     "readings_per_row": session.series.width, "rows": [list(row) for row in session.series.rows]},
    }
    return data


def _full_name(session, node_id):
    maker = session.made_by(node_id)
    name = session.prompt.name
    return name(node_id) if maker is None else f"{name(node_id)}, made by {name(maker)},"


def method(session, name):
    """How the peak of a number was found: counted by torch's allocator, or the largest of our readings."""
    if getattr(session.first, name) is None:
        return NOT_AVAILABLE
    return COUNTED_BY_TORCH if name in COUNTED and session.source.counts_peaks else SAMPLED


def _number(session, name):
    peak, start, now = session.peaks[name], getattr(session.first, name), getattr(session.last, name)
    return {
        "what": WHAT[name], "method": method(session, name), "peak": peak.value, "peak_at_seconds": peak.at,
        "peak_during": list(peak.during), "start": start, "end": now,
        "growth": None if None in (start, now) else now - start,
    }  # fmt: skip


def _node(session, node):
    found = session.prompt.node(node.node_id)
    return {
        "id": node.node_id, "name": session.prompt.name(node.node_id), "class_type": found.get("class_type"),
        "status": node.status, "made_by": session.made_by(node.node_id), "calls": node.calls, "seconds": node.seconds,
        "spans": [list(span) for span in node.spans],
        "peaks": None if node.status == "cached" else {name: node.peaks[name].value for name in NAMES},
        "growth": None if node.status == "cached" else dict(node.growth),
        "kernels": {name: {"taken": taken, "passed": passed} for name, (taken, passed) in node.kernels.items()},
        "overlapped": sorted(node.overlapped),
    }  # fmt: skip


def as_json(data):
    return json.dumps(data, indent=2, allow_nan=False)


def as_text(data):
    """The report for people: the numbers, what they mean, what made memory grow, and the table."""
    if not data["available"]:
        return f"Nothing to record: {data['reason']}"
    lines = [_headline(data), *_failure(data), data["growth"]["text"], "", *_numbers(data), ""]
    limit = data["recommended_maximum"]
    if limit is not None:
        lines.append(f"Metal recommends at most {size(limit)} of driver memory for this process{_compared(data)}.")
    lines += _missing(data)
    lines.append(advice.OUTSIDE)
    lines += ["", *as_table(data).splitlines(), "", *_notes(data)]
    return "\n".join(lines)


def summary(data):
    """Two or three sentences, for the log and for the face of a node that could not run."""
    driver = data["numbers"]["driver"]
    return " ".join([_headline(data), *_failure(data), f"Driver memory peaked at {size(driver['peak'])}"
                     f"{_during(data, driver)}.", data["growth"]["text"]])


def _headline(data):
    ran = sum(node["status"] != "cached" for node in data["nodes"])
    cached = len(data["nodes"]) - ran
    how = {None: "so far", "success": "", "failed": ", which failed", "interrupted": ", which was interrupted"}
    what = "Metal memory of this prompt" + (f" {how[None]}" if not data["final"] else how[data["outcome"]])
    counts = f"{ran} node{'' if ran == 1 else 's'} ran" + (f", {cached} came from the cache" if cached else "")
    return f"{what}: {duration(data['seconds'])}, {counts}. {_where(data)}"


def _where(data):
    found = data["environment"]
    parts = [found.get("chip"), found.get("macos") and f"macOS {found['macos']}",
             found.get("torch") and f"torch {found['torch']}", found.get("device")]
    return ", ".join(part for part in parts if part) + "."


def _failure(data):
    failure, oom = data["failure"], data["out_of_memory"]
    lines = []
    if failure is not None and failure["name"]:
        verb = "failed" if data["outcome"] == "failed" else "was interrupted"
        message = failure["message"].splitlines()[0] if failure["message"] else ""
        message = message.split(" Use PYTORCH_MPS_HIGH_WATERMARK_RATIO")[0]  # torch's hint may hang the whole Mac
        lines.append(f"{failure['name']} {verb}{': ' + message if message else '.'}")
    if oom is not None:
        limit = f", and torch allows itself {oom['limit']} in all" if oom["limit"] else ""
        lines.append(f"By that message the pool held {oom['reserved']} and outside (\"other allocations\") was "
                     f"{oom['outside']}{limit}.")
    return lines


def _numbers(data):
    rows = [["", "peak", "how", "when", "at the start", "now" if not data["final"] else "at the end", "what it is"]]
    for name in NAMES:
        number = data["numbers"][name]
        what = f"{number['what']} ({data['footprint_kind']})" if name == "footprint" and data["footprint_kind"] else \
            number["what"]
        if number["method"] == NOT_AVAILABLE:
            rows.append([name, NOT_AVAILABLE, "", "", "", "", what])
        else:
            when = _during(data, number).strip() or "between nodes"
            if number["peak"] == number["start"]:
                when = "at the start"
            rows.append([name, size(number["peak"]), number["method"], when, size(number["start"]),
                         size(number["end"]), what])
    return _aligned(rows, right=(1, 4, 5))


def _during(data, number):
    names = {node["id"]: node["name"] for node in data["nodes"]}
    return f" in {' and '.join(names.get(one, one) for one in number['peak_during'])}" if number["peak_during"] else ""


def _compared(data):
    peak, limit = data["numbers"]["driver"]["peak"], data["recommended_maximum"]
    if peak <= limit:
        return f"; the peak was {peak / limit:.0%} of that"
    return (f"; the peak was {peak / limit:.1f} times that: macOS swaps then, and beyond a limit of its own torch "
            "stops with out of memory")


def _missing(data):
    if data["numbers"]["reserved"]["method"] != NOT_AVAILABLE:
        return []
    torch = data["environment"].get("torch", "this torch")
    return [f"Reserved, and with it outside, is not available: torch {torch} has no statistic of its pool on MPS (from "
            "2.13 on). That is not zero."]


def as_table(data):
    """A Markdown table, a row a node in the order in which they ran; readable as plain text too."""
    if not data["available"]:
        return ""
    rows = [list(COLUMNS)] + [_row(data, node) for node in data["nodes"]]
    return _markdown(rows)


def _row(data, node):
    names = {each["id"]: each["name"] for each in data["nodes"]}
    notes = [] if node["status"] == "ran" else [node["status"]]
    if node["made_by"] is not None:
        notes.append(f"made by {names.get(node['made_by'], '#' + node['made_by'])}")
    if node["overlapped"]:
        notes.append(f"at the same time as {', '.join(names.get(one, one) for one in node['overlapped'])}")
    if node["status"] == "cached":
        return [node["name"], "-", *["-"] * len(NAMES), "-", "", ", ".join(notes)]
    peaks = [size(node["peaks"][name]) for name in NAMES]
    return [node["name"], duration(node["seconds"]), *peaks, size(node["growth"]["outside"], sign=True),
            kernels_of(node), ", ".join(notes)]


def kernels_of(node):
    """"pad: 12 ours + 3 stock": the calls of patched ops that a node made, by who took them."""
    found = []
    for name, counts in node["kernels"].items():
        parts = [f"{counts[key]:,} {who}" for key, who in (("taken", "ours"), ("passed", "stock")) if counts[key]]
        found.append(f"{name}: {' + '.join(parts)}")
    return ", ".join(found)


def _markdown(rows):
    widths = [max(map(len, column)) for column in zip(*[[_cell(cell) for cell in row] for row in rows], strict=True)]
    right = range(1, 3 + len(NAMES))
    lines = []
    for number, row in enumerate(rows):
        cells = [_cell(cell).rjust(width) if i in right else _cell(cell).ljust(width)
                 for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append(f"| {' | '.join(cells)} |")
        if number == 0:
            lines.append("|" + "|".join("-" * (width + 1) + (":" if i in right else "-")
                                        for i, width in enumerate(widths)) + "|")
    return "\n".join(lines)


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def _aligned(rows, right):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) if i in right else cell.ljust(width)
                      for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]


def _notes(data):
    readings = data["readings"]
    lines = [
        "Peaks of nodes count what was there already when the node began. A counted peak is torch's own; a sampled one "
        f"is the largest of {sum(readings.values()):,} readings: every {data['interval_seconds'] * 1000:g} ms, at the "
        "start, each step and the end of every node, and at every call of a patched op: what rises and falls between "
        "two of them is missed."
    ]
    if any(node["overlapped"] for node in data["nodes"]):
        lines.append("Nodes that ran at the same time are each charged with the memory of all of them.")
    if data["trouble"]:
        lines.append(f"Incomplete: {data['trouble']}.")
    return lines
