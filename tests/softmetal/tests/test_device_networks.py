"""Networks on mps tensors: layers forward and backward, attention, training, transforms and modes."""

import copy

import pytest
import softmetal
import torch
import torch.nn.functional as F
from softmetal.tests.device_pairs import both, same


@pytest.fixture(autouse=True)
def device():
    softmetal.activate()
    return torch.device("mps")


def gradients(function, *inputs):
    """Result of function and the gradients of its inputs, for a fixed pseudo-random output gradient."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    result = function(*leaves)
    weight = torch.sin(torch.arange(result.numel(), dtype=torch.float32)).view(result.shape).to(result.device)
    (result * weight).sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize(
    ("name", "function", "shapes"),
    [
        ("linear", F.linear, [(2, 5, 8), (6, 8), (6,)]),
        ("linear without bias", F.linear, [(5, 8), (6, 8)]),
        ("linear of a vector", F.linear, [(8,), (6, 8), (6,)]),
        ("linear with a vector", F.linear, [(5, 8), (8,)]),
        ("linear of nothing", F.linear, [(3, 4, 0), (5, 0), (5,)]),
        ("linear without rows", F.linear, [(2, 0, 8), (6, 8), (6,)]),
        ("linear without outputs", F.linear, [(3, 4, 8), (0, 8), (0,)]),
        ("linear with a vector of nothing", F.linear, [(3, 4, 0), (0,)]),
        ("conv1d", lambda x, w: F.conv1d(x, w, padding=1), [(2, 3, 9), (4, 3, 3)]),
        ("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), [(2, 3, 8, 8), (4, 3, 3, 3), (4,)]),
        ("conv2d grouped", lambda x, w: F.conv2d(x, w, groups=4), [(1, 4, 6, 6), (4, 1, 3, 3)]),
        ("conv3d", lambda x, w: F.conv3d(x, w, dilation=2), [(1, 2, 6, 6, 6), (3, 2, 3, 3, 3)]),
        ("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2), [(1, 3, 4, 4), (3, 2, 3, 3)]),
        ("max_pool2d", lambda x: F.max_pool2d(x, 2), [(1, 3, 8, 8)]),
        ("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b), [(3, 8), (8,), (8,)]),
        ("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 5), (4,), (4,)]),
        ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), [(4, 3, 5)]),
        ("rms_norm", lambda x, w: F.rms_norm(x, (8,), w), [(3, 8), (8,)]),
        ("softmax", lambda x: x.softmax(-1), [(4, 7)]),
        ("pad", lambda x: F.pad(x, (1, -1, 2, 0)), [(2, 3, 4)]),
        ("sdpa", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [(1, 2, 5, 8)] * 3),
        ("interpolate", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(1, 2, 4, 4)]),
        ("index", lambda x: x[[0, 2, 0]], [(3, 4)]),
        ("einsum", lambda a, b: torch.einsum("bij,bjk->bik", a, b), [(2, 3, 4), (2, 4, 5)]),
        ("embedding-like", lambda w: F.embedding(torch.tensor([[0, 2]], device=w.device), w), [(3, 4)]),
        ("cat", lambda a, b: torch.cat([a, b], 1), [(2, 3), (2, 4)]),
        ("std", lambda x: x.std(dim=0), [(5, 3)]),
        ("gelu", F.gelu, [(4, 5)]),
        ("cdist", torch.cdist, [(4, 3), (5, 3)]),
    ],
)
def test_forward_and_backward_agree(name, function, shapes):
    pairs = [both(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    expected = gradients(function, *(x for x, _ in pairs))
    actual = gradients(function, *(m for _, m in pairs))
    for got, want in zip(actual, expected, strict=True):
        assert got.device.type == "mps" and got.shape == want.shape
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


def test_attention_takes_every_argument():
    q, mq = both(2, 4, 5, 8, seed=1)
    k, mk = both(2, 2, 7, 8, seed=2)
    mask = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.3
    mask[..., 0] = True
    for kwargs in ({}, {"attn_mask": mask}, {"attn_mask": mask.float()}, {"scale": 0.5}, {"is_causal": True}):
        there = {name: value.to("mps") if isinstance(value, torch.Tensor) else value for name, value in kwargs.items()}
        torch.testing.assert_close(
            F.scaled_dot_product_attention(mq[:, :2], mk, mk, **there).cpu(),
            F.scaled_dot_product_attention(q[:, :2], k, k, **kwargs),
            rtol=1e-5,
            atol=1e-5,
        )
        torch.testing.assert_close(
            F.scaled_dot_product_attention(mq, mk, mk, enable_gqa=True, **there).cpu(),
            F.scaled_dot_product_attention(q, k, k, enable_gqa=True, **kwargs),
            rtol=1e-5,
            atol=1e-5,
        )
    with torch.inference_mode():
        F.scaled_dot_product_attention(mq, mq, mq, dropout_p=0.5)


def test_modules_train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(4),
    )
    x, m = both(4, 3, 6, 6)
    model(x)
    twin = copy.deepcopy(model).to("mps")
    for net, data in ((model, x), (twin, m)):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            net(data).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    for want, got in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.MultiheadAttention])
def test_recurrent_and_attention_modules(kind):
    torch.manual_seed(0)
    module = kind(8, 4 if kind is not torch.nn.MultiheadAttention else 2)
    twin = copy.deepcopy(module).to("mps")
    x, m = both(5, 2, 8)
    expected, actual = (
        net(*([data] if kind is not torch.nn.MultiheadAttention else [data] * 3))[0]
        for net, data in ((module, x), (twin, m))
    )
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_channels_last_stays():
    x, m = both(2, 3, 4, 5)
    x, m = (t.contiguous(memory_format=torch.channels_last) for t in (x, m))
    for function in (
        lambda t: t + 1,
        F.relu,
        lambda t: t.to(torch.float16),
        torch.clone,
        torch.empty_like,
        lambda t: F.pad(t, (1, 1)),
        lambda t: F.max_pool2d(t, 2),
    ):
        assert function(m).stride() == function(x).stride()
    volume = torch.ones(1, 2, 3, 4, 5, device="mps").to(memory_format=torch.channels_last_3d)
    assert volume.is_contiguous(memory_format=torch.channels_last_3d)


def test_float8_works_on_a_faultless_stock():
    x, m = both(64, 32)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        same(m.to(dtype).float(), x.to(dtype).float())
        assert torch.equal(
            m.to(dtype).t().contiguous().cpu().view(torch.uint8), x.to(dtype).t().contiguous().view(torch.uint8)
        )


def test_inference_mode_autocast_and_hooks():
    x, m = both(4, 8)
    with torch.inference_mode():
        y = m * 2
        y[0] = 1
        assert y.is_inference() and y.device.type == "mps"
    with torch.autocast("mps", dtype=torch.float16):
        assert F.linear(m, m).dtype == torch.float16
    calls = []
    leaf = m.clone().requires_grad_()
    leaf.register_hook(lambda grad: calls.append(grad.device.type))
    (leaf * leaf).sum().backward()
    assert calls == ["mps"]
    same(leaf.grad, 2 * x)


def test_functional_transforms():
    x, m = both(4, 3)
    same(torch.func.vmap(lambda row: row * 2)(m), torch.func.vmap(lambda row: row * 2)(x))
    same(torch.func.grad(lambda t: (t**3).sum())(m), torch.func.grad(lambda t: (t**3).sum())(x))


def test_dispatch_modes_see_the_ops():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen = []
    m = torch.ones(3, device="mps")
    with Log(), Log():
        F.softmax(m + 1, 0)
    assert seen == ["aten.add.Tensor"] * 2 + ["aten._softmax.default"] * 2


CUBES = lambda x: (x.sin() ** 3 * x.flip(0)).sum()  # noqa: E731
SOFTENED = lambda x: torch.softmax(x.view(1, -1) @ x.view(-1, 1) * x, -1).square().sum()  # noqa: E731


@pytest.mark.parametrize("function", [CUBES, SOFTENED], ids=["cubes", "softened"])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.jvp(torch.func.grad(f), (x,), (x.cos(),))[1],
        lambda f, x: torch.func.hessian(f)(x),
        lambda f, x: torch.func.jacfwd(torch.func.grad(f))(x),
        lambda f, x: torch.func.jacrev(torch.func.grad(f))(x),
        lambda f, x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, x.cos()])),
    ],
    ids=["jvp of grad", "hessian", "jacfwd of grad", "jacrev of grad", "vmap of grad"],
)
def test_transforms_of_a_backward_pass(function, transform):
    """Forward-mode AD meets what has no tangent in the backward pass, which runs in a thread of the device's own."""
    x = torch.linspace(-1, 1.5, 5)
    assert torch.allclose(transform(function, x.to("mps")).cpu(), transform(function, x), atol=1e-5)


def test_zeros_without_memory():
    """_efficientzerotensor: what an op, a copy or a view of one is, as on the CPU."""
    zero = torch._efficientzerotensor((2, 3), device="mps")
    assert zero.device.type == "mps" and zero._is_zerotensor() and zero.dtype == torch.float32
    assert zero.t()._is_zerotensor() and zero.t().shape == (3, 2)
    one = torch.ones(2, 3, device="mps")
    for result in (zero.cpu(), zero + 0, zero.clone(), zero.t().contiguous(), one.clone().copy_(zero),
                   torch.cat([zero, zero]), zero.to(torch.float16), zero.expand(4, 2, 3).sum(0)):
        assert not result.any()
    assert (one * zero)._is_zerotensor() and torch.equal(one + zero, one)
    assert zero.sum().item() == 0 and zero[0, 0].item() == 0
