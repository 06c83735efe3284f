"""What torch does round a patched call: autograd, inference mode, autocast, torch.compile, functorch, subclasses.

The test's kernels compute what stock computes, with a sign (`ran`) that they did, so that the results can be compared.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode


@pytest.fixture
def ran():
    return []


@pytest.fixture
def patched(install, make_kernel, core, ran):
    """Pad and linear patched by kernels that compute the right result by other means."""

    def pad(x, padding, value=0):
        ran.append("pad")
        before, after = padding
        sizes = list(x.shape)
        sizes[-1] += before + after
        result = torch.full(sizes, value or 0, dtype=x.dtype, device=x.device)
        result.narrow(-1, max(before, 0), x.shape[-1] + min(before, 0) + min(after, 0)).copy_(
            x.narrow(-1, max(-before, 0), x.shape[-1] + min(before, 0) + min(after, 0))
        )
        return result

    def linear(x, weight, bias=None):
        ran.append("linear")
        result = (x.unsqueeze(-2) * weight).sum(-1)
        return result if bias is None else result + bias

    return install(
        make_kernel(name="pad", run=pad, supports=lambda x, padding, value=0: len(padding) == 2),
        make_kernel("linear", run=linear),
    )


def test_gradients_of_pad(patched, mps, ran):
    """Forward and backward: the backward of a pad is a pad with negated values, so it is patched as well."""
    x = torch.randn(2, 5, device=mps, requires_grad=True)
    reference = x.detach().cpu().requires_grad_()
    for padding in ((1, 2), (-1, 2), (0, -3)):
        ran.clear()
        weights = torch.randn(2, 5 + sum(padding))
        (F.pad(x, padding, value=2.0) * weights.to(mps)).sum().backward()
        (F.pad(reference, padding, value=2.0) * weights).sum().backward()
        assert ran == ["pad", "pad"]
    assert torch.equal(x.grad.cpu(), reference.grad)


def test_second_derivatives_of_pad(patched, mps):
    x = torch.randn(4, dtype=torch.float32, device=mps, requires_grad=True)
    (first,) = torch.autograd.grad(F.pad(x, (1, 1)).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(second.cpu(), 6 * x.detach().cpu())


def test_gradients_of_linear(patched, mps, ran):
    inputs = [torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)]
    device, reference = ([t.to(d).requires_grad_() for t in inputs] for d in (mps, "cpu"))
    result = F.linear(*device)
    assert result.requires_grad and "linear" in ran
    result.square().sum().backward()
    F.linear(*reference).square().sum().backward()
    for ours, stock in zip(device, reference, strict=True):
        assert torch.allclose(ours.grad.cpu(), stock.grad, atol=1e-5)


def test_gradients_in_a_backward_thread_follow_the_process_mode(patched, mps, ran):
    """using() is for its thread; a backward may run in a thread of autograd's, where the process mode holds."""
    x = torch.ones(3, device=mps, requires_grad=True)
    with patched.switches.using({"pad": "off"}):
        result = F.pad(x, (1, 1)).sum()
    assert ran == []
    result.backward()
    assert x.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(patched, mps, ran, mode):
    x = torch.ones(3, device=mps, requires_grad=True)
    with mode():
        result = F.pad(x, (1, 1))
    assert ran == ["pad"] and not result.requires_grad and result.tolist() == [0, 1, 1, 1, 0]
    assert result.is_inference() is (mode is torch.inference_mode)


def test_autocast_still_chooses_the_dtype(patched, mps, ran):
    x, weight = torch.randn(3, 4, device=mps), torch.randn(5, 4, device=mps)
    with torch.autocast("mps", torch.float16):
        result = F.linear(x, weight)
        assert F.pad(x, (1, 1)).dtype == torch.float32
    assert result.dtype == torch.float16 and ran == ["linear", "pad"]
    assert patched.patcher.counters["linear"].as_dict()["taken_by_dtype"] == {"float16": 1}


def test_compile_with_aot_eager(patched, mps, ran):
    """While torch.compile traces nothing of ours runs; when the compiled graph runs, our kernels do."""
    torch._dynamo.reset()

    def model(x, weight):
        return F.linear(F.pad(x, (1, 1)), weight) * 2

    x, weight = torch.randn(3, 4, device=mps, requires_grad=True), torch.randn(5, 6, device=mps)
    expected = model(x, weight)
    ran.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    result = compiled(x, weight)
    assert torch.allclose(result, expected, atol=1e-5) and ran[0] == "pad"
    calls = len(ran)
    compiled(x, weight)
    assert len(ran) == 2 * calls, "the second call does not trace: the first has run each kernel just as often"
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.allclose(gradient, torch.autograd.grad(expected.sum(), x)[0], atol=1e-5)


