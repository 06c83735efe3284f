"""What is run on the GPU: calls of the pack on tensors that are described, not made. Three tables.

speed    the shapes of the issue's bars, timed and checked
large    shapes that only a GPU with much memory holds, checked
small    every kernel by its host name, for the sanitizer, checked (small.py)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LAYERS = Path(__file__).resolve().parents[1] / "metal_kernels" / "linear" / "shapes.json"
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
         "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
         "bool": 1, "complex64": 8, "complex128": 16}  # fmt: skip


# Forms that make a limit of the host code so small that a call of the table "small" takes several launches.
BLOCKS = "blocks"  # of an FP8 product: the scratch of decoded weights
MATRIX_TILES = {"4 tiles": 4}  # of an FP8 product's few rows: what only large weights have
PIECES = "pieces"  # of pad and softmax: the elements of a launch


@dataclass(frozen=True)
class Tensor:
    """An input: strides None for contiguous; fill how the run step makes its values.

    fill     "normal", "bytes" (any bits that are no NaN), "weight" (FP8 values of a layer), "ones", "positive", or
             "integers" below `high`.
    values   instead of fill, the values themselves (flat).
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    offset: int = 0
    fill: str = "normal"
    high: int = 100
    values: tuple[int, ...] | None = None

    @property
    def bytes(self) -> int:
        """Of its elements, each counted once (a stride of 0 repeats one)."""
        repeated = [s == 0 for s in self.stride or self.shape]
        return SIZES[self.dtype] * math.prod(n for n, r in zip(self.shape, repeated, strict=True) if not r)


@dataclass(frozen=True)
class Case:
    """One call: `op` names it in calls.py and in references.py.

    table    "speed", "large" or "small". row: of speed's tables, such as "pad" or "linear M=1".
    moved    bytes that must be read and written at least; None: all of the inputs and results.
    flops    multiplications and additions, where they matter.
    form     take this form of the kernel in any case, where the family has such an argument.
    """

    name: str
    family: str
    op: str
    args: tuple
    table: str
    kwargs: dict = field(default_factory=dict)
    row: str = ""
    moved: int | None = None
    flops: int = 0
    form: str | None = None
    wide_offsets: bool = False


def layers() -> list[dict]:
    """The 96 linear layers of public models: {"N", "K", "model", "layer"}."""
    return json.loads(LAYERS.read_text())["layers"]


# Activations of the Wan 2.1 and 2.2 VAEs before their causal convolutions, [B, C, T, H, W].
WAN = ((1, 96, 6, 240, 416), (1, 384, 6, 128, 128), (1, 96, 4, 480, 832), (1, 192, 4, 240, 416), (1, 384, 2, 120, 208))
CAUSAL = (1, 1, 1, 1, 2, 0)


def pad_speed() -> Iterator[Case]:
    for shape in WAN:
        for dtype in ("float16", "float32"):
            yield pad_case(shape, CAUSAL, dtype, "speed", row="pad")
    for pad in ((0, 0, 0, 0, 2, 0), (0, 1, 0, 1)):
        yield pad_case(WAN[0], pad, "bfloat16", "speed", row="pad")


def pad_case(shape, pad, dtype, table, value=0, stride=None, offset=0, **more) -> Case:
    name = f"pad {'x'.join(map(str, shape))} {dtype} {list(pad)}" + (f" strides {list(stride)}" if stride else "")
    x = Tensor(dtype, tuple(shape), stride, offset, fill="bytes")
    name += f" fill {value}" if value else ""
    return Case(name, "pad", "constant_pad_nd", (x, tuple(pad), value), table, **more)


SOFTMAX = (
    ((1, 128256), "float32"), ((1, 128256), "bfloat16"), ((1, 151936), "float32"), ((4, 151936), "float32"),
    ((4, 151936), "bfloat16"), ((8, 151936), "float32"), ((1, 201088), "float32"), ((1, 248320), "float32"),
    ((64, 1000), "float32"), ((4096, 4096), "float32"), ((4096, 4096), "float16"), ((4096, 4096), "bfloat16"),
    ((24, 1024, 4608), "float16"), ((8, 1024, 1024), "float32"), ((2, 1024, 20480), "float32"),
    ((40, 512, 7800), "float16"),
)  # fmt: skip


