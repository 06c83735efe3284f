"""is_oom: MPS's words are recognised, all else is asked of ComfyUI, and it comes out again."""
import importlib
import sys
import types

import pytest
import torch
from pack import load

MPS = RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GiB, other allocations: 1.00 GiB, max allowed: 9.00 "
                   "GiB). Tried to allocate 2.00 GiB on private pool.")


@pytest.fixture
def comfy(monkeypatch):
    """A stand-in for comfy.model_management, and how often its own is_oom was asked."""
    module = types.ModuleType("comfy.model_management")
    module.asked = []

    def is_oom(e):
        module.asked.append(e)
        return isinstance(e, torch.OutOfMemoryError)

    module.is_oom = is_oom
    package = types.ModuleType("comfy")
    package.model_management = module
    monkeypatch.setitem(sys.modules, "comfy", package)
    monkeypatch.setitem(sys.modules, "comfy.model_management", module)
    return module


@pytest.fixture
def oom(mps):
    """The module under test, out of whatever it was in."""
    kernels = load().metal_kernels
    kernels.uninstall()
    kernels._installation._environment = None
    module = importlib.import_module(f"{load().__name__}.nodes.memory.out_of_memory")
    module.uninstall()
    yield module
    module.uninstall()


class Speechless(RuntimeError):
    def __str__(self):
        raise LookupError("no words")


BUFFER, METAL = "Invalid buffer size: ", "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
TRACE = "\nException raised from malloc at MPSAllocator.mm:1 (most recent call first):\nframe #0"
ERRORS = {
    "no memory": (MPS, True),
    "with torch's own trace": (RuntimeError(f"{MPS}{TRACE}"), True),
    "with a node's words": (RuntimeError(f"Error in layer 3: {MPS}"), True),
    "with a node's words, in lines": (RuntimeError(f"Error in layer 3:\n{MPS}\nTry less."), True),
    "no such buffer": (RuntimeError(f"{BUFFER}72.00 GiB"), True),
    "no such buffer, in an older torch": (RuntimeError(f"{BUFFER}9.75 GB"), True),
    "no such buffer, with torch's trace": (RuntimeError(f"{BUFFER}72.00 GiB{TRACE}"), True),
    "no such buffer, with a node's words": (RuntimeError(f"VAE decode: {BUFFER}19.38 GiB (try tiles)"), True),
    "Metal's": (RuntimeError(f"command buffer exited with error status: {METAL}"), True),
    "ComfyUI's own": (torch.OutOfMemoryError("x"), True),
    "another error": (RuntimeError("shapes cannot be multiplied"), False),
    "no RuntimeError": (ValueError(str(MPS)), False),
    "the host's": (MemoryError(), False),
    "no size": (RuntimeError(f"{BUFFER}expected 5 bytes, got 3"), False),
    "a node's own": (RuntimeError(f"{BUFFER}0 bytes are asked for"), False),
    "a number alone": (RuntimeError(f"{BUFFER}3"), False),
    "a size of no buffer": (RuntimeError("72.00 GiB"), False),
    "another unit": (RuntimeError(f"{BUFFER}72.00 GiBit"), False),
    "no message": (RuntimeError(), False),
    "another fault of Metal's": (RuntimeError("(0000000b:kIOGPUCommandBufferCallbackErrorPageFault)"), False),
    "not implemented": (NotImplementedError(str(MPS)), False),
    "recursion": (RecursionError(f"{BUFFER}1.00 GiB"), False),
    "one without words": (Speechless(), False),
}


@pytest.mark.parametrize("error, expected", ERRORS.values(), ids=ERRORS)
def test_what_it_says(oom, comfy, error, expected):
    before = bool(comfy.is_oom(error))
    oom.install()
    assert bool(comfy.is_oom(error)) is expected and oom.problem() is None
    assert comfy.asked == [error, error], "ComfyUI's own is asked first"
    oom.uninstall()
    assert bool(comfy.is_oom(error)) is before


def test_it_is_undone_exactly(oom, comfy):
    stock = comfy.is_oom
    oom.install()
    oom.install()
    assert comfy.is_oom is not stock
    oom.uninstall()
    assert comfy.is_oom is stock
    oom.uninstall()
    assert comfy.is_oom is stock


def test_another_packs_wrapper_stays(oom, comfy):
    oom.install()
    ours = comfy.is_oom
    comfy.is_oom = theirs = lambda error: ours(error)
    oom.uninstall()
    assert comfy.is_oom is theirs and not comfy.is_oom(MPS), "ours passes on"


def test_with_everything_off_it_is_stock(oom, comfy):
    kernels = load().metal_kernels
    oom.install()
    kernels.set_mode("off")
    try:
        assert not comfy.is_oom(MPS)
    finally:
        kernels.set_mode("auto")
    assert comfy.is_oom(MPS)


@pytest.mark.parametrize("change", [lambda comfy: delattr(comfy, "is_oom"),
                                    lambda comfy: setattr(comfy, "is_oom", lambda: False)], ids=["gone", "no argument"])
def test_a_comfyui_that_has_changed_is_left_alone(oom, comfy, change, caplog):
    change(comfy)
    before = dict(vars(comfy))
    oom.install()
    assert "is_oom is not as it was" in oom.problem() and "can't be recognised" in caplog.text
    assert vars(comfy) == before


def test_where_there_is_no_mps_nothing_is_hooked(oom, comfy, monkeypatch):
    monkeypatch.setattr(oom.library.metal_kernels, "obstacle", lambda: "This is Linux.")
    stock = comfy.is_oom
    oom.install()
    assert comfy.is_oom is stock and oom.problem() is None
