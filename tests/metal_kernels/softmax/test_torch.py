"""Within torch: autograd, out=, modes around a call, torch versions, and what must go to stock."""

import pytest
import torch
import torch.nn.functional as F


def both(softmaxing, x, function):
    """(ours, the CPU's in float64) of a function of one tensor, with the gradient of a weighted sum."""
    results = []
    for source in (softmaxing.twin(x), x.double()):
        source = source.detach().requires_grad_()
        y = function(source)
        weights = softmaxing.random(y.shape, seed=5).to(y.device, y.dtype)
        (gradient,) = torch.autograd.grad((y * weights).sum(), source)
        results.append((y.detach().cpu().double(), gradient.cpu().double()))
    return results


@pytest.mark.parametrize(
    "function, calls",
    [
        (lambda x: torch.softmax(x, -1), 2),
        (lambda x: x.softmax(0), 2),
        (lambda x: F.log_softmax(x, 1), 2),
        (lambda x: F.softmax(x.transpose(0, 1), -1), 2),
        (lambda x: torch.softmax(x[..., 1:].transpose(0, 2), 1), 2),
        (lambda x: F.cross_entropy(x.flatten(0, 1), torch.zeros(15, dtype=torch.long, device=x.device)), 2),
        (lambda x: F.softmin(x, -1), 2),
        (lambda x: F.gumbel_softmax(x * 0 + 1, tau=1e9), 2),
        (lambda x: torch.softmax(torch.softmax(x, -1), -2), 4),
    ],
)
def test_gradients(softmaxing, function, calls):
    x = softmaxing.random((3, 5, 37))
    before = softmaxing.taken
    ours, reference = both(softmaxing, x, function)
    assert softmaxing.taken == before + calls
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_second_derivatives(softmaxing):
    def hessian(x):
        return torch.autograd.functional.hessian(lambda t: (torch.softmax(t, -1) ** 2).sum(), x)

    x = softmaxing.random((2, 6))
    torch.testing.assert_close(hessian(softmaxing.twin(x)).cpu().double(), hessian(x.double()), rtol=1e-5, atol=1e-6)


def test_training_step_leaves_nothing_to_stock(softmaxing):
    """Attention and a loss, forward and backward, as when a LoRA is trained."""
    from softmetal import counters

    q = softmaxing.twin(softmaxing.random((2, 4, 33, 16))).requires_grad_()
    counters.reset()
    scores = torch.softmax(q @ q.transpose(-1, -2), -1)
    loss = F.cross_entropy((scores @ q).flatten(0, 2), torch.zeros(2 * 4 * 33, dtype=torch.long, device="mps"))
    loss.backward()
    for op in ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"):
        assert counters.calls(f"aten::{op}") == counters.calls(f"aten::{op}.out") == 0
    assert q.grad.isfinite().all()


def test_modes_around_a_call(softmaxing):
    x = softmaxing.random((4, 50))
    on_device, expected = softmaxing.twin(x), torch.softmax(x.double(), -1)

    def close(y):
        torch.testing.assert_close(y.detach().cpu().double(), expected, rtol=1e-5, atol=1e-6)

    with torch.inference_mode():
        y = torch.softmax(on_device, -1)
        assert y.is_inference()
        close(y.clone())
    with torch.autocast("mps", dtype=torch.float16):
        y = torch.softmax(on_device.half(), -1)
        assert y.dtype == torch.float32  # autocast's rule for softmax
    close(torch.func.vmap(lambda t: torch.softmax(t, -1))(on_device))
    close(torch.compile(lambda t: torch.softmax(t, -1), backend="aot_eager")(on_device))


