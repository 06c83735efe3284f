"""What a kernel family says about itself: `Kernel`, the `Patch`es it offers, and whether this torch has `Need` of them.

A family folder (`pad/`, `softmax/`, ...) exports one `KERNEL`. These records hold no state and call nothing: the
switches, the patcher and the self-check read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .environment import Environment


class SelfCheckFailure(Exception):
    """A kernel's result differs from the CPU's. The text says where: shape, dtype, largest difference."""


class ArgumentError(Exception):
    """A patch's answer to arguments that are wrong, for an op that has no stock kernel to say so: `error` is raised.

    A patch whose op has a stock kernel refuses in `supports` instead, and stock raises its own error.
    """

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Need:
    """Whether `auto` patches on this machine, and the reason in one sentence for the status report.

    probe: where only stock's behaviour can tell: asked at the first call that `auto` would take, so that installing
    makes no tensor; returns the Need that holds from then on.
    """

    patch: bool
    reason: str
    probe: Callable[[], Need] | None = None


@dataclass(frozen=True)
class Patch:
    """One aten op that a kernel can take over.

    op        the op's name without namespace, with the overload if it has one: "constant_pad_nd", "add.Tensor".
    supports  whether `run` can take exactly these arguments. Called with the op's arguments as the dispatcher hands
              them to Python: arguments left at their defaults may be missing, keyword-only ones come by keyword, and a
              Python number may stand where the schema says Tensor. It must refuse wrong arguments, so that the
              stock kernel raises its own error. It makes no tensor and never waits for the device.
    run       the same arguments; returns what the op returns.
    guard     optional: a test cheaper than `supports`, before anything else is looked at. For the hottest ops
              (copy_), which must leave in two comparisons. A call that it refuses is not counted; of an op all of
              whose patches have guards, calls are not counted at all while none of its kernels is switched on.
    dtype     optional: which dtype the arguments stand for in self-checks and counters; the first argument's unless
              given.
    spare     optional: whether this torch does well with exactly these arguments, so that `auto` leaves them to it. For
              a kernel of which a torch needs only a part. Asked after `supports`; not in mode `on`.
    """

    op: str
    supports: Callable[..., bool]
    run: Callable[..., object]
    guard: Callable[..., bool] | None = None
    dtype: Callable[..., torch.dtype] | None = None
    spare: Callable[..., bool] | None = None


@dataclass(frozen=True)
class Case:
    """One line of a benchmark: `call()` runs `op` once, through torch, on device tensors of `shape` and `dtype`.

    args: what `call` hands to `op`, from which its least cost follows (cost.py).
    """

    op: str
    shape: str
    dtype: torch.dtype
    call: Callable[[], object]
    args: tuple = ()


@dataclass(frozen=True)
class Kernel:
    """A family of patches that the user switches as one.

    name       the switch's name: lower-case identifier, "pad".
    title      the name shown to people.
    patches    the ops it can take over.
    need       environment -> Need: must `auto` patch here?
    selfcheck  dtype -> None: computes something small on the device and on the CPU, and raises SelfCheckFailure when
               they differ. It calls the family's own functions (never through the patched op), and draws random
               numbers only from a generator of its own (`selfcheck.generator()`).
    repairs    one sentence: what stock does wrong or slowly, and what this kernel does about it.
    dtypes     the dtypes that `selfcheck` knows, for `python -m metal_kernels selftest`.
    bench      optional: device -> the cases that `python -m metal_kernels bench` times, stock and patched.
    doc        where to read more: a path in the repository or an upstream issue.
    """

    name: str
    title: str
    patches: tuple[Patch, ...]
    need: Callable[[Environment], Need]
    selfcheck: Callable[[torch.dtype], None]
    repairs: str
    dtypes: tuple[torch.dtype, ...] = ()
    bench: Callable[[str], Iterable[Case]] | None = None
    doc: str = ""

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops it can take over, each once, in the order of its patches."""
        return tuple(dict.fromkeys(patch.op for patch in self.patches))
