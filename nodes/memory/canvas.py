"""A page to draw on: drawn at twice its size and halved at the end, so that lines and text are smooth."""
from PIL import Image, ImageDraw, ImageFont

SCALE = 2
PAPER, INK, FAINT, GRID = "#ffffff", "#1d1d1f", "#6e6e73", "#e5e5ea"


class Canvas:
    """Coordinates are pixels of the finished picture."""

    def __init__(self, width, height):
        self._image = Image.new("RGB", (width * SCALE, height * SCALE), PAPER)
        self._draw = ImageDraw.Draw(self._image)
        self._fonts = {}

    def text(self, at, text, points, colour=INK, anchor="la"):
        self._draw.text(_scaled(at), text, colour, self._font(points), anchor=anchor)

    def width_of(self, text, points):
        return self._font(points).getlength(text) / SCALE

    def fitted(self, text, points, width):
        """`text`, cut with "..." where it is wider than `width`; "" where not even that fits."""
        if self.width_of(text, points) <= width:
            return text
        while text and self.width_of(text + "...", points) > width:
            text = text[:-1]
        return text.rstrip() + "..." if text else ""

    def wrapped(self, text, points, width):
        """`text` as lines no wider than `width`."""
        lines = [""]
        for word in text.split():
            longer = f"{lines[-1]} {word}".strip()
            if self.width_of(longer, points) <= width or not lines[-1]:
                lines[-1] = longer
            else:
                lines.append(word)
        return [self.fitted(line, points, width) for line in lines]

    def line(self, points, colour, width=1):
        self._draw.line([_scaled(point) for point in points], colour, round(width * SCALE), joint="curve")

    def dashes(self, start, end, colour, width=1, dash=10, gap=7):
        """A dashed horizontal line."""
        left = start[0]
        while left < end[0]:
            self.line([(left, start[1]), (min(left + dash, end[0]), end[1])], colour, width)
            left += dash + gap

    def polygon(self, points, colour):
        if len(points) > 2:
            self._draw.polygon([_scaled(point) for point in points], colour)

    def box(self, left, top, right, bottom, colour, radius=0):
        self._draw.rounded_rectangle([*_scaled((left, top)), *_scaled((max(right, left + 1), bottom))],
                                     radius * SCALE, colour)

    def finished(self, height=None):
        """The picture, cut at `height`."""
        if height is not None:
            self._image = self._image.crop((0, 0, self._image.width, min(self._image.height, int(height) * SCALE)))
        return self._image.resize((self._image.width // SCALE, self._image.height // SCALE), Image.Resampling.BOX)

    def _font(self, points):
        return self._fonts.setdefault(points, ImageFont.load_default(points * SCALE))


def _scaled(point):
    return point[0] * SCALE, point[1] * SCALE
