"""The kernels as plain functions and as torch custom ops, for use without patching anything.

    from metal_kernels import ops
    ops.pad(x, (1, 1))                      # a plain function
    torch.ops.metal_kernels.pad(x, [1, 1])  # the op behind it: torch.compile keeps it whole in its graph

Importing this module defines the custom ops; importing `metal_kernels` alone does not. The modes do not matter here,
but a kernel still runs its self-check at the first use of a dtype, and torch's own kernel stands in for one that has
failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import _installation, selfcheck


def pad(x: torch.Tensor, pad: Sequence[int], value: complex = 0) -> torch.Tensor:
    """`x` with elements of `value` around it, as torch.nn.functional.pad's constant mode; exact and differentiable.

    x      any shape and dtype. On mps the Metal kernel runs, on other devices torch's own.
    pad    (left, right) of the last dimension, then of the one before it, and so on; negative values crop.
    value  the fill, converted to x's dtype.

    Raises what torch.constant_pad_nd raises for arguments that it refuses.
    """
    return torch.ops.metal_kernels.pad(x, list(pad), value)


def _pad(x: torch.Tensor, pad: list[int], value: torch.types.Number = 0) -> torch.Tensor:
    switch = _installation.switches["pad"]
    (patch,) = switch.kernel.patches
    if x.device.type == "mps" and patch.supports(x, pad, value) and selfcheck.first_use(switch, x.dtype):
        return patch.run(x, pad, value)
    return torch.constant_pad_nd(x, pad, value)


def _pad_fake(x: torch.Tensor, pad: list[int], value: torch.types.Number = 0) -> torch.Tensor:
    return torch.constant_pad_nd(x, pad, value)


def _pad_setup(ctx, inputs, output) -> None:
    ctx.pad = inputs[1]


def _pad_backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return torch.ops.metal_kernels.pad(gradient, [-extent for extent in ctx.pad], 0), None, None


def _pad_vmap(info, in_dims, x: torch.Tensor, pad: list[int], value: torch.types.Number = 0):
    return torch.ops.metal_kernels.pad(x.movedim(in_dims[0], 0), pad, value), 0  # `pad` counts from the last dimension


def _define() -> None:
    """Once a process, even when two copies of this library are loaded: the first one's ops serve both."""
    if hasattr(torch.ops.metal_kernels, "pad"):
        return
    op = torch.library.custom_op("metal_kernels::pad", _pad, mutates_args=())
    op.register_fake(_pad_fake)
    op.register_autograd(_pad_backward, setup_context=_pad_setup)
    op.register_vmap(_pad_vmap)


_define()
