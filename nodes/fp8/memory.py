"""What a model takes, and whether that is more than the device should hold."""
import torch

from ..memory.units import size
from .kitchen import private


def resident(modules):
    """Bytes of torch modules' parameters and buffers, quantised ones as they are stored; shared ones count once."""
    seen = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            for part in parts(tensor):
                seen[part.data_ptr() or id(part)] = part.nbytes
    return sum(seen.values())


def parts(tensor):
    """The plain tensors that a tensor consists of: itself, or a quantised tensor's values and scales."""
    if not hasattr(tensor, "storage_dtype"):
        return [tensor]
    values = private.data(tensor)
    scales = (value for value in vars(tensor.params).values() if isinstance(value, torch.Tensor))
    return [values, *scales]


def limit():
    """torch.mps.recommended_max_memory() in bytes; None without MPS."""
    try:
        return torch.mps.recommended_max_memory() if torch.backends.mps.is_available() else None
    except (AttributeError, RuntimeError):
        return None


def taken():
    """Bytes of Metal memory that this process has now; 0 without MPS."""
    try:
        return torch.mps.driver_allocated_memory() if torch.backends.mps.is_available() else 0
    except (AttributeError, RuntimeError):
        return 0


def warning(name, needed, most, held):
    """The sentence for a model that won't fit, or None.

    needed  bytes that the model takes.
    most    the device's recommended maximum; None if there is none.
    held    bytes of Metal memory in use already, some of which ComfyUI may free.
    """
    if most is None or needed <= most:
        return None
    also = f" Another {size(held)} are in use." if held else ""
    return (
        f"{name} takes {size(needed)}, and Metal recommends at most {size(most)} on this Mac: macOS will swap, or the "
        f"run end out of memory.{also} Use a smaller file, or quantise on load."
    )
