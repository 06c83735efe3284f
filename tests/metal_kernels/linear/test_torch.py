"""linear inside torch: gradients, autocast, inference mode, vmap, modules, and the errors of wrong arguments."""

import pytest
import torch
import torch.nn.functional as F

ROWS = ((40,), (5, 40), (2, 3, 40), (30, 40))


def leaves(lin, sizes, bias=True, dtype=torch.float32):
    x, weight = lin.random(*sizes, dtype=dtype), lin.random(13, sizes[-1], seed=1, dtype=dtype)
    tensors = [x, weight] + ([lin.random(13, seed=2, dtype=dtype)] if bias else [])
    return tensors, [lin.twin(t).requires_grad_() for t in tensors]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", ROWS, ids=str)
def test_gradients(lin, sizes, bias):
    tensors, twins = leaves(lin, sizes, bias)
    doubles = [t.double().requires_grad_() for t in tensors]
    before = lin.taken
    y = F.linear(*twins)
    assert lin.taken - before == (torch.Size(sizes[:-1]).numel() <= 16)
    assert y.requires_grad and "LinearBackward" in type(y.grad_fn).__name__
    gradients = torch.autograd.grad((y * y).sum(), twins, create_graph=True)
    expected = torch.autograd.grad(F.linear(*doubles).square().sum(), doubles, create_graph=True)
    for actual, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(actual.cpu().double(), reference, rtol=1e-5, atol=1e-4)
    second = torch.autograd.grad(gradients[0].sum(), twins[1])[0]
    reference = torch.autograd.grad(expected[0].sum(), doubles[1])[0]
    torch.testing.assert_close(second.cpu().double(), reference, rtol=1e-5, atol=1e-4)


def test_only_some_gradients(lin):
    """A LoRA's base weight is frozen."""
    _, (x, weight, bias) = leaves(lin, (3, 40))
    y = F.linear(x.detach(), weight.detach(), bias)
    y.sum().backward()
    assert torch.equal(bias.grad.cpu(), torch.full((13,), 3.0)) and weight.grad is None
    assert not F.linear(x.detach(), weight.detach()).requires_grad


def test_a_module_trains_as_on_the_cpu(lin):
    torch.manual_seed(0)
    reference = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.GELU(), torch.nn.Linear(12, 2))
    module = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.GELU(), torch.nn.Linear(12, 2))
    module.load_state_dict(reference.state_dict())
    module.to("mps")
    x = torch.randn(8, 6)
    for net, data in ((reference, x), (module, x.to("mps"))):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            net(data).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(lin, close, dtype):
    tensors, twins = leaves(lin, (3, 40))
    before = lin.taken
    with torch.autocast("mps", dtype=dtype):
        y = F.linear(*twins)
    assert lin.taken == before + 1 and y.dtype == dtype
    close(y, *(t.to(dtype) for t in tensors))
    y.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in twins)


def test_modes_around_a_call(lin, close):
    tensors, twins = leaves(lin, (3, 40))
    with torch.inference_mode():
        y = F.linear(*twins)
        assert y.is_inference()
        close(y.clone(), *tensors)
    with torch.no_grad():
        close(F.linear(*twins), *tensors)
    with torch.device("mps"):
        close(F.linear(*twins), *tensors)
    y = torch.func.vmap(lambda row: F.linear(row, *twins[1:]))(twins[0])
    torch.testing.assert_close(y.detach().cpu(), F.linear(*tensors), rtol=1e-5, atol=1e-5)
    negative = torch.complex(*tensors[:1] * 2)  # the imaginary part of a conjugate has its sign in a flag
    view = lin.twin(negative).conj().imag
    assert view.is_neg()
    close(F.linear(view, *twins[1:]), -tensors[0], *tensors[1:])


def test_out(lin, close):
    tensors, twins = leaves(lin, (3, 40))
    twins = [t.detach() for t in twins]
    out = torch.empty(0, device="mps")
    assert torch._C._nn.linear(*twins, out=out) is out
    close(out, *tensors)


WRONG = {
    "length": ((3, 8), (5, 7), None),
    "length of one": ((3, 8), (5, 1), None),
    "bias length": ((3, 8), (5, 8), (4,)),
    "vector input": ((8,), (5, 7), None),
    "three-dimensional weight": ((3, 8), (2, 5, 8), None),
    "vector weight of another length": ((3, 8), (7,), None),
    "empty of another length": ((0, 8), (5, 7), None),
    "number as input": ((), (5, 8), None),
}


def error_of(call, *args):
    try:
        call(*args)
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("rows", [3, 30])
def test_wrong_shapes_raise_what_the_cpu_raises(lin, faultless_stock, case, rows):
    sizes, weight, bias = WRONG[case]
    sizes = (rows, *sizes[1:]) if sizes and sizes[0] == 3 else sizes
    tensors = [torch.zeros(s) for s in (sizes, weight, bias) if s is not None]
    expected = error_of(F.linear, *tensors)
    assert expected is not None
    assert error_of(F.linear, *map(lin.twin, tensors)) == expected


@pytest.mark.parametrize("position", [0, 1, 2])
def test_mixed_dtypes_and_devices_raise_what_stock_raises(lin, faultless_stock, position):
    tensors = [torch.zeros(3, 8), torch.zeros(5, 8), torch.zeros(5)]
    for change in (
        lambda t: t.half().to("mps"),
        lambda t: t.double() if t.device.type == "cpu" else t,
        lambda t: t.to("meta"),
    ):
        mixed = [change(t) if i == position else lin.twin(t) for i, t in enumerate(tensors)]
        with lin.metal_kernels.using(linear="off"):
            expected = error_of(F.linear, *mixed)
        before = lin.taken
        assert error_of(F.linear, *mixed) == expected
        assert lin.taken == before


def test_other_dtypes_are_stocks(lin, faultless_stock):
    before = lin.taken
    for dtype in (torch.int32, torch.int64, torch.complex64):
        x, weight = torch.ones(3, 8, dtype=dtype), torch.ones(5, 8, dtype=dtype)
        outcome = error_of(F.linear, x, weight)
        assert error_of(F.linear, x.to("mps"), weight.to("mps")) == outcome
    assert lin.taken == before


def test_other_biases_are_stocks(lin, faultless_stock):
    """What the CPU broadcasts."""
    x, weight = lin.random(3, 8), lin.random(5, 8)
    before = lin.taken
    for bias in (torch.ones(1), torch.tensor(2.0), torch.ones(3, 5), torch.ones(1, 5)):
        expected = F.linear(x, weight, bias)
        actual = F.linear(*map(lin.twin, (x, weight, bias)))
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert lin.taken == before
