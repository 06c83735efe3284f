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
