"""What a line of the conformance table is, and how a result is compared with the CPU.

A `Case` is data: op, dtype, sizes, layout, options. Its `Operation` makes the arguments (on the CPU, from a seed of the
case's own), calls the op through torch on whatever device they were moved to, and knows the right result: the CPU's in
float64, to be rounded once, or bit for bit the CPU's. Nothing here knows pytest or a particular device.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

EPS = 2.0**-24  # half an ulp of 1 in float32, in which every kernel adds up
QUICK, FULL, DEVICE = "quick", "full", "device"


class Mismatch(AssertionError):
    """A result that is not the CPU's. The text says which case, and how far off."""


@dataclass(frozen=True)
class Tolerance:
    """How many ulps of the output's dtype a result may be off, and why not fewer; 0: bit for bit.

    To that comes what adding up in float may be off by on the way, which each reference states element by element
    (`Expected.budget`): for a short sum it drowns in the ulps of a half, for float32 it is most of the tolerance.
    """

    ulps: float
    why: str


@dataclass(frozen=True)
class Case:
    """One line of the table.

    op       a key of OPERATIONS.
    dtype    of the first tensor, or the FP8 dtype that the line is about (of NVFP4 that of its block scales).
    shapes   sizes of the tensors, as the operation reads them.
    layout   a key of `inputs.LAYOUTS`, of the tensor whose layout the kernel cares about.
    options  everything else, by name: dim, k, ends, bias, ...
    size     "quick"; "full" is slow on the software device; "device" is for a GPU alone.
    """

    op: str
    dtype: torch.dtype
    shapes: tuple[tuple[int, ...], ...]
    layout: str = "contiguous"
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    size: str = QUICK

    @property
    def id(self) -> str:
        """One line that names the case: "softmax bfloat16 4x4096 sliced dim=-1"."""
        sizes = " by ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        options = [f"{name}={_short(value)}" for name, value in self.options.items()]
        return " ".join([self.op, name_of(self.dtype), sizes, self.layout, *options])

    @property
    def generator(self) -> torch.Generator:
        """Seeded by the case: the same data in every run, other data for every case."""
        return torch.Generator(device="cpu").manual_seed(zlib.crc32(self.id.encode()))

    def option(self, name: str, default: object = None) -> object:
        return self.options.get(name, default)


@dataclass(frozen=True)
class Expected:
    """The right result of one output.

    value    float64, before the rounding to `dtype`; or (bits) the very tensor, in its dtype.
    budget   what float arithmetic may be off by before that rounding, of value's shape; None for nothing.
    dtype    of the output.
    bits     whether the result must be `value` bit for bit.
    strides  the output's; None where the op promises none.
    """

    value: torch.Tensor
    dtype: torch.dtype
    budget: torch.Tensor | None = None
    bits: bool = False
    strides: tuple[int, ...] | None = None


def exactly(value: torch.Tensor, strides: bool = True) -> Expected:
    """Bit for bit `value`; with its strides too, unless told otherwise."""
    return Expected(value, value.dtype, bits=True, strides=value.stride() if strides else None)


@dataclass(frozen=True)
class Operation:
    """How the cases of an op are made, run and judged.

    kernel      the family that answers for it.
    make        case -> arguments on the CPU (tensors, lists of tensors, numbers, None), strided as the case says.
    call        the op, on the arguments on any device: through torch, or a plain function of the family.
    reference   the same arguments on the CPU -> what each output is to be.
    takes       calls of ours that one `call` makes, at least.
    """

    name: str
    kernel: str
    make: Callable[[Case], tuple]
    call: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    reference: Callable[..., tuple[Expected, ...]]
    tolerance: Tolerance
    takes: int = 1


