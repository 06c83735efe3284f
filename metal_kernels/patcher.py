"""One Python override for each patched aten op, put into torch's dispatcher and taken out again. A call: override.py.

The only file that speaks to `torch.library`. It knows no kernel family.

The stock kernel is taken with `torch.library.get_kernel` (in torch since 2.9) before registering. "There is none" is
a normal state (`_scaled_mm` on MPS): then the override raises what the unpatched dispatcher raises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch

from .kernel import Patch
from .override import Override, entry
from .switches import Counters, Switch
from .waits import without_lock


class AlreadyPatched(RuntimeError):
    """Another pack's Python kernel already stands on this op and key."""


class NoSuchOp(RuntimeError):
    """This torch does not have the op."""


class Patcher:
    """The overrides of one dispatch key. Not thread-safe: register and unregister between graphs, from one thread."""

    def __init__(self, dispatch_key: str = "MPS"):
        self.dispatch_key = dispatch_key
        self.overrides: dict[str, Override] = {}
        self.counters: dict[str, Counters] = {}
        # op -> its library, and the dispatcher's entry for ours. Without a reference to it a library leaves torch.
        self._registrations: dict[str, tuple[torch.library.Library, str]] = {}

    def register(self, op: str, candidates: Iterable[tuple[Patch, Switch]]) -> None:
        """Take over `op` ("constant_pad_nd", "add.Tensor"), or give a registered one new candidates, asked in order.

        Raises AlreadyPatched, or NoSuchOp; torch is then as it was before.
        """
        override = self.overrides.get(op)
        if override is not None:
            override.replace(tuple(candidates))
            return
        name = f"aten::{op}"
        overload = _overload(name)
        stock, keyset = _stock_kernel(name, self.dispatch_key)
        override = Override(
            overload,
            without_lock(op, stock),
            keyset,
            self.dispatch_key,
            self.counters.setdefault(op, Counters()),
        )
        library = torch.library.Library("aten", "IMPL", self.dispatch_key)
        # allow_override=False: torch's default up to 2.12. From 2.13 on we would silently patch over another pack.
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message=r"(?s).*Overriding a previously registered kernel", category=UserWarning
                )
                library.impl(op, entry(override), self.dispatch_key, allow_override=False)
        except RuntimeError as error:
            library._destroy()
            raise AlreadyPatched(f"another pack already patches {name} on {self.dispatch_key}") from error
        override.replace(tuple(candidates))
        self.overrides[op] = override
        self._registrations[op] = library, _table_entry(name, self.dispatch_key)

    def unregister(self, op: str) -> None:
        """Give `op` back: the stock kernel answers again. Its counters are kept."""
        self._registrations.pop(op)[0]._destroy()
        self.overrides.pop(op).replace(())

    def uninstall(self) -> None:
        """Give every op back, the last one first."""
        for op in reversed(list(self.overrides)):
            self.unregister(op)

    def hidden(self, op: str) -> bool:
        """Whether someone else's kernel, registered after ours, answers for `op` now (silently, from torch 2.13 on).

        Asks the dispatcher for the table entry in force and compares it with the one that it named right after our
        registration.
        """
        return _table_entry(f"aten::{op}", self.dispatch_key) != self._registrations[op][1]


def _stock_kernel(name: str, dispatch_key: str) -> tuple[Callable, torch._C.DispatchKeySet]:
    """The kernel in force for `name`, as a function of (keyset, *args, **kwargs), and the key set to call it with.

    `call_boxed` holds Python's lock while the kernel runs: where that waits for the GPU, no other thread goes on
    meanwhile, ComfyUI's server among them. What waits most is copy_; it is one kernel for all backends, so the
    dispatcher, which gives the lock up, can be asked for another backend's. For the other ops see waits.py.
    """
    keys = torch._C.DispatchKey.__members__
    twin = next((key for key in _UNUSED_KEYS if _same_kernel(name, key, dispatch_key)), None)
    if twin is not None:
        return _overload(name)._handle.redispatch_boxed, torch._C.DispatchKeySet(keys[twin])
    keyset = torch._C.DispatchKeySet(keys[dispatch_key])
    try:
        return torch.library.get_kernel(name, dispatch_key).call_boxed, keyset
    except RuntimeError:
        return _missing(*_dispatcher_error(name, dispatch_key)), keyset


_UNUSED_KEYS = ("VE", "MAIA")  # backends that PyTorch has keys for and no kernels


def _same_kernel(name: str, key: str, other: str) -> bool:
    """Whether both keys have the kernel that is registered for every backend."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, other):  # one of its own: mostly so, and cheap to ask
        return False
    entry = _table_entry(name, key)
    return entry.endswith("[default backend kernel]") and entry == _table_entry(name, other)


def _table_entry(name: str, key: str) -> str:
    """What the dispatcher says of the kernel in force for a key; "" if there is none."""
    start = f"{key}: "
    table = torch._C._dispatch_dump_table(name).splitlines()
    return next((line.removeprefix(start) for line in table if line.startswith(start)), "")


def _missing(kind: type[Exception], text: str) -> Callable:
    def no_stock_kernel(keyset, *args, **kwargs):
        raise kind(text)

    return no_stock_kernel


def _dispatcher_error(name: str, dispatch_key: str) -> tuple[type[Exception], str]:
    """What the dispatcher raises for an op without a kernel on this key, found out before ours is there.

    Only the schema's parser and the look-up of the kernel run: nothing is computed. A caller's dispatch mode does not
    see the placeholders.
    """
    with torch._C._DisableTorchDispatch():
        return _missing_kernel_error(name, dispatch_key)


def _missing_kernel_error(name: str, dispatch_key: str) -> tuple[type[Exception], str]:
    overload = _overload(name)
    keyset = torch._C.DispatchKeySet(torch._C.DispatchKey.__members__[dispatch_key])
    required = [argument for argument in overload._schema.arguments if not argument.has_default_value()]
    positional = [_placeholder(argument) for argument in required if not argument.kwarg_only]
    keyword = {argument.name: _placeholder(argument) for argument in required if argument.kwarg_only}
    try:
        overload.redispatch(keyset, *positional, **keyword)
    except NotImplementedError as error:
        return type(error), str(error)
    except (RuntimeError, TypeError):  # the placeholders were not good enough to get past the parser
        pass
    return NotImplementedError, f"Could not run '{name}' with arguments from the '{dispatch_key}' backend."


def _overload(name: str) -> torch._ops.OpOverload:
    base, _, overload = name.removeprefix("aten::").partition(".")
    try:
        return getattr(getattr(torch.ops.aten, base), overload or "default")
    except AttributeError:
        raise NoSuchOp(f"this torch has no {name}") from None


def _placeholder(argument: torch.Argument) -> object:
    """A value that the schema's parser accepts; no kernel ever sees it."""
    kind = str(argument.type)
    if kind == "Tensor":
        return torch.empty(0, device="meta")
    if kind.startswith("List"):
        return []
    if kind.startswith("Optional"):
        return None
    return {"int": 0, "float": 0.0, "number": 0, "bool": False, "str": "", "Device": torch.device("cpu")}.get(kind)
