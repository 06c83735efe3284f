"""What the device counted: calls of stock kernels, copies to the host, waits, and the four memory numbers."""
from .build import load


def calls(op: str) -> int:
    """How often stock's kernel of `op` ("aten::constant_pad_nd", overloads together) ran since the last reset."""
    return load().calls(op)


def all_calls() -> dict[str, int]:
    """Calls by op, of the ops that ran since the last reset."""
    return load().call_counts()


def host_copies() -> int:
    """Copies from the device to the host since the last reset, `.item()` included."""
    return load().host_copies()


def synchronizations() -> int:
    """Waits of the host for the device since the last reset: `torch.mps.synchronize()`, events, copies to the host."""
    return load().synchronizations()


def keep_busy(seconds: float) -> None:
    """From now on the device has work for so long: whoever waits for it meanwhile waits, in C++, until that is done."""
    load().keep_busy(seconds)


def memory() -> dict[str, int]:
    """Bytes now: `current` (live tensors), `reserved` (the pool), `driver` (all), `outside` (driver - reserved)."""
    return load().memory_numbers()


def memory_peaks() -> dict[str, int]:
    """The highest value of each of `memory()`'s numbers since the last `reset_memory_peaks()`, exact, not sampled."""
    return load().memory_peaks()


def reset() -> None:
    """Sets calls, copies and waits to zero, and the peaks to the present."""
    load().reset_counters()
    reset_memory_peaks()


def reset_memory_peaks() -> None:
    """Sets the peaks to the present numbers."""
    load().reset_memory_peaks()
