"""Hand-written Metal kernels for PyTorch's MPS backend, installed into torch's dispatcher or used as plain functions.

    import metal_kernels
    metal_kernels.install()
    with metal_kernels.using(pad="off"):
        ...
    print(metal_kernels.status()["text"])

Knows torch, not ComfyUI. Importing it changes nothing and compiles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from . import fp8, grouped_mm, linear, pad, softmax
from .entries import Entry
from .extensions import Extension
from .installation import Installation
from .kernel import Kernel
from .selfcheck import says_out_of_memory
from .switches import watch

KERNELS: list[Kernel] = [pad.KERNEL, softmax.KERNEL, linear.KERNEL, fp8.KERNEL, grouped_mm.KERNEL]

_installation = Installation(KERNELS)


def install() -> None:
    """Patch what this torch needs, reading METAL_KERNELS first, then install the extensions. Idempotent. Without MPS
    nothing is patched.

    `status()` says what is patched and why. Call it at load or between graphs, never while one runs.
    """
    _installation.install()


def uninstall() -> None:
    """Leave torch, and what the extensions changed, exactly as before `install()`, which brings all of it back.

    What others have put over ours since stays; ours then only passes calls on to what was there before. Modes and
    counters are kept. Call it between graphs, never while one runs.
    """
    _installation.uninstall()


def add_extension(extension: Extension) -> None:
    """Have `extension.install()` called after the kernels are installed, now if they are, and `extension.uninstall()`
    before they are taken out: for what stands on them in a program that this library does not know.

    extension  a module or an object with these two functions, either of which may be called when there is nothing for
               it to do. The last one added is the first one out. What it raises is logged and stops nothing.
    """
    _installation.add_extension(extension)


def remove_extension(extension: Extension) -> None:
    """Take an extension out, if the kernels are installed, and forget it. Nothing happens for one that is unknown."""
    _installation.remove_extension(extension)


def using(**modes: str) -> AbstractContextManager[None]:
    """Context manager: kernels' modes in this thread and context only, e.g. `using(pad="off")`. Nests.

    Modes are "auto", "on" and "off". Raises ValueError for an unknown kernel or mode, RuntimeError for "on" of a kernel
    that is not registered.
    """
    return _installation.switches.using(modes)


def set_mode(everything: str | None = None, /, **modes: str) -> None:
    """Set process-wide modes: `set_mode("off")` for all, `set_mode(pad="on")` for some. Not while a graph runs.

    Raises ValueError for an unknown kernel or mode.
    """
    _installation.set_mode(everything, **modes)


def set_workflow(modes: Mapping[str, str] | None = None) -> None:
    """Set the workflow layer: process-wide, between `using()` and `set_mode()`; None clears it.

    A kernel whose ops are not registered stays off: hold it with `registered()` first. Raises ValueError for an unknown
    kernel or mode.
    """
    _installation.set_workflow(modes)


def registered(*names: str) -> AbstractContextManager[None]:
    """Context manager: keep these kernels' ops registered meanwhile, so that the layers can switch them on."""
    return _installation.registered(*names)


def modes() -> dict[str, str]:
    """The process-wide mode of each kernel, by name."""
    return {switch.kernel.name: switch.mode for switch in _installation.switches}


def needed() -> tuple[str, ...]:
    """The kernels that this torch needs, which `auto` patches, whatever their modes are now."""
    return tuple(switch.kernel.name for switch in _installation.switches if switch.need.patch)


def registered_now() -> tuple[str, ...]:
    """The kernels whose ops are registered with torch at this moment."""
    return tuple(switch.kernel.name for switch in _installation.switches if switch.registered)


def taken() -> dict[str, int]:
    """How many calls each kernel has run since the counters were reset, by name. Cheap: asked round every node."""
    return _installation.taken()


def passed() -> dict[str, int]:
    """How many calls of each kernel's ops went to stock since the counters were reset, by name; 0 for ops that nobody
    has registered."""
    return _installation.passed()


def entry(kernel: str, name: str) -> Entry:
    """Another program's way into a kernel, under the kernel's switch and counted as `name`; see `entries.py`.

    Raises ValueError for an unknown kernel.
    """
    return _installation.entry(kernel, name)


def obstacle() -> str | None:
    """Why nothing can be patched on this machine, in one sentence; None where kernels can run. Cheap once installed."""
    return _installation.environment.obstacle


def status() -> dict[str, object]:
    """A JSON-serialisable report: environment, kernels (state, reason, mode, counters), notes.

    `text` is the same for people. States: stock, patched, off, failed, unavailable; each with its reason.
    """
    from .report import status as report

    return report(_installation)


def reset_counters() -> None:
    """Set all counters to zero."""
    _installation.reset_counters()


__all__ = [
    "KERNELS",
    "add_extension",
    "entry",
    "install",
    "modes",
    "needed",
    "obstacle",
    "passed",
    "registered",
    "registered_now",
    "remove_extension",
    "reset_counters",
    "says_out_of_memory",
    "set_mode",
    "set_workflow",
    "status",
    "taken",
    "uninstall",
    "using",
    "watch",
]
