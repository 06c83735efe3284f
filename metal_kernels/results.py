"""What a patch gave back, before a user gets it: tensors on the device, in the form that the arguments ask for.

Kind and device are looked at in every call. The shape is compared once for each patch and dtype, with what torch itself
infers on meta tensors: the self-check calls the family's functions, not the patch as the dispatcher does. Dtypes are
the self-check's: of arguments that differ in dtype, as FP8 layers have them, torch's inference is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._pytree import tree_map

from .selfcheck import quiet


class WrongResult(Exception):
    """A patch gave back what its op cannot give for these arguments. The text says what."""


def kind_check(schema: torch.FunctionSchema, dispatch_key: str) -> Callable[[object], bool]:
    """A cheap test of an op's result: as many tensors as it returns, on the key's device; or a number.

    A tensor that is one of the arguments (in-place ops, `out=`) is wherever it was. Of several tensors some may be
    None: gradients that nobody asked for.
    """
    kinds = [str(result.type) for result in schema.returns]
    aliases = any(result.alias_info is not None for result in schema.returns)
    tensor = _is_tensor if aliases else {"MPS": _is_on_mps, "CPU": _is_on_cpu}.get(dispatch_key, _is_tensor)
    if kinds == ["Tensor"]:
        return tensor
    if len(kinds) == 1:
        return lambda result: result is not None and not isinstance(result, torch.Tensor)

    def several(result: object) -> bool:
        return (
            isinstance(result, (tuple, list))
            and len(result) == len(kinds)
            and all(part is None or tensor(part) for part in result)
        )

    return several


def _is_tensor(result: object) -> bool:
    return isinstance(result, torch.Tensor)


def _is_on_mps(result: object) -> bool:
    return isinstance(result, torch.Tensor) and result.is_mps


def _is_on_cpu(result: object) -> bool:
    return isinstance(result, torch.Tensor) and result.is_cpu


def expect_shape(overload: torch._ops.OpOverload, args: tuple, kwargs: dict[str, object], result: object) -> None:
    """Raises WrongResult when `result` has another shape than torch infers for these arguments.

    Computes nothing. Where torch cannot tell (the shape depends on the data; no meta kernel for these dtypes), nothing
    is compared; nor are results that nobody asked for (None).
    """
    with quiet():
        try:
            expected = overload(*tree_map(_on_meta, args), **tree_map(_on_meta, kwargs))
        except Exception:  # torch's meta kernels raise whatever they like
            return
    pairs = zip(_parts(result), _parts(expected), strict=True)
    if any(isinstance(part, torch.Tensor) and part.shape != other.shape for part, other in pairs):
        raise WrongResult(f"{overload} gave {described(result)}; its arguments ask for {described(expected)}.")


def _on_meta(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _parts(result: object) -> tuple:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def described(result: object) -> str:
    """A result in words: "float32 (2, 3) on mps", "None"."""
    if isinstance(result, torch.Tensor):
        place = "" if result.is_meta else f" on {result.device.type}"
        return f"{str(result.dtype).removeprefix('torch.')} {tuple(result.shape)}{place}"
    if isinstance(result, (tuple, list)):
        return f"({', '.join(described(part) for part in result)})"
    return "None" if result is None else f"a {type(result).__name__}"
