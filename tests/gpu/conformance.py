"""The conformance table for the GPU: which of its rows are replayed, and how each is called and written into the plan.

Rows of the sizes "quick" and "full" are replayed with the very inputs that the software device gets: the run step makes
them again from the row (replay.py). Rows of the real sizes, "device", become cases of the table "large" (or are in
"speed" already), whose inputs are made on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.utils._pytree import tree_leaves

from .cases import (
    Case,
    Tensor,
    fp8_linear_case,
    grouped_case,
    linear_case,
    pad_case,
    scaled_mm_case,
    softmax_case,
    spread,
)
from .paths import Executed
from .recorder import Recorder

TABLE = "conformance"


def rows() -> list:
    """The rows to replay, each once."""
    from conformance.table import CASES

    return list({row.id: row for row in CASES if row.size != "device"}.values())


def device_rows() -> list:
    from conformance.table import CASES

    return list({row.id: row for row in CASES if row.size == "device"}.values())


def large() -> Iterator[Case]:
    """The rows of real sizes as cases. A row whose case is in another table has the name of that one."""
    for row in device_rows():
        yield from _large(row)


def _large(row) -> Iterator[Case]:
    name, sizes = str(row.dtype).removeprefix("torch."), row.shapes
    if row.op == "pad":
        yield pad_case(sizes[0], row.option("pad"), name, "large", row.option("value", 0))
    elif "softmax" in row.op:
        op = f"_{row.op}" + ("_data" if "backward" in row.op else "")
        yield softmax_case(op, sizes[0], name, "large", row.option("dim", -1))
    elif row.op == "linear":
        yield linear_case(sizes[0][0], *sizes[1], name, "large")
    elif row.op == "grouped_mm":
        (experts, k, n), count = sizes[1], sizes[0][0]
        yield grouped_case(spread(experts, count), n, k, name, "large", model="row of the conformance table")
    elif row.op in ("fp8_linear", "fp8_scaled_linear"):
        wide = str(row.option("x")).removeprefix("torch.")
        yield fp8_linear_case(sizes[0][0], *sizes[1], wide, "large", weight=name, scales=row.option("scale"))
    elif row.op == "scaled_mm":
        b = str(row.option("b")).removeprefix("torch.")
        yield scaled_mm_case(sizes[0][0], sizes[1][1], sizes[1][0], "large", a=name, b=b)
    elif row.op == "fp8_decode":
        to, title = str(row.option("to")).removeprefix("torch."), "x".join(map(str, sizes[0]))
        yield Case(f"cast {title} {name} to {to}", "fp8", "cast", (Tensor(name, sizes[0], fill="weight"), to), "large")
    elif row.op == "fp8_quantize":
        wide, title = str(row.option("x")).removeprefix("torch."), "x".join(map(str, sizes[0]))
        args = (Tensor(wide, sizes[0]), name, row.option("per", "tensor"), None)
        yield Case(f"quantise {title} {wide}, own scale per {args[2]}", "fp8", "quantize", args, "large")
    elif row.op != "scaled_mm_v2":  # the kernels and arguments of scaled_mm
        raise ValueError(f"{row.id}: no case of real size is made of this operation")


def functions(library) -> dict:
    """operation of the table -> what the pack runs for it (a patch's `run`, where it has one), on its arguments."""
    softmax, fp8 = library.softmax.host, library.fp8
    grouped, scaled = library.grouped_mm, library.fp8._scaled_mm

    def scaled_mm_v2(a, b, scale_a, scale_b, bias, out):
        recipes = [[scaled.TENSOR_WISE if scale.dim() == 0 else scaled.ROW_WISE] for scale in (scale_a, scale_b)]
        return scaled.run_v2(a, b, [scale_a], recipes[0], [], [scale_b], recipes[1], [], bias, out)

    return {
        "pad": library.pad.host.constant_pad_nd,
        "softmax": softmax.softmax,
        "log_softmax": softmax.log_softmax,
        "softmax_backward": softmax.softmax_backward,
        "log_softmax_backward": softmax.log_softmax_backward,
        "linear": library.linear.host.run,
        "grouped_mm": grouped.host.run,
        "topk": grouped.routing.run_topk,
        "histc": grouped.routing.run_histc,
        "fp8_encode": fp8.cast,
        "fp8_decode": fp8.cast,
        "fp8_linear": lambda x, weight, scale, bias: fp8.linear_unscaled(x, weight, bias),
        "fp8_scaled_linear": fp8.linear,
        "fp8_linear_backward": lambda x, weight, grad: fp8.linear_backward(x, grad, weight, [True, False, False]),
        "scaled_mm": lambda a, b, scale_a, scale_b, bias, out: scaled.run(a, b, scale_a, scale_b, bias, None, out),
        "scaled_mm_v2": scaled_mm_v2,
        "fp8_quantize": fp8.quantize,
        "fp8_dequantize": fp8.dequantize,
        "nvfp4_dequantize": fp8.dequantize_nvfp4,
        "fp8_stochastic_rounding": fp8.stochastic_rounding,
    }


def record_all(library, recorder: Recorder, rows: Iterable, executed: Executed) -> list[dict]:
    """Every row as record() makes it. "sanitised" are those that go through host code that nothing has before them."""
    made, seen = [], sum(map(len, executed.lines.values()))
    for row in rows:
        made.append(record(library, recorder, row, executed))
        before, seen = seen, sum(map(len, executed.lines.values()))
        made[-1]["sanitised"] = seen > before
    return made


def record(library, recorder: Recorder, row, executed: Executed) -> dict:
    """The row as a case of the plan: the launches of its call, its tensors' places in memory, and the row itself."""
    from conformance import library as table

    operation = table.OPERATIONS[row.op]
    arguments = table.twin(operation.make(row), "mps")
    with recorder.record() as recording, executed.watching():
        result = functions(library)[row.op](*arguments)
    results = [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, torch.Tensor)]
    return {
        "name": row.id, "family": operation.kernel, "op": row.op, "table": TABLE, "row": "", "args": [],
        "inputs": [recording.reference(t) for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)],
        "results": [recording.reference(t) for t in results], "storages": recording.storages,
        "steps": recording.steps, "moved": None, "flops": 0, "form": None, "peers": [], "conformance": encode(row),
    }  # fmt: skip


def encode(row) -> dict:
    """A row as JSON has it; replay.py's decode() gives it back."""
    return {
        "op": row.op, "dtype": _value(row.dtype), "shapes": _value(row.shapes), "layout": row.layout,
        "options": {name: _value(value) for name, value in row.options.items()}, "size": row.size,
    }  # fmt: skip


def _value(value):
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, tuple):
        return {"tuple": [_value(item) for item in value]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return value
