"""One Python override for each patched aten op: candidates in order, otherwise stock with the very same arguments.

The only file that speaks to `torch.library`. It knows no kernel family. What happens to a call:

    F.pad(x, ...) -> aten::constant_pad_nd -> our override on the MPS key -> for each candidate patch of that op:
    switched on here? supports these arguments? healthy? -> run it; otherwise -> stock.

The stock kernel is taken with `torch.library.get_kernel` (in torch since 2.9) before registering. "There is none" is
a normal state (`_scaled_mm` on MPS): then the override raises what the unpatched dispatcher raises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from . import selfcheck
from .kernel import ArgumentError, Patch
from .switches import AUTO, QUIET, Counters, Switch, here


class AlreadyPatched(RuntimeError):
    """Another pack's Python kernel already stands on this op and key."""


class NoSuchOp(RuntimeError):
    """This torch does not have the op."""


@dataclass
class Override:
    """One registered op. `candidates` may be replaced while calls run: each call reads it once."""

    op: str
    stock: Callable
    tensors: frozenset[int]
    candidates: tuple = ()
    counters: Counters = field(default_factory=Counters)
    library: torch.library.Library | None = None
    registration: str = ""


class Patcher:
    """The overrides of one dispatch key. Not thread-safe: register and unregister between graphs, from one thread."""

    def __init__(self, dispatch_key: str = "MPS"):
        self.dispatch_key = dispatch_key
        self.overrides: dict[str, Override] = {}
        self.counters: dict[str, Counters] = {}

    def register(self, op: str, candidates: Iterable[tuple[Patch, Switch]]) -> None:
        """Take over `op` ("constant_pad_nd", "add.Tensor"), or give a registered one new candidates, asked in order.

        Raises AlreadyPatched, or NoSuchOp; torch is then as it was before.
        """
        candidates = tuple(
            (patch.guard, patch.supports, patch.run, switch, patch.dtype, patch.spare) for patch, switch in candidates
        )
        override = self.overrides.get(op)
        if override is not None:
            override.candidates = candidates
            return
        name = f"aten::{op}"
        schema = _schema(name)
        override = Override(
            op,
            _stock_kernel(name, self.dispatch_key),
            _tensor_positions(schema),
            candidates,
            self.counters.setdefault(op, Counters()),
        )
        library = torch.library.Library("aten", "IMPL", self.dispatch_key)
        # allow_override=False: torch's default up to 2.12. From 2.13 on we would silently patch over another pack.
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message=r"(?s).*Overriding a previously registered kernel", category=UserWarning
                )
                library.impl(op, _entry(override), self.dispatch_key, with_keyset=True, allow_override=False)
        except RuntimeError as error:
            library._destroy()
            raise AlreadyPatched(f"another pack already patches {name} on {self.dispatch_key}") from error
        override.library = library  # dropping the last reference would take the kernel out of torch
        override.registration = self._winner(name)
        self.overrides[op] = override

    def unregister(self, op: str) -> None:
        """Give `op` back: the stock kernel answers again. Its counters are kept."""
        self.overrides.pop(op).library._destroy()

    def uninstall(self) -> None:
        """Give every op back, the last one first."""
        for op in reversed(list(self.overrides)):
            self.unregister(op)

    def hidden(self, op: str) -> bool:
        """Whether someone else's kernel, registered after ours, answers for `op` now (silently, from torch 2.13 on).

        Asks the dispatcher for the table entry in force and compares it with the one that it named right after our
        registration.
        """
        return self._winner(f"aten::{op}") != self.overrides[op].registration

    def _winner(self, name: str) -> str:
        start = f"{self.dispatch_key}: "
        table = torch._C._dispatch_dump_table(name).splitlines()
        return next((line for line in table if line.startswith(start)), "")


def _entry(override: Override) -> Callable:
    """The function that the dispatcher calls. Hot: for the calls it passes on it must cost microseconds."""
    stock, tensors, take, leave = override.stock, override.tensors, override.counters.take, override.counters.leave
    modes_here, is_compiling = here.get, torch.compiler.is_compiling
    first_use, diagnose, no_torch_function = selfcheck.first_use, selfcheck.diagnose, torch._C.DisableTorchFunction

    def dispatch(keyset, *args, **kwargs):
        modes = modes_here()
        switch = dtype = problem = None
        if modes is not QUIET:
            for guard, supports, run, switch, dtype_of, spare in override.candidates:
                try:
                    if guard is not None and not guard(*args, **kwargs):
                        continue
                    dtype = args[0].dtype if dtype_of is None else dtype_of(*args, **kwargs)
                    if not (switch.active if modes is None else switch.runs_under(modes)):
                        continue
                    if spare is not None and switch.effective == AUTO and spare(*args, **kwargs):
                        continue
                    if not supports(*args, **kwargs) or is_compiling():
                        continue
                    if dtype not in switch.checked and not first_use(switch, dtype):
                        continue
                    with no_torch_function():  # modes and subclasses do not see inside the stock kernel either
                        result = run(*args, **kwargs)
                except ArgumentError as refusal:
                    raise refusal.error from None
                except Exception as error:
                    problem = diagnose("It", error)  # as text: the exception would keep this frame's tensors alive
                    break
                take(switch.kernel.name, dtype, getattr(args[0], "shape", None))
                return result
            if dtype is not None:
                leave(dtype, getattr(args[0], "shape", None))
        try:
            result = stock(keyset, *args, **kwargs)
        except (RuntimeError, TypeError):
            wrapped = _wrap_numbers(args, tensors)
            if wrapped is None:
                raise
        else:
            # Stock took what our kernel raised at: the kernel is at fault. Where stock raises too, the arguments are.
            if problem is not None:
                switch.fail(problem)
            return result
        return stock(keyset, *wrapped, **kwargs)

    return dispatch


def _wrap_numbers(args: tuple, tensors: frozenset[int]) -> tuple | None:
    """`args` with tensors where a Python number stands for one; None when there is no such number.

    torch hands a "wrapped number" tensor to Python as a plain number (seen: torch.isfinite calls copy_(x, inf)), and
    does not take that number back where the schema says Tensor. The dtypes are those of torch's own wrapped numbers;
    their mark, which lets them yield in type promotion, cannot be set from Python: an op that promotes its arguments
    (add, mul) is not one to patch.
    """
    numbers = [i for i, value in enumerate(args) if i in tensors and isinstance(value, (bool, int, float, complex))]
    if not numbers:
        return None
    wrapped = list(args)
    with torch._C.DisableTorchFunction():
        for i in numbers:
            wrapped[i] = torch.scalar_tensor(args[i], dtype=_NUMBER_DTYPES[type(args[i])], device="cpu")
    return tuple(wrapped)


_NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _schema(name: str) -> torch.FunctionSchema:
    base, _, overload = name.partition(".")
    for schema in torch._C._jit_get_schemas_for_operator(base):
        if schema.overload_name == overload:
            return schema
    raise NoSuchOp(f"this torch has no {name}")


def _tensor_positions(schema: torch.FunctionSchema) -> frozenset[int]:
    return frozenset(
        i for i, argument in enumerate(schema.arguments) if str(argument.type) in ("Tensor", "Optional[Tensor]")
    )


def _stock_kernel(name: str, dispatch_key: str) -> Callable:
    """The kernel in force for `name`, as a function of (keyset, *args, **kwargs)."""
    try:
        return torch.library.get_kernel(name, dispatch_key).call_boxed
    except RuntimeError:
        return _missing(*_dispatcher_error(name, dispatch_key))


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
    return getattr(getattr(torch.ops.aten, base), overload or "default")


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
