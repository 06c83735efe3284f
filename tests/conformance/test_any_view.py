"""Shapes, strides and offsets that hypothesis thinks of, judged like the cases of the table."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance import harness, library, metal_kernels

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SEARCH = dict(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
EXAMPLES = [60, pytest.param(1500, marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def patched():
    with harness.installed("2.13", "on"):
        yield


def search(strategy, examples, check):
    """Has hypothesis run check(example) for so many examples."""

    @settings(max_examples=examples, **SEARCH)
    @given(strategy)
    def run(example):
        check(example)

    run()


def judge(op, *arguments):
    """And our kernel must have taken the call."""
    operation = library.OPERATIONS[op]
    what = " ".join([op, *map(described, arguments)])
    before = metal_kernels.taken().get(operation.kernel, 0)
    library.judge(op, arguments, "mps", what)
    assert metal_kernels.taken().get(operation.kernel, 0) - before >= operation.takes, ("went to stock", what)


def described(value):
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{tuple(value.shape)} {value.stride()}+{value.storage_offset()} {value.dtype}"


@st.composite
def views(draw, sizes):
    """(sizes, strides, offset): dimensions in any memory order, with gaps, repeats (stride 0), overlaps, an offset."""
    strides, reach = [0] * len(sizes), 1
    for d in draw(st.permutations(range(len(sizes)))):
        kind = draw(st.sampled_from(("dense", "dense", "dense", "gap", "zero", "overlap")))
        gap = draw(st.sampled_from((1, 3, 4, 8, 16))) if kind == "gap" else 0
        strides[d] = {"zero": 0, "overlap": max(reach - 1, 0)}.get(kind, reach + gap)
        reach = max(reach, strides[d] * max(sizes[d], 1))
    return tuple(sizes), tuple(strides), draw(st.sampled_from((0, 0, 1, 3, 4, 8, 17)))


def build(view, dtype, seed=0, scale=1.0):
    """Normal values; FP8 is laid out as bytes, as torch cannot index every FP8 dtype."""
    sizes, strides, offset = view
    last = offset + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True) if size)
    values = (torch.randn(last + 1, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)
    raw = values.view(torch.uint8) if dtype in (E4M3, E5M2) else values
    return raw.as_strided(sizes, strides, offset).view(dtype)


@st.composite
def some_sizes(draw):
    """Small ones, and one in which a row is not."""
    rank = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank))
    sizes[draw(st.integers(0, rank - 1))] = draw(st.sampled_from((0, 1, 3, 16, 17, 24, 40, 65, 130, 300)))
    return sizes


@st.composite
def reductions(draw):
    sizes = draw(some_sizes())
    return draw(views(sizes)), draw(views(sizes)), draw(st.integers(-len(sizes), len(sizes) - 1)), draw(st.booleans())


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax(patched, dtype, examples):
    def check(example):
        view, other, dim, is_log = example
        op = "log_softmax" if is_log else "softmax"
        judge(op, build(view, dtype, scale=3.0), dim, False)
        # Backward, whatever lies there: not only what a forward has made.
        output = build(other, dtype, 1)
        judge(
            f"{op}_backward", build(view, dtype, 2), -output.abs() if is_log else output.abs().clamp(max=1), dim, dtype
        )

    search(reductions(), examples, check)


@st.composite
def layers(draw):
    rows = draw(st.sampled_from((1, 1, 2, 3, 4, 5, 8, 9, 16)))
    outputs = draw(st.sampled_from((1, 2, 3, 4, 5, 8, 31, 32, 33, 65)))
    length = draw(st.sampled_from((1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 100, 256, 257, 520)))
    bias = draw(st.sampled_from((None, None, ((outputs,), (0,), 1), ((outputs,), (1,), 3), ((outputs,), (2,), 0))))
    return draw(views((rows, length))), draw(views((outputs, length))), bias


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear(patched, dtype, examples):
    def check(example):
        x, weight, bias = example
        bias = None if bias is None else build(bias, dtype, 2)
        judge("linear", build(x, dtype), build(weight, dtype, 1), bias)

    search(layers(), examples, check)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_linear_on_fp8_weights(patched, dtype, examples):
    def check(example):
        (x, weight, bias), wide, scaling = example
        x, weight = build(x, wide), build(weight, dtype, 1)
        bias = None if bias is None else build(bias, wide, 2).contiguous()
        if scaling is None:
            return judge("fp8_linear", x, weight, None, bias)
        scale = torch.rand(weight.shape[0] if scaling else 1, generator=torch.Generator().manual_seed(3)) + 0.5
        return judge("fp8_scaled_linear", x, weight, scale, bias)

    search(st.tuples(layers(), st.sampled_from(FLOATS), st.sampled_from((None, 0, 1))), examples, check)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_casts(patched, dtype, examples):
    def check(example):
        view, wide = example
        judge("fp8_encode", build(view, wide, scale=30.0), dtype)
        judge("fp8_decode", build(view, dtype, scale=30.0), wide)

    search(st.tuples(some_sizes().flatmap(views), st.sampled_from(FLOATS)), examples, check)


@st.composite
def pads(draw):
    sizes = draw(some_sizes())
    pad = []
    for size in reversed(sizes[draw(st.integers(0, len(sizes))) :]):
        left = draw(st.integers(-min(size, 2), 4))
        pad += [left, draw(st.integers(-min(size + min(left, 0), 2), 9))]
    return draw(views(sizes)), pad, draw(st.sampled_from((0, 1)))


def cpu_takes(sizes, pad):
    """Up to torch 2.9 the CPU refuses to pad to nothing."""
    try:
        torch.constant_pad_nd(torch.zeros(sizes), pad)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("dtype", (torch.uint8, torch.float16, torch.float32, torch.complex64), ids=str)
def test_pad(patched, dtype, examples):
    def check(example):
        view, pad, value = example
        if cpu_takes(view[0], pad):
            judge("pad", build(view, dtype, scale=9.0), pad, value)

    search(pads(), examples, check)


@st.composite
def products(draw, vector):
    """(a, b, ends): of the four modes, each matrix adjacent one way and on multiples of 16 bytes the other way."""

    def matrix(rows, columns, groups):
        flipped = draw(st.booleans())
        if flipped:
            rows, columns = columns, rows
        stride = (-(-columns // vector) + draw(st.integers(0, 1))) * vector
        group, offset = rows * stride + draw(st.integers(0, 3)), draw(st.integers(0, vector))
        view = ((rows, columns), (stride, 1), offset)
        if groups is not None:
            view = ((groups, rows, columns), (group, stride, 1), offset)
        return view, flipped

    size = st.integers(1, 70)
    mode = draw(st.sampled_from(["rows", "columns", "K", "batches"]))
    rows, length, outputs = draw(size), draw(size), draw(size)
    groups = draw(st.integers(1, {"rows": 40, "columns": 40, "K": 5, "batches": 4}[mode]))
    a = matrix(rows, length, groups if mode in ("columns", "batches") else None)
    b = matrix(length, outputs, groups if mode in ("rows", "batches") else None)
    ends = None
    if mode != "batches":
        divided = {"rows": rows, "columns": outputs, "K": length}[mode]
        ends = draw(st.lists(st.integers(-3, divided + 5), min_size=groups, max_size=groups))
        ends = sorted(ends) if draw(st.booleans()) else ends
    return a, b, ends


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_grouped_mm(patched, dtype, examples):
    def operand(view, flipped, seed):
        x = build(view, dtype, seed)
        return x.mT if flipped else x

    def check(example):
        a, b, ends = example
        offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
        judge("grouped_mm", operand(*a, 0), operand(*b, 1), offs)

    search(products(16 // dtype.itemsize), examples, check)


@st.composite
def choices(draw):
    rows, candidates = draw(st.integers(0, 12)), draw(st.sampled_from((1, 2, 8, 31, 64, 100, 256, 513, 700)))
    k = draw(st.integers(0, min(32, candidates)))
    return draw(views((rows, candidates))), k, draw(st.booleans()), draw(st.sampled_from((1, 3, 1000)))


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_topk(patched, dtype, examples):
    def check(example):
        view, k, largest, levels = example
        x = build(view, torch.float32, scale=levels).round().to(dtype)  # few levels: many ties
        judge("topk", x, k, -1, largest)

    search(choices(), examples, check)
