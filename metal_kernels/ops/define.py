"""torch custom ops in the namespace `metal_kernels`, each defined once a process.

With the patcher the only file that speaks to `torch.library`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

from .. import _installation, selfcheck


def define(
    name: str,
    run: Callable,
    fake: Callable,
    *,
    setup: Callable | None = None,
    backward: Callable | None = None,
    vmap: Callable | None = None,
) -> None:
    """Define metal_kernels::<name>; its schema is read from run's annotations.

    run              the op, on tensors of any device.
    fake             the same arguments -> empty tensors with the sizes, strides, dtype and device that `run` returns.
    setup, backward  for autograd, as torch.library.register_autograd wants them; without, the op is not differentiable,
                     and torch says so.
    vmap             as torch.library.register_vmap wants it.

    When two copies of this library are loaded, the first one's ops serve both.
    """
    if hasattr(torch.ops.metal_kernels, name):
        return
    op = torch.library.custom_op(f"metal_kernels::{name}", run, mutates_args=())
    op.register_fake(fake)
    if backward is not None:
        op.register_autograd(backward, setup_context=setup)
    if vmap is not None:
        op.register_vmap(vmap)


def call(name: str, *arguments: object) -> object:
    """metal_kernels::<name> of `arguments`. Raises RuntimeError for a tensor with a tangent: torch's custom ops have no
    forward-mode derivative, and would drop it without a word."""
    if getattr(forward_ad, "_current_level", -1) >= 0:
        for value in arguments:
            if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
                raise RuntimeError(f"metal_kernels.ops.{name} has no forward-mode derivative; torch's own op has")
    return getattr(torch.ops.metal_kernels, name)(*arguments)


def wanted(ctx, position: int) -> bool:
    """Whether a backward is asked for the gradient of its op's argument at `position`.

    Not `ctx.needs_input_grad[position]`: torch.library leaves out trailing arguments that equal their defaults.
    """
    return any(ctx.needs_input_grad[position : position + 1])


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """x [..., K] as [rows, K], also where it has no elements; [K] is one row."""
    return x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)


def healthy(kernel: str, dtype: torch.dtype) -> bool:
    """Whether the kernel may run for this dtype: the first time it is compiled and checked against the CPU, for which
    there must be memory."""
    return selfcheck.first_use(_installation.switches[kernel], dtype)


def must_be_healthy(kernel: str, dtype: torch.dtype) -> None:
    """For what torch has no kernel of its own for. Raises RuntimeError with the reason."""
    if not healthy(kernel, dtype):
        raise RuntimeError(f"the kernel {kernel} cannot run here: {_installation.switches[kernel].failure}")
