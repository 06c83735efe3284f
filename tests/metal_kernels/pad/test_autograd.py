"""Gradients of padding are padding with the signs turned: exact, and they come back to our kernel."""

import pytest
import torch
import torch.nn.functional as F

PADS = ((1, 2), (1, 1, 1, 1, 2, 0), (-1, -1), (-1, 2, 1, -1), (0, 0, -1, 0), (0, 0), ())

LAYOUTS = {"dense": lambda x: x, "transposed": lambda x: x.transpose(1, 3), "strided": lambda x: x[..., 1::2]}


def dense(sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pad", PADS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_the_cpus(padding, pad, layout):
    layout = LAYOUTS[layout]
    leaf = dense((2, 3, 5, 4, 6))
    leaves = leaf.clone().requires_grad_(), padding.twin(leaf).requires_grad_()
    grads, outputs = [], []
    for x in leaves:
        before = padding.taken
        y = F.pad(layout(x), pad, value=2.0)
        weight = torch.arange(y.numel(), dtype=torch.float32).view(y.shape).to(y.device)
        # y * weight, and squared, so that the second derivative is one too.
        (first,) = torch.autograd.grad((y * y * weight).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        grads.append((first, second))
        outputs.append(y)
        if x.device.type == "mps":
            assert padding.taken - before >= 3, "forward, backward and double backward must be ours"
    padding.assert_same(outputs[1], outputs[0])
    for actual, expected in zip(grads[1], grads[0], strict=True):
        padding.assert_same(actual.contiguous(), expected.contiguous())


def test_gradient_of_complex(padding):
    x = padding.twin(torch.complex(dense((3, 4)), dense((3, 4)))).requires_grad_()
    y = F.pad(x, (1, -1, 2, 0))
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    expected = torch.ones(3, 4, dtype=torch.complex64)
    expected[:, -1] = 0
    padding.assert_same(grad, expected)


def test_jacobian_is_a_selection(padding):
    """Against finite differences in effect: each input element reaches exactly one output element, with factor one."""
    x = padding.twin(dense((3, 4)))
    for pad in ((1, 2, 0, 1), (-1, 2, 1, -1)):
        jacobian = torch.autograd.functional.jacobian(lambda t: F.pad(t, pad), x).cpu()  # noqa: B023
        reference = torch.autograd.functional.jacobian(lambda t: F.pad(t, pad), x.cpu())  # noqa: B023
        assert torch.equal(jacobian, reference)
        assert jacobian.sum() == jacobian.count_nonzero() <= 12


def test_modes_around_a_call(padding):
    x = dense((2, 3, 4))
    on_device = padding.twin(x)
    expected = F.pad(x, (1, 1))
    with torch.inference_mode():
        y = F.pad(on_device, (1, 1))
        assert y.is_inference()
        padding.assert_same(y.clone(), expected)
    with torch.no_grad():
        padding.assert_same(F.pad(on_device.requires_grad_(), (1, 1)), expected)
    with torch.autocast("mps", dtype=torch.float16):
        padding.assert_same(F.pad(on_device, (1, 1)), expected)
    y = torch.func.vmap(lambda t: F.pad(t, (1, 1)))(on_device)
    padding.assert_same(y, expected)
