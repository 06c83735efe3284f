"""The kernel `fp8` in comfy-kitchen, which holds ComfyUI's quantised weights: put in at load, taken out again.

`install` changes nothing where comfy-kitchen is missing, has changed, or has a Metal backend of its own; `report` says
so. The two seams are independent: one that is missing leaves the other.
"""
import importlib
import logging
import threading

from ... import library
from ..others import pack_of
from . import backend, layouts, private

log = logging.getLogger("metal_kernels")

_lock = threading.RLock()
_undo = []
_state = {"problems": [], "backend": None}


def install():
    """Put the backend and the handlers in, once. Never raises."""
    with _lock:
        if _undo:
            return
        _state["problems"] = []
        for put in (_put_backend, _put_layouts):
            try:
                if library.metal_kernels is None or library.metal_kernels.obstacle() is not None:
                    return  # the status says why nothing at all is patched
                put()
            except Exception as error:
                known = isinstance(error, private.Changed | Taken)
                _state["problems"].append(str(error) if known else f"{type(error).__name__}: {error}")
        for problem in dict.fromkeys(_state["problems"]):
            log.warning("Metal Kernels: comfy-kitchen is left as it is, or a part of it: %s", problem)


def uninstall():
    """Leave comfy-kitchen as it was found."""
    with _lock:
        while _undo:
            _undo.pop()()
        _state.update(problems=[], backend=None)


def report():
    """JSON-serialisable: `installed`; `functions` of the backend; `held`: function -> the pack that holds it instead of
    us; `problems`: sentences."""
    found = _state["backend"]
    return {
        "installed": bool(_undo),
        "functions": list(found.functions) if found else [],
        "held": found.held() if found else {},
        "problems": list(_state["problems"]),
    }


def notes(found):
    """What people are told of a `report()`: lines, of which there are none when all is as it should be."""
    if not found:
        return []
    lines = [f"comfy-kitchen is left as it is, or a part of it: {problem}" for problem in found["problems"]]
    packs = {}
    for function, module in found["held"].items():
        packs.setdefault(pack_of(module), []).append(function)
    return lines + [f"{pack} holds comfy-kitchen's {', '.join(functions)}, which stay with it"
                    for pack, functions in packs.items()]


class Taken(RuntimeError):
    """There is something else in our place."""


def _put_backend():
    registry = importlib.import_module("comfy_kitchen.registry").registry
    private.check(registry)
    if backend.NAME in registry.list_backends():
        raise Taken("comfy-kitchen has a backend named metal already, which stays in charge")
    constraints = importlib.import_module("comfy_kitchen.constraints")
    _state["backend"], undo = backend.register(library.metal_kernels, registry, constraints)
    _undo.append(undo)


def _put_layouts():
    _undo.append(layouts.register(library.metal_kernels, importlib.import_module("comfy_kitchen.tensor")))
