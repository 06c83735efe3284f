"""The conformance table through metal_kernels.ops: right without patching, traced as it runs, and silent."""

import pytest
import torch
from conformance import library
from conformance.calls import CALLS, WITHOUT, call, outputs
from conformance.table import groups
from torch._subclasses.fake_tensor import FakeTensorMode

COMPACT = {
    name: cases for name, cases in groups("quick", library.COMPACT).items() if name.split()[0] not in WITHOUT
}  # fmt: skip
PAIRS = [(name, cases[0]) for name, cases in COMPACT.items()]


def test_every_operation_of_the_table_has_a_function():
    assert set(CALLS) == set(library.OPERATIONS) - WITHOUT


@pytest.mark.parametrize("group", COMPACT)
def test_values(ops, core, group):
    """Our kernels' launches, not torch's own kernels, give them."""
    from softmetal import shader

    for case in COMPACT[group]:
        operation = library.OPERATIONS[case.op]
        arguments = operation.make(case)
        twins = library.twin(arguments, "mps")
        launched = sum(shader.launches.counts.values())
        library.compare(call(ops, case, twins), operation.reference(*arguments), operation.tolerance, case.id)
        assert sum(shader.launches.counts.values()) > launched, case.id
    assert core.face.registered_now() == ()


@pytest.mark.parametrize("group", COMPACT)
def test_the_fake_is_like_the_real_one(ops, group):
    """Sizes, strides, dtype, device: for fake tensors and on meta."""
    for case in COMPACT[group]:
        arguments = library.OPERATIONS[case.op].make(case)
        twins = library.twin(arguments, "mps")
        real = outputs(call(ops, case, twins))
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in twins]
            traced = outputs(call(ops, case, fakes))
        metas = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in arguments]
        on_meta = outputs(call(ops, case, metas))
        for actual, fake, meta in zip(real, traced, on_meta, strict=True):
            assert (fake.shape, fake.stride(), fake.dtype) == (actual.shape, actual.stride(), actual.dtype), case.id
            assert fake.device.type == "mps" and meta.device.type == "meta"
            assert (meta.shape, meta.dtype) == (actual.shape, actual.dtype), case.id


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_compiles_whole(ops, pair):
    """torch.compile traces the function without a break, and its eager backend gives the same bits."""
    _, case = pair
    twins = library.twin(library.OPERATIONS[case.op].make(case), "mps")
    expected = outputs(call(ops, case, twins))
    torch._dynamo.reset()
    compiled = torch.compile(lambda *arguments: call(ops, case, arguments), backend="aot_eager", fullgraph=True)
    for actual, eager in zip(outputs(compiled(*twins)), expected, strict=True):
        assert torch.equal(library.bits(actual), library.bits(eager))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_torchs_own_checks(ops, monkeypatch, pair):
    """The schema: no input is changed, and none handed back."""
    _, case = pair
    twins = library.twin(library.OPERATIONS[case.op].make(case), "mps")
    seen = []

    def noted(op, *arguments):
        seen.append((getattr(torch.ops.metal_kernels, op).default, arguments))

    monkeypatch.setattr(ops, "call", noted)
    call(ops, case, twins)
    ((op, arguments),) = seen
    tensors = [t for t in arguments if isinstance(t, torch.Tensor)]
    before = [library.bits(t).clone() for t in tensors]
    own = {t.untyped_storage().data_ptr() for t in tensors if t.numel()}
    for result in outputs(op(*arguments)):
        assert result.untyped_storage().data_ptr() not in own
    assert all(torch.equal(library.bits(t), bits) for t, bits in zip(tensors, before, strict=True))
    checks = ["test_faketensor"]
    if not any(t.dtype.is_floating_point and t.dtype.itemsize == 1 for t in tensors):
        checks.append("test_schema")  # torch's own check of it multiplies, which FP8 cannot
    torch.library.opcheck(op, arguments, test_utils=checks)


@pytest.mark.parametrize("group", [name for name in COMPACT if not name.startswith("histc")])
def test_nothing_waits(ops, group):
    from softmetal import counters

    for case in COMPACT[group][:3]:
        twins = library.twin(library.OPERATIONS[case.op].make(case), "mps")
        call(ops, case, twins)
        counters.reset()
        call(ops, case, twins)
        assert counters.host_copies() == counters.synchronizations() == 0, case.id


def test_what_ops_checks_itself(ops):
    x, y = torch.zeros(3, 4, device="mps"), torch.zeros(3, 5, device="mps")
    with pytest.raises(RuntimeError, match="differ in shape"):
        ops.log_softmax_backward(x, y)
    with pytest.raises(ValueError, match="a scale belongs to an FP8 weight"):
        ops.linear(x, x, scale=torch.ones(1, device="mps"))
