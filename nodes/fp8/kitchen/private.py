"""Everything of comfy-kitchen that has no public name and that we read or write. It stands nowhere else.

`tests/nodes/fp8/test_kitchen_contract.py` holds the real package to it. Public, and not here: `registry.register`,
`set_priority`, `disable`, `enable`, `get_constraints`, `list_backends`; `tensor.register_layout_op`, `QuantizedTensor`
and its `params`. What is missing here: no getter of the priority, no way to take a backend or a handler out again, no
public name for a quantised tensor's data.
"""
import importlib


class Changed(RuntimeError):
    """This comfy-kitchen has not the private name that we need; the text names it."""


def backend(registry, name):
    """The module of a registered backend, or None."""
    return _read(registry, "_backends").get(name)


def priority(registry):
    """The names of the backends in the order in which they are asked: a copy."""
    return list(_read(registry, "_priority"))


def forget_backend(registry, name):
    """Take a backend out as if it had never been registered."""
    with _read(registry, "_lock"):
        _read(registry, "_backends").pop(name, None)
        for function in _read(registry, "_capabilities").pop(name, ()):
            _read(registry, "_constraints").pop((name, function), None)
        _read(registry, "_disabled").discard(name)
        _read(registry, "_unavailable").pop(name, None)


def handlers(op):
    """layout class -> handler of `op`: the table itself that register_layout_op writes to. {} for an unknown op."""
    base = importlib.import_module("comfy_kitchen.tensor.base")
    return _read(base, "_LAYOUT_DISPATCH_TABLE").get(op, {})


def data(tensor):
    """A QuantizedTensor's values as stored: FP8 [N, K] for the FP8 layouts."""
    return tensor._qdata


def check(registry):
    """Raises Changed when any of the above is not there."""
    for name in ("_backends", "_priority", "_lock", "_capabilities", "_constraints", "_disabled", "_unavailable"):
        _read(registry, name)
    handlers_module = importlib.import_module("comfy_kitchen.tensor.base")
    _read(handlers_module, "_LAYOUT_DISPATCH_TABLE")


def _read(owner, name):
    try:
        return getattr(owner, name)
    except AttributeError:
        what = getattr(owner, "__name__", type(owner).__name__)
        raise Changed(f"this comfy-kitchen's {what} has no {name}") from None
