"""What comes over a wire, as tensors of a known kind; and the sentences for what can't be compared.

Kinds: IMAGE (also the frames of a VIDEO), MASK, LATENT, AUDIO, CONDITIONING, TENSOR (anything else).
"""
import functools
from dataclasses import dataclass, replace

import torch

from ..given import Unfit, described

IMAGE_CHANNELS = (1, 3, 4)


class ParityError(Unfit):
    """Something that can't be compared. The text is for the person at the graph: what was wrong, what to do."""


@dataclass(frozen=True)
class Value:
    """One side of a comparison.

    name     the input it came in by, for messages.
    kind     "IMAGE", "MASK", "LATENT", "AUDIO", "CONDITIONING" or "TENSOR".
    tensors  most values hold one; nested latents and conditionings hold several.
    origin   where it was computed, if that is not where its tensors are.
    rate     an AUDIO's samples a second, where it says so.
    """

    name: str
    kind: str
    tensors: tuple
    origin: str = ""
    rate: float | None = None

    @property
    def numel(self):
        """Numbers: a complex one is two."""
        return sum(tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in self.tensors)

    def describe(self):
        """`LATENT (1, 16, 8, 8) float32 on cpu`"""
        place = f"from {self.origin}" if self.origin else f"on {self.tensors[0].device.type}"
        parts = [f"{tuple(t.shape)} {short(t.dtype)}" for t in self.tensors]
        more = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
        return f"{self.kind} {', '.join(parts[:4])}{more} {place}"


def plain(tensor):
    """Detached, and dequantised if it is comfy_kitchen's QuantizedTensor or one of torch's own."""
    tensor = tensor.detach()
    return tensor.dequantize() if _is_quantised(tensor) else tensor


def _is_quantised(tensor):
    special = type(tensor) not in (torch.Tensor, torch.nn.Parameter)
    return tensor.is_quantized or special and hasattr(tensor, "dequantize")


def on_cpu(tensor):
    """`plain` on the CPU, in its own dtype. Cast it there: MPS has no float64, and stock MPS no FP8 casts or copies."""
    tensor = plain(tensor)
    if tensor.device.type != "cpu" and _is_fp8(tensor):
        return tensor.view(torch.uint8).to("cpu").view(tensor.dtype)
    return tensor.to("cpu")


def short(dtype):
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def read(name, thing):
    """The `Value` in what a wire carries: an IMAGE, MASK or other tensor, a LATENT or AUDIO dict, a VIDEO, a
    CONDITIONING or a list of tensors.

    Raises ParityError when there is no tensor in it, or none that can be compared: an empty tensor, an integer image.
    """
    kind, tensors = _unpack(name, thing)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ParityError(f"{name} holds {described(tensor)} where a tensor is expected: {_CONNECT}")
        if tensor.layout != torch.strided:
            raise ParityError(f"{name} is a sparse tensor ({tensor.layout}): make it dense before comparing it.")
        if tensor.device.type == "meta":
            raise ParityError(
                f"{name} is a meta tensor of shape {tuple(tensor.shape)}, which has a shape and no numbers: there is "
                "nothing to compare."
            )
        if not (_is_quantised(tensor) or _is_readable(tensor.dtype)):
            raise ParityError(
                f"{name} is a tensor of {short(tensor.dtype)}, whose numbers torch can't read: dequantise it before "
                "comparing it."
            )
        if tensor.numel() == 0:
            raise ParityError(f"{name} is an empty {kind} of shape {tuple(tensor.shape)}: there is nothing to compare.")
        if _is_integer_image(kind, tensor):
            raise ParityError(
                f"{name} is an IMAGE of {short(tensor.dtype)}: ComfyUI's images are floats from 0 to 1, so convert it "
                "first (image.float() / 255)."
            )
    return Value(name, kind, tuple(tensors), rate=thing.get("sample_rate") if kind == "AUDIO" else None)


def settle(value, reference):
    """A bare tensor's kind is a guess by its shape and dtype. Both come back as TENSOR where the guess was wrong: a
    [B, H, W] whose reference's numbers are not 0 to 1 is no MASK (but an embedding, say), nor is a weight beside its
    FP8 or integer values."""
    guessed = {value.kind, reference.kind}
    shapes = [[tensor.shape for tensor in one.tensors] for one in (value, reference)]
    if len(guessed) == 2 and "TENSOR" in guessed and guessed & {"IMAGE", "MASK"} and shapes[0] == shapes[1]:
        return replace(value, kind="TENSOR"), replace(reference, kind="TENSOR")
    if value.kind == reference.kind == "MASK" and not all(_within_unit(tensor) for tensor in reference.tensors):
        return replace(value, kind="TENSOR"), replace(reference, kind="TENSOR")
    return value, reference