def softmax_speed() -> Iterator[Case]:
    for shape, dtype in SOFTMAX:
        yield softmax_case("_softmax", shape, dtype, "speed", row="softmax")
    for dtype in ("float32", "bfloat16"):
        yield softmax_case("_log_softmax", (4, 151936), dtype, "speed", row="softmax")
        for op in ("_softmax_backward_data", "_log_softmax_backward_data"):
            yield softmax_case(op, (4096, 4096), dtype, "speed", row="softmax")
    yield softmax_case("_softmax", (8, 77, 4096), "float16", "speed", dim=1, row="softmax")


def softmax_case(op, shape, dtype, table, dim=-1, out=None, stride=None, offset=0, **more) -> Case:
    """out: the result's dtype, where it is not the input's (half_to_float, or backward its inverse)."""
    x = Tensor(dtype, tuple(shape), stride, offset)
    if "backward" in op:
        made_by = "softmax" if op == "_softmax_backward_data" else "log_softmax"
        y = Tensor(dtype, tuple(shape), stride, offset, fill=made_by)
        args = (x, y, dim, out or dtype)
    else:
        args = (x, dim, out is not None and out != dtype)
    name = f"{op} {'x'.join(map(str, shape))} {dtype}{f' to {out}' if out else ''}{f' dim {dim}' if dim != -1 else ''}"
    return Case(name + (f" {more['form']}" if more.get("form") else ""), "softmax", op, args, table, **more)


def linear_speed() -> Iterator[Case]:
    for rows in (1, 2, 4, 8, 16):
        for layer in layers():
            yield linear_case(rows, layer["N"], layer["K"], "bfloat16", "speed", row=f"linear M={rows}")
    for dtype in ("float16", "float32"):
        for rows in (1, 8):
            for n, k in ((4096, 4096), (12288, 4096), (4096, 12288)):
                yield linear_case(rows, n, k, dtype, "speed", row=f"linear {dtype} M={rows}")


def linear_case(rows, n, k, dtype, table, bias=False, layout="", offset=0, **more) -> Case:
    """layout: of the weight, "" [N, K], "t" a transposed [K, N], "gaps" rows one element apart."""
    stride = {"": None, "t": (1, n), "gaps": (k + 1, 1)}[layout]
    weight = Tensor(dtype, (n, k), stride, offset, fill="weights")
    args = (Tensor(dtype, (rows, k)), weight, Tensor(dtype, (n,)) if bias else None)
    name = f"linear {rows}x{k} {n} {dtype}{' bias' if bias else ''}{f' {layout}' if layout else ''}"
    return Case(name, "linear", "linear", args, table, flops=2 * rows * n * k, **more)


# Mixtures of experts: (experts, outputs, K, experts of a token).
MODELS = {
    "Qwen3.6-35B-A3B": ((256, 1024, 2048, 8), (256, 2048, 512, 8)),
    "LFM2.5-8B-A1B": ((32, 3584, 2048, 4), (32, 2048, 1792, 4)),
    "gpt-oss-20b": ((32, 5760, 2880, 4), (32, 2880, 2880, 4)),
}


