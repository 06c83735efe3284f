"""PyTorch 2.15's softmax, GEMV, constant pad, grouped_mm and scaled_mm on MPS, launched as its host code does where
has_mpp() is false. The rules are of pytorch/pytorch, aten/src/ATen/native/mps/: headers and c10/metal as the wheel of
2.15.0 has them; operations/SoftMax.mm (softmax_mps_impl), operations/GemmHeuristics.cpp (GemvPolicy::pick_nt),
operations/Pad.mm (constant_pad_dense_kernel_mps, pad_threadgroup), operations/GroupedMM.mm (grouped_mm_out_mps) and
operations/ScaledMM.mm as read from the public repository, which may differ from the release.

Not here: grouped_mm's kernel for at most 32 rows, whose text is in no public copy that could be read.
"""

from __future__ import annotations

import math

from ..cases import Case, Tensor
from .call import NULL, Call, contiguous, packed
from .source import Source

NAME = "PyTorch 2.15"
KERNELS = ("ATen/native/mps/kernels", "aten/src/ATen/native/mps/kernels")
SIMD = 32
MAX_DIMS = 16  # c10::metal::max_ndim
TYPES = {"float32": "float", "float16": "half", "bfloat16": "bfloat"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# ---- SoftMax.mm


def softmax(call: Call, case: Case, results: list[dict]) -> bool:
    x, dim, half_to_float = case.args
    if x.stride or half_to_float:
        return False
    shape, kind, dim = x.shape, TYPES[x.dtype], dim % len(x.shape)
    length, inner = shape[dim], math.prod(shape[dim + 1 :])
    rows = math.prod(shape) // length
    narrow = math.prod(shape) <= 2**31 - 1
    (x,), (y,) = call.use(case.op, case.args, results)
    last = dim == len(shape) - 1
    by_row = last and length <= 2048 and (length <= 1024 or rows >= 128)
    chunks = min(max(512 // rows, 1), ceil_div(length, 2048))
    chunk = ceil_div(length, chunks)
    strides = [0 if size == 1 else step for size, step in zip(shape, contiguous(shape), strict=True)]
    rest = [0] * (MAX_DIMS - len(shape))
    params = packed(
        f"<5{'I' if narrow else 'Q'}2I{2 * MAX_DIMS}{'I' if narrow else 'Q'}",
        length, rows, inner, chunk, chunks, len(shape), dim, *shape, *rest, *strides, *rest,
    )  # fmt: skip
    name, suffix = case.op[1:], f"{kind}_{'u32' if narrow else 'u64'}"
    source = Source("SoftMax.metal")
    if by_row:
        call.launch_groups(source, f"{name}_row_{suffix}", (x, y, params), (ceil_div(rows, 256 // SIMD),), (256,))
    elif last and chunks > 1:
        partials, groups = call.scratch("float32", (rows, chunks, 2)), (chunks, rows)
        for kernel, args in (("softmax_partial", (x, partials)), (f"{name}_finalize", (x, y, partials))):
            # c10::metal::threadgroup_sum: the first lanes of a SIMD-group alone add up what the groups have
            call.launch_groups(source, f"{kernel}_{suffix}", (*args, params), groups, (256,), divergent=True)
    else:
        width = min(inner, 2 * SIMD if x["dtype"] != "float32" else SIMD)
        height = min(1 << (length - 1).bit_length(), 256, 1 << (1024 // width).bit_length() - 1)
        groups = (ceil_div(inner, width), rows // inner)
        call.launch_groups(source, f"{name}_{suffix}", (x, y, params), groups, (width, height))
    return True


# ---- GemmHeuristics.cpp, LinearAlgebra.mm

_GEMV = Source(
    "Gemv.metal",
    text="""#include <metal_stdlib>
#include <c10/metal/utils.h>
#include <ATen/native/mps/kernels/LinearAlgebra.h>
using namespace metal;
#include <ATen/native/mps/kernels/Gemv.h>
""",
)


def gemv(call: Call, case: Case, results: list[dict]) -> bool:
    x, weight, bias = case.args
    if x.shape[0] != 1 or weight.stride or weight.offset or bias is not None:
        return False
    n, k = weight.shape
    (x, weight), (y,) = call.use(case.op, case.args, results)
    if weight["dtype"] == "float32":
        simdgroups, vector = (4 if n >= 2048 else 16), 4
    else:
        simdgroups, vector = (8 if n >= 8192 else 4), 8
    while k % vector:
        vector //= 2
    name = f"gemv_nt_{TYPES[weight['dtype']]}_{simdgroups}_{vector}_none_{'xc' if vector > 1 else 'xs'}"
    args = (weight, x, y, packed("<7q", n, k, k, 1, 1, 0, 0), NULL, packed("<2f", 1, 0))
    call.launch_groups(_GEMV, name, args, (ceil_div(n, simdgroups),), (simdgroups * SIMD,))
    return True


# ---- Pad.mm

_PER_THREAD = 4  # c10::metal::ILP_PER_THREAD


def pad(call: Call, case: Case, results: list[dict]) -> bool:
    x, pads, value = case.args
    if x.stride or len(pads) > 6 or min(pads) < 0 or value or x.dtype not in TYPES:
        return False
    kind = TYPES[x.dtype]
    (x,), (y,) = call.use(case.op, case.args, results)
    dims = len(pads) // 2

    def inner(reference: dict) -> list[int]:
        return [reference["shape"][-1 - d] if d < dims or d == 0 else 1 for d in range(3)]

    width, height, _ = inner(y)
    left = [pads[2 * d] if d < dims else 0 for d in range(3)]
    grid = (ceil_div(width, _PER_THREAD), height, math.prod(y["shape"]) // (width * height))
    group, room = [], 1024
    for extent in grid:
        group.append(min(room, extent))
        room //= group[-1]
    params = packed("<9I", *inner(x), *inner(y), *left)
    zero = {"hex": "00" * (4 if kind == "float" else 2)}
    source = Source("ReplicationPad.metal")
    call.launch(source, f"constant_pad_nd_dense_{kind}", (x, y, params, zero), grid, group)
    return True


# ---- GroupedMM.mm

_TILE_N, _FEW_ROWS = 64, 32


def grouped_mm(call: Call, case: Case, results: list[dict]) -> bool:
    a, b, ends = case.args
    if ends is None or len(a.shape) != 2 or len(b.shape) != 3 or a.stride or b.stride is None:
        return False
    (m, k), (groups, _, n) = a.shape, b.shape
    if m <= min(_FEW_ROWS, groups):
        return False
    (a, b, ends), (y,) = call.use(case.op, case.args, results)
    rows = m // groups
    tile = 64 if rows > 48 else 32 if rows > 24 else 16
    params = packed("<11I", m, n, k, groups, k, 1, b["stride"][1], b["stride"][2], n, 1, b["stride"][0])
    name = f"grouped_mm_rows_{TYPES[a['dtype']]}_bm{tile}_u32"
    grid = (ceil_div(n, _TILE_N), ceil_div(m, tile) + groups)
    threads = (4 if tile >= 64 else 2) * SIMD
    call.launch_groups(Source("GroupedMM.metal"), name, (a, b, ends, y, params), grid, (threads,))
    return True


def grouped_mm_along_k(call: Call, case: Case, results: list[dict]) -> bool:
    a, b, ends = case.args
    if ends is None or len(a.shape) != 2 or len(b.shape) != 2 or a.stride != (1, a.shape[0]) or b.stride:
        return False
    (m, k), n, groups = a.shape, b.shape[1], len(ends.values)
    (a, b, ends), (y,) = call.use(case.op, case.args, results)
    tile = 64 if m > 48 else 32 if m > 24 else 16
    params = packed("<11I", m, n, k, groups, 1, m, n, 1, n, 1, m * n)
    name = f"grouped_mm_k_{TYPES[a['dtype']]}_bm{tile}_u32"
    grid = (ceil_div(n, _TILE_N), ceil_div(m, tile), groups)
    threads = (4 if tile >= 64 else 2) * SIMD
    call.launch_groups(Source("GroupedMM.metal"), name, (a, b, ends, y, params), grid, (threads,))
    return True


# ---- ScaledMM.mm

_TILE, _MOST_FEW, _ALIGNMENT = 32, 4, 16


def scaled_mm(call: Call, case: Case, results: list[dict]) -> bool:
    if case.args[1].dtype != "float8_e4m3fn" or case.args[4] is not None:
        return False
    _scaled_mm(call, case.args, results)
    return True


def scaled_mm_of_linear(call: Call, case: Case, results: list[dict]) -> bool:
    """The same layer as 2.15 can compute it: the activations in FP8 too, with a scale for each row."""
    x, weight, _, bias = case.args
    if weight.dtype != "float8_e4m3fn" or weight.stride or bias is not None:
        return False
    (m, k), n = x.shape, weight.shape[0]
    args = (
        Tensor(weight.dtype, (m, k), fill="weight"), Tensor(weight.dtype, (k, n), (1, k), fill="weight"),
        Tensor("float32", (m, 1), fill="positive"), Tensor("float32", (1, n), fill="positive"), None, x.dtype,
    )  # fmt: skip
    _scaled_mm(call, args, results)
    return True


def _scaled_mm(call: Call, args, results: list[dict]) -> None:
    (m, k), n = args[0].shape, args[1].shape[1]
    (a, b, scale_a, scale_b), (y,) = call.use("scaled_mm", args, results)
    params = packed("<3I4x6q3?5x", m, n, k, k, 1, 1, k, n, 1, True, False, False)
    kind, source = TYPES[y["dtype"]], Source("ScaledMM.metal")
    args = (a, b, y, scale_a, scale_b, NULL, params)
    if m <= _MOST_FEW and n % _ALIGNMENT == 0 and k % _ALIGNMENT == 0:
        call.launch_groups(source, f"scaled_mm_few_rows_{m}_{kind}", args, (n // 4,), (4 * SIMD,))
    else:
        groups = (ceil_div(n, _TILE), ceil_div(m, _TILE))
        call.launch_groups(source, f"scaled_mm_{kind}", args, groups, (4 * SIMD,))


OPERATIONS = {
    "_softmax": (softmax,),
    "_log_softmax": (softmax,),
    "linear": (gemv,),
    "constant_pad_nd": (pad,),
    "_grouped_mm": (grouped_mm, grouped_mm_along_k),
    "scaled_mm": (scaled_mm,),
    "fp8_linear": (scaled_mm_of_linear,),
}