class TestOut:
    """torch.softmax(..., out=) arrives at _softmax.out."""

    @pytest.mark.parametrize("name", ["softmax", "log_softmax"])
    def test_layouts(self, softmaxing, name):
        function = getattr(torch, name)
        x = softmaxing.random((6, 40))
        expected = function(x.double(), -1)
        outs = {
            "contiguous": torch.empty(6, 40, device="mps"),
            "empty": torch.empty(0, device="mps"),
            "transposed": torch.empty(40, 6, device="mps").t(),
            "a slice": torch.empty(6, 50, device="mps")[:, 3:43],
        }
        for what, out in outs.items():
            before, strides = softmaxing.taken, out.stride()
            source = softmaxing.twin(x)
            assert function(source, -1, out=out) is out
            assert softmaxing.taken == before + 1, what
            assert out.shape == (6, 40) and (what == "empty" or out.stride() == strides)
            torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-5, atol=1e-6)

    def test_the_op_itself(self, softmaxing):
        x = softmaxing.random((6, 40))
        for out in (torch.empty(6, 40, device="mps"), torch.empty(40, 6, device="mps").t()):
            before = softmaxing.taken
            torch.ops.aten._softmax.out(softmaxing.twin(x), 1, False, out=out)
            assert softmaxing.taken == before + 1
            torch.testing.assert_close(out.cpu(), torch.softmax(x, 1), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("dim", [0, 1])
    def test_in_place(self, softmaxing, dim):
        x = softmaxing.random((6, 40))
        y = softmaxing.twin(x)
        torch.softmax(y, dim, out=y)
        torch.testing.assert_close(y.cpu(), torch.softmax(x, dim), rtol=1e-5, atol=1e-6)
        # An output that overlaps its input without being it.
        z = softmaxing.twin(softmaxing.random((7, 40)))
        expected = torch.softmax(z[:6].cpu(), dim)
        torch.ops.aten._softmax.out(z[:6], dim, False, out=z[1:])
        torch.testing.assert_close(z[1:].cpu(), expected, rtol=1e-5, atol=1e-6)

    def test_backward(self, softmaxing):
        g, y = softmaxing.random((6, 40)), torch.softmax(softmaxing.random((6, 40), seed=3), 1)
        out = torch.empty(6, 40, device="mps")
        aten, before = torch.ops.aten, softmaxing.taken
        aten._softmax_backward_data.out(softmaxing.twin(g), softmaxing.twin(y), 1, g.dtype, grad_input=out)
        expected = torch._softmax_backward_data(g, y, 1, g.dtype)
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-6)
        aten._log_softmax_backward_data.out(softmaxing.twin(g), softmaxing.twin(y), 1, g.dtype, out=out)
        expected = torch._log_softmax_backward_data(g, y, 1, g.dtype)
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)
        assert softmaxing.taken == before + 2


def test_wrong_arguments_raise_what_the_cpu_raises(softmaxing):
    import softmetal

    x = softmaxing.random((3, 4))
    y = softmaxing.random((3, 5))
    calls = (
        lambda t, u: torch.softmax(t, 2),
        lambda t, u: torch.log_softmax(t, -3),
        lambda t, u: torch.softmax(t.int(), 0),
        lambda t, u: torch.softmax(t.bool(), 0),
        lambda t, u: torch._softmax(t, 0, True),
        lambda t, u: torch._softmax_backward_data(t, u, 0, t.dtype),
        lambda t, u: torch._softmax_backward_data(t, t, 2, t.dtype),
        lambda t, u: torch._log_softmax_backward_data(t, t.half(), 0, t.dtype),
        lambda t, u: torch.softmax(t, 0, out=torch.empty(3, 4, dtype=torch.half, device=t.device)),
    )
    with softmetal.profile(faults=None):
        before = softmaxing.taken
        for call in calls:
            with pytest.raises(Exception) as expected:  # noqa: B017 - whatever the CPU raises
                call(x, y)
            with pytest.raises(type(expected.value)) as actual:
                call(softmaxing.twin(x), softmaxing.twin(y))
            assert str(actual.value).split("(")[0] == str(expected.value).split("(")[0]
        assert softmaxing.taken == before
    host = softmaxing.modules.host
    with pytest.raises(ValueError, match="dim=2"):
        host.softmax(softmaxing.twin(x), 2)
    with pytest.raises(ValueError, match="cpu"):
        host.log_softmax(x, 1)
    with pytest.raises(ValueError, match="softmax_backward does not take"):
        host.softmax_backward(softmaxing.twin(x), softmaxing.twin(y), 1, x.dtype)


@pytest.mark.parametrize(
    "version, forward, backward", [("2.9", True, True), ("2.13", True, True), ("2.15", False, True)]
)
def test_auto_takes_what_this_torch_does_badly(softmaxing, version, forward, backward):
    import softmetal

    x = softmaxing.twin(softmaxing.random((4, 50)))
    metal_kernels = softmaxing.metal_kernels
    with softmetal.profile(faults=version):
        metal_kernels.uninstall()
        metal_kernels.set_mode(softmax="auto")
        metal_kernels.install()
        try:
            before = softmaxing.taken
            y = torch.softmax(x, -1)
            torch.log_softmax(x, -1)
            assert softmaxing.taken - before == 2 * forward
            torch._softmax_backward_data(x, y, -1, x.dtype)
            torch._log_softmax_backward_data(x, y, -1, x.dtype)
            assert softmaxing.taken - before == 2 * forward + 2 * backward
            with metal_kernels.using(softmax="on"):
                torch.softmax(x, -1)
            assert softmaxing.taken - before == 2 * forward + 2 * backward + 1
            assert metal_kernels.status()["kernels"]["softmax"]["state"] == "patched"
        finally:
            metal_kernels.uninstall()
            metal_kernels.set_mode(softmax="on")
    metal_kernels.install()


def test_bench_cases(softmaxing):
    """The real shapes are large for the software device: their calls on meta tensors."""
    cases = list(softmaxing.modules.bench.cases("meta"))
    assert {case.op for case in cases} == {
        "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
    }  # fmt: skip
    for case in cases:
        sizes = tuple(int(size) for size in case.shape.split()[0].split("x"))
        result = case.call()
        assert result.shape == sizes and result.dtype == case.dtype
