"""The report as a picture: memory over time above, with the nodes on its time axis, and each node's peaks below."""
import numpy as np
import torch

from .advice import ENOUGH
from .canvas import FAINT, GRID, INK, Canvas
from .report import kernels_of
from .units import GIB, KIB, MIB, duration, size

WIDTH, MARGIN = 1200, 36
LEFT = 150  # of the time chart: room for the axis
CHART = 340  # its height
LANE = 30
ROW, BAR = 26, 16
LABEL = 420  # width of the names beside the bars
MOST = 12  # nodes with bars
TEXT, SMALL, TITLE = 19, 17, 28

COLOURS = {"driver": "#c9302c", "outside": "#f2b866", "reserved": "#0a66c2", "current": "#1a7f37"}
BANDS = ("#d7e3f4", "#e7def2", "#d9ecdd", "#f4e3d7")
LEGEND = {"driver": "driver: all Metal memory", "outside": "outside: driver - reserved",
          "reserved": "reserved: torch's pool", "current": "current: live tensors"}


def draw(data):
    """The picture of `report.collect`'s data, as PIL image."""
    if not data["available"]:
        return _sentence(f"Nothing to record. {data['reason']}")
    shown, left_out = _shown(data)
    lanes = _lanes(data)
    height = 250 + CHART + LANE * (max(lanes.values(), default=0) + 1) + 100
    height += sum(_height(node) for node in shown) + 40 * (left_out > 0)
    page = Canvas(WIDTH, height)
    top = _head(page, data)
    top = _timeline(page, data, top, lanes)
    return page.finished(_bars(page, data, shown, left_out, top))


def as_image(data):
    """The same as an IMAGE tensor [1, H, W, 3] in 0..1."""
    return torch.from_numpy(np.array(draw(data), np.float32) / 255)[None]


def _sentence(text):
    page = Canvas(WIDTH, 200)
    for number, line in enumerate(page.wrapped(text, TITLE - 4, WIDTH - 2 * MARGIN)):
        page.text((MARGIN, 48 + number * 36), line, TITLE - 4)
    return page.finished()


def _head(page, data):
    how = "so far" if not data["final"] else {"success": "", "failed": "failed", "interrupted": "interrupted"}[
        data["outcome"]]
    title = "Metal memory of this prompt" + (f", {how}" if how else "")
    page.text((MARGIN, 26), title, TITLE)
    found = data["environment"]
    where = ", ".join(part for part in (
        found.get("chip"), found.get("torch") and f"torch {found['torch']}", found.get("device")) if part)
    page.text((WIDTH - MARGIN, 34), where, SMALL, FAINT, anchor="ra")
    top = 70
    grew = data["growth"]
    for line in page.wrapped(grew["headline"], TEXT, WIDTH - 2 * MARGIN)[:2]:
        page.text((MARGIN, top), line, TEXT, COLOURS["driver"] if grew["can_stop"] is not None else FAINT)
        top += 27
    return max(top, 124) + 12


def _timeline(page, data, top, lanes):
    right, bottom = WIDTH - MARGIN, top + 34 + CHART
    top = _legend(page, data, top)
    rows = data["timeline"]["rows"]
    end = max(data["seconds"], 1e-6)
    limit = data["recommended_maximum"]
    highest = max(max(row[3] for row in rows), max((data["numbers"][name]["peak"] or 0) for name in COLOURS))
    with_limit = limit is not None and limit <= 2.5 * highest
    ceiling = max(highest, limit if with_limit else 0, 1) * 1.08

    def x(seconds):
        return LEFT + (right - LEFT) * min(1, max(0, seconds / end))

    def y(value):
        return bottom - (bottom - top) * value / ceiling

    for value, label in _ticks(ceiling):
        page.line([(LEFT, y(value)), (right, y(value))], GRID)
        page.text((LEFT - 10, y(value)), label, SMALL, FAINT, anchor="rm")
    columns = {name: _steps([(x(row[0]), y(row[index])) for row in rows if row[index] is not None], right)
               for index, name in ((1, "current"), (2, "reserved"), (3, "driver"))}
    if len(columns["reserved"]) == len(columns["driver"]):
        page.polygon(columns["driver"] + columns["reserved"][::-1], COLOURS["outside"])
    for name in "driver", "reserved", "current":
        if len(columns[name]) > 1:
            page.line(columns[name], COLOURS[name], 2.5)
    if with_limit:
        page.dashes((LEFT, y(limit)), (right, y(limit)), INK, 1.5)
        page.text((LEFT + 8, y(limit) - 4), f"recommended maximum {size(limit)}", SMALL, INK, anchor="lb")
    page.line([(LEFT, bottom), (right, bottom)], FAINT, 1.5)
    return _spans(page, data, bottom + 6, lanes, x)


def _legend(page, data, top):
    left = MARGIN
    for name, text in LEGEND.items():
        if data["numbers"][name]["peak"] is None:
            text = f"{name}: not available"
        page.box(left, top + 3, left + 24, top + 17, COLOURS[name], 3)
        page.text((left + 32, top), text, SMALL)
        left += 32 + page.width_of(text, SMALL) + 28
    return top + 40


