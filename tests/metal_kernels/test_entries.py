"""Other programs' ways into a kernel: the same switch, self-check, failure latch and counters as torch's ops."""

import json

import pytest
import torch

X = (torch.float32, (2, 3))


@pytest.fixture
def installed(install, make_kernel):
    return install(make_kernel(name="pad"))


def call(entry):
    return entry.call(*X, lambda: "ours", lambda: "theirs")


def test_under_the_switch(installed):
    entry = installed.entry("pad", "theirs::pad")
    assert installed.entry("pad", "theirs::pad") is entry
    assert call(entry) == "ours"
    with installed.switches.using({"pad": "off"}):
        assert call(entry) == "theirs"
    installed.set_workflow({"pad": "off"})
    assert call(entry) == "theirs"
    installed.set_workflow()
    installed.set_mode("off")
    assert call(entry) == "theirs"
    installed.set_mode("auto")
    assert call(entry) == "ours"
    installed.uninstall()
    assert call(entry) == "theirs"


def test_counted_and_reported(installed, core):
    entry = installed.entry("pad", "theirs::pad")
    call(entry)
    entry.passed(*X)
    assert installed.taken()["pad"] == 1 and installed.passed()["pad"] == 1
    report = json.loads(json.dumps(core.report.status(installed)))
    assert report["kernels"]["pad"]["entries"]["theirs::pad"]["taken_by_dtype"] == {"float32": 1}
    assert "    theirs::pad: 1 taken, 1 passed on, 1 distinct shape" in report["text"].splitlines()
    installed.reset_counters()
    assert installed.taken().get("pad", 0) == installed.passed()["pad"] == 0
    assert "theirs::pad" not in core.report.status(installed)["text"]


def test_no_such_kernel(installed):
    with pytest.raises(ValueError, match="there is no kernel 'pads'; the kernels are pad"):
        installed.entry("pads", "theirs::pad")


def test_a_self_check_decides_once(install, make_kernel, core):
    asked = []

    def selfcheck(dtype):
        asked.append(dtype)
        if dtype is torch.float16:
            raise core.kernel.SelfCheckFailure("3 of 8 bytes differ")

    installation = install(make_kernel(name="pad", selfcheck=selfcheck))
    entry = installation.entry("pad", "theirs::pad")
    assert [call(entry), call(entry)] == ["ours", "ours"] and asked == [torch.float32]
    assert entry.call(torch.float16, (1,), lambda: "ours", lambda: "theirs") == "theirs"
    assert installation.switches["pad"].state[0] == "failed"
    assert call(entry) == "theirs", "the whole kernel is off"


def test_inside_a_self_check_it_is_nobodys(installed, core):
    entry = installed.entry("pad", "theirs::pad")
    with core.selfcheck.quiet():
        assert call(entry) == "theirs"
    assert installed.taken().get("pad", 0) == installed.passed()["pad"] == 0


@pytest.mark.parametrize(
    "ours, theirs, failed",
    [(RuntimeError("no"), None, True), (RuntimeError("MPS backend out of memory"), None, False),
     (RuntimeError("no"), ValueError("wrong arguments"), False),
     (RuntimeError("MPS backend out of memory"), TypeError("no such dtype"), False),
     (RuntimeError("Invalid buffer size: 72.00 GiB"), TypeError("no such dtype"), False),
     (RuntimeError("Insufficient Memory, kIOGPUCommandBufferCallbackErrorOutOfMemory"), None, False),
     (RuntimeError("Invalid buffer size: expected 5 bytes, got 3"), None, True)],
    ids=["it alone raises", "no memory", "both raise: the arguments are wrong", "no memory, and stock lacks it",
         "no such buffer, and stock lacks it", "no memory, in Metal's words", "a look-alike"],
)  # fmt: skip
def test_a_kernel_that_raises(installed, ours, theirs, failed):
    def run():
        raise ours

    def stock():
        if theirs is not None:
            raise theirs
        return "theirs"

    entry = installed.entry("pad", "theirs::pad")
    if theirs is None:
        assert entry.call(*X, run, stock) == "theirs"
    else:
        expected = theirs if isinstance(theirs, ValueError) else ours
        with pytest.raises(type(expected), match=str(expected)):
            entry.call(*X, run, stock)
    assert (installed.switches["pad"].failure is not None) == failed
