"""PyTorch's own samples of every op that the library patches, with its kernels on, against the CPU."""

import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from conformance import harness, library, metal_kernels

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SOFTMAX = ("softmax", "log_softmax")


OTHERS = [pytest.param(faults, marks=pytest.mark.full) for faults in ("2.9", "2.15")]


@pytest.fixture(scope="module", params=["2.13", *OTHERS])
def patched(request):
    with harness.installed(request.param, "on"):
        yield


@pytest.fixture(scope="module")
def newest():
    """One torch is enough where stock has no part."""
    with harness.installed("2.13", "on"):
        yield


def opinfos(name):
    """[(name, op)] of every variant."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = [op for op in op_db if op.name in (name, f"nn.functional.{name}")]
    assert found, name
    return found


def samples(op, dtype, requires_grad=False):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some dtypes experimental
        return list(op.sample_inputs("cpu", dtype, requires_grad))


def narrowed(value):
    """MPS has no float64: what a sample asks of it is asked of float32."""
    return torch.float32 if value is torch.float64 else value


def on_device(value):
    if not isinstance(value, torch.Tensor):
        return value
    return library.twin(value.detach(), "mps").requires_grad_(value.requires_grad)


def taken(kernel):
    return metal_kernels.taken().get(kernel, 0)


def assert_close(actual, expected, computed):
    """torch.testing's own tolerances of a reduction, by the dtype that was computed in."""
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[computed]
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.detach().cpu().double(), expected.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_forward_and_backward(patched, name):
    checked = 0
    for op in opinfos(name):
        for dtype in (*FLOATS, torch.int32, torch.bool) if op.variant_test_name else FLOATS:
            for sample in samples(op, dtype, dtype.is_floating_point):
                wanted = {key: narrowed(value) for key, value in sample.kwargs.items()}
                double = {**wanted, **({"dtype": torch.float64} if "dtype" in wanted else {})}
                source = sample.input.detach().double().requires_grad_()
                expected = op(source, *sample.args, **double)
                x, before = on_device(sample.input), taken("softmax")
                actual = op(x, *sample.args, **wanted)
                computed = wanted.get("dtype") or dtype
                assert taken("softmax") == before + 1 and actual.dtype == computed, (dtype, sample)
                assert_close(actual, expected, computed)
                if sample.input.requires_grad:
                    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).to(computed)
                    (gradient,) = torch.autograd.grad(actual, x, weights.to("mps"))
                    assert taken("softmax") == before + 2
                    assert_close(gradient, torch.autograd.grad(expected, source, weights.double())[0], dtype)
                checked += 1
    assert checked >= 10


def test_linear(patched):
    checked = ours = 0
    for op in opinfos("linear"):
        for dtype in FLOATS:
            for sample in (*samples(op, dtype), *samples(op, dtype, True)):
                tensors = (sample.input, *sample.args)
                twins, before = [on_device(t) for t in tensors], taken("linear")
                actual = op(*twins)
                rows = sample.input.shape[:-1].numel()
                took = taken("linear") - before
                assert took == 1 if rows <= 16 else took in (0, 1), (dtype, sample)  # more: where stock is wrong
                operation = library.OPERATIONS["linear"]
                detached = [t.detach() for t in tensors]
                library.compare(actual, operation.reference(*detached), operation.tolerance, str(sample))
                if sample.input.requires_grad:
                    gradients = torch.autograd.grad(actual.sum(), twins)
                    doubles = [t.detach().double().requires_grad_() for t in tensors]
                    expected = torch.autograd.grad(op(*doubles).sum(), doubles)
                    for got, want in zip(gradients, expected, strict=True):
                        torch.testing.assert_close(got.cpu().double(), want, rtol=2e-2, atol=2e-2)
                checked, ours = checked + 1, ours + took
    assert checked > 30 and ours > 20


@pytest.mark.parametrize("name, variant", [("constant_pad_nd", ""), ("pad", "constant")])
def test_pad(patched, name, variant):
    checked = 0
    for op in opinfos(name):
        if op.variant_test_name != variant:
            continue
        for dtype in metal_kernels.pad.DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for requires_grad in (False, True) if dtype.is_floating_point or dtype.is_complex else (False,):
                for sample in samples(op, dtype, requires_grad):
                    expected = op(sample.input, *sample.args, **sample.kwargs)
                    x, before = on_device(sample.input), taken("pad")
                    actual = op(x, *sample.args, **sample.kwargs)
                    assert taken("pad") == before + 1, (dtype, sample)
                    assert_same(actual, expected, (dtype, sample))
                    assert actual.requires_grad == expected.requires_grad, (dtype, sample)
                    if expected.requires_grad:  # torch 2.15's samples of FP8 are without gradients
                        ones = torch.ones_like(expected)
                        (gradient,) = torch.autograd.grad(actual, x, library.twin(ones, "mps"))
                        assert_same(gradient, torch.autograd.grad(expected, sample.input, ones)[0], (dtype, sample))
                    checked += 1
    assert checked > 50


