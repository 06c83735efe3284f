"""The first use of a (kernel, dtype): what it latches, and that nothing outside it notices."""

import logging
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.functions.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class SeenOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.ops.append(str(op))
        return op(*args, **(kwargs or {}))


def test_once_for_each_dtype(install, make_kernel, mps, took):
    checked = []
    install(make_kernel(selfcheck=checked.append))
    for dtype in (torch.float32, torch.float16, torch.float32, torch.float16):
        assert took(F.pad(torch.zeros(1, dtype=dtype, device=mps), (1, 1)))
    assert checked == [torch.float32, torch.float16]


def test_not_before_the_first_use(install, make_kernel, mps):
    checked = []
    installation = install(make_kernel(selfcheck=checked.append, supports=lambda x, *a: x.dim() == 1))
    with installation.switches.using({"constant_pad_nd": "off"}):
        F.pad(torch.zeros(1, device=mps), (1, 1))
    F.pad(torch.zeros(1, 1, device=mps), (1, 1))
    assert checked == []


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("failure", "Its result for float32 differs from the CPU's: 3 of 4 bytes differ"),
        ("shader", "pad.metal does not compile: program_source:1:1: error: oh"),
        ("other", "Its self-check for float32 raised KeyError: 'k'"),
    ],
)
def test_a_failure_is_latched_and_said_once(install, make_kernel, core, mps, caplog, error, why):
    calls, ran = [], []

    def check(dtype):
        calls.append(dtype)
        raise {
            "failure": core.kernel.SelfCheckFailure("3 of 4 bytes differ"),
            "shader": core.shader.ShaderError("pad.metal does not compile: program_source:1:1: error: oh"),
            "other": KeyError("k"),
        }[error]

    installation = install(make_kernel(name="pad", selfcheck=check, run=lambda *a: ran.append(1)))
    with caplog.at_level(logging.WARNING, "metal_kernels"):
        for dtype in (torch.float32, torch.float32, torch.float16):
            x = torch.ones(1, dtype=dtype, device=mps)
            assert F.pad(x, (1, 0)).tolist() == [0, 1], "the very call must be served"
    assert calls == [torch.float32] and ran == []
    assert len(caplog.records) == 1 and why in caplog.records[0].getMessage()
    assert installation.switches["pad"].state == ("failed", why)
    with installation.switches.using({"pad": "on"}):
        assert F.pad(torch.ones(1, device=mps), (1, 0)).tolist() == [0, 1]
    installation.set_mode(pad="on")
    assert installation.switches["pad"].state[0] == "failed", "latched is latched"


def test_no_memory_for_the_check_is_asked_again(install, make_kernel, mps, took):
    calls = []

    def check(dtype):
        calls.append(dtype)
        if len(calls) == 1:
            raise RuntimeError("MPS backend out of memory (MPS allocated: 1 GB, ...)")

    install(make_kernel(selfcheck=check))
    x = torch.ones(1, device=mps)
    assert F.pad(x, (1, 0)).tolist() == [0, 1]
    assert took(F.pad(x, (1, 0)))


def test_threads_that_meet_at_the_first_use_check_once(install, make_kernel, mps, took):
    checked, results = [], []

    def check(dtype):
        checked.append(dtype)
        time.sleep(0.05)

    install(make_kernel(selfcheck=check))
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        results.append(took(F.pad(torch.zeros(1, device=mps), (1, 1))))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert checked == [torch.float32] and results == [True] * 4


@pytest.fixture
def nosy(core, mps):
    """A self-check that uses what a family's does: random data, the device, comparisons; and looks at where it runs."""
    facts = {}

    def check(dtype):
        data = torch.randn(8, generator=core.selfcheck.generator(), dtype=torch.float32)
        on_device = data.to(mps).to(dtype)
        core.selfcheck.expect_identical(F.pad(on_device, (1, 1)), F.pad(data.to(dtype), (1, 1)), "pad of 8")
        facts.update(
            device=torch.empty(1).device.type, grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=torch.matmul(torch.zeros(2, 2, device=mps), torch.zeros(2, 2, device=mps)).dtype,
            cpu_autocast=torch.matmul(torch.zeros(2, 2), torch.zeros(2, 2)).dtype,
            ordinary=not torch.empty(1).is_inference(), running=core.selfcheck.running(),
        )  # fmt: skip

    return check, facts


PLAIN = {
    "device": "cpu", "grad": False, "inference": False, "autocast": torch.float32, "cpu_autocast": torch.float32,
    "ordinary": True, "running": True,
}  # fmt: skip


def test_runs_in_plain_torch_whatever_surrounds_it(install, make_kernel, core, mps, took, nosy):
    check, facts = nosy
    installation = install(make_kernel(selfcheck=check))
    functions, ops = Seen(), SeenOps()
    previous = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        with torch.inference_mode(), torch.autocast("mps", torch.float16), torch.autocast("cpu", torch.bfloat16):
            x = torch.zeros(3, device=mps)
            with functions, ops:
                result = F.pad(x, (1, 1))
    finally:
        torch.set_default_device(previous if previous.type != "cpu" else None)
    assert took(result) and facts == PLAIN
    assert "randn" not in functions.functions and functions.functions, "the user's mode saw inside the self-check"
    assert len(ops.ops) == 1 and "pad" in ops.ops[0]
    counts = installation.patcher.counters["constant_pad_nd"].as_dict()
    assert (counts["taken"], counts["passed"]) == (1, 0), "the self-check's own pad was counted"
    assert not core.selfcheck.running()