def test_first_use_inside_a_compiled_call_checks_then(install, make_kernel, mps):
    torch._dynamo.reset()
    checked = []
    installation = install(make_kernel(selfcheck=lambda dtype: checked.append(torch.compiler.is_compiling())))
    torch.compile(lambda x: F.pad(x, (1, 1)), backend="aot_eager")(torch.zeros(1, device=mps))
    assert checked == [False]
    assert installation.patcher.counters["constant_pad_nd"].as_dict()["taken"] == 1


def test_fake_and_meta_tensors_reach_no_kernel(patched, mps, ran):
    with FakeTensorMode():
        assert F.pad(torch.zeros(3, device="mps"), (1, 1)).shape == (5,)
    assert F.pad(torch.zeros(3, device="meta"), (1, 1)).shape == (5,)
    assert ran == []


def test_export_and_make_fx(patched, mps, ran):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: F.pad(x, (1, 1)), tracing_mode="fake")(torch.zeros(3, device=mps))
    assert ran == [] and any("pad" in str(node.target) for node in graph.graph.nodes)
    assert graph(torch.ones(1, device=mps)).tolist() == [0, 1, 0] and ran == ["pad"]


def test_jit_trace_records_the_op_and_not_our_inside(patched, mps, ran):
    traced = torch.jit.trace(lambda x: F.pad(x, (1, 1)), torch.zeros(3, device=mps), check_trace=False)
    assert [node.kind() for node in traced.graph.nodes() if "pad" in node.kind()] == ["aten::pad"]
    assert "aten::narrow" not in str(traced.graph)
    assert traced(torch.ones(1, device=mps)).tolist() == [0, 1, 0]


def test_vmap_and_grad_transforms(patched, mps, ran):
    x = torch.randn(3, 4)
    double = torch.func.vmap(lambda row: F.pad(row, (1, 2), value=3.0))
    assert torch.equal(double(x.to(mps)).cpu(), double(x))
    gradient = torch.func.grad(lambda row: F.pad(row, (1, -1)).square().sum())
    assert torch.equal(gradient(x.to(mps)).cpu(), gradient(x))
    value, tangent = torch.func.jvp(lambda row: F.pad(row, (1, 1)), (x.to(mps),), (torch.ones_like(x).to(mps),))
    assert torch.equal(tangent.cpu(), F.pad(torch.ones_like(x), (1, 1))) and value.shape == (3, 6)
    assert ran


VMAP_OF_GRAD = """
import sys
sys.path.insert(0, {tests!r})
import torch, torch.nn.functional as F
if sys.platform != "darwin":
    import softmetal
    softmetal.activate()
from pack import load
kernels = load().metal_kernels
kernels.install()
kernels.set_mode(pad="on")
x = torch.randn(3, 4)
per_row = torch.func.vmap(torch.func.grad(lambda row: F.pad(row, (1, -1)).square().sum()))
assert torch.equal(per_row(x.to("mps")).cpu(), per_row(x))
print(kernels.taken()["pad"])
"""


def test_vmap_of_grad(mps):
    """In a process of its own: after some other tests functorch hands the MPS key a batched tensor (not understood)."""
    code = VMAP_OF_GRAD.format(tests=str(Path(__file__).resolve().parents[1]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 2  # forward and backward


def test_tensor_subclasses_keep_their_class(patched, mps, ran):
    class Named(torch.Tensor):
        seen = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.seen.append(getattr(function, "__name__", ""))
            return super().__torch_function__(function, types, args, kwargs)

    x = torch.ones(2, device=mps).as_subclass(Named)
    Named.seen.clear()
    result = F.pad(x, (1, 1))
    seen = list(Named.seen)
    assert type(result) is Named and result.as_subclass(torch.Tensor).tolist() == [0, 1, 1, 0] and ran == ["pad"]
    assert "full" not in seen and "narrow" not in seen
    assert F.pad(torch.nn.Parameter(torch.ones(1, device=mps)), (1, 0)).tolist() == [0, 1]


def test_deterministic_algorithms_and_profiler(patched, mps, ran):
    torch.use_deterministic_algorithms(True)
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            assert F.pad(torch.ones(1, device=mps), (1, 0)).tolist() == [0, 1]
    finally:
        torch.use_deterministic_algorithms(False)
    assert "aten::constant_pad_nd" in {event.key for event in profile.key_averages()}
