"""ComfyUI's `is_oom` told what running out of memory looks like on MPS, so that it does there what it does elsewhere.

ComfyUI asks `comfy.model_management.is_oom` of every exception of a node: for one that says yes it unloads the models,
and a VAE decode or encode is tried again in tiles. On MPS running out of memory is a plain RuntimeError, of which
stock's `is_oom` says no.
"""
import importlib
import inspect
import logging

from .. import library

log = logging.getLogger("metal_kernels")

OTHERS = (NotImplementedError, RecursionError)  # RuntimeErrors of Python's, which are never about memory

_state = {"owner": None, "original": None, "ours": None, "problem": "not installed"}


def recognised(error):
    """Whether an exception is torch's for no memory on MPS, or one that was raised with its words. Never raises."""
    if not isinstance(error, RuntimeError) or isinstance(error, OTHERS):
        return False
    try:
        return library.metal_kernels.says_out_of_memory(str(error))
    except Exception:  # a __str__ of somebody's that fails
        return False


def problem():
    """None, or one sentence: why no memory is not recognised in this ComfyUI."""
    return _state["problem"]


def install():
    """Put ours before ComfyUI's `is_oom`, once. Never raises; `problem()` says why it is not there."""
    if _state["ours"] is not None:
        return
    try:
        if library.metal_kernels is None or library.metal_kernels.obstacle() is not None:
            _state["problem"] = None  # no MPS here: ComfyUI's own is all that is needed
            return
        owner = importlib.import_module("comfy.model_management")
        original = owner.is_oom
        inspect.signature(original).bind(RuntimeError())
    except ModuleNotFoundError as error:
        _state["problem"] = f"there is no ComfyUI here: {error}"
        return
    except Exception as error:
        _state["problem"] = f"comfy.model_management.is_oom is not as it was ({type(error).__name__}: {error})"
        log.warning("Metal Kernels: running out of memory on MPS can't be recognised: %s", _state["problem"])
        return

    def is_oom(error, *more, **named):
        awake = _state["ours"] is is_oom and not switched_off()
        return original(error, *more, **named) or (awake and recognised(error))

    owner.is_oom = is_oom
    _state.update(owner=owner, original=original, ours=is_oom, problem=None)


def uninstall():
    """Leave ComfyUI's function as it was found. Under another pack's wrapper ours stays, and only passes on."""
    owner, ours = _state["owner"], _state["ours"]
    if ours is not None and owner.is_oom is ours:
        owner.is_oom = _state["original"]
    _state.update(owner=None, original=None, ours=None, problem="not installed")


def switched_off():
    """METAL_KERNELS=off, or every kernel off: then ComfyUI is to be as without the pack."""
    return all(mode == "off" for mode in library.metal_kernels.modes().values())