def assert_same(actual, expected, what):
    assert (actual.shape, actual.stride(), actual.dtype) == (expected.shape, expected.stride(), expected.dtype), what
    assert torch.equal(library.bits(actual), library.bits(expected)), what


def test_topk(patched):
    ours = 0
    for op in opinfos("topk"):
        for dtype in (*FLOATS, torch.int64):
            for sample in samples(op, dtype):
                x, before = sample.input.detach(), taken("grouped_mm")
                values, indices = torch.topk(x, *sample.args, **sample.kwargs)
                actual, where = op(on_device(x), *sample.args, **sample.kwargs)
                ours += taken("grouped_mm") - before
                dim = sample.args[1] if len(sample.args) > 1 else -1
                if x.dim():
                    assert torch.equal(x.gather(dim, where.cpu()), actual.cpu())
                if len(sample.args) > 3 and not sample.args[3]:
                    values, actual = values.sort(dim).values, actual.cpu().sort(dim).values
                assert torch.equal(actual.cpu(), values) and where.shape == indices.shape
    assert ours >= 3


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_histc_of_integers(patched, dtype):
    """The samples are of floats; truncated, they are counted as the table counts."""
    checked = 0
    for op in opinfos("histc"):
        for sample in samples(op, torch.float32):
            x = (sample.input.detach() * 3).abs().to(dtype)
            low, high = (int(sample.kwargs.get(edge, 0)) for edge in ("min", "max"))
            bins = sample.kwargs.get("bins", 100)
            if dtype is torch.uint8 and low < 0:
                continue  # out of its range
            before = taken("grouped_mm")
            library.judge("histc", (x, bins, low, high), "mps", str(sample))
            assert taken("grouped_mm") == before + 1
            checked += 1
    assert checked >= 5


# What moves, fills or copies FP8. Where the CPU has no FP8 kernel, the same op on the bytes is the reference.
MOVES = (
    "cat", "stack", "index_select", "gather", "index_put", "masked_select", "where", "flip", "roll", "repeat",
    "clone", "contiguous", "hstack", "vstack", "take_along_dim", "tile", "narrow", "unbind", "split", "chunk",
    "transpose", "permute", "reshape", "expand", "select", "unfold_copy", "squeeze", "diagonal_copy",
    "repeat_interleave", "nn.functional.embedding",
)  # fmt: skip


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_moves_of_fp8(newest, name, dtype):
    checked = 0
    for op in opinfos(name.removeprefix("nn.functional.")):
        for sample in samples(op, torch.float32):
            whole = (sample.input, sample.args, sample.kwargs)
            if name == "index_put" and True in (*sample.args[2:], *sample.kwargs.values()):
                continue  # accumulates: arithmetic
            if "max_norm" in sample.kwargs:
                continue  # scales the rows that it looks up
            eighth = tree_map(lambda t: as_fp8(t, dtype), whole)
            if not any(isinstance(t, torch.Tensor) and t.dtype is dtype for t in tree_leaves(eighth)):
                continue
            x, args, kwargs = tree_map(on_device_any, eighth)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = on_cpu(op, eighth)
                actual = op(x, *args, **kwargs)
            for got, want in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
                assert got.shape == want.shape and got.element_size() == want.element_size(), sample
                assert torch.equal(library.bits(got), library.bits(want)), (sample, dtype)
            checked += 1
    assert checked


def as_fp8(value, dtype):
    is_float = isinstance(value, torch.Tensor) and value.dtype is torch.float32
    return value.detach().to(dtype) if is_float else value


def on_device_any(value):
    return library.twin(value.detach(), "mps") if isinstance(value, torch.Tensor) else value


def on_cpu(op, sample):
    try:
        x, args, kwargs = sample
        return op(x, *args, **kwargs)
    except NotImplementedError:
        x, args, kwargs = tree_map(as_bytes, sample)
        return op(x, *args, **kwargs)


def as_bytes(value):
    is_fp8 = isinstance(value, torch.Tensor) and value.dtype in (E4M3, E5M2)
    return value.view(torch.uint8) if is_fp8 else value
