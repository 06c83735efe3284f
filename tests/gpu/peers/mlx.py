"""MLX's softmax, matrix-vector products and gathered products, launched as its host code does on an M3 or newer without
matrix units. The rules are of ml-explore/mlx, commit 846d176, mlx/backend/metal/: softmax.cpp (Softmax::eval_gpu) and
matmul.cpp (gemv_axbpy, gemv_wide_config, gather_mv, gather_mm_rhs, segmented_mm)."""

from __future__ import annotations

import math

from ..cases import Case
from .call import NULL, Call, contiguous, float32, int32, packed
from .source import Source

NAME = "MLX"
KERNELS = ("mlx/backend/metal/kernels", "backend/metal/kernels")
SIMD = 32
FLOATS = ("float32", "float16", "bfloat16")


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# ---- softmax.cpp

_READS, _LOOPED_LIMIT, _MAX_THREADS = 4, 4096, 1024


def _softmax(call: Call, case: Case, results: list[dict], precise: bool) -> bool:
    x, dim, half_to_float = case.args
    if dim not in (-1, len(x.shape) - 1) or x.stride or half_to_float or (precise and x.dtype == "float32"):
        return False
    rows, length = math.prod(x.shape[:-1]), x.shape[-1]
    (x,), (y,) = call.use(case.op, case.args, results, "precise" if precise else "")
    looped = length > _LOOPED_LIMIT
    group = _MAX_THREADS if looped else SIMD * ceil_div(ceil_div(length, _READS), SIMD)
    name = f"{'looped' if looped else 'block'}_softmax_{'precise_' if precise else ''}{x['dtype']}"
    call.launch(Source("softmax.metal"), name, (x, y, int32(length)), (rows * group,), (group,))
    return True


def softmax(call: Call, case: Case, results: list[dict]) -> bool:
    return _softmax(call, case, results, precise=False)


def softmax_precise(call: Call, case: Case, results: list[dict]) -> bool:
    return _softmax(call, case, results, precise=True)


# ---- matmul.cpp: one vector, and few


def gemv(call: Call, case: Case, results: list[dict]) -> bool:
    """x W^T with one row: the matrix as it lies, [N, K]."""
    x, weight, bias = case.args
    if x.shape[0] != 1 or weight.stride or bias is not None:
        return False
    n, k = weight.shape
    (x, weight), (y,) = call.use(case.op, case.args, results)
    bm, bn, sm, sn = (8 if n >= 4096 else 4), 1, 1, 32
    if k <= 64:
        bm, sm, sn = 1, 8, 4
    elif k >= 16 * n:
        bm, bn = 1, 8
    tm = 4 if n >= 4 else 1
    name = f"gemv_{weight['dtype']}_bm{bm}_bn{bn}_sm{sm}_sn{sn}_tm{tm}_tn4_nc0_axpby0"
    zero = call.values("int64", (0,))
    args = (
        weight, x, NULL, y, int32(k), int32(n), int32(k), float32(1), float32(0),
        int32(1), call.values("int32", (1,)), zero, zero, NULL, int32(0),
    )  # fmt: skip
    call.launch_groups(Source("gemv.metal"), name, args, (ceil_div(n, bm * sm * tm),), (SIMD, bn, bm))
    return True


