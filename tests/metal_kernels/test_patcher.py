"""What happens to a patched call: candidates, stock, errors, and torch left as it was found."""

import logging
import warnings

import pytest
import torch
import torch.nn.functional as F


def dump(*ops):
    """The dispatcher's whole record of these ops: every registration, and the table in force."""
    return [text(f"aten::{op}") for op in ops for text in (torch._C._dispatch_dump, torch._C._dispatch_dump_table)]


def registered_elsewhere(op, function, key="MPS"):
    """Another pack's registration."""
    library = torch.library.Library("aten", "IMPL", key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(op, function, key, with_keyset=True)
    return library


def test_the_kernel_runs_and_counts(install, make_kernel, mps, took):
    installation = install(make_kernel())
    assert took(F.pad(torch.zeros(3, device=mps), (1, 1)))
    counts = installation.patcher.counters["constant_pad_nd"].as_dict()
    assert counts["taken"] == 1 and counts["passed"] == 0
    assert counts["taken_by_dtype"] == {"float32": 1} and counts["taken_by_kernel"] == {"constant_pad_nd": 1}


def test_arguments_that_are_not_supported_reach_stock_unchanged(install, make_kernel, mps):
    seen = []
    install(make_kernel(supports=lambda *a, **k: seen.append((a, k)) or False))
    x = torch.arange(6.0, device=mps).reshape(2, 3)
    assert torch.equal(F.pad(x, (1, 2), value=5.0).cpu(), F.pad(x.cpu(), (1, 2), value=5.0))
    ((args, kwargs),) = seen
    assert args[0] is x or torch.equal(args[0], x)
    assert list(args[1]) == [1, 2] and args[2] == 5.0 and kwargs == {}


def test_other_devices_are_untouched(install, make_kernel, took):
    install(make_kernel())
    assert not took(F.pad(torch.zeros(3), (1, 1)))
    assert F.pad(torch.zeros(3, device="meta"), (1, 1)).shape == (5,)


def test_candidates_are_asked_in_order(install, make_kernel, mps, took):
    first = make_kernel(
        name="first", supports=lambda x, pad, value=0: len(pad) == 2, run=lambda x, *a: x.new_full((3, 5), 7.0)
    )
    second = make_kernel(name="second")
    installation = install(first, second)
    x = torch.zeros(3, 3, device=mps)
    assert F.pad(x, (1, 1)).eq(7).all()
    assert took(F.pad(x, (1, 1, 1, 1)))
    with installation.switches.using({"first": "off"}):
        assert took(F.pad(x, (1, 1)))


@pytest.mark.parametrize("pad", [(1, 1, 1, 1), (1,), (-4, 0), "no"])
def test_wrong_arguments_raise_exactly_what_stock_raises(install, make_kernel, mps, pad):
    """Both for a kernel that refuses them, as it must, and for one that stumbles over them, which is not its fault."""
    x = torch.zeros(3, device=mps)
    with pytest.raises(Exception) as stock:  # noqa: PT011  (whatever it is, ours has to be the same)
        torch.constant_pad_nd(x, pad)

    def stumble(*args, **kwargs):
        raise IndexError("list index out of range")

    for kernel in (
        make_kernel(supports=lambda *a, **k: False),
        make_kernel(supports=stumble),
        make_kernel(run=stumble),
    ):
        installation = install(kernel)
        with pytest.raises(stock.type) as ours:
            torch.constant_pad_nd(x, pad)
        assert str(ours.value) == str(stock.value)
        assert installation.switches["constant_pad_nd"].failure is None
        installation.uninstall()


def test_a_kernel_that_raises_is_latched_and_stock_serves_that_very_call(install, make_kernel, mps, caplog):
    calls = []

    def broken(*args, **kwargs):
        calls.append(1)
        raise ZeroDivisionError("oh")

    installation = install(make_kernel(run=broken))
    x = torch.ones(2, device=mps)
    with caplog.at_level(logging.WARNING, "metal_kernels"):
        for _ in range(3):
            assert F.pad(x, (1, 1)).tolist() == [0, 1, 1, 0]
    assert calls == [1]
    assert [record.getMessage().count("ZeroDivisionError: oh") for record in caplog.records] == [1]
    assert installation.switches["constant_pad_nd"].state == ("failed", "It raised ZeroDivisionError: oh")


def test_an_exception_without_text_is_an_exception(install, make_kernel, mps):
    class Mute(Exception):
        def __str__(self):
            raise ZeroDivisionError("not even this")

    def broken(*args):
        raise Mute

    x = torch.ones(1, device=mps)
    for parts in ({"run": broken}, {"supports": broken}, {"selfcheck": broken}):
        installation = install(make_kernel(**parts))
        assert F.pad(x, (1, 1)).tolist() == [0, 1, 0]
        state, why = installation.switches["constant_pad_nd"].state
        assert state == "failed" and why.endswith("raised Mute: (its text cannot be had)")
        installation.uninstall()


def test_running_out_of_memory_does_not_condemn_the_kernel(install, make_kernel, mps):
    def hungry(*args, **kwargs):
        raise RuntimeError("MPS backend out of memory (MPS allocated: 1 GB, ...)")

    installation = install(make_kernel(run=hungry))
    assert F.pad(torch.ones(1, device=mps), (1, 0)).tolist() == [0, 1]
    assert installation.switches["constant_pad_nd"].state[0] == "patched"


@pytest.mark.parametrize("where", ["run", "selfcheck"])
def test_running_out_of_memory_is_said_where_stock_has_no_such_op(install, make_kernel, mps, where):
    """Stock would say that it lacks the op, and ComfyUI, which makes room when it knows, would stop there."""

    def hungry(*args, **kwargs):
        raise RuntimeError("MPS backend out of memory (MPS allocated: 1 GB, ...)")

    installation = install(make_kernel("_scaled_mm", **{where: hungry}))
    x, one = torch.zeros(16, 16, device=mps), torch.ones((), device=mps)
    with pytest.raises(RuntimeError, match="^MPS backend out of memory") as raised:
        torch._scaled_mm(x, x, one, one)
    assert raised.value.__context__ is None or raised.value.__suppress_context__
    assert installation.switches["_scaled_mm"].state[0] == "patched"


def test_where_both_raise_stocks_error_notes_the_kernels(install, make_kernel, mps):
    def broken(*args, **kwargs):
        raise KeyError("inside")

    install(make_kernel("_scaled_mm", run=broken))
    x, one = torch.zeros(16, 16, device=mps), torch.ones((), device=mps)
    with pytest.raises(NotImplementedError, match="_scaled_mm") as raised:
        torch._scaled_mm(x, x, one, one)
    assert raised.value.__notes__ == ["Metal Kernels was asked first, and raised KeyError: 'inside'"]


def test_a_failing_kernel_keeps_no_tensor_alive(install, make_kernel, mps):
    import gc
    import weakref

    alive = []

    def broken(x, *args):
        scratch = torch.zeros(4, device=x.device)
        alive.append(weakref.ref(scratch))
        raise ValueError("no")

    install(make_kernel(run=broken))
    gc.disable()
    try:
        F.pad(torch.ones(1, device=mps), (1, 0))
        assert alive[0]() is None
    finally:
        gc.enable()


def test_no_stock_kernel_is_a_normal_state(install, make_kernel, mps):
    """An op without a kernel on this key: ours serves what it supports; the rest raises the dispatcher's own error."""
    op, key = "_scaled_mm", "Lazy"  # a key that has no kernel and no fallback in any build
    keyset = torch._C.DispatchKeySet(torch._C.DispatchKey.Lazy)
    call = torch.ops.aten._scaled_mm.default.redispatch
    x = torch.zeros(16, 16)
    with pytest.raises(NotImplementedError) as stock:
        call(keyset, x, x, x, x)
    install(
        make_kernel(op, supports=lambda a, *rest, **k: a.dtype == torch.int8, run=lambda a, *rest, **k: a + 1), key=key
    )
    with pytest.raises(NotImplementedError) as ours:
        call(keyset, x, x, x, x)
    assert str(ours.value) == str(stock.value)
    assert call(keyset, x.to(torch.int8), x, x, x).eq(1).all()


def test_an_op_that_mps_lacks_raises_the_dispatchers_own_error(install, make_kernel, mps):
    """torch._scaled_mm, as a user calls it: the same type and the same text with our override there."""
    x, scale = torch.zeros(16, 16, device=mps), torch.ones((), device=mps)

    def error():
        with pytest.raises(NotImplementedError) as raised:
            torch._scaled_mm(x, x, scale, scale)
        return type(raised.value), str(raised.value)

    before = error()
    assert "aten::_scaled_mm" in before[1]
    installation = install(make_kernel("_scaled_mm", supports=lambda *a, **k: False))
    assert error() == before
    with installation.switches.using({"_scaled_mm": "off"}):
        assert error() == before
    installation.uninstall()
    assert error() == before


def test_an_op_that_this_torch_does_not_have(install, core, make_kernel, mps, took):
    known, unknown = make_kernel().patches[0], make_kernel("no_such_op_of_aten").patches[0]
    both = make_kernel(name="both")
    both = core.kernel.Kernel("both", "t", (known, unknown), both.need, both.selfcheck, "r")
    only = core.kernel.Kernel("only", "t", (unknown,), both.need, both.selfcheck, "r")
    installation = install(both, only)
    assert took(F.pad(torch.zeros(1, device=mps), (1, 1)))
    assert installation.switches["both"].state[0] == "patched"
    assert installation.switches["only"].state == ("unavailable", "this torch has none of no_such_op_of_aten")


@pytest.mark.parametrize("key", ["MPS", "CPU"])
def test_a_python_number_where_the_schema_says_tensor(install, make_kernel, mps, key):
    """torch.isfinite calls copy_(x, inf): the number arrives in Python as a float and must go back as a tensor."""
    device = mps if key == "MPS" else torch.device("cpu")
    seen = []

    def guard(target, source, non_blocking=False):
        seen.append(type(source))
        return target.dtype == torch.int8 and source.dtype == torch.int8  # fails on a number

    installation = install(make_kernel("copy_", guard=guard, run=lambda *a: 1 / 0), key=key)
    x = torch.tensor([1.0, float("inf"), float("nan")], device=device)
    y = torch.zeros(3, device=device)
    copy = torch.ops.aten.copy_.default
    assert torch.isfinite(x).tolist() == [True, False, False]
    for number, expected in ((2.5, 2.5), (3, 3.0), (True, 1.0)):
        assert copy(y, number).tolist() == [expected] * 3
    assert torch.zeros(2, dtype=torch.complex64, device=device).copy_(torch.tensor(1j)).tolist() == [1j, 1j]
    assert float in seen, "the trap was not sprung: this test shows nothing"
    assert installation.switches["copy_"].failure is None


def test_a_guard_leaves_no_count(install, make_kernel, mps):
    installation = install(
        make_kernel("copy_", guard=lambda a, b, n=False: a.dtype == torch.int8, run=lambda a, b, n=False: a)
    )
    torch.zeros(3, device=mps).copy_(torch.ones(3, device=mps))
    torch.zeros(3, dtype=torch.int8, device=mps).copy_(torch.ones(3, dtype=torch.int8, device=mps))
    counts = installation.patcher.counters["copy_"].as_dict()
    assert (counts["taken"], counts["passed"]) == (1, 0)


@pytest.mark.parametrize("key", ["MPS", "CPU"])
def test_uninstall_leaves_the_dispatcher_as_found(install, make_kernel, mps, key):
    ops = ("constant_pad_nd", "copy_", "linear", "add.Tensor")
    impls = set(torch.library._impls)
    before = dump(*ops)
    installation = install(*(make_kernel(op, supports=lambda *a, **k: False) for op in ops), key=key)
    assert dump(*ops) != before
    installation.uninstall()
    assert dump(*ops) == before and torch.library._impls == impls


def test_registering_warns_nobody(install, make_kernel, mps):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        install(make_kernel(), make_kernel("copy_", supports=lambda *a: False))
    assert [str(warning.message) for warning in caught] == []


class TestBesideAnotherPack:
    op = "constant_pad_nd"

    def theirs(self, keyset, x, pad, value=0):
        return x.new_full((3,), 9.0)

    def test_the_other_one_was_first(self, install, make_kernel, mps):
        before = dump(self.op)
        other = registered_elsewhere(self.op, self.theirs)
        installation = install(make_kernel(), make_kernel("flip"))
        switch = installation.switches[self.op]
        assert switch.state == ("unavailable", "another pack already patches aten::constant_pad_nd on MPS")
        assert installation.switches["flip"].state[0] == "patched"
        assert F.pad(torch.zeros(1, device=mps), (1, 1)).tolist() == [9.0] * 3
        other._destroy()
        installation.set_mode("auto")  # asks again
        assert switch.state[0] == "patched"
        installation.uninstall()
        assert dump(self.op) == before

    @pytest.mark.parametrize("first_to_leave", ["ours", "theirs"])
    def test_the_other_one_came_later(self, install, make_kernel, core, mps, took, first_to_leave):
        """Possible from torch 2.13 on; before, the other pack gets a RuntimeError and nothing has changed."""
        before = dump(self.op)
        installation = install(make_kernel())

        def text():
            return core.report.status(installation)["text"]

        def held():
            return [op for kernel in core.report.status(installation)["kernels"].values() for op in kernel["held"]]

        try:
            other = registered_elsewhere(self.op, self.theirs)
        except RuntimeError:
            assert core.environment.parse_version(torch.__version__) < (2, 13)
            assert took(F.pad(torch.zeros(1, device=mps), (1, 1)))
            return
        assert F.pad(torch.zeros(1, device=mps), (1, 1)).tolist() == [9.0] * 3
        assert "constant_pad_nd [auto]: patched, but another pack now answers for aten::constant_pad_nd" in text()
        assert held() == ["constant_pad_nd"]
        if first_to_leave == "ours":
            installation.uninstall()
            assert F.pad(torch.zeros(1, device=mps), (1, 1)).tolist() == [9.0] * 3
            other._destroy()
        else:
            other._destroy()
            assert took(F.pad(torch.zeros(1, device=mps), (1, 1)))
            assert "another pack" not in text() and held() == []
            installation.uninstall()
        assert dump(self.op) == before

    def family(self, core, make_kernel, *ops):
        parts = [make_kernel(op, name="family") for op in ops]
        return core.kernel.Kernel(
            "family", "t", sum((k.patches for k in parts), ()), parts[0].need, parts[0].selfcheck, "r"
        )

    def test_a_family_leaves_the_op_and_keeps_the_rest(self, install, make_kernel, core, mps):
        before = dump("flip", "roll", self.op)
        other = registered_elsewhere(self.op, self.theirs)
        installation = install(self.family(core, make_kernel, "flip", self.op, "roll"))
        assert set(installation.patcher.overrides) == {"flip", "roll"}
        assert F.pad(torch.zeros(1, device=mps), (1, 1)).tolist() == [9.0] * 3
        said = "family [auto]: patched (needed by a test; another pack holds aten::constant_pad_nd)"
        assert said in core.report.status(installation)["text"]
        other._destroy()
        installation.set_mode("auto")  # asks again
        assert set(installation.patcher.overrides) == {"flip", self.op, "roll"}
        assert "another pack" not in core.report.status(installation)["text"]
        installation.uninstall()
        assert dump("flip", "roll", self.op) == before

    def test_a_family_without_any_op_left_is_unavailable(self, install, make_kernel, core, mps):
        before = dump(self.op)
        other = registered_elsewhere(self.op, self.theirs)
        installation = install(self.family(core, make_kernel, self.op, "no_such_op_of_aten"))
        assert installation.switches["family"].state == (
            "unavailable", "another pack already patches aten::constant_pad_nd on MPS",
        )  # fmt: skip
        assert installation.patcher.overrides == {}
        other._destroy()
        assert dump(self.op) == before
