"""A VAE on the device and on the CPU in float32: the same input, the same tiles, the same random numbers, two results.

Order of things: say what memory the CPU side needs and refuse if it is short; run a small piece and say about how long
the CPU side will take; run the device side and say it again, better; make the CPU copy, run it, drop it; compare.
"""
import time
from dataclasses import dataclass

import torch

from .. import given
from ..progress import Hooks
from . import cpu_copy, estimate, kernels_used, plan
from .compare import Comparison, compare
from .metrics import blocks
from .vae_report import Facts, as_dict, describe
from .values import ParityError, Value, read, short
from .watch import Watch, Work

DECODE, ENCODE, ROUND_TRIP = "decode", "encode", "round trip"
INPUT = "image_or_latent"  # the node's input, for messages
OPERATIONS = (DECODE, ENCODE, ROUND_TRIP)
DEVICE_SHARE = 0.1  # of the progress bar
PIECE = 8  # edge of the piece that is run first, in latent cells; and what part of what is run its edge is at least
RESULT = {ENCODE: "LATENT", DECODE: "IMAGE"}
PARTS = {ENCODE: "encoder", DECODE: "decoder"}  # where a model keeps what a step runs
_INSTEAD = "run it with --cpu in a second ComfyUI and compare the two results with Metal Parity Compare."


@dataclass(frozen=True)
class Request:
    """What to run.

    operation  "decode", "encode" or "round trip" (of an image: encode, then decode; of a latent: decode, then encode).
    region     see `plan`; `size` is in pixels of the picture.
    frames     at most this many images, video frames or latent frames; 0 for all.
    """

    operation: str = DECODE
    region: str = plan.WHOLE
    size: int = 512
    frames: int = 0


@dataclass(frozen=True)
class Job:
    """What both sides run: these steps, on these windows of each of these pieces of an IMAGE or LATENT."""

    steps: tuple
    kind: str
    places: list
    pieces: list


@dataclass(frozen=True)
class Side:
    """One side's results, an assembled tensor for each step, and what it took."""

    results: list
    seconds: float
    work: Work


@dataclass(frozen=True)
class Parity:
    """`comparison` is of the last step's results, `device` and `cpu`; `text` and `data` add to its report what ran,
    where and how long.
    """

    device: Value
    cpu: Value
    comparison: Comparison
    text: str
    data: dict


def parity(vae, thing, request, tolerances, hooks=None, data_range=0.0, available=estimate.available_memory):
    """Run and compare both sides: a `Parity`.

    vae    ComfyUI's VAE or anything shaped like it: `decode` and `encode`, and torch modules among its attributes.
    thing  an IMAGE [B, H, W, C] or a LATENT, as they come over the wire.

    Raises ParityError (or `given.Unfit`), one sentence for the user, for what can't be run or compared; whatever
    `hooks.tick` raises; and what the VAE itself raises on the device.
    """
    hooks = hooks or Hooks()
    request = _checked(request)
    source = _source(thing, request)
    steps = _steps(vae, source, request)
    places, pieces = _pieces(vae, source, request)
    need = _need(vae, steps, source, places, pieces, available())
    hooks.say(need.describe())
    estimate.refuse_if_short(need)
    _refuse_nothing_finite(source, pieces, places, hooks.tick)
    job = Job(steps, source.kind, places, pieces)
    rough = _rough_seconds(vae, job, hooks)
    took = "how long it takes is known once the device has run" if rough is None else \
        f"it takes about {estimate.duration(rough)} (rough estimate, from a small piece)"
    hooks.say(f"{need.describe()[:-1]}; {took}.")

    before = kernels_used.snapshot()
    device = _run_on_device(vae, job, hooks)
    used = kernels_used.since(before)
    where = _where(vae)
    expected = estimate.seconds(device.work)
    hooks.say(
        f"{where} took {estimate.duration(device.seconds)}; the CPU side takes about {estimate.duration(expected)} "
        "(estimate)."
    )
    cpu = _run_on_cpu(vae, job, device.work, hooks)

    stages = []
    for step, result, reference in zip(steps, device.results, cpu.results, strict=True):
        _refuse_nan(result, reference, step, where)
        ours = Value("device", RESULT[step], (result,), where)
        theirs = Value("cpu", RESULT[step], (reference,), "cpu float32")
        stages.append(compare(ours, theirs, tolerances, data_range, hooks.tick))
    hooks.progress(1.0)
    facts = Facts(request, source, job, need, where, device, cpu, rough, expected, used)
    return Parity(ours, theirs, stages[-1], describe(facts, stages), as_dict(facts, stages))


