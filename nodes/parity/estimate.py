"""What the CPU side needs: memory before anything runs, time once a run on the device has shown how much arithmetic it
is: first of a small piece, then of all of it.

Both are estimates and are called so wherever they are shown.
"""
import time
from dataclasses import dataclass

import torch

from .cpu_copy import modules_of, weight_bytes
from .values import ParityError

MIB = 1 << 20
# ComfyUI's own figure for an SD VAE is 2178 elements a pixel, 17 for each of the 128 channels at full size.
LIVE_MAPS = 17
DEFAULT_CHANNELS = 128
LIVE_FRAMES = 8  # causal video VAEs run a few frames at a time
PER_CALL = 1e-4  # seconds of Python and dispatch for a torch call


@dataclass(frozen=True)
class Memory:
    """Bytes. `available` is None when it isn't known."""

    weights: int
    activations: int
    results: int
    available: int | None

    @property
    def total(self):
        return self.weights + self.activations + self.results

    def describe(self):
        """One sentence."""
        free = "unknown" if self.available is None else size(self.available)
        return (
            f"The CPU side needs about {size(self.total)} (estimate: weights {size(self.weights)}, activations "
            f"{size(self.activations)}, results {size(self.results)}); {free} available."
        )


def memory(vae, steps, shape, pixels, available):
    """`Memory` of one run.

    steps      the operations in order, "encode" and "decode".
    shape      shape of the largest single input, channels first: [B, C, H, W] or [B, C, T, H, W].
    pixels     pixels of all results together.
    available  bytes free now, or None.
    """
    activations = max(_activations(vae, step, shape if step == steps[0] else None, shape) for step in steps)
    return Memory(weight_bytes(vae), activations, 2 * pixels * 3 * 4, available)


def refuse_if_short(need):
    """Raise ParityError when `Memory` says that the CPU side won't fit."""
    if need.available is not None and need.total > need.available:
        raise ParityError(
            f"{need.describe()} That does not fit: choose region 'tiles' or 'centre crop' with a smaller size, fewer "
            "frames, or close other applications."
        )


def seconds(work):
    """About how long a run's `Work` takes on this CPU, from a convolution and an activation timed now."""
    flops, elements = _rates()
    return work.flops / flops + work.elements / elements + work.calls * PER_CALL


def available_memory():
    """Bytes of memory that can be had without swapping; None if that can't be asked."""
    try:
        import psutil

        return psutil.virtual_memory().available
    except Exception:
        return None


def size(count):
    """`310 MiB`, `2.4 GiB`"""
    return f"{count / MIB:.0f} MiB" if count < 1024 * MIB else f"{count / MIB / 1024:.1f} GiB"


def duration(time_s):
    """`0.4 s`, `12 s`, `3 min`"""
    if time_s < 10:
        return f"{time_s:.1f} s"
    return f"{time_s:.0f} s" if time_s < 120 else f"{time_s / 60:.0f} min"


def _activations(vae, step, shape, first_shape):
    """ComfyUI's own formula for this VAE in float32 if it has one; else from its channels and the picture's size."""
    if shape is None:
        shape = _other_side(vae, step, first_shape)
    formula = getattr(vae, f"memory_used_{step}", None)
    if callable(formula):
        try:
            return int(formula(shape, torch.float32))
        except Exception:  # a formula for other shapes than these, or for a VAE that ComfyUI never runs this way
            pass
    ratio = spatial_ratio(vae, step) if step == "decode" else 1
    frames = min(LIVE_FRAMES, shape[2]) if len(shape) == 5 else 1
    return LIVE_MAPS * _channels(vae) * 4 * shape[0] * frames * shape[-2] * ratio * shape[-1] * ratio


def _other_side(vae, step, shape):
    """Shape of a round trip's second input: the latent of a picture, the picture of a latent."""
    ratio = spatial_ratio(vae, "encode" if step == "decode" else "decode")
    height, width = shape[-2:]
    if step == "decode":
        return (shape[0], getattr(vae, "latent_channels", 4), *shape[2:-2], -(-height // ratio), -(-width // ratio))
    return (shape[0], 3, *shape[2:-2], height * ratio, width * ratio)


def spatial_ratio(vae, step):
    """Pixels along an edge of one latent cell; 8 if the VAE doesn't say."""
    method = getattr(vae, f"spacial_compression_{step}", None)  # ComfyUI's spelling
    attribute = {"encode": "downscale_ratio", "decode": "upscale_ratio"}[step]
    ratio = method() if callable(method) else getattr(vae, attribute, 8)
    if isinstance(ratio, (tuple, list)):
        ratio = ratio[-1]
    return int(ratio) if isinstance(ratio, (int, float)) and ratio >= 1 else 8


def _channels(vae):
    """Channels at full resolution: what goes into the convolution that makes the picture."""
    found = DEFAULT_CHANNELS
    for module in modules_of(vae):
        for part in module.modules():
            weight = getattr(part, "weight", None)
            if isinstance(weight, torch.Tensor) and weight.ndim in (4, 5) and weight.shape[0] in (3, 4):
                found = weight.shape[1]
    return found


def _rates():
    """Arithmetic a second of a float32 3 x 3 convolution of 64 channels, and elements a second of an activation."""
    image, weight = torch.ones(1, 64, 96, 96), torch.ones(64, 64, 3, 3)
    convolution = _time(lambda: torch.nn.functional.conv2d(image, weight, padding=1))
    activation = _time(lambda: torch.nn.functional.silu(image))
    return 2 * 64 * 64 * 9 * 96 * 96 / convolution, image.numel() / activation


def _time(run, times=3):
    run()  # the first call prepares
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times
