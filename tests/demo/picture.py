"""report.png: the three pictures side by side, and memory over time of both MPS decodes on one scale."""
from PIL import Image, ImageDraw, ImageFont

MIB = 2**20
SCALE = 2  # drawn at twice the size, so that text stays sharp on a dense screen
FRAME = 256
MARGIN, GAP = 32, 20
WIDTH = 2 * MARGIN + 3 * FRAME + 2 * GAP
CHART_HEIGHT = 190

PAPER, INK, FAINT, GRID = "#ffffff", "#1d1d1f", "#6e6e73", "#e5e5ea"
OUTSIDE = "#f6d5d3"
BAD, GOOD = "#c9302c", "#1a7f37"
SERIES = (("driver", "#c9302c"), ("reserved", "#0a66c2"), ("current", "#1a7f37"))


def draw(results, pictures):
    """The report as a PIL image. `pictures`: phase -> (1, 3, frames, H, W) float32 in [-1, 1]."""
    page = _Page()
    cpu, stock, repaired = (results[phase] for phase in ("cpu", "stock", "repaired"))
    device = repaired["device"]
    page.text((MARGIN, 24), "Metal Kernels: a video VAE decode, stock and repaired", 24, INK)
    page.text((MARGIN, 58), f"{cpu['workload']['model']}; {cpu['pads']['calls']} pads, "
              f"{cpu['pads']['faulty_by_rule']} of them faulty on stock", 14, FAINT)
    page.text((MARGIN, 78), f"device: {device['kind']} ({device['name']})", 14, FAINT)
    page.text((MARGIN, 98), f"stock: {device['stock']}", 14, FAINT)

    top = 136
    frames = (0, pictures["cpu"].shape[2] - 1)
    captions = (("CPU, float32", "the reference", FAINT),
                ("stock MPS", f"PSNR {stock['psnr_db']:.2f} dB", BAD),
                ("repaired MPS", f"PSNR {repaired['psnr_db']:.2f} dB", GOOD))
    for column, (phase, (title, note, colour)) in enumerate(zip(("cpu", "stock", "repaired"), captions, strict=True)):
        left = MARGIN + column * (FRAME + GAP)
        page.text((left, top), title, 17, INK)
        page.text((left + FRAME, top + 2), note, 15, colour, anchor="ra")
        for row, frame in enumerate(frames):
            page.image((left, top + 28 + row * (FRAME + 8)), _frame(pictures[phase], frame))
    for row, frame in enumerate(frames):
        page.tag((MARGIN + 8, top + 28 + row * (FRAME + 8) + FRAME - 8), f"frame {frame + 1}")

    top += 28 + len(frames) * (FRAME + 8) + 26
    ceiling = max(r[3] for phase in (stock, repaired) for r in phase["memory"]["timeline"]["rows"]) * 1.1
    half = (WIDTH - 2 * MARGIN - 2 * GAP) // 2
    for column, (title, phase, colour) in enumerate((("stock MPS", stock, BAD), ("repaired MPS", repaired, GOOD))):
        left = MARGIN + column * (half + 2 * GAP)
        growth = phase["memory"]["driver_growth"]
        page.text((left, top), f"memory, {title}", 17, INK)
        page.text((left + half, top + 2), f"driver growth {growth / MIB:.1f} MiB", 15, colour, anchor="ra")
        box = (left, top + 30, left + half, top + 30 + CHART_HEIGHT)
        _chart(page, box, phase["memory"]["timeline"]["rows"], ceiling)
    _legend(page, top + 30 + CHART_HEIGHT + 30)
    return page.crop(top + 30 + CHART_HEIGHT + 62)


