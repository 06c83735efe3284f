"""Wrong arguments raise what the CPU raises, patched and through metal_kernels.ops, and nothing is written."""

import importlib
import re

import pytest
import torch

from conformance import bad_input, harness, library, metal_kernels
from conformance.bad_input import ARITHMETIC, CPU, STOCK, WRITES
from conformance.calls import CALLS, call

BAD = {row.id: row for row in bad_input.rows()}


@pytest.fixture(scope="module")
def patched():
    """Beneath a stock without faults, whose errors are the CPU's."""
    with harness.installed(None, "on"):
        yield


@pytest.fixture
def untouched():
    """Fails a test in which a kernel was launched."""
    from softmetal import shader

    before = sum(shader.launches.counts.values())
    yield
    assert sum(shader.launches.counts.values()) == before, "something may have been written"


@pytest.fixture(scope="module", autouse=True)
def checked(patched):
    """The self-checks launch too: they are over before the first test."""
    for kernel in metal_kernels.KERNELS:
        switch = metal_kernels._installation.switches[kernel.name]
        for dtype in (*kernel.dtypes, torch.float16):
            if dtype in kernel.dtypes:
                importlib.import_module(f"{metal_kernels.__name__}.selfcheck").first_use(switch, dtype)


def error_of(function, *arguments):
    """(type, text) of what it raises; the text without the stack that a C++ error may carry, and without devices."""
    try:
        function(*arguments)
    except Exception as error:
        return type(error), re.sub(r"(mps|cpu)(:\d)?", "<device>", str(error).split("\nException raised")[0])
    return None, "nothing was raised"


def expectation(row):
    """(type, pattern of the whole text)"""
    operation = library.OPERATIONS[row.op]
    if row.error is CPU:
        kind, text = error_of(operation.call, *row.make())
    elif row.error is STOCK:
        with metal_kernels.using(**dict.fromkeys(metal_kernels.modes(), "off")):
            kind, text = error_of(operation.call, *on_device(row))
    else:
        return row.error
    assert kind is not None, f"{row.id} is not wrong"
    return kind, re.escape(text)


def on_device(row):
    return tuple(
        value if position in row.stay else library.twin(value, "mps") for position, value in enumerate(row.make())
    )  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_patched(patched, untouched, name):
    row = BAD[name]
    kind, pattern = expectation(row)
    taken = metal_kernels.taken()
    actual, text = error_of(library.OPERATIONS[row.op].call, *on_device(row))
    assert actual is kind and re.match(f"(?s).*{pattern}", text), text
    assert metal_kernels.taken() == taken
    assert not any(switch.failure for switch in metal_kernels._installation.switches), "the arguments were at fault"


@pytest.mark.parametrize("name", [name for name, row in BAD.items() if row.op in CALLS])
def test_through_ops(patched, untouched, name):
    row = BAD[name]
    kind, pattern = row.ops or expectation(row)
    ops = importlib.import_module(f"{metal_kernels.__name__}.ops")
    actual, text = error_of(lambda *arguments: call(ops, row, arguments), *on_device(row))
    assert actual is kind and re.match(f"(?s).*{pattern}", text), text


@pytest.mark.parametrize("what", ARITHMETIC)
def test_arithmetic_on_fp8(patched, untouched, what):
    x = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(16, 16).view(torch.float8_e4m3fn)
    kind, text = error_of(ARITHMETIC[what], x)
    assert kind is not None and issubclass(kind, RuntimeError)
    actual, said = error_of(ARITHMETIC[what], library.twin(x, "mps"))
    assert actual is kind and said.splitlines()[0] == text.splitlines()[0]


@pytest.mark.parametrize("what", WRITES)
def test_what_was_to_be_written_stays(patched, untouched, what):
    x = torch.full((4, 4), 3.0)
    out = x.to(torch.float8_e4m3fn) if "FP8" in what else x.clone()
    kind, text = error_of(WRITES[what], out.clone(), x)
    assert kind is not None
    target = library.twin(out, "mps")
    assert error_of(WRITES[what], target, x.to("mps")) == (kind, text)
    assert torch.equal(library.bits(target), library.bits(out)) and target.shape == out.shape


# Of which torch has a meta kernel for these dtypes; the others' are those of metal_kernels.ops, tested there.
ON_META = ("pad", "softmax", "log_softmax", "softmax_backward", "log_softmax_backward", "linear", "topk", "fp8_encode",
           "fp8_decode")  # fmt: skip


@pytest.mark.parametrize("op", ON_META)
def test_meta_tensors_fall_through(patched, untouched, op):
    """Shapes alone: they never reach the kernels' key."""
    for case in library.COMPACT:
        if case.op == op:
            arguments = library.OPERATIONS[op].make(case)
            expected = library.OPERATIONS[op].call(*arguments)
            taken = metal_kernels.taken()
            actual = library.OPERATIONS[op].call(*library.twin(arguments, "meta"))
            pairs = zip(*((result if isinstance(result, tuple) else (result,)) for result in (actual, expected)),
                        strict=True)  # fmt: skip
            for on_meta, on_cpu in pairs:
                assert on_meta.device.type == "meta"
                assert (on_meta.shape, on_meta.dtype) == (on_cpu.shape, on_cpu.dtype), case.id
            assert metal_kernels.taken() == taken


class TestPastTheLimits:
    """Views that repeat one element, so large that no launch could number their threads: stock's."""

    @staticmethod
    def view(*sizes, dtype=torch.float32):
        return torch.zeros((1,) * len(sizes), device="mps", dtype=dtype).expand(sizes)

    def test_softmax(self, patched, untouched):
        softmax = metal_kernels.softmax
        assert softmax.supports(self.view(2, 2**31), -1, False)
        assert not softmax.supports(self.view(2, 2**31 + 1), -1, False)
        assert not softmax.supports_backward(self.view(2**31 + 1), self.view(2**31 + 1), 0, torch.float32)

    def test_linear(self, patched, untouched):
        linear = metal_kernels.linear
        assert linear.supports(self.view(1, 8), self.view(2**26, 8))
        assert not linear.supports(self.view(1, 8), self.view(2**26 + 1, 8))
        assert not linear.supports(self.view(1, 2**31), self.view(2, 2**31))

    def test_experts(self, patched, untouched):
        family = metal_kernels.grouped_mm
        assert family.supports_topk(self.view(2**24, 8), 2)
        assert not family.supports_topk(self.view(2**24 + 1, 8), 2)
        assert not family.supports_topk(self.view(2, 4097), 2) and not family.supports_topk(self.view(2, 64), 33)
        assert family.supports_histc(self.view(2**32 - 1, dtype=torch.int32), 8)
        assert not family.supports_histc(self.view(2**32, dtype=torch.int32), 8)
        assert not family.supports_histc(self.view(8, dtype=torch.int32), 2**31)
        a = torch.zeros(1, 8, device="mps").as_strided((2**31, 8), (0, 1))
        assert not family.supports(
            a, torch.zeros(1, 8, 8, device="mps"), torch.zeros(1, dtype=torch.int32, device="mps")
        )