def name_of(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def roundings(count: int) -> float:
    """What a sum of `count` terms in float is off by, in EPS of the sum of their magnitudes: of its roundings most
    cancel, which leaves about a square root, and a few more on the way to the output."""
    return 4 + count**0.5 / 2


def compare(actual: object, expected: tuple[Expected, ...], tolerance: Tolerance, what: str) -> float:
    """The worst error as a share of what `tolerance` and the budget allow: 0 is exact, up to 1 is right.

    Not in ulps: of a sum whose terms cancel, which has a small result, the last place says little.
    Raises Mismatch where it is more.
    """
    outputs = actual if isinstance(actual, (tuple, list)) else (actual,)
    if len(outputs) != len(expected):
        raise Mismatch(f"{what}: {len(outputs)} results instead of {len(expected)}")
    return max(_compare(got, want, tolerance, what) for got, want in zip(outputs, expected, strict=True))


def _compare(got: torch.Tensor, want: Expected, tolerance: Tolerance, what: str) -> float:
    for aspect, value in (("shape", want.value.shape), ("dtype", want.dtype)):
        if getattr(got, aspect) != value:
            raise Mismatch(f"{what}: {aspect} {getattr(got, aspect)} instead of {value}")
    if want.strides is not None and got.numel() and got.stride() != want.strides:
        raise Mismatch(f"{what}: strides {got.stride()} instead of {want.strides}")
    got = got.detach()
    if want.bits:
        wrong = int((bits(got) != bits(want.value)).sum()) if got.numel() else 0
        if wrong:
            raise Mismatch(f"{what}: {wrong} of {got.numel()} elements differ")
        return 0.0
    return _share(got.cpu(), want, tolerance, what)


def _share(got: torch.Tensor, want: Expected, tolerance: Tolerance, what: str) -> float:
    finfo = torch.finfo(want.dtype)
    exact, rounded, got = want.value, want.value.to(want.dtype).double(), got.double()
    if not torch.equal(got.isnan(), rounded.isnan()):
        raise Mismatch(f"{what}: NaN in other places")
    finite = rounded.isfinite()
    if not torch.equal(got[~finite].nan_to_num(nan=0.5), rounded[~finite].nan_to_num(nan=0.5)):
        raise Mismatch(f"{what}: infinity in other places")
    exact, got = exact[finite], got[finite]
    if not exact.numel():
        return 0.0
    larger = torch.maximum(got.abs(), exact.abs()).clamp(min=finfo.tiny)
    ulp = torch.exp2(larger.log2().floor()) * finfo.eps
    # A GPU may flush what is below float32's smallest normal.
    budget = torch.full_like(exact, torch.finfo(torch.float32).tiny)
    if want.budget is not None:
        budget += want.budget.expand_as(want.value)[finite].nan_to_num(0, 0, 0)
    error, allowed = (got - exact).abs(), tolerance.ulps * ulp + budget
    shares = (error / allowed).nan_to_num(nan=torch.inf)
    worst = float(shares.max())
    if worst > 1.0001:  # the reference has an error of its own
        place = int(shares.argmax())
        raise Mismatch(
            f"{what}: {float(got[place]):.9g} instead of {float(exact[place]):.9g}, "
            f"{float(error[place] / ulp[place]):.3g} ulps of {name_of(want.dtype)} off, "
            f"{float(allowed[place] / ulp[place]):.3g} allowed"
        )
    return worst


def bits(x: torch.Tensor) -> torch.Tensor:
    """The elements' bits in order, on the CPU, as integers. Moved as bytes: stock cannot copy every dtype."""
    x = x.detach()
    if x.dtype is torch.bool or x.is_complex():
        # A dimension of its own for the bytes: one element may be contiguous with a stride of 0, which view refuses.
        return x.cpu().contiguous().flatten().unsqueeze(-1).view(torch.uint8)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(integers[x.element_size()]).cpu().contiguous()


def _short(value: object) -> str:
    if isinstance(value, torch.dtype):
        return name_of(value)
    if isinstance(value, tuple):
        text = ",".join(map(str, value))
        return f"({text})" if len(text) <= 40 else f"({len(value)}:{zlib.crc32(text.encode()):08x})"
    return str(value)
