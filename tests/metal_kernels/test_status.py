"""status(): JSON-serialisable, complete, and readable."""

import json

import torch
import torch.nn.functional as F


def test_of_a_working_installation(install, make_kernel, core, mps):
    installation = install(make_kernel(name="pad"), make_kernel("flip", need=False))
    F.pad(torch.zeros(3, device=mps), (1, 1))
    report = json.loads(json.dumps(core.report.status(installation)))
    assert report["installed"] is True and report["notes"] == []
    assert report["environment"]["torch"] == torch.__version__ and report["environment"]["device"]
    pad, flip = report["kernels"]["pad"], report["kernels"]["flip"]
    assert {key: pad[key] for key in ("state", "reason", "mode", "registered", "checked")} == {
        "state": "patched", "reason": "needed by a test", "mode": "auto", "registered": True, "checked": ["float32"],
    }  # fmt: skip
    assert pad["ops"]["constant_pad_nd"]["taken"] == 1 and pad["ops"]["constant_pad_nd"]["shapes"] == [[3]]
    assert (flip["state"], flip["registered"], flip["ops"]["flip"]["taken"]) == ("stock", False, 0)
    lines = report["text"].splitlines()
    assert lines[0].startswith(f"Metal Kernels on torch {torch.__version__}, macOS ")
    assert "  pad [auto]: patched (needed by a test)" in lines
    assert "    aten::constant_pad_nd: 1 taken, 0 passed to stock, 1 distinct shape" in lines
    assert "  flip [auto]: stock (stock is good here)" in lines


def test_kernels_that_share_an_op_say_each_its_own_calls(install, make_kernel, core, mps):
    installation = install(make_kernel(name="first"), make_kernel(name="second"))
    F.pad(torch.zeros(3, device=mps), (1, 1))
    lines = core.report.status(installation)["text"].splitlines()
    place = lines.index("  first [auto]: patched (needed by a test)")
    assert lines[place + 1 :] == [
        "    aten::constant_pad_nd: 1 taken, 0 passed to stock, 1 distinct shape",
        "  second [auto]: patched (needed by a test)",
    ]


def test_an_obstacle_is_named_once(core, make_kernel, mps):
    import dataclasses

    environment = dataclasses.replace(core.environment.detect(), obstacle="This is Linux; it has no MPS.")
    installation = core.installation.Installation([make_kernel(name="pad")], environment=environment)
    installation.install()
    try:
        text = core.report.status(installation)["text"]
    finally:
        installation.uninstall()
    assert text.splitlines()[1:] == [
        "  pad [auto]: unavailable",
        "  Note: Nothing is patched. This is Linux; it has no MPS.",
    ]


def test_what_the_nodes_ask(core, mps):
    """modes(), needed(), registered_now() and taken(): at each prompt and round every node."""
    core.face.uninstall()
    names = [kernel.name for kernel in core.face.KERNELS]
    assert core.face.modes() == dict.fromkeys(names, "auto") and core.face.registered_now() == ()
    core.face.install()
    try:
        core.face.reset_counters()
        needed = core.face.needed()
        assert set(core.face.registered_now()) == set(needed), "all modes are auto"
        core.face.set_mode("off")
        assert core.face.needed() == needed and core.face.registered_now() == ()
        core.face.set_mode("auto", pad="on")
        assert core.face.modes()["pad"] == "on" and "pad" in core.face.registered_now()
        before = core.face.taken().get("pad", 0)
        F.pad(torch.zeros(3, device=mps), (1, 1))
        assert core.face.taken()["pad"] == before + 1
    finally:
        core.face.set_mode(pad="auto")
        core.face.uninstall()
    assert core.face.taken()["pad"] == before + 1, "counters outlive the registration"


def test_a_family_that_cannot_tell_its_need_stops_nobody(install, make_kernel, mps, took):
    import dataclasses

    def lost(environment):
        raise LookupError("no such feature")

    installation = install(dataclasses.replace(make_kernel("flip"), need=lost), make_kernel(name="pad"))
    assert took(F.pad(torch.zeros(3, device=mps), (1, 1)))
    state, reason = installation.switches["flip"].state
    assert state == "stock" and "LookupError: no such feature" in reason


def test_asking_changes_nothing(install, make_kernel, core, mps):
    installation = install(make_kernel(name="pad"))
    first = core.report.status(installation)
    assert core.report.status(installation) == first


def test_the_library_before_installing(core, mps):
    core.face.uninstall()
    core.face._installation._environment = None
    report = json.loads(json.dumps(core.face.status()))
    assert report["installed"] is False
    assert set(report["kernels"]) == {kernel.name for kernel in core.face.KERNELS}
    for kernel in report["kernels"].values():
        assert (kernel["state"], kernel["reason"]) == ("stock", "not installed")


def test_install_is_idempotent_and_uninstall_too(core, mps):
    dump = torch._C._dispatch_dump("aten::constant_pad_nd")
    core.face.uninstall()
    core.face.install()
    core.face.install()
    assert core.face.status()["installed"]
    core.face.uninstall()
    core.face.uninstall()
    assert torch._C._dispatch_dump("aten::constant_pad_nd") == dump
