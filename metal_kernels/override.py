"""One call of a patched op: candidates in order, otherwise stock with the very same arguments.

    F.pad(x, ...) -> aten::constant_pad_nd -> our override on the MPS key -> for each candidate patch of that op that is
    switched on here: supports these arguments? healthy? -> run it; otherwise -> stock.

Hot: what a call that passes pays is paid by every step of every model. Whether a candidate is switched on is therefore
worked out when a switch changes, not when a call comes: `Override.awake`, and `Layer.awake` inside `using`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from . import selfcheck
from .kernel import ArgumentError, Patch
from .results import WrongResult, described, expect_shape, kind_check
from .switches import AUTO, QUIET, Counters, Switch, here


@dataclass(eq=False)
class Override:
    """One op as registered. `candidates` and what follows from it may be replaced while calls run.

    stock       what answers where no candidate does: a function of (keyset, *args, **kwargs).
    awake       the candidates that take calls in the process's and the workflow's modes, taken apart for `entry`. A
                call reads it once.
    stamp       another object whenever `awake` may be another: what a Layer has worked out is then worked out again.
    counts_all  whether every call is counted; otherwise those that a candidate's guard lets in.
    """

    overload: torch._ops.OpOverload
    stock: Callable
    keyset: torch._C.DispatchKeySet
    dispatch_key: str
    counters: Counters = field(default_factory=Counters)
    candidates: tuple[tuple[Patch, Switch], ...] = ()
    awake: tuple = ()
    stamp: object = None
    counts_all: bool = False

    def __post_init__(self):
        self._lock = threading.Lock()

    def replace(self, candidates: tuple[tuple[Patch, Switch], ...]) -> None:
        """Ask these from now on, in order."""
        for _, switch in self.candidates:
            switch.listeners.remove(self.refresh)
        self.candidates = candidates
        for _, switch in candidates:
            switch.listeners.append(self.refresh)
        self.counts_all = any(patch.guard is None for patch, _ in candidates)
        self.refresh()

    def refresh(self) -> None:
        """After a switch has changed."""
        with self._lock:  # the last of several changes at once must not be overwritten by what the first one saw
            self.awake = self.awake_under(None)
            self.stamp = object()

    def awake_under(self, modes: Mapping[str, str] | None) -> tuple:
        """The candidates that take calls under these context-local modes: (guard, supports, run, switch, dtype, spare),
        `spare` only where it is to be asked."""
        return tuple(
            (patch.guard, patch.supports, patch.run, switch, patch.dtype, patch.spare if mode == AUTO else None)
            for patch, switch in self.candidates
            if switch.runs_in(mode := switch.mode_under(modes))
        )


def entry(override: Override) -> Callable:
    """The function that the dispatcher calls, with the op's arguments.

    Not with the call's key set, which would cost another 0.5 us: a backend's kernel has no use for it.
    """
    stock, keyset = override.stock, override.keyset
    note, tensors = override.counters.note, tensor_positions(override.overload._schema)
    modes_here, is_compiling = here.get, torch.compiler.is_compiling
    first_use, diagnose, no_torch_function = selfcheck.first_use, selfcheck.diagnose, torch._C.DisableTorchFunction
    without_frames, of_both = selfcheck.without_frames, selfcheck.of_both
    is_kind = kind_check(override.overload._schema, override.dispatch_key)
    shaped: set[tuple[Callable, torch.dtype]] = set()  # patches and dtypes whose first result had the right shape

    def dispatch(*args, **kwargs):
        modes = modes_here()
        dtype = problem = raised = None
        for guard, supports, run, switch, dtype_of, spare in (
            override.awake if modes is None else modes.awake(override)
        ):
            try:
                if guard is not None and not guard(*args, **kwargs):
                    continue
                dtype = args[0].dtype if dtype_of is None else dtype_of(*args, **kwargs)
                if not supports(*args, **kwargs) or is_compiling():
                    continue
                if spare is not None and spare(*args, **kwargs):
                    continue
                if dtype not in switch.checked and not first_use(switch, dtype):
                    continue
                with no_torch_function():  # modes and subclasses do not see inside the stock kernel either
                    result = run(*args, **kwargs)
                if not is_kind(result):
                    raise WrongResult(f"{override.overload} gave {described(result)}.")
                if (run, dtype) not in shaped:
                    expect_shape(override.overload, args, kwargs, result)
                    shaped.add((run, dtype))
            except ArgumentError as refusal:
                raise refusal.error from None
            except WrongResult as wrong:  # the kernel is at fault, whatever stock makes of these arguments
                switch.fail(str(wrong))
                continue
            except Exception as error:
                problem, raised = diagnose("It", error), without_frames(error)
                break
            note(switch.kernel.name, dtype, getattr(args[0], "shape", None))
            return result
        if dtype is not None or (override.counts_all and modes is not QUIET):
            note(None, dtype or getattr(args[0], "dtype", None), getattr(args[0], "shape", None))
        try:
            result = stock(keyset, *args, **kwargs)
        except (RuntimeError, TypeError) as error:
            wrapped = wrap_numbers(args, tensors)
            if wrapped is None:
                if raised is not None and (both := of_both(raised, error)) is not error:
                    raise both from None
                raise
        else:
            # Stock took what our kernel raised at: the kernel is at fault. Where stock raises too, the arguments are.
            if problem is not None:
                switch.fail(problem)
            return result
        return stock(keyset, *wrapped, **kwargs)

    return dispatch


def tensor_positions(schema: torch.FunctionSchema) -> frozenset[int]:
    """Where the schema says Tensor or Tensor?, among the positional arguments."""
    return frozenset(
        i for i, argument in enumerate(schema.arguments) if str(argument.type) in ("Tensor", "Optional[Tensor]")
    )


def wrap_numbers(args: tuple, tensors: frozenset[int]) -> tuple | None:
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
