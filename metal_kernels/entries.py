"""Ways into a kernel other than torch's dispatcher, under the same switch, self-check, failure latch and counters.

A program that offers a seam of its own for an operation (a registry of backends, a table of handlers) reaches a
kernel through an `Entry`. What is registered with such a program, and how, is the caller's to know.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import selfcheck
from .switches import QUIET, Counters, Switch, here


class Entry:
    """One operation of another program, run by the kernel of `switch`.

    name     what it is called in counters and reports: "comfy_kitchen::dequantize_per_tensor_fp8".
    """

    def __init__(self, switch: Switch, name: str):
        self.switch, self.name = switch, name
        self.counters = Counters()

    def ready(self, dtype: torch.dtype) -> bool:
        """Whether the kernel takes a call of `dtype` here and now; the first time asks its self-check, which may raise
        that memory ran out."""
        modes, switch = here.get(), self.switch
        if modes is QUIET or not (switch.active if modes is None else switch.runs_in(switch.mode_under(modes))):
            return False
        if torch.compiler.is_compiling():
            return False
        return dtype in switch.checked or selfcheck.first_use(switch, dtype)

    def call(
        self, dtype: torch.dtype, shape: tuple[int, ...], run: Callable[[], object], stock: Callable[[], object]
    ) -> object:
        """What `run()` returns if the kernel is ready for `dtype`; else, or when it raises, what `stock()` returns.

        A kernel that raises where stock does not is latched as failed; running out of memory is no failure, and is what
        is raised where stock raises as well.
        """
        problem = raised = None
        try:
            if self.ready(dtype):
                result = run()
                self.counters.note(self.switch.kernel.name, dtype, shape)
                return result
        except Exception as error:
            problem, raised = selfcheck.diagnose("It", error), selfcheck.without_frames(error)
        self.passed(dtype, shape)
        try:
            result = stock()
        except Exception as error:
            if raised is not None and (both := selfcheck.of_both(raised, error)) is not error:
                raise both from None
            raise
        if problem is not None:
            self.switch.fail(problem)
        return result

    def passed(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Count a call that somebody else runs."""
        if here.get() is not QUIET:
            self.counters.note(None, dtype, shape)
