"""From a case to a call of the pack, and from there to its recording."""

from __future__ import annotations

import contextlib
import functools
import importlib
from unittest import mock

import torch

from .cases import BLOCKS, MATRIX_TILES, PIECES, Case, Tensor
from .recorder import Recorder, Recording


def functions(library) -> dict:
    """op -> the pack's function of it. `library`: the pack's metal_kernels."""
    softmax, fp8 = library.softmax.host, library.fp8
    forms = {
        "_softmax": "softmax", "_log_softmax": "log_softmax", "_softmax_backward_data": "softmax_backward",
        "_log_softmax_backward_data": "log_softmax_backward",
    }  # fmt: skip
    calls = {
        "constant_pad_nd": library.pad.host.constant_pad_nd,
        "linear": library.linear.host.linear,
        "_grouped_mm": library.grouped_mm.host.grouped_mm,
        "topk": library.grouped_mm.routing.topk,
        "histc": library.grouped_mm.routing.histc,
        "fp8_linear": fp8.linear,
        "fp8_grad_input": fp8.linear_grad_input,
        "cast": fp8.cast,
        "copy_": fp8.copy_,
        "quantize": fp8.quantize,
        "dequantize": fp8.dequantize,
        "dequantize_nvfp4": fp8.dequantize_nvfp4,
        "stochastic_rounding": fp8.stochastic_rounding,
        "scaled_mm": fp8.scaled_mm,
        "scaled_mm.out": lambda *args: fp8._scaled_mm.run_out(*args[:5], None, args[5].dtype, out=args[5]),
    }
    calls |= {op: getattr(softmax, name) for op, name in forms.items()}
    return calls | {f"{op}.out": _with_out(calls[op]) for op in ("_softmax", "_log_softmax")}


def _with_out(call):
    return lambda *args: call(*args[:-1], out=args[-1])


def record(library, recorder: Recorder, case: Case) -> tuple[Recording, list[dict], list[dict]]:
    """(recording, inputs in the order of the arguments, results). An input is its description and its reference."""
    inputs: list[tuple[Tensor, torch.Tensor]] = []
    arguments = [_argument(value, inputs) for value in case.args]
    with recorder.record() as recording, _form(library, case):
        result = functions(library)[case.op](*arguments, **case.kwargs)
    results = [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)]
    described = []
    for description, tensor in inputs:
        values = None if description.values is None else list(description.values)
        described.append(
            recording.reference(tensor) | {"fill": description.fill, "high": description.high, "values": values}
        )
    return recording, described, [recording.reference(t) for t in results]


def _argument(value, inputs: list):
    if isinstance(value, Tensor):
        tensor = empty(value)
        inputs.append((value, tensor))
        return tensor
    if isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype):
        return getattr(torch, value)
    return value


def empty(description: Tensor) -> torch.Tensor:
    """Such a tensor on the software device, of no values."""
    dtype, shape = getattr(torch, description.dtype), description.shape
    stride = description.stride or torch.empty(shape, device="meta").stride()
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    base = torch.empty(description.offset + last + 1, dtype=torch.uint8, device="mps")  # where the dtype cannot be made
    if dtype.itemsize > 1:
        base = torch.empty(description.offset + last + 1, dtype=dtype, device="mps")
    else:
        base = base.view(dtype)
    return base.as_strided(shape, stride, description.offset)


@contextlib.contextmanager
def _form(library, case: Case):
    """The family's own planner, told to take a form that it would not choose for this shape."""
    with contextlib.ExitStack() as stack:
        if case.wide_offsets:
            host = library.pad.host
            stack.enter_context(mock.patch.object(host, "plan", functools.partial(host.plan, wide_offsets=True)))
        elif case.form == PIECES:
            geometry = importlib.import_module(f"{library.__name__}.{case.family}.geometry")
            for limit in ("MAX_ELEMENTS", "MAX_STRIDED_ELEMENTS", "MAX_DENSE_BYTES"):
                if hasattr(geometry, limit):
                    stack.enter_context(mock.patch.object(geometry, limit, 2**12))
            geometry.plan.cache_clear()
            stack.callback(geometry.plan.cache_clear)
        elif case.form in MATRIX_TILES:
            products = importlib.import_module(f"{library.fp8.__name__}.linear")
            of_tiles = [form for form in products.MATRICES if form.tiles == MATRIX_TILES[case.form]]
            choice = next(form for form in of_tiles if form.rows >= case.args[0].shape[0]), 2
            stack.enter_context(mock.patch.object(products, "matrix_form", lambda *_: choice))
        elif case.form == BLOCKS:
            products = importlib.import_module(f"{library.fp8.__name__}.linear")
            stack.enter_context(mock.patch.object(products, "MAX_SCRATCH", 2**16))
        elif case.form:
            host = getattr(library, case.family).host
            compute = functools.partial(host.compute, form=case.form)
            stack.enter_context(mock.patch.object(host, "compute", compute))
        yield
