"""ops.pad: the plain function and the custom op behind it."""

import importlib

import pytest
import torch


@pytest.fixture(params=["mps", "cpu"])
def device(request):
    return request.param


@pytest.mark.parametrize("pad", [(1, 2), (-1, 2, 3, 0), (0, 0), (), (-1, -1)])
@pytest.mark.parametrize("value", [0, 2.5, -1, True])
def test_pad(ops, device, pad, value):
    x = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)
    for result in (ops.pad(x.to(device), pad, value), torch.ops.metal_kernels.pad(x.to(device), list(pad), value)):
        expected = torch.constant_pad_nd(x, pad, value)
        assert result.device.type == device and torch.equal(result.cpu(), expected)
        assert result.stride() == expected.stride()


def test_complex_values(ops, device):
    x = torch.tensor([1 + 2j])
    assert ops.pad(x.to(device), (1, 1), 3 - 1j).tolist() == [3 - 1j, 1 + 2j, 3 - 1j]


def test_torchs_own_checks_of_a_custom_op(ops, device):
    x = torch.randn(2, 3, device=device, requires_grad=True)
    checks = ["test_schema", "test_faketensor", "test_aot_dispatch_static"]
    if device == "cpu":  # torch does not check this one on mps
        checks.append("test_autograd_registration")
    torch.library.opcheck(torch.ops.metal_kernels.pad.default, (x, [1, -1], 0.5), test_utils=checks)


def test_gradients(ops, device):
    x = torch.randn(2, 3, dtype=torch.float64 if device == "cpu" else torch.float32, device=device, requires_grad=True)
    (ops.pad(x, (1, -1), 2.0) * torch.arange(6.0, device=device).reshape(2, 3)).sum().backward()
    assert x.grad.tolist() == [[1, 2, 0], [4, 5, 0]]
    if device == "cpu":
        assert torch.autograd.gradgradcheck(lambda t: ops.pad(t, (1, -1)).pow(3), (x,))


def test_compile_keeps_the_op_whole(ops, device):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: ops.pad(x, (1, 1)) + 1, backend=backend, fullgraph=True)
    assert compiled(torch.ones(1, device=device)).tolist() == [1, 2, 1]
    assert "metal_kernels.pad" in str(graphs[0].graph)
    assert torch.compile(lambda x: ops.pad(x, (1, 1)), backend="aot_eager")(torch.ones(1, device=device)).numel() == 3


def test_vmap(ops, device):
    x = torch.randn(3, 4, 2)
    result = torch.func.vmap(lambda row: ops.pad(row, (1, 0), 5.0), in_dims=1)(x.to(device))
    assert torch.equal(result.cpu(), torch.constant_pad_nd(x.movedim(1, 0), (1, 0), 5.0))


def test_wrong_arguments_raise_what_torch_raises(ops, device):
    x = torch.zeros(3, device=device)
    for pad in ((1,), (1, 1, 1, 1), (-4, 0)):
        with pytest.raises(RuntimeError) as stock:
            torch.constant_pad_nd(x, pad)
        with pytest.raises(RuntimeError) as ours:
            ops.pad(x, pad)
        assert str(ours.value) == str(stock.value)


def test_the_metal_kernel_runs(ops, core, mps, monkeypatch):
    """And torch's own stands in for one that has failed its self-check."""
    switch = core.face._installation.switches["pad"]
    launches = []
    library = importlib.import_module(f"{core.face.__name__}.pad.host").LIBRARY
    launch = library.launch
    monkeypatch.setattr(library, "launch", lambda *a, **k: launches.append(a[0]) or launch(*a, **k))
    monkeypatch.setattr(switch, "checked", {torch.float32})
    assert ops.pad(torch.ones(1, device=mps), (1, 1)).tolist() == [0, 1, 0]
    assert len(launches) == 1
    monkeypatch.setattr(switch, "checked", set())
    monkeypatch.setattr(switch, "failure", "a test says so")
    assert ops.pad(torch.ones(1, device=mps), (1, 1)).tolist() == [0, 1, 0]
    assert len(launches) == 1
