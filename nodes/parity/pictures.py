"""One sheet for the eye: value, reference and their difference, side by side, the worst pictures of a batch.

Images and masks are shown as they are. A latent has no colours of its own: its channels are projected on the three
principal components of the reference (the same projection and scale on both sides), so that the same colour means
the same latent. The difference is a heat map of the largest channel, its scale written above it. Whatever is not
finite is magenta.
"""
import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from .metrics import BLOCK, as_float64, frame_indices
from .values import on_cpu, plain

MAX_ROWS = 4
SMALLEST, LARGEST = 256, 640  # a panel's longer edge in pixels
GAP, CAPTION = 8, 26
MAGENTA = (255, 0, 255)
# Control points of the heat map: no difference is black, full scale is white.
HEAT = np.array([(0, 0, 0), (66, 10, 104), (147, 38, 103), (221, 81, 58), (252, 165, 10), (255, 255, 255)], np.float64)


@dataclass(frozen=True)
class Picture:
    """`image` is an IMAGE tensor [1, H, W, 3] in 0..1; `rows` are pairs (picture of the batch, difference shown as
    white; 0 for no difference)."""

    image: torch.Tensor
    rows: tuple


def sheet(value, reference, metrics, tick=lambda: None):
    """The `Picture` of a comparison of two `Value`s, made in blocks; `tick` is called once a block."""
    chosen = _worst_rows(metrics)
    planes = []
    for row in chosen:
        frame = metrics.frames[row]
        planes.append([_plane(one.kind, one.tensors[frame.tensor][frame.index]) for one in (value, reference)])
    colours = _colouring(value.kind, [other for _, other in planes])
    cells, rows = [], []
    for row, (one, other) in zip(chosen, planes, strict=True):
        frame = metrics.frames[row]
        white = _round_up(frame.max_abs)
        number = f" {row}" if len(metrics.frames) > 1 else ""
        panels = (*(_fit(_side(side, colours, tick)) for side in (one, other)), _difference(one, other, white, tick))
        titles = (value.name + number, reference.name + number, _scale(frame, white))
        cells.append(list(zip(titles, panels, strict=True)))
        rows.append((row, white))
    image = _lay_out(cells)
    return Picture(torch.from_numpy(np.array(image, np.float32) / 255)[None], tuple(rows))


def as_images(value, reference):
    """Both sides in full as IMAGE tensors, every picture of the batch: images as they are, the rest in false colour."""
    if value.kind == "IMAGE":
        return value.tensors[0].float(), reference.tensors[0].float()
    planes = [
        [_plane(one.kind, tensor[index]) for tensor in one.tensors for index in frame_indices(one.kind, tensor)]
        for one in (value, reference)
    ]
    colours = _colouring(reference.kind, planes[1])
    sides = [np.stack([_side(plane, colours) for plane in side]) for side in planes]
    return tuple(torch.from_numpy(side.astype(np.float32) / 255) for side in sides)


def _worst_rows(metrics):
    """Up to MAX_ROWS of the pictures that differ, in their own order: by turns the one with the lowest PSNR and the one
    with the largest single error, so that neither a veil nor a speck stays hidden. The first if none differs."""
    frames = metrics.frames
    differing = [i for i in range(len(frames)) if frames[i].unlike or frames[i].max_abs]
    veiled = sorted(differing, key=lambda i: (frames[i].unlike, frames[i].mean_squared), reverse=True)
    specked = sorted(differing, key=lambda i: (frames[i].unlike, frames[i].max_abs), reverse=True)
    by_turns = dict.fromkeys(i for pair in zip(veiled, specked, strict=True) for i in pair)
    return sorted(list(by_turns)[:MAX_ROWS]) or [0]


def _scale(frame, white):
    if not white:
        text = "no difference" if not frame.unlike else "no difference where finite"
    else:
        text = f"difference, white = {white:g}" + (f" (x {1 / white:g})" if white < 1 else "")
    return text + (f", {frame.unlike:,} not finite" if frame.unlike else "")


def _plane(kind, tensor):
    """One picture as a tensor [H, W, C] of real numbers, in its own dtype and place: it may be large."""
    tensor = plain(tensor)
    if kind == "IMAGE":
        return tensor
    if kind == "LATENT" and tensor.ndim == 3 and not tensor.is_complex():
        return tensor.permute(1, 2, 0)
    if kind == "MASK":
        return tensor[..., None]
    return _fold(tensor)[..., None]


