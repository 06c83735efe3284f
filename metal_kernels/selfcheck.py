"""The first use of a (kernel, dtype): a small result against the CPU's, before a user's tensors are trusted to it.

A self-check must not change a user's picture. It runs with every dispatch and function mode, autocast, gradient
recording and default device out of the way, takes random numbers only from a generator of its own, and nothing of it
is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .kernel import SelfCheckFailure
from .shader import ShaderError
from .switches import AUTO, QUIET, Switch, here, unmetered


def running() -> bool:
    """Whether this thread is inside a self-check: meters leave out what it allocates."""
    return here.get() is QUIET


def generator(seed: int = 0) -> torch.Generator:
    """A CPU generator for a self-check's data. Never the global one: ComfyUI draws a picture's noise from that."""
    return torch.Generator(device="cpu").manual_seed(seed)


@contextmanager
def quiet() -> Iterator[None]:
    """Plain eager torch: no modes, no autocast, no gradients, no inference mode; overrides pass to stock; no meters."""
    token = here.set(QUIET)
    try:
        with ExitStack() as stack:
            stack.enter_context(unmetered())
            stack.enter_context(torch._C.DisableTorchFunction())  # function modes, and with them set_default_device
            stack.enter_context(_disable_current_modes())
            stack.enter_context(torch._C._DisableAutocast())
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            yield
    finally:
        here.reset(token)


def run(switch: Switch, dtype: torch.dtype) -> None:
    """Check now. Raises SelfCheckFailure or whatever the kernel raised (ShaderError when it does not compile)."""
    with quiet():
        switch.kernel.selfcheck(dtype)


def first_use(switch: Switch, dtype: torch.dtype) -> bool:
    """Whether the kernel may run for this dtype; the first time it asks the self-check, and latches a failure.

    Threads that arrive meanwhile wait for the one answer. Raises when memory runs out: the next call asks again.
    """
    with switch.lock:
        if switch.need.probe is not None and switch.effective == AUTO:
            with quiet():
                switch.need = switch.need.probe()
            switch.refresh()
            if not switch.need.patch:
                return False
        if switch.failure is not None:
            return False
        if dtype in switch.checked:
            return True
        try:
            run(switch, dtype)
        except SelfCheckFailure as failure:
            switch.fail(f"Its result for {name_of(dtype)} differs from the CPU's: {failure}")
            return False
        except Exception as error:
            why = diagnose(f"Its self-check for {name_of(dtype)}", error)
            if why is None:
                raise
            switch.fail(why)
            return False
        switch.checked.add(dtype)
        return True


def diagnose(subject: str, error: Exception) -> str | None:
    """Why a kernel is to be latched as failed after `subject` raised `error`; None when it only had no memory."""
    try:
        text = str(error)
    except Exception:  # an exception class can be as faulty as a kernel
        text = "(its text cannot be had)"
    if is_out_of_memory(error, text):
        return None
    return text if isinstance(error, ShaderError) else f"{subject} raised {type(error).__name__}: {text}"


def is_out_of_memory(error: Exception, text: str) -> bool:
    """Whether `error`, whose text is `text`, says that memory ran out: as torch does, on MPS by its text alone."""
    by_type = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return by_type or "out of memory" in text or says_out_of_memory(text)


# torch's for no memory left; torch's for a buffer larger than Metal has any, whose size it writes as "9.75 GiB", and
# older releases as "9.75 GB"; and Metal's own for a command buffer that did not fit into memory.
_OUT_OF_MEMORY = re.compile(
    r"\bMPS backend out of memory\b"
    r"|\bInvalid buffer size: \d+\.\d\d Gi?B(?![\w.])"
    r"|\bkIOGPUCommandBufferCallbackErrorOutOfMemory\b"
)


def says_out_of_memory(text: str) -> bool:
    """Whether an error's text has torch's or Metal's words for no memory on MPS, wherever they stand in it: programs
    put words of their own before. The error is a plain RuntimeError there."""
    return _OUT_OF_MEMORY.search(text) is not None


def without_frames(error: Exception) -> Exception:
    """`error` to be kept: its traceback would keep the tensors of every frame alive."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def of_both(kernel: Exception, stock: Exception) -> Exception:
    """What to raise where a kernel raised and then stock did too.

    That memory ran out, if it did: a stock that lacks the op, or its dtype, would say that alone, and nobody would make
    room. Else stock's error, for its user knows its words, with the kernel's as a note.
    """
    try:
        text = str(kernel)
    except Exception:  # see diagnose
        return stock
    if is_out_of_memory(kernel, text):
        return kernel
    stock.add_note(f"Metal Kernels was asked first, and raised {type(kernel).__name__}: {text}")
    return stock


def name_of(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def expect_identical(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Bit for bit, NaN included, with the same shape, dtype and strides. Raises SelfCheckFailure naming `what`."""
    _expect_same_form(actual, expected, what)
    if actual.stride() != expected.stride():
        raise SelfCheckFailure(f"{what}: strides are {actual.stride()}, the CPU's are {expected.stride()}")
    actual = actual.detach().to("cpu")
    wrong = actual.contiguous().flatten().view(torch.uint8) != expected.contiguous().flatten().view(torch.uint8)
    if wrong.any():
        raise SelfCheckFailure(f"{what}: {int(wrong.sum())} of {wrong.numel()} bytes differ")


def expect_close(actual: torch.Tensor, expected: torch.Tensor, what: str, *, rtol: float, atol: float) -> None:
    """|actual - expected| <= atol + rtol * |expected|, NaN equal to NaN. Raises SelfCheckFailure naming `what`."""
    actual = actual.detach().to("cpu")
    _expect_same_form(actual, expected.to(actual.dtype), what)
    actual, expected = actual.double(), expected.double()
    if not torch.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True):
        raise SelfCheckFailure(f"{what}: largest difference {(actual - expected).abs().max().item():.3g}")


def _expect_same_form(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    for aspect in ("shape", "dtype"):
        got, want = getattr(actual, aspect), getattr(expected, aspect)
        if got != want:
            raise SelfCheckFailure(f"{what}: {aspect} is {got}, the CPU's is {want}")
