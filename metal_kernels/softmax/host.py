"""softmax and log_softmax on MPS, forward and backward: what is taken, the output, and the launches.

How rows are spread over threads is worked out in geometry.py, the arithmetic is softmax.metal's, in float. Nothing
here waits for the device. A call is one allocation and one launch; for a few very long rows two of each.

The four functions are usable without patching. They are not differentiable by themselves: autograd lies above the
dispatcher's MPS key.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..shader import ShaderLibrary
from .geometry import MAX_LENGTH, VECTOR_BYTES, Launch, plan

LIBRARY = ShaderLibrary(Path(__file__).with_name("softmax.metal"))

# dtypes -> their name in softmax.metal
_NAMES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}
DTYPES = tuple(_NAMES)
_HALVES = (torch.float16, torch.bfloat16)


def softmax(x: torch.Tensor, dim: int, half_to_float: bool = False, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """exp(x) / sum(exp(x)) along `dim`, contiguous, of x's shape.

    x              any shape and strides, float32, float16 or bfloat16, on mps.
    half_to_float  return float32 for a float16 or bfloat16 x, unrounded.
    out            optional: write there, and return it.

    A row with a NaN or +inf, or of -inf only, is NaN, as on the CPU. Raises ValueError for anything else.
    """
    return _forward("softmax", x, dim, half_to_float, out)


def log_softmax(
    x: torch.Tensor, dim: int, half_to_float: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """log(softmax(x, dim)) without its loss of small values; everything else as for softmax()."""
    return _forward("log_softmax", x, dim, half_to_float, out)


def softmax_backward(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    input_dtype: torch.dtype,
    *,
    grad_input: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of softmax's input: output * (grad_output - sum(grad_output * output)) along `dim`.

    grad_output, output   of one shape and dtype, any strides, on mps.
    input_dtype           of the result: theirs, or after half_to_float float16 or bfloat16.
    grad_input            optional: write there, and return it.
    """
    return _backward("softmax_backward", grad_output, output, dim, input_dtype, grad_input)


def log_softmax_backward(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    input_dtype: torch.dtype,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of log_softmax's input: grad_output - exp(output) * sum(grad_output) along `dim`; else as above."""
    return _backward("log_softmax_backward", grad_output, output, dim, input_dtype, out)


def supports(x: torch.Tensor, dim: int, half_to_float: bool, *, out: torch.Tensor | None = None) -> bool:
    """Whether softmax() and log_softmax() take this call.

    Refused, so that stock raises: other dtypes, a dim that is not there, half_to_float of a float32, and an `out` of
    another dtype, device or (unless it is empty) shape.
    """
    if not (_is_ours(x) and _has_dim(x, dim)):
        return False
    if half_to_float and x.dtype not in _HALVES:
        return False
    return _is_writable(out, x, torch.float32 if half_to_float else x.dtype)


def supports_backward(
    grad_output: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    input_dtype: torch.dtype,
    *,
    grad_input: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> bool:
    """Whether softmax_backward() and log_softmax_backward() take this call. Refused: the like of supports()."""
    if not (_is_ours(grad_output) and _is_ours(output) and _has_dim(grad_output, dim)):
        return False
    if grad_output.shape != output.shape or grad_output.dtype != output.dtype:
        return False
    if input_dtype != grad_output.dtype and not (grad_output.dtype == torch.float32 and input_dtype in _HALVES):
        return False
    return _is_writable(out if grad_input is None else grad_input, grad_output, input_dtype)


def _is_ours(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "mps" and x.dtype in _NAMES and x.layout is torch.strided


def _has_dim(x: torch.Tensor, dim: int) -> bool:
    rank = max(x.dim(), 1)
    return -rank <= dim < rank and (x.dim() == 0 or x.shape[dim] <= MAX_LENGTH)


def _is_writable(out: torch.Tensor | None, x: torch.Tensor, dtype: torch.dtype) -> bool:
    return out is None or (_is_ours(out) and out.dtype == dtype and (out.shape == x.shape or not out.numel()))


def _forward(name: str, x: torch.Tensor, dim: int, half_to_float: bool, out: torch.Tensor | None) -> torch.Tensor:
    if not supports(x, dim, half_to_float, out=out):
        raise ValueError(f"{name} does not take {_described(x)}, dim={dim}, {half_to_float=}, out={_described(out)}")
    return compute(name, (x,), dim, torch.float32 if half_to_float else x.dtype, out)


def _backward(
    name: str,
    grad_output: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    input_dtype: torch.dtype,
    out: torch.Tensor | None,
) -> torch.Tensor:
    if not supports_backward(grad_output, output, dim, input_dtype, out=out):
        raise ValueError(
            f"{name} does not take {_described(grad_output)}, {_described(output)}, dim={dim}, {input_dtype=}, "
            f"out={_described(out)}"
        )
    return compute(name, (grad_output, output), dim, input_dtype, out)


def _described(x: object) -> str:
    return f"{tuple(x.shape)} {x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else str(x)


def compute(
    name: str,
    inputs: tuple[torch.Tensor, ...],
    dim: int,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    form: str | None = None,
) -> torch.Tensor:
    """`name` ("softmax", "log_softmax", either with "_backward") of arguments that supports() has accepted.

    inputs   (x,), or backward (grad_output, output). dtype: of the result. form: see geometry.plan().
    """
    x = inputs[0]
    if out is not None:
        if out.shape != x.shape:
            out.resize_(x.shape)
        # An output that its input still needs, or of another layout, gets the result when it is there.
        if not out.is_contiguous() or any(_share_memory(out, input) for input in inputs):
            return out.copy_(compute(name, inputs, dim, dtype, form=form))
    else:
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if not out.numel():
        return out
    inputs = tuple(input.resolve_neg() for input in inputs)
    vector = VECTOR_BYTES // min(x.element_size(), out.element_size())
    launches = plan(
        x.shape, tuple(input.stride() for input in inputs), out.stride(), dim % max(x.dim(), 1),
        tuple(input.storage_offset() % vector for input in inputs), out.storage_offset() % vector, vector, form,
    )  # fmt: skip
    types = f"{_NAMES[x.dtype]}_{_NAMES[dtype]}"
    for launch in launches:
        _launch(name, types, launch, inputs, out)
    return out


def _launch(name: str, types: str, launch: Launch, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
    arguments = [inputs[0], inputs[-1], [*launch.header]]
    size = {"threads": launch.groups * launch.group_size, "group_size": launch.group_size}
    if not launch.form.startswith("whole"):
        arguments.append([*launch.dims])
    if not launch.form.endswith("split"):
        LIBRARY.launch(f"{name}_{launch.form}_{types}_{launch.count}", *arguments, out, **size)
        return
    if launch.form == "whole_split":
        rows = launch.header[0]
        size = {"threads": (size["threads"] // rows, rows), "group_size": (launch.group_size, 1)}
    # The state of a forward row is the same for softmax and its logarithm: maximum and sum. Backward it is a sum.
    forward = len(inputs) == 1
    states = torch.empty((launch.states, 2 if forward else 1), dtype=torch.float32, device=out.device)
    whole = launch.form.removesuffix("split")
    partial = f"{'softmax' if forward else name}_{whole}partial_{types}_{launch.count}"
    LIBRARY.launch(partial, *arguments, states, **size)
    LIBRARY.launch(f"{name}_{whole}apply_{types}_{launch.count}", *arguments, out, states, **size)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
