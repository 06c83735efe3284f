"""A comparison as text for people and as JSON for programs."""
import json
import math

from .values import short

SCHEMA = 1
MAX_FRAMES = 512  # in the JSON


def as_text(value, reference, metrics, missed):
    """The report, a few lines."""
    lines = [
        f"Parity {'FAILED' if missed else 'passed'}: {value.kind}, {metrics.elements:,} elements",
        *(f"  {sentence}" for sentence in missed),
        f"  {value.name}: {value.describe()}",
        f"  {reference.name}: {reference.describe()}",
        f"  PSNR {decibels(metrics.psnr)}{_over(metrics)} "
        f"(data range {metrics.data_range:.6g}: {metrics.data_range_source})",
        f"  max abs error {metrics.max_abs:.6g}, mean abs error {metrics.mean_abs:.6g}",
        f"  max rel error {metrics.max_rel:.6g} (of |{reference.name}|, at least {metrics.rel_floor:.3g})",
        f"  cosine {metrics.cosine:.10f}",
        f"  NaN {metrics.value.nan:,} in {value.name}, {metrics.reference.nan:,} in {reference.name}; "
        f"infinite {metrics.value.inf:,} and {metrics.reference.inf:,}",
        f"  finite range {_range(metrics.value)} in {value.name}, {_range(metrics.reference)} in {reference.name}",
    ]
    if len(metrics.frames) > 1:
        worst = metrics.worst()
        frame = metrics.frames[worst]
        unlike = f", {frame.unlike:,} elements not finite alike" if frame.unlike else ""
        lines.append(
            f"  worst of {len(metrics.frames)} pictures: number {worst}, PSNR {decibels(metrics.frame_psnr(frame))}, "
            f"max abs error {frame.max_abs:.6g}{unlike}"
        )
    return "\n".join(lines)


def as_dict(value, reference, metrics, missed):
    """The same as plain data. An infinite PSNR (no error at all) is null with `psnr_infinite` true."""
    return {
        "schema": SCHEMA,
        "passed": not missed,
        "failures": missed,
        "kind": value.kind,
        "elements": metrics.elements,
        "compared": metrics.compared,
        "unlike_nonfinite": metrics.unlike,
        "data_range": metrics.data_range,
        "data_range_source": metrics.data_range_source,
        "psnr_db": metrics.psnr,
        "psnr_infinite": metrics.psnr == math.inf,
        "max_abs_error": metrics.max_abs,
        "mean_abs_error": metrics.mean_abs,
        "max_rel_error": metrics.max_rel,
        "rel_error_denominator": f"max(|{reference.name}|, {metrics.rel_floor:.6g})",
        "cosine": metrics.cosine,
        value.name: _side(value, metrics.value),
        reference.name: _side(reference, metrics.reference),
        "worst_frame": metrics.worst(),
        "frames": [
            {"psnr_db": metrics.frame_psnr(frame), "max_abs_error": frame.max_abs, "unlike_nonfinite": frame.unlike}
            for frame in metrics.frames[:MAX_FRAMES]
        ],
    }


def as_json(data):
    """Strict JSON: numbers that JSON has no way to write become null."""
    return json.dumps(_plain(data), indent=2, allow_nan=False)


def decibels(number):
    """`41.20 dB`, or words for no error at all."""
    if number == math.inf:
        return "infinite (no error)"
    return "undefined" if math.isnan(number) else f"{number:.2f} dB"


def _side(value, side):
    return {
        "shapes": [list(tensor.shape) for tensor in value.tensors],
        "dtypes": [short(tensor.dtype) for tensor in value.tensors],
        "devices": [str(tensor.device) for tensor in value.tensors],
        "nan": side.nan,
        "inf": side.inf,
        "minimum": side.minimum,
        "maximum": side.maximum,
    }


def _over(metrics):
    left_out = metrics.elements - metrics.compared
    return f" over the {metrics.compared:,} elements finite on both sides" if left_out else ""


def _range(side):
    return "none" if math.isnan(side.minimum) else f"{side.minimum:.6g} to {side.maximum:.6g}"


def _plain(data):
    if isinstance(data, dict):
        return {key: _plain(entry) for key, entry in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(entry) for entry in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