def check_alike(value, reference):
    """Raise ParityError when the two can't be compared element by element."""
    if {value.kind, reference.kind} == {"IMAGE", "LATENT"}:
        raise ParityError(
            f"{value.name} is {_article(value.kind)} {value.kind} and {reference.name} is {_article(reference.kind)} "
            f"{reference.kind}: compare two values of the same kind (encode or decode one of them first)."
        )
    if value.kind != reference.kind:
        raise ParityError(
            f"{value.name} is {value.describe()} and {reference.name} is {reference.describe()}: compare two values of "
            "the same kind and shape."
        )
    if None not in (value.rate, reference.rate) and value.rate != reference.rate:
        raise ParityError(
            f"{value.name} has a sample_rate of {value.rate} and {reference.name} of {reference.rate}: their "
            "samples are not of the same moments, so resample one of them first."
        )
    if len(value.tensors) != len(reference.tensors):
        raise ParityError(
            f"{value.name} and {reference.name} hold {len(value.tensors)} and {len(reference.tensors)} tensors: they "
            "must hold the same number."
        )
    for index, (one, other) in enumerate(zip(value.tensors, reference.tensors, strict=True)):
        where = f" (tensor {index})" if len(value.tensors) > 1 else ""
        if one.shape != other.shape:
            raise ParityError(
                f"{value.name} has shape {tuple(one.shape)} and {reference.name} {tuple(other.shape)}{where}: the two "
                "must have the same shape, so resize or crop one of them first."
            )
        if one.is_complex() != other.is_complex():
            raise ParityError(
                f"{value.name} is {short(one.dtype)} and {reference.name} {short(other.dtype)}{where}: a complex "
                "value can only be compared with a complex one."
            )


_CONNECT = "connect an IMAGE, LATENT, MASK, VIDEO or another output that holds tensors."


def _unpack(name, thing):
    """kind, list of what should be tensors."""
    if isinstance(thing, torch.Tensor) and not thing.is_nested:
        return _kind(thing), [thing]
    if getattr(thing, "is_nested", False):  # torch's, or ComfyUI's comfy.nested_tensor.NestedTensor
        return "TENSOR", list(thing.unbind())
    if isinstance(thing, dict):
        for key, kind in (("samples", "LATENT"), ("waveform", "AUDIO")):
            if key in thing:
                tensor = thing[key]
                return kind, list(tensor.unbind()) if getattr(tensor, "is_nested", False) else [tensor]
    if hasattr(thing, "get_components"):  # a VIDEO
        return "IMAGE", [thing.get_components().images]
    if isinstance(thing, (list, tuple)) and thing:
        if all(isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[1], dict) for entry in thing):
            return "CONDITIONING", [part for entry in thing for part in _conditioning(*entry)]
        if all(isinstance(entry, torch.Tensor) for entry in thing):
            return "TENSOR", list(thing)
    raise ParityError(f"{name} is {described(thing)}, which holds no tensor to compare: {_CONNECT}")


def _conditioning(tokens, more):
    pooled = more.get("pooled_output")
    return [tokens] if pooled is None else [tokens, pooled]


def _kind(tensor):
    """IMAGE is [B, H, W, C], MASK a float [H, W] or [B, H, W]: a tensor doesn't say what it is, so shape decides. FP8
    holds weights, whatever their shape."""
    if _is_fp8(tensor) or tensor.is_complex():
        return "TENSOR"
    if tensor.ndim == 4 and tensor.shape[-1] in IMAGE_CHANNELS:
        return "IMAGE"
    if tensor.ndim in (2, 3) and (tensor.is_floating_point() or tensor.dtype == torch.bool):
        return "MASK"
    return "TENSOR"


@functools.cache
def _is_readable(dtype):
    """Whether torch converts its numbers on the CPU: it does not for those packed several to a byte."""
    try:
        torch.empty(1, dtype=dtype).to(torch.complex128 if dtype.is_complex else torch.float64)
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
    return True


def _is_fp8(tensor):
    return tensor.is_floating_point() and tensor.dtype.itemsize == 1


def _within_unit(tensor):
    if tensor.dtype == torch.bool:
        return True
    # Row by row: a mask of many frames is not copied as a whole. NaN is no evidence against a mask.
    return not any(bool(((row < 0) | (row > 1)).any()) for row in tensor)


def _is_integer_image(kind, tensor):
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    bytes_of_a_picture = tensor.dtype == torch.uint8 and tensor.ndim == 3 and tensor.shape[-1] in IMAGE_CHANNELS
    return kind == "IMAGE" or bytes_of_a_picture


def _article(kind):
    return "an" if kind[0] in "AI" else "a"