def gemv_wide(call: Call, case: Case, results: list[dict]) -> bool:
    """2 to 15 rows: the matrix is read once for at most five of them."""
    x, weight, bias = case.args
    (m, k), n = x.shape, weight.shape[0]
    passes = ceil_div(m, 5)
    if not 2 <= m <= 15 or weight.stride or bias is not None or k % 4 or weight.dtype == "float32":
        return False
    (x, weight), (y,) = call.use(case.op, case.args, results)
    lanes = 32 if passes == 1 or n <= 64 else 16
    columns = 1 if n >= 65536 else passes
    name = f"gemv_wide_{weight['dtype']}_nv{ceil_div(m, passes)}_kl{lanes}"
    zero = call.values("int64", (0,))
    args = (
        weight, x, NULL, y, int32(k), int32(n), int32(m), int32(k), int32(k), float32(1), float32(0),
        int32(1), call.values("int32", (1,)), zero, zero, NULL, int32(0), int32(0),
    )  # fmt: skip
    source = Source("gemv.metal", ((0, "false"), (1, "false")))
    call.launch_groups(source, name, args, (columns, ceil_div(n, 4)), (SIMD, lanes // 8))
    return True


# ---- matmul.cpp: a mixture of experts


def _experts(case: Case):
    """(rows, N, K, experts, the expert of each row), or None for another kind of grouped product."""
    a, b, ends = case.args
    if ends is None or len(a.shape) != 2 or len(b.shape) != 3 or b.stride is None:
        return None
    experts, k, n = b.shape
    of, begin = [], 0
    for expert, end in enumerate(ends.values):
        of += [expert] * (end - begin)
        begin = end
    return a.shape[0], n, k, experts, of


def gather_mv(call: Call, case: Case, results: list[dict]) -> bool:
    """Few rows, each times the matrix of its expert: what SwitchLinear of mlx-lm asks for below 64 rows."""
    found = _experts(case)
    if found is None or case.row != "grouped decode":
        return False
    rows, n, k, experts, of = found
    (x, weight, _), (y,) = call.use(case.op, case.args, results)
    bm, tm = (8 if n >= 4096 else 4), (4 if n >= 4 else 1)
    name = f"gemv_gather_{weight['dtype']}_bm{bm}_bn1_sm1_sn32_tm{tm}_tn4"
    args = (
        weight, x, NULL, y, int32(k), int32(n), int32(k), float32(1), float32(0),
        int32(1), call.values("int32", (rows, 1, n)), call.values("int64", (1, 1)),
        int32(1), call.values("int32", (rows, 1, k)), call.values("int64", contiguous((rows, 1, k))),
        int32(1), call.values("int32", (experts, k, n)), call.values("int64", (n * k, 1, k)),
        call.values("int32", range(rows)), call.values("int32", of),
    )  # fmt: skip
    call.launch_groups(Source("gemv.metal"), name, args, (ceil_div(n, bm * tm), 1, rows), (SIMD, 1, bm))
    return True


def gather_mm_rhs(call: Call, case: Case, results: list[dict]) -> bool:
    """Rows in the order of their experts: from 64 rows on."""
    found = _experts(case)
    if found is None or found[0] < 64:
        return False
    rows, n, k, _, of = found
    (x, weight, _), (y,) = call.use(case.op, case.args, results, "sorted")
    bm, bn, bk, wm, wn = 16, 64, 16, 1, 2
    kind = weight["dtype"]
    name = f"steel_gather_mm_rhs_nt_{kind}_{kind}_bm{bm}_bn{bn}_bk{bk}_wm{wm}_wn{wn}"
    tiles = ceil_div(n, bn), ceil_div(rows, bm)
    params = packed("<8i3q3i4x", rows, n, k, k, k, n, *tiles, 0, n * k, 0, 0, k // bk, 0)  # steel/gemm/params.h
    aligned = ((200, rows % bm), (201, n % bn), (202, k % bk))
    source = Source(
        "steel/gemm/kernels/steel_gemm_gather.metal",
        ((10, "false"), *((index, "false" if rest else "true") for index, rest in aligned)),
    )
    args = (x, weight, call.values("int32", of), y, params)
    call.launch_groups(source, name, args, tiles, (SIMD, wn, wm))
    return True


def segmented_mm(call: Call, case: Case, results: list[dict]) -> bool:
    """K in groups, a product for each: the gradient of the experts' weights. The tiles are those of a Pro or a Max."""
    a, b, ends = case.args
    if ends is None or len(a.shape) != 2 or len(b.shape) != 2 or a.stride != (1, a.shape[0]) or b.stride:
        return False
    (m, k), n, groups = a.shape, b.shape[1], len(ends.values)
    (a, b, _), (y,) = call.use(case.op, case.args, results)
    bm, bn, bk, wm, wn = 64, 64, 16, 2, 2
    kind = a["dtype"]
    name = f"steel_segmented_mm_tn_{kind}_{kind}_bm{bm}_bn{bn}_bk{bk}_wm{wm}_wn{wn}"
    tiles = ceil_div(n, bn), ceil_div(m, bm)
    params = packed("<8i3q3i4x", m, n, k, m, n, n, *tiles, 0, 0, m * n, 0, 0, 0)
    aligned = ((200, m % bm), (201, n % bn))
    source = Source(
        "steel/gemm/kernels/steel_gemm_segmented.metal",
        ((199, "true"), *((index, "false" if rest else "true") for index, rest in aligned)),
    )
    segments = [edge for pair in zip((0, *ends.values), ends.values, strict=False) for edge in pair]
    args = (a, b, call.values("int32", segments), y, params)
    call.launch_groups(source, name, args, (*tiles, groups), (SIMD, wn, wm))
    return True


OPERATIONS = {
    "_softmax": (softmax, softmax_precise),
    "linear": (gemv, gemv_wide),
    "_grouped_mm": (gather_mv, gather_mm_rhs, segmented_mm),
}