def _spans(page, data, top, lanes, x):
    """The nodes under the time axis, each in its lane, with its name where that fits, or else its id."""
    end = data["seconds"]
    for number, node in enumerate(data["nodes"]):
        lane = top + lanes.get(node["id"], 0) * LANE
        for start, stop in node["spans"]:
            left, right = x(start), x(end if stop is None else stop)
            page.box(left, lane, right - 1, lane + LANE - 5, BANDS[number % len(BANDS)], 4)
            fits = [text for text in (_name(node), f"#{node['id']}") if page.width_of(text, SMALL) < right - left - 8]
            page.text(((left + right) / 2, lane + LANE / 2 - 3), "".join(fits[:1]), SMALL, INK, anchor="mm")
    bottom = top + LANE * (max(lanes.values(), default=0) + 1)
    page.text((LEFT, bottom), "0 s", SMALL, FAINT)
    page.text((WIDTH - MARGIN, bottom), duration(end), SMALL, FAINT, anchor="ra")
    return bottom + 38


def _bars(page, data, shown, left_out, top):
    page.text((MARGIN, top), "Peaks while each node ran", TEXT)
    top += 38
    largest = max([node["peaks"][name] or 0 for node in shown for name in COLOURS], default=0) or 1
    room = WIDTH - MARGIN - LABEL - MARGIN - 120
    for node in shown:
        page.text((MARGIN, top - 2), page.fitted(_name(node), TEXT, LABEL - 20), TEXT)
        page.text((MARGIN, top + 24), page.fitted(_facts(node), SMALL, LABEL - 20), SMALL, FAINT)
        grew = node["growth"]["outside"] if node["growth"]["outside"] is not None else 0
        if grew >= ENOUGH:
            page.text((MARGIN, top + 48), f"outside grew by {size(grew)}", SMALL, COLOURS["driver"])
        line = top
        for name, colour in COLOURS.items():
            value = node["peaks"][name]
            if value is not None:
                end = LABEL + MARGIN + room * max(0, value) / largest
                page.box(LABEL + MARGIN, line, end, line + BAR, colour, 3)
                page.text((end + 10, line + BAR / 2), size(value), SMALL, INK, anchor="lm")
                line += ROW
        top += _height(node)
    if left_out:
        page.text((MARGIN, top), f"and {left_out} more, which are in the table", SMALL, FAINT)
        top += ROW + 16
    return top


def _facts(node):
    facts = [duration(node["seconds"])]
    if node["kernels"]:
        facts.append(kernels_of(node))
    if node["status"] != "ran":
        facts.append(node["status"])
    if node["overlapped"]:
        facts.append("others ran at the same time")
    return ", ".join(facts)


def _height(node):
    lines = max(3, sum(node["peaks"][name] is not None for name in COLOURS))
    return lines * ROW + 18


def _shown(data):
    """The nodes that made driver grow most, in the order in which they ran, and how many that leaves out: also those
    that neither took a hundredth of the time nor changed anything by a hundredth of the largest peak."""
    ran = [node for node in data["nodes"] if node["peaks"] is not None]
    least = (data["numbers"]["driver"]["peak"] or 0) / 100
    told = [node for node in ran if node["seconds"] >= data["seconds"] / 100
            or any(abs(grew or 0) > least for grew in node["growth"].values())] or ran
    chosen = sorted(told, key=lambda node: (node["growth"]["driver"], node["peaks"]["driver"] or 0))[-MOST:]
    ids = {node["id"] for node in chosen}
    return [node for node in ran if node["id"] in ids], len(ran) - len(chosen)


def _lanes(data):
    """node id -> lane: nodes that ran at the same time lie under one another."""
    lanes = {}
    for node in data["nodes"]:
        taken = {lanes[other] for other in node["overlapped"] if other in lanes}
        lanes[node["id"]] = next(lane for lane in range(len(data["nodes"])) if lane not in taken)
    return lanes


def _name(node):
    """The title; the class where the picture's font can't write it."""
    name = node["name"]
    return name if name.isprintable() and _latin(name) else f"{node['class_type']} (#{node['id']})"


def _latin(text):
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _steps(points, right):
    """A staircase through `points` to the edge: between two readings the earlier one holds."""
    if not points:
        return []
    corners = [(b[0], a[1]) for a, b in zip(points, points[1:], strict=False)]
    path = points[:1] + [point for pair in zip(corners, points[1:], strict=True) for point in pair]
    return [*path, (right, path[-1][1])]


def _ticks(ceiling):
    """(bytes, label) of about five round values in one unit."""
    unit, name = next((unit, name) for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
                      if ceiling >= 2 * unit or unit == 1)
    step = _nice(ceiling / unit / 5)
    return [(number * step * unit, f"{number * step:g} {name}") for number in range(int(ceiling / unit / step) + 1)]


def _nice(value):
    """The next of 1, 2, 5 times a power of ten, upwards."""
    scale = 10.0 ** np.floor(np.log10(value))
    return float(next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= value))
