"""A software Metal device: `torch.device("mps")`, Metal shaders and Apple's faults, on a machine without a Mac.

    import softmetal
    softmetal.activate(faults="2.13")     # stock PyTorch 2.13 on an M2 Max, with what it does wrong
    x = torch.randn(4, device="mps")
    softmetal.deactivate()

Importing this package changes nothing; `activate` does, and `deactivate` restores what torch shows of itself. Results
on this device come from "software Metal": they say nothing about the speed of an Apple GPU.
"""
from .device import counters
from .device.activation import activate, active_profile, deactivate, profile
from .runtime import KernelFault

__all__ = ["KernelFault", "activate", "active_profile", "counters", "deactivate", "profile"]