def _blocks(plane):
    """Slices of rows."""
    step = max(1, BLOCK // (plane.shape[1] * plane.shape[2]))
    return [slice(start, start + step) for start in range(0, plane.shape[0], step)]


def _fold(tensor):
    """Any other tensor as [H, W]: its rows if they make a picture, else its first elements line by line."""
    limit = LARGEST * LARGEST
    if tensor.ndim >= 2:
        height, width = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        if max(height, width) <= 8 * min(height, width) and height * width <= 4 * limit:
            return as_float64(tensor).reshape(height, -1)
    tensor = tensor if tensor.is_contiguous() else on_cpu(tensor)  # there a copy in rows is always possible
    flat = as_float64(tensor.reshape(-1)[:limit] if tensor.numel() > limit else tensor.reshape(-1)).reshape(-1)
    width = max(1, math.isqrt(flat.numel()))
    height = -(-flat.numel() // width)
    padded = flat.new_zeros(height * width)
    padded[: flat.numel()] = flat
    return padded.reshape(height, width)


def _colouring(kind, references):
    """plane -> [H, W, 3 or 1] in 0..1, the same mapping for both sides, made from the reference."""
    if kind in ("IMAGE", "MASK"):
        return lambda plane: plane[..., : 3 if plane.shape[-1] >= 3 else 1]
    by_channels = {}  # the parts of a nested latent (video and audio) may differ in theirs
    for plane in map(as_float64, references):
        by_channels.setdefault(plane.shape[-1], []).append(plane.reshape(-1, plane.shape[-1]).numpy())
    mappings = {channels: _projection(np.concatenate(pixels)) for channels, pixels in by_channels.items()}
    return lambda plane: mappings[plane.shape[-1]](plane)


def _projection(pixels):
    """plane [H, W, C] -> [H, W, 3 or 1] in 0..1 on the principal components of `pixels` [N, C]."""
    pixels = pixels[np.isfinite(pixels).all(axis=1)]
    if not len(pixels):
        return lambda plane: np.full((*plane.shape[:2], 1), 0.5)
    largest = np.abs(pixels).max() or 1.0  # made 1: squares of what float64 can hold may be more than it can
    pixels = pixels / largest
    mean, axes = pixels.mean(axis=0), np.eye(pixels.shape[1])[:, :1]
    if pixels.shape[1] >= 3:
        _, vectors = np.linalg.eigh(np.cov(pixels, rowvar=False) if len(pixels) > 1 else np.eye(pixels.shape[1]))
        axes = vectors[:, ::-1][:, :3]
        # An eigenvector's sign is arbitrary; fix it, so that the same latent looks the same every time.
        axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), range(3)])
    shown = (pixels - mean) @ axes
    low, high = np.percentile(shown, 1, axis=0), np.percentile(shown, 99, axis=0)
    span = np.where(high > low, high - low, 1.0)
    return lambda plane: ((np.nan_to_num(plane, posinf=0, neginf=0) / largest - mean) @ axes - low) / span


def _side(plane, colours, tick=lambda: None):
    """A plane as it is shown, [H, W, 3] of uint8."""
    shown = np.empty((*plane.shape[:2], 3), np.uint8)
    for rows in _blocks(plane):
        tick()
        block = as_float64(plane[rows]).numpy()
        rgb = np.clip(np.nan_to_num(colours(block), nan=0, posinf=0, neginf=0), 0, 1) * 255
        shown[rows] = rgb.round()
        shown[rows][~np.isfinite(block).all(axis=-1)] = MAGENTA
    return shown


def _difference(one, other, white, tick):
    """The panel of the heat map. Where it is shrunk a pixel shows the largest of those that it stands for: one wrong
    pixel must stay visible."""
    error, unlike = torch.empty(one.shape[:2]), torch.empty(one.shape[:2], dtype=torch.bool)
    scale = white or 1
    for rows in _blocks(one):
        tick()
        left, right = as_float64(one[rows]), as_float64(other[rows])
        strange = ~(left.isfinite() & right.isfinite())
        apart = (left / scale - right / scale).abs() if scale > 1 else (left - right).abs() / scale
        error[rows] = apart.masked_fill_(strange, 0).amax(-1).clamp_(max=1).float()
        unlike[rows] = strange.any(-1)
    error, unlike = _shrunk(error).numpy().astype(np.float64), _grown(_shrunk(unlike.float())) if unlike.any() else None
    position = error * (len(HEAT) - 1)
    below = np.minimum(position.astype(int), len(HEAT) - 2)
    rgb = HEAT[below] + (HEAT[below + 1] - HEAT[below]) * (position - below)[..., None]
    panel = rgb.round().astype(np.uint8)
    if unlike is not None:
        panel[unlike] = MAGENTA
    return _fit(panel)


def _grown(where):
    """Five pixels wide, so that a single one can be seen."""
    return torch.nn.functional.max_pool2d(where[None], 5, stride=1, padding=2)[0].numpy() > 0


def _panel_size(height, width):
    """Of a picture that is too large for a panel; None for one that is not."""
    longer = max(height, width)
    return (max(1, height * LARGEST // longer), max(1, width * LARGEST // longer)) if longer > LARGEST else None


def _shrunk(plane):
    """[H, W] at its panel's size, by the largest of what falls together."""
    size = _panel_size(*plane.shape)
    return plane if size is None else torch.nn.functional.adaptive_max_pool2d(plane[None], size)[0]


def _fit(panel):
    """At a panel's size: shrunk by the mean, enlarged by whole pixels."""
    height, width = panel.shape[:2]
    size = _panel_size(height, width)
    if size is not None:
        return Image.fromarray(panel).resize(size[::-1], Image.Resampling.BOX)
    times = max(1, SMALLEST // max(height, width))
    return Image.fromarray(panel).resize((width * times, height * times), Image.Resampling.NEAREST)


def _lay_out(rows):
    font = ImageFont.load_default(14)
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    widths = [
        max(max(row[i][1].width, math.ceil(measure.textlength(row[i][0], font))) for row in rows) for i in range(3)
    ]
    heights = [max(panel.height for _, panel in row) + CAPTION for row in rows]
    canvas = Image.new("RGB", (sum(widths) + 4 * GAP, sum(heights) + (len(rows) + 1) * GAP), (32, 32, 36))
    draw = ImageDraw.Draw(canvas)
    y = GAP
    for row, height in zip(rows, heights, strict=True):
        x = GAP
        for (title, panel), width in zip(row, widths, strict=True):
            draw.text((x, y + 4), title, fill=(235, 235, 235), font=font)
            canvas.paste(panel, (x, y + CAPTION))
            x += width + GAP
        y += height + GAP
    return canvas


def _round_up(error):
    """The next of 1, 2, 5 times a power of ten."""
    if error == 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(error))
    # float32's 0.05 is a little more than 0.05: it still fits below a white of 0.05.
    white = next((step * power for step in (1, 2, 5) if error <= step * power * (1 + 1e-6)), 10 * power)
    return min(float(f"{white:.3g}"), sys.float_info.max)