@pytest.mark.parametrize("grad", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_gradient_modes_are_put_back(install, make_kernel, mps, nosy, grad):
    check, facts = nosy
    install(make_kernel(selfcheck=check))
    with grad():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        F.pad(torch.zeros(3, device=mps), (1, 1))
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
    assert facts == PLAIN


def ones_around(x, pad, value=0):
    return x.new_ones(*x.shape[:-1], x.shape[-1] + sum(pad))


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_first_use_inside_functorch(install, make_kernel, mps, nosy, transform):
    """One in the other, in a process of its own: test_torch_features.py, test_vmap_of_grad."""
    check, facts = nosy
    install(make_kernel(selfcheck=check, run=ones_around))
    transform(lambda x: torch.constant_pad_nd(x, (1, 1)).sum())(torch.ones(2, 3, device=mps))
    assert facts == PLAIN


def test_first_use_inside_backward(install, make_kernel, mps, nosy):
    check, facts = nosy
    x = torch.ones(2, 3, device=mps)
    installation = install(
        make_kernel("flip", selfcheck=check, supports=lambda x, dims: True, run=lambda x, dims: x + 0)
    )

    class Flip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 0

        @staticmethod
        def backward(ctx, gradient):
            return torch.flip(gradient, (0,))

    Flip.apply(x.requires_grad_()).sum().backward()
    assert facts == PLAIN and installation.switches["flip"].checked == {torch.float32}


def test_random_numbers_go_on_as_if_nothing_had_happened(install, make_kernel, mps, nosy):
    """ComfyUI draws a picture's noise from the global CPU generator."""
    check, facts = nosy
    installation = install(make_kernel(selfcheck=check))
    torch.manual_seed(7)
    cpu, device = torch.get_rng_state(), torch.mps.get_rng_state()
    F.pad(torch.zeros(3, device=mps), (1, 1))
    assert facts and installation.switches["constant_pad_nd"].checked == {torch.float32}
    assert torch.equal(torch.get_rng_state(), cpu) and torch.equal(torch.mps.get_rng_state(), device)


def test_every_family_leaves_random_numbers_and_default_dtype_alone(core, mps):
    switches = [core.switches.Switch(kernel) for kernel in core.face.KERNELS]
    torch.manual_seed(7)
    cpu, device = torch.get_rng_state(), torch.mps.get_rng_state()
    for switch in switches:
        assert switch.kernel.dtypes, f"{switch.kernel.name} names no dtypes for selftest"
        for dtype in switch.kernel.dtypes:
            core.selfcheck.run(switch, dtype)
    torch.set_default_dtype(torch.float64)
    try:
        for switch in switches:
            core.selfcheck.run(switch, switch.kernel.dtypes[0])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), cpu) and torch.equal(torch.mps.get_rng_state(), device)


class TestExpectations:
    def test_identical_is_bit_for_bit(self, core):
        nan = torch.tensor([float("nan"), -0.0, 1.0])
        core.selfcheck.expect_identical(nan.clone(), nan, "nan")
        with pytest.raises(core.kernel.SelfCheckFailure, match="zeros: 1 of 4 bytes differ"):
            core.selfcheck.expect_identical(torch.tensor([0.0]), torch.tensor([-0.0]), "zeros")
        with pytest.raises(core.kernel.SelfCheckFailure, match="shape is torch.Size"):
            core.selfcheck.expect_identical(torch.zeros(2), torch.zeros(3), "x")
        with pytest.raises(core.kernel.SelfCheckFailure, match="dtype is torch.float16"):
            core.selfcheck.expect_identical(torch.zeros(2, dtype=torch.float16), torch.zeros(2), "x")
        with pytest.raises(core.kernel.SelfCheckFailure, match="strides are"):
            core.selfcheck.expect_identical(torch.zeros(2, 3).t(), torch.zeros(3, 2), "x")
        core.selfcheck.expect_identical(torch.zeros(0, 2), torch.zeros(0, 2), "empty")
        core.selfcheck.expect_identical(torch.tensor(True), torch.tensor(True), "0-dim bool")
        core.selfcheck.expect_identical(torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), "complex")

    def test_close(self, core):
        nan = float("nan")
        core.selfcheck.expect_close(torch.tensor([1.001, nan]), torch.tensor([1.0, nan]), "x", rtol=0.01, atol=0)
        with pytest.raises(core.kernel.SelfCheckFailure, match="largest difference 0.5"):
            core.selfcheck.expect_close(torch.tensor([1.5]), torch.tensor([1.0]), "x", rtol=0.01, atol=0)