def _chart(page, box, rows, ceiling):
    left, top, right, bottom = box
    left += 64
    start, end = rows[0][0], max(rows[-1][0], rows[0][0] + 1e-6)

    def at(seconds, value):
        return left + (right - left) * (seconds - start) / (end - start), bottom - (bottom - top) * value / ceiling

    step = _nice(ceiling / MIB / 4) * MIB
    value = 0
    while value <= ceiling:
        y = at(start, value)[1]
        page.line([(left, y), (right, y)], GRID, 1)
        page.text((left - 8, y), f"{value / MIB:g} MiB", 12, FAINT, anchor="rm")
        value += step
    for seconds, anchor in ((start, "la"), (end, "ra")):
        page.text((at(seconds, 0)[0], bottom + 6), f"{seconds:.1f} s", 12, FAINT, anchor=anchor)
    curves = {name: _steps([at(row[0], row[column]) for row in rows if row[column] is not None])
              for column, name in ((1, "current"), (2, "reserved"), (3, "driver"))}
    if len(curves["reserved"]) == len(curves["driver"]):
        page.fill(curves["driver"] + curves["reserved"][::-1], OUTSIDE)
    for name, colour in SERIES:
        if len(curves[name]) > 1:
            page.line(curves[name], colour, 2)


def _steps(points):
    """A staircase through `points`: memory does not change between two readings."""
    corners = [(b[0], a[1]) for a, b in zip(points, points[1:], strict=False)]
    return points[:1] + [p for pair in zip(corners, points[1:], strict=True) for p in pair]


def _legend(page, top):
    left = MARGIN
    for name, text in (("driver", "driver: all Metal memory"), ("reserved", "reserved: the pool"),
                       ("current", "current: live tensors"), ("outside", "outside: kept by MPSGraph")):
        if name == "outside":
            page.fill([(left, top + 2), (left + 22, top + 2), (left + 22, top + 15), (left, top + 15)], OUTSIDE)
        else:
            page.line([(left, top + 8), (left + 22, top + 8)], dict(SERIES)[name], 3)
        page.text((left + 30, top), text, 14, INK)
        left += 30 + page.width_of(text, 14) + 26


def _nice(value):
    """The next of 1, 2, 5 times a power of ten."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    while scale > value:
        scale /= 10
    return next(scale * m for m in (1, 2, 5, 10) if scale * m >= value)


def _frame(picture, index):
    """One frame as a PIL image; NaN as black."""
    rgb = (picture[0, :, index].float().nan_to_num(-1).clamp(-1, 1) + 1) * 127.5
    return Image.fromarray(rgb.round().byte().permute(1, 2, 0).contiguous().numpy())


class _Page:
    """A white page whose coordinates are in points of 1/SCALE pixel."""

    def __init__(self, height=1200):
        self._image = Image.new("RGB", (WIDTH * SCALE, height * SCALE), PAPER)
        self._draw = ImageDraw.Draw(self._image)
        self._fonts = {}

    def _font(self, size):
        return self._fonts.setdefault(size, ImageFont.load_default(size * SCALE))

    def text(self, at, text, size, colour, anchor="la"):
        self._draw.text((at[0] * SCALE, at[1] * SCALE), text, colour, self._font(size), anchor=anchor)

    def width_of(self, text, size):
        return self._font(size).getlength(text) / SCALE

    def tag(self, at, text):
        """Small white text on a dark label; `at` is its left bottom."""
        width = self.width_of(text, 12)
        self._draw.rounded_rectangle(
            [at[0] * SCALE, (at[1] - 20) * SCALE, (at[0] + width + 14) * SCALE, at[1] * SCALE], 5 * SCALE, "#1d1d1f")
        self.text((at[0] + 7, at[1] - 10), text, 12, "#ffffff", anchor="lm")

    def line(self, points, colour, width):
        self._draw.line([(x * SCALE, y * SCALE) for x, y in points], colour, width * SCALE, joint="curve")

    def fill(self, points, colour):
        self._draw.polygon([(x * SCALE, y * SCALE) for x, y in points], colour)

    def image(self, at, image):
        big = image.resize((FRAME * SCALE, FRAME * SCALE), Image.Resampling.NEAREST)
        self._image.paste(big, (at[0] * SCALE, at[1] * SCALE))

    def crop(self, height):
        return self._image.crop((0, 0, WIDTH * SCALE, int(height * SCALE)))
