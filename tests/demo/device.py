"""Which device the demo runs on, and the words that every result is shown with."""
import sys
from dataclasses import asdict, dataclass

FAULTS = "2.13"


@dataclass(frozen=True)
class Device:
    """`kind` is "Apple GPU" or "software Metal"; a figure of one is never shown as a figure of the other.

    `checked`: the software device watches every access of a kernel; a GPU never does.
    """

    kind: str
    name: str
    stock: str
    torch: str
    checked: bool

    @property
    def is_software(self):
        return self.kind == "software Metal"

    def reset_counters(self):
        """Start counted calls and peaks anew, where there are any."""
        import torch

        if self.is_software:
            import softmetal

            softmetal.counters.reset()
        elif hasattr(torch.accelerator, "reset_peak_memory_stats"):
            torch.accelerator.reset_peak_memory_stats()

    def stock_calls(self, op, total, taken):
        """Calls of `op` that stock ran: counted inside the software device; on a GPU, those that were not ours."""
        if not self.is_software:
            return total - taken
        import softmetal

        return softmetal.counters.calls(op)

    def peaks(self, timeline):
        """(peaks, how): the four peaks since `reset_counters`, and for each whether it was "counted" or "sampled".

        Counted by the allocator where it counts, else the largest reading of the timeline. torch.mps counts no peak;
        torch.accelerator counts two of the four from torch 2.13 on.
        """
        import torch

        found, counted = timeline.peaks(), {}
        if self.is_software:
            import softmetal

            counted = softmetal.counters.memory_peaks()
        elif hasattr(torch.accelerator, "max_memory_reserved"):
            counted = {"current": torch.accelerator.max_memory_allocated(),
                       "reserved": torch.accelerator.max_memory_reserved()}
        return {**found, **counted}, {name: "counted" if name in counted else "sampled" for name in found}

    def as_dict(self):
        return asdict(self)

    def __str__(self):
        return f"{self.kind} ({self.name})"


def on_a_mac():
    """Whether this is a Mac; asked before anything makes another machine look like one."""
    return sys.platform == "darwin"


def compiling():
    """What `waiting` shows while `open_device` compiles the software device; None on a Mac, which compiles nothing."""
    if on_a_mac():
        return None
    from softmetal.device import build

    return lambda: (*build.progress(), "C++ files")


def open_device():
    """The GPU of a Mac, or the software Metal device with the faults of stock MPS in torch 2.13.

    Raises SystemExit with a sentence for a Mac whose torch has no MPS.
    """
    import torch

    if on_a_mac():
        if not torch.backends.mps.is_available():
            raise SystemExit("error: this Mac's torch has no MPS device; install torch 2.9 or newer for Apple silicon")
        import platform

        name = torch.backends.mps.get_name() if hasattr(torch.backends.mps, "get_name") else platform.processor()
        name = f"{name}, macOS {platform.mac_ver()[0]}"
        return Device("Apple GPU", name, "MPS of this torch", torch.__version__, checked=False)
    import softmetal

    softmetal.activate(faults=FAULTS)
    return Device(
        "software Metal",
        "Metal kernels compiled by clang and run on this computer's CPU",
        f"simulated, with the faults of MPS in torch {FAULTS}",
        torch.__version__,
        checked=softmetal.shader.settings.checked,
    )