def grouped_speed() -> Iterator[Case]:
    for model, products in MODELS.items():
        for experts, n, k, chosen in products:
            for tokens in (1, 8):
                count = min(tokens * chosen, experts)
                yield grouped_case(spread(experts, count), n, k, "bfloat16", "speed", row="grouped decode", model=model)
            for tokens in (512, 2048):
                ends = even_ends(experts, tokens * chosen)
                yield grouped_case(ends, n, k, "bfloat16", "speed", row="grouped prefill", model=model)
    for model in ("LFM2.5-8B-A1B", "gpt-oss-20b"):  # the gradient of the experts' weights: K is the tokens'
        experts, n, k, chosen = MODELS[model][0]
        yield along_k_case(tuple(16 * end for end in even_ends(experts, 512 * chosen // 16)), k, n, model)
    for rows, experts, k in ((1, 256, 8), (1, 32, 4), (512, 256, 8), (2048, 32, 4), (1, 4096, 32)):
        x = Tensor("bfloat16", (rows, experts))
        yield Case(f"topk {rows}x{experts} k={k} bfloat16", "grouped_mm", "topk", (x, k), "speed", row="topk")


def along_k_case(ends, m, n, model, dtype="bfloat16") -> Case:
    """a [M, K] transposed, b [K, N], K in groups."""
    k = ends[-1]
    args = (Tensor(dtype, (m, k), (1, m)), Tensor(dtype, (k, n)), Tensor("int32", (len(ends),), values=ends))
    name = f"grouped along K, {k} in {len(ends)} groups {m}x{n} {dtype} ({model})"
    return Case(name, "grouped_mm", "_grouped_mm", args, "speed", row="grouped along K", flops=2 * m * n * k)


def spread(experts: int, rows: int) -> tuple[int, ...]:
    """Ends of groups where `rows` experts, spread over all of them, have a row each."""
    return tuple((e + 1) * rows // experts for e in range(experts))


def even_ends(experts: int, rows: int) -> tuple[int, ...]:
    """Ends of groups of uneven sizes, always the same ones, that add up to `rows`."""
    weights = [1 + (e * 37 + 11) % 17 for e in range(experts)]
    total, ends, so_far = sum(weights), [], 0
    for weight in weights:
        so_far += weight
        ends.append(so_far * rows // total)
    return tuple(ends)


def grouped_case(ends, n, k, dtype, table, model="", transposed=True, **more) -> Case:
    """Rows in groups. transposed: the weights lie as [E, N, K]."""
    experts, rows = len(ends), ends[-1]
    x = Tensor(dtype, (rows, k))
    weight = Tensor(dtype, (experts, k, n), (n * k, 1, k) if transposed else None, fill="weights")
    active = sum(end > begin for begin, end in zip((0, *ends), ends, strict=False))
    size = SIZES[dtype]
    return Case(
        f"grouped {rows} rows, {active} of {experts} experts {n}x{k} {dtype}"
        + ("" if transposed else " [E, K, N]") + (f" ({model})" if model else ""),
        "grouped_mm", "_grouped_mm", (x, weight, Tensor("int32", (experts,), values=tuple(ends))), table,
        moved=size * (active * n * k + rows * (n + k)), flops=2 * rows * n * k, **more,
    )  # fmt: skip


FP8_LAYERS = ((4096, 4096), (11008, 4096), (4096, 11008), (12288, 3072), (3072, 12288), (1024, 4096))


def fp8_speed() -> Iterator[Case]:
    for rows in (1, 2, 4, 8, 16):
        for n, k in FP8_LAYERS:
            yield fp8_linear_case(rows, n, k, "bfloat16", "speed", row=f"fp8 linear M={rows}")
    for n, k in ((4096, 4096), (12288, 3072), (3072, 12288)):
        yield fp8_linear_case(1024, n, k, "bfloat16", "speed", row="fp8 linear M=1024")
    matrix = (8192, 8192)
    for dtype in ("bfloat16", "float16", "float32"):
        wide = Tensor(dtype, matrix)
        narrow = Tensor("float8_e4m3fn", matrix, fill="weight")
        scale = Tensor("float32", (), fill="positive")
        rows = Tensor("float32", (matrix[0], 1), fill="positive")
        title = "8192x8192"
        args = (wide, "float8_e4m3fn")
        yield Case(f"cast {title} {dtype} to e4m3fn", "fp8", "cast", args, "speed", row="fp8 quantise")
        yield Case(f"cast {title} e4m3fn to {dtype}", "fp8", "cast", (narrow, dtype), "speed", row="fp8 dequantise")
        args = (wide, "float8_e4m3fn", "tensor", scale)
        yield Case(f"quantise {title} {dtype}, given scale", "fp8", "quantize", args, "speed", row="fp8 quantise")
        args = (wide, "float8_e4m3fn", "row", rows)
        yield Case(f"quantise {title} {dtype}, given row scales", "fp8", "quantize", args, "speed", row="fp8 quantise")
        args = (narrow, scale, dtype)
        yield Case(f"dequantise {title} to {dtype}", "fp8", "dequantize", args, "speed", row="fp8 dequantise")
    for per in ("tensor", "row"):
        args = (Tensor("bfloat16", matrix), "float8_e4m3fn", per, None)
        moved = matrix[0] * matrix[1] * 5  # read twice, once for the largest magnitude, and written
        name = f"quantise 8192x8192 bfloat16, own scale per {per}"
        yield Case(name, "fp8", "quantize", args, "speed", row="fp8 quantise", moved=moved)
    for rows in (16, 1024):
        yield scaled_mm_case(rows, 4096, 4096, "speed", row="scaled_mm")


def fp8_linear_case(
    rows, n, k, dtype, table, weight="float8_e4m3fn", scales="row", bias=False, layout="", **more
) -> Case:
    stride = {"": None, "t": (1, n), "gaps": (k + 1, 1)}[layout]
    scale = Tensor("float32", {"row": (n,), "tensor": ()}[scales], fill="positive")
    args = (Tensor(dtype, (rows, k)), Tensor(weight, (n, k), stride, fill="weight"), scale,
            Tensor(dtype, (n,)) if bias else None)  # fmt: skip
    name = f"fp8 linear {rows}x{k} {n} {weight} {dtype} scale per {scales}"
    return Case(name + (" bias" if bias else "") + (f" {layout}" if layout else ""), "fp8", "fp8_linear", args, table,
                flops=2 * rows * n * k, **more)  # fmt: skip


def scaled_mm_case(rows, n, k, table, a="float8_e4m3fn", b="float8_e4m3fn", out="bfloat16", **more) -> Case:
    args = (
        Tensor(a, (rows, k), fill="weight"), Tensor(b, (k, n), (1, k), fill="weight"),
        Tensor("float32", (rows, 1), fill="positive"), Tensor("float32", (1, n), fill="positive"), None, out,
    )  # fmt: skip
    name = f"scaled_mm {rows}x{k} {n} {a} {b} to {out}"
    return Case(name, "fp8", "scaled_mm", args, table, flops=2 * rows * n * k, **more)


def large() -> Iterator[Case]:
    yield pad_case((3, 1000, 1500000), (1, 1, 1, 0, 0, 1), "uint8", "large")  # past 2^32 elements
    yield pad_case((2, 1100, 1000, 1000), (2, 1, 0, 0), "float16", "large")  # past 4 GiB
    yield softmax_case("_softmax", (70000, 65000), "float16", "large")  # past 2^32 elements
    yield softmax_case("_softmax", (65000, 70000), "bfloat16", "large", dim=0)
    for vocabulary in (128256, 129280, 151936, 201088, 248320):
        for rows in (1, 3, 300):
            yield softmax_case("_softmax", (rows, vocabulary), "float32", "large")
            yield softmax_case("_log_softmax", (rows, vocabulary), "bfloat16", "large", out="float32")
        yield linear_case(1, vocabulary, 2048, "bfloat16", "large")
    for dtype in ("float32", "float16", "bfloat16"):
        for rows in (1, 5, 16):
            yield linear_case(rows, 1000, 32768, dtype, "large", bias=True)
            yield linear_case(rows, 4096, 4096, dtype, "large", layout="t")
            yield linear_case(rows, 70001, 333, dtype, "large", layout="gaps")
            yield fp8_linear_case(rows, 4096, 32768, dtype, "large", bias=True)
            yield fp8_linear_case(rows, 151936, 1024, dtype, "large", scales="tensor")
        yield fp8_linear_case(100, 20000, 4096, dtype, "large", bias=True)  # decoded in several blocks
        for ends in (spread(256, 8), (0,) * 100 + (3,) * 56 + (8,) * 100, even_ends(256, 3000)):
            yield grouped_case(ends, 1024, 2048, dtype, "large")
            yield grouped_case(ends, 1024, 2048, dtype, "large", transposed=False)
    yield scaled_mm_case(100, 4096, 32768, "large", b="float8_e5m2")


def all_cases() -> list[Case]:
    from .conformance import large as device_rows
    from .small import small

    tables = (pad_speed, softmax_speed, linear_speed, grouped_speed, fp8_speed, large, small)
    cases = [case for table in tables for case in table()]
    cases += {case.name: case for case in device_rows() if case.name not in {c.name for c in cases}}.values()
    names = [(case.table, case.name, case.form) for case in cases]
    if len(set(names)) != len(names):
        raise AssertionError(f"two cases have one name: {sorted(n for n in set(names) if names.count(n) > 1)[:3]}")
    return cases