def _checked(request):
    """The request as numbers and texts of Python; raises Unfit for what is none, or not one of the choices."""
    return Request(
        given.choice("operation", request.operation, OPERATIONS),
        given.choice("region", request.region, plan.REGIONS),
        given.whole("size", request.size, 1, "give the edge of a crop or tile in pixels."),
        given.whole("frames", request.frames, 0, "give 0 for all of them, or how many."),
    )


def _source(thing, request):
    """The input as a `Value` of one IMAGE or LATENT tensor, cut to the frames asked for."""
    source = read(INPUT, thing)
    tensor = source.tensors[0]  # of nested latents the first, as ComfyUI's own VAE nodes do
    if source.kind not in ("IMAGE", "LATENT"):
        raise ParityError(f"{INPUT} is {source.describe()}: connect an IMAGE [B, H, W, C] or a LATENT.")
    if source.kind == "LATENT" and tensor.ndim not in (4, 5):
        raise ParityError(
            f"{INPUT} is a LATENT of shape {tuple(tensor.shape)}: only latents of images and videos (4 or 5 "
            "dimensions) can be checked."
        )
    if not tensor.is_floating_point():
        raise ParityError(f"{INPUT} is {_a(source.kind)} of {short(tensor.dtype)}: it must be floating point.")
    if request.frames:
        tensor = tensor[:, :, : request.frames] if tensor.ndim == 5 else tensor[: request.frames]
    return Value(INPUT, source.kind, (tensor.detach().to("cpu"),))


def _refuse_nothing_finite(source, pieces, places, tick):
    """Looks at what is run, a block at a time and only until a number is found: the rest may be large."""
    for item in pieces:
        for window in places:
            part = _part(item, source.kind, window)
            for index in blocks(part.shape):
                tick()
                if part[index].isfinite().any():
                    return
    raise ParityError(f"{INPUT} is all NaN or infinite ({source.kind} of shape {tuple(source.tensors[0].shape)}).")


def _steps(vae, source, request):
    """The operations in order; every one of them must be something that this VAE can do."""
    if request.operation == ROUND_TRIP:
        steps = (ENCODE, DECODE) if source.kind == "IMAGE" else (DECODE, ENCODE)
    else:
        steps = (request.operation,)
    takes = "LATENT" if steps[0] == DECODE else "IMAGE"
    if source.kind != takes:
        raise ParityError(f"operation '{steps[0]}' takes {_a(takes)}, but {INPUT} is {_a(source.kind)}.")
    roots = cpu_copy.modules_of(vae)
    if not roots:
        raise ParityError(f"vae ({type(vae).__name__}) holds no torch module, so it can't be copied to the CPU.")
    for step in steps:
        model = getattr(vae, "first_stage_model", roots[0])
        part = getattr(model, PARTS[step], model)
        if part is None or not (callable(getattr(vae, step, None)) and callable(getattr(model, step, model))):
            raise _cannot(vae, step)
    return steps


def _cannot(vae, step):
    model = getattr(vae, "first_stage_model", vae)
    return ParityError(
        f"This VAE ({type(model).__name__}) has no {step}r, so '{step}' can't be checked: choose operation "
        f"'{DECODE if step == ENCODE else ENCODE}' or load a VAE that has one."
    )


