"""Gradients of metal_kernels.ops against the CPU's in float64; where there are none, a clear error."""

import pytest
import torch
from conformance import library

E4M3 = torch.float8_e4m3fn


def randn(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def gradients(function, tensors, order=1):
    """Of a weighted sum of function(*tensors) with respect to each; of their weighted sum again for order 2."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = function(*leaves)
    grads = torch.autograd.grad((y * weights_for(y)).sum(), leaves, create_graph=order > 1)
    if order > 1:
        total = sum((g * weights_for(g, 9)).sum() for g in grads)
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [g for g in grads if g is not None]


def weights_for(y, seed=5):
    return randn(*y.shape, seed=seed).to(y.device, y.dtype)


def assert_same(ours, reference, tensors, order=1):
    actual = gradients(ours, [t.to("mps") for t in tensors], order)
    expected = gradients(reference, [t.double() for t in tensors], order)
    assert len(actual) == len(expected) > 0
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(ops, name, order):
    for sizes, dim in (((4, 33), -1), ((3, 20, 5), 1), ((7,), 0)):
        assert_same(
            lambda x, dim=dim: getattr(ops, name)(x, dim), lambda x, dim=dim: getattr(torch, name)(x, dim),
            [randn(*sizes)], order,
        )  # fmt: skip


def test_half_to_float(ops):
    x = randn(4, 33).half()
    leaf, reference = x.to("mps").requires_grad_(), x.double().requires_grad_()
    y = ops.softmax(leaf, -1, half_to_float=True)
    assert y.dtype is torch.float32
    y.square().sum().backward()
    torch.softmax(reference, -1).square().sum().backward()
    assert leaf.grad.dtype is torch.float16
    torch.testing.assert_close(leaf.grad.cpu().double(), reference.grad, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("sizes", [(40,), (5, 40), (2, 3, 40), (30, 40)], ids=str)
def test_linear(ops, sizes, order):
    tensors = [randn(*sizes), randn(13, 40, seed=1), randn(13, seed=2)]
    assert_same(ops.linear, torch.nn.functional.linear, tensors, order)
    assert_same(ops.linear, torch.nn.functional.linear, tensors[:2], order)


@pytest.mark.parametrize("sizes", [((3, 4), (0, 4)), ((3, 0), (5, 0)), ((0, 4), (5, 4)), ((2, 0, 4), (0, 4))], ids=str)
def test_linear_of_nothing(ops, sizes):
    tensors = [randn(*sizes[0]), randn(*sizes[1]), randn(sizes[1][0])]
    for count in (2, 3):
        assert_same(ops.linear, torch.nn.functional.linear, tensors[:count])


@pytest.mark.parametrize("mode", ["rows", "columns", "K", "batches"])
def test_grouped_mm(ops, mode):
    ends = torch.tensor([3, 3, 17, 20], dtype=torch.int32)
    a, b = {
        "rows": (randn(20, 32), randn(4, 32, 40, seed=1)),
        "columns": (randn(4, 16, 32), randn(32, 20, seed=1)),
        "K": (randn(16, 20), randn(20, 40, seed=1)),
        "batches": (randn(3, 16, 32), randn(3, 32, 40, seed=1)),
    }[mode]
    offs = None if mode == "batches" else ends
    assert_same(
        lambda a, b: ops.grouped_mm(a, b, None if offs is None else offs.to("mps")),
        lambda a, b: library.product(a, b, offs), [a, b],
    )  # fmt: skip


def test_a_gradient_that_no_kernel_takes_as_it_lies(ops):
    """3 outputs: its rows do not start on 16 bytes. And a sum's gradient, of stride 0."""
    a, b = randn(6, 16), randn(2, 16, 3, seed=1)
    padded = torch.zeros(2, 16, 4)[..., :3].copy_(b)
    offs = torch.tensor([2, 6], dtype=torch.int32)
    x, w = a.to("mps").requires_grad_(), torch.zeros(2, 16, 4, device="mps")[..., :3].copy_(padded.to("mps"))
    ops.grouped_mm(x, w, offs.to("mps")).sum().backward()
    expected = torch.cat([a.new_ones(2, 3) @ b[0].t(), a.new_ones(4, 3) @ b[1].t()])
    torch.testing.assert_close(x.grad.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_topk(ops):
    assert_same(lambda x: ops.topk(x, 4)[0], lambda x: torch.topk(x, 4).values, [randn(5, 30)])
    assert not ops.topk(randn(5, 30).to("mps").requires_grad_(), 4)[1].requires_grad


def test_cast(ops):
    x = randn(4, 4).to("mps").requires_grad_()
    (ops.cast(ops.cast(x, E4M3), torch.float32) * 2).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((4, 4), 2.0))


@pytest.mark.parametrize("scale", [None, "tensor", "row"])
@pytest.mark.parametrize("rows", [3, 40])
def test_linear_on_an_fp8_weight(ops, rows, scale):
    x, weight, bias = randn(rows, 64), randn(24, 64, seed=1).to(E4M3), randn(24, seed=2)
    factor = {None: None, "tensor": torch.tensor([0.37]), "row": torch.rand(24) + 0.5}[scale]
    w = weight.float() * (1.0 if factor is None else factor.view(-1, 1))
    on_device = [None if t is None else t.to("mps") for t in (weight.view(torch.uint8), factor)]
    assert_same(
        lambda x, bias: ops.linear(x, on_device[0].view(E4M3), bias, scale=on_device[1]),
        lambda x, bias: torch.nn.functional.linear(x, w.to(x.dtype), bias), [x, bias],
    )  # fmt: skip
    assert_same(  # as most layers of image models are
        lambda x: ops.linear(x, on_device[0].view(E4M3), scale=on_device[1]),
        lambda x: torch.nn.functional.linear(x, w.to(x.dtype)), [x],
    )  # fmt: skip


def test_linear_on_an_fp8_weight_without_outputs(ops):
    weight = torch.zeros(0, 64, dtype=torch.uint8).to("mps").view(E4M3)
    assert_same(lambda x, bias: ops.linear(x, weight, bias), lambda x, bias: x.new_zeros(3, 0) + bias + x.sum() * 0,
                [randn(3, 64), randn(0)])  # fmt: skip


def test_what_has_no_gradient_says_so(ops):
    x = randn(4, 64).to("mps").requires_grad_()
    weight = ops.cast(randn(16, 64).to("mps"), E4M3)
    with pytest.raises(RuntimeError, match="not of the weight and its scale"):
        ops.linear(x, weight, scale=torch.ones(1, device="mps", requires_grad=True)).sum().backward()
    for call in (
        lambda: ops.quantize_fp8(x)[1],
        lambda: ops.stochastic_rounding(x, torch.zeros(4, 64, dtype=torch.uint8, device="mps")).float(),
    ):
        with pytest.raises(RuntimeError, match="no autograd formula was registered|does not require grad"):
            call().sum().backward()


def test_blocks_of_a_wrong_shape_are_refused_before_anything_runs(ops):
    for device in ("mps", "meta"):
        with pytest.raises(ValueError, match="multiple of 32"):
            ops.quantize_fp8(torch.zeros(64, device=device), E4M3, "block32")


def test_forward_mode_says_so(ops):
    """A custom op would drop the tangent: a derivative of zeros."""
    x, w = randn(2, 5).to("mps"), randn(3, 5).to("mps")
    for function in (lambda t: ops.softmax(t, -1), lambda t: ops.linear(w, t), lambda t: ops.pad(t, [1, 1])):
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            torch.func.jvp(function, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        assert ops.softmax(x, -1).shape == x.shape
    _, tangent = torch.func.jvp(lambda t: torch.softmax(t, -1), (x,), (x,))
    _, expected = torch.func.jvp(lambda t: torch.softmax(t, -1), (x.cpu(),), (x.cpu(),))
    torch.testing.assert_close(tangent.cpu(), expected)