def _pieces(vae, source, request):
    """The windows, and the items of the batch that are run one by one."""
    tensor = source.tensors[0]
    if source.kind == "LATENT":
        cells = max(1, request.size // estimate.spatial_ratio(vae, DECODE))
        places = plan.windows(*tensor.shape[-2:], request.region, cells)
        return places, list(tensor.split(1))
    places = plan.windows(*tensor.shape[1:3], request.region, request.size, estimate.spatial_ratio(vae, ENCODE))
    # A video VAE takes the batch as one video; an image VAE takes picture by picture (the same batches on both sides).
    separate = getattr(vae, "latent_dim", None) == 2 or getattr(vae, "not_video", False)
    return places, list(tensor.split(1)) if separate else [tensor]


def _need(vae, steps, source, places, pieces, available):
    tallest, widest = max(w.height for w in places), max(w.width for w in places)
    item = pieces[0]
    frames = item.shape[0] if source.kind == "IMAGE" else item.shape[2] if item.ndim == 5 else 1
    ratio = estimate.spatial_ratio(vae, DECODE) if source.kind == "LATENT" else 1
    if source.kind == "LATENT":
        shape = (*item.shape[:-2], tallest, widest)
        times = 4 if item.ndim == 5 else 1  # frames of a video for each latent frame, for the results only
    else:
        video = getattr(vae, "latent_dim", None) == 3
        shape = (1, 3, frames, tallest, widest) if video else (frames, 3, tallest, widest)
        times = 1
    kept = sum((w.keep_bottom - w.keep_top) * (w.keep_right - w.keep_left) for w in places)
    pixels = kept * ratio * ratio * frames * times * len(pieces)
    return estimate.memory(vae, steps, shape, pixels, available)


def _run(vae, job, tick, done, weights=None):
    """`Side` of one side. `tick(flops so far)` before every torch call, `done(fraction)` after each piece.

    `weights` are the copy's, where a copy runs. That none of them takes part is fine (not every VAE computes with what
    it holds) unless others do in their place.
    """
    start, work, count = time.perf_counter(), Work(), 0
    outputs = [[] for _ in job.steps]
    for item in job.pieces:
        parts = [[] for _ in job.steps]
        for window in job.places:
            cut = _part(item, job.kind, window).clone()  # a model may write into its input
            with Watch(lambda now, so_far=work.flops: tick(so_far + now.flops), weights) as watch:
                for position, step in enumerate(job.steps):
                    cut = _step(vae, step, cut)
                    parts[position].append(plan.kept(cut.detach().to("cpu"), window, _axes(step, cut)))
            if watch.foreign and not watch.used:
                raise ParityError(
                    f"This VAE ({type(vae).__name__}) runs weights that are not among its attributes, so the CPU side "
                    f"would be the device side again: {_INSTEAD}"
                )
            work.add(watch.work)
            count += 1
            done(count / (len(job.places) * len(job.pieces)))
        for position, step in enumerate(job.steps):
            outputs[position].append(plan.assemble(parts[position], job.places, _axes(step, parts[position][0])))
    return Side([torch.cat(output) for output in outputs], time.perf_counter() - start, work)


def _run_on_device(vae, job, hooks):
    try:
        return _run(vae, job, lambda _: hooks.tick(), lambda done: hooks.progress(done * DEVICE_SHARE))
    except (RuntimeError, TypeError, ValueError, IndexError) as problem:
        misfit = _misfit(vae, job)
        if misfit is None or isinstance(problem, ParityError):
            raise
        raise ParityError(misfit) from problem


def _misfit(vae, job):
    """One sentence, where a VAE that has failed was given another one's latent; else None."""
    shape = tuple(job.pieces[0].shape)
    channels, video = getattr(vae, "latent_channels", shape[1]), getattr(vae, "latent_dim", None) == 3
    if job.steps[0] != DECODE or (shape[1] == channels and (len(shape) == 5 or not video)):
        return None
    takes = f"[B, {channels}, {'T, ' if video else ''}H, W]"
    return (
        f"{INPUT} is a LATENT of shape {shape} and this VAE ({type(getattr(vae, 'first_stage_model', vae)).__name__}) "
        f"decodes {takes}: connect a latent that was made for it."
    )


def _rough_seconds(vae, job, hooks):
    """About how long the CPU side takes, before anything large has run: from the arithmetic of a small piece of the
    input, run on the device. None when that piece can't be run (the whole then says why, or runs)."""
    height, width = job.pieces[0].shape[1:3] if job.kind == "IMAGE" else job.pieces[0].shape[-2:]
    cell = estimate.spatial_ratio(vae, ENCODE) if job.kind == "IMAGE" else 1
    cancelled = []

    def tick(_):
        try:
            hooks.tick()
        except BaseException as cancel:
            cancelled.append(cancel)
            raise

    try:
        longest = max(max(window.height, window.width) for window in job.places)
        places = plan.windows(height, width, plan.CROP, max(PIECE * cell, longest // PIECE), cell)
        small = Job(job.steps, job.kind, places, job.pieces[:1])
        work = _run(vae, small, tick, lambda _: None).work
    except Exception:
        if cancelled:
            raise
        return None
    times = len(job.pieces)
    area = sum(window.height * window.width for window in job.places) / (places[0].height * places[0].width)
    return estimate.seconds(work.scaled(times * area, times * len(job.places)))


def _run_on_cpu(vae, job, work, hooks):
    """The CPU side on a copy that lives only here."""

    def tick(now):
        hooks.tick()
        hooks.progress(DEVICE_SHARE + (1 - DEVICE_SHARE) * min(1.0, now / max(1, work.flops)))

    copied = cpu_copy.CpuCopy(vae)
    with copied as twin:
        try:
            return _run(twin, job, tick, lambda _: hooks.tick(), copied.weights)
        except ParityError:
            raise
        except (RuntimeError, TypeError, ValueError, AttributeError) as problem:
            raise ParityError(
                f"The CPU float32 copy of this VAE does not run ({type(problem).__name__}: {problem}): {_INSTEAD}"
            ) from problem


def _part(item, kind, window):
    """The window's part of an item."""
    rows, columns = slice(window.top, window.bottom), slice(window.left, window.right)
    return item[:, rows, columns] if kind == "IMAGE" else item[..., rows, columns]


def _step(vae, step, tensor):
    try:
        result = getattr(vae, step)(tensor)
    except NotImplementedError as problem:
        raise _cannot(vae, step) from problem
    except AttributeError as problem:
        if _lacks_part(vae, step, problem):
            raise _cannot(vae, step) from problem
        raise
    if isinstance(result, dict):
        result = result.get("samples")
    if not isinstance(result, torch.Tensor) or result.ndim not in (4, 5) or result.numel() == 0:
        what = f"shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise ParityError(f"The VAE's {step} gave {what}, which is no picture, video or latent of one.")
    if step == DECODE and result.ndim == 5:
        result = result.reshape(-1, *result.shape[-3:])  # a video's frames, as ComfyUI's VAE Decode does
    return result


def _lacks_part(vae, step, problem):
    """Whether the model asked itself for an encoder or decoder that it doesn't have: some are made without."""
    part, model = PARTS[step], getattr(vae, "first_stage_model", vae)
    return not hasattr(model, part) and f"'{part}'" in str(problem)


def _axes(step, tensor):
    """Height and width of a step's result."""
    return (1, 2) if step == DECODE else (tensor.ndim - 2, tensor.ndim - 1)


def _refuse_nan(result, reference, step, where):
    if result.isnan().all() and reference.isnan().all():
        raise ParityError(
            f"Both sides, the CPU in float32 too, gave nothing but NaN for '{step}': that is this VAE's weights or its "
            "input, not the device."
        )
    if result.isnan().all() and not reference.isnan().any():
        raise ParityError(
            f"{where} gave nothing but NaN for '{step}' and the CPU in float32 did not: the dtype overflows or a "
            "kernel is wrong there (try --fp32-vae, and a Metal Kernels Switch to see if this pack's kernels matter)."
        )


def _where(vae):
    """`mps bfloat16`: where the device side ran."""
    weight = next((w for module in cpu_copy.modules_of(vae) for w in module.parameters()), None)
    device = getattr(vae, "device", None) or (weight.device if weight is not None else "cpu")
    dtype = getattr(vae, "vae_dtype", None) or (weight.dtype if weight is not None else torch.float32)
    return f"{torch.device(device).type} {short(dtype)}"


def _a(kind):
    return f"an {kind}" if kind == "IMAGE" else f"a {kind}"
