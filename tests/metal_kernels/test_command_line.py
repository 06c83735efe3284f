"""`python -m metal_kernels`: its text, its JSON, and its exit status with and without MPS."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def command(core, mps, capsys, monkeypatch):
    """command(*arguments): (exit status, what it printed), in this process, on the device."""
    module = importlib.import_module(f"{core.face.__name__}.__main__")
    for name in ("REPEATS", "MINIMUM"):
        monkeypatch.setattr(module, name, 2)

    def run(*arguments):
        status = module.main(list(arguments))
        return status, capsys.readouterr().out

    core.face.uninstall()
    core.face._installation._environment = None
    yield run
    core.face.uninstall()


@pytest.fixture
def families(core, monkeypatch, make_kernel):
    """families(*kernels): the command line meets these instead of the library's own."""
    module = importlib.import_module(f"{core.face.__name__}.__main__")

    def use(*kernels):
        installation = core.installation.Installation(kernels)
        for owner in (core.face, module):
            monkeypatch.setattr(owner, "_installation", installation)
        monkeypatch.setattr(module, "KERNELS", list(kernels))
        return installation

    return use


def test_status(command, families, make_kernel):
    families(make_kernel(name="pad"))
    status, text = command("status")
    assert status == 0 and "pad [auto]: patched (needed by a test)" in text and f"torch {torch.__version__}" in text
    status, text = command("status", "--json")
    report = json.loads(text)
    assert report["kernels"]["pad"]["state"] == "patched" and report["environment"]["obstacle"] is None


def test_selftest(command, families, make_kernel, core):
    def sometimes(dtype):
        if dtype == torch.float16:
            raise core.kernel.SelfCheckFailure("3 of 8 bytes differ")

    families(make_kernel(name="good"), make_kernel("flip", name="bad", selfcheck=sometimes, need=False))
    status, text = command("selftest")
    lines = [line.split() for line in text.splitlines()]
    assert status == 1
    assert [line[:3] for line in lines[2:6]] == [
        ["good", "float32", "ok"], ["good", "float16", "ok"], ["bad", "float32", "ok"], ["bad", "float16", "FAILED"],
    ]  # fmt: skip
    assert "3 of 8 bytes differ" in text and text.rstrip().endswith("3 passed, 1 failed")
    status, text = command("selftest", "--json")
    report = json.loads(text)
    assert status == 1 and (report["passed"], report["failed"]) == (3, 1)
    assert report["results"][3] | {"ms": 0} == {
        "kernel": "bad", "dtype": "float16", "passed": False, "ms": 0, "why": "SelfCheckFailure: 3 of 8 bytes differ",
    }  # fmt: skip


def test_every_kernel_of_the_library_passes_its_selftest(command, core):
    status, text = command("selftest", "--json")
    report = json.loads(text)
    assert status == 0 and report["failed"] == 0, [r for r in report["results"] if not r["passed"]]
    assert report["passed"] == sum(len(kernel.dtypes) for kernel in core.face.KERNELS) > 0


def test_bench(command, families, make_kernel, core, mps):
    import dataclasses

    calls = []

    def cases(device):
        x = torch.zeros(4, device=device)
        yield core.kernel.Case("constant_pad_nd", "4 + (1, 1)", x.dtype, lambda: torch.constant_pad_nd(x, (1, 1)))
        yield core.kernel.Case("nothing", "none", torch.float16, lambda: torch._C._this_is_missing_here())
        yield core.kernel.Case("refused", "x", torch.float16, lambda: torch.constant_pad_nd(x, (1,)))

    kernel = make_kernel(
        name="pad", need=False,
        run=lambda x, *a: calls.append(1) or x.new_zeros(6), supports=lambda x, pad, *a: len(pad) == 2,
    )  # fmt: skip
    installation = families(dataclasses.replace(kernel, bench=cases))
    with pytest.raises(AttributeError):
        command("bench")  # a mistake in a case is not a figure
    cases_kept = [case for case in cases(mps) if case.op != "nothing"]
    families(dataclasses.replace(kernel, bench=lambda device: cases_kept))
    calls.clear()
    status, text = command("bench")
    assert status == 0 and len(calls) == 3, "patched runs: one to warm up, and two"
    rows = [line.split() for line in text.splitlines()]
    (pad,) = (row for row in rows if row and row[0] == "aten::constant_pad_nd")
    assert pad[-4:][1] == "ms" and float(pad[-2]) >= 0 and "float32" in pad
    (refused,) = (row for row in rows if row and row[0] == "aten::refused")
    assert refused[-2:] == ["-", "-"]
    status, text = command("bench", "--json")
    report = json.loads(text)
    assert report["results"][0]["stock_ms"] > 0 and report["results"][1]["patched_ms"] is None
    assert report["device"] in ("software Metal", "Apple GPU") and report["build"].startswith("torch 2.")
    assert installation.patcher.overrides == {}


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has MPS: there is nothing to refuse")
def test_without_mps_each_says_why():
    for arguments, status in ((["status"], 0), (["selftest"], 3), (["bench", "--json"], 3)):
        done = subprocess.run(
            [sys.executable, "-m", "metal_kernels", *arguments],
            capture_output=True, text=True, cwd=ROOT, timeout=100, env={**os.environ, "PYTHONPATH": ""},
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert done.stderr == ""
        sentence = "these kernels are for Apple's MPS device"
        assert sentence in (json.loads(done.stdout)["obstacle"] if "--json" in arguments else done.stdout)


def test_wrong_usage(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        command("install")
    assert stopped.value.code == 2


def test_a_bar_on_a_terminal_and_none_in_a_file(core, capsys, monkeypatch):
    module = importlib.import_module(f"{core.face.__name__}.__main__")
    assert list(module._progress([1, 2], ["a", "b"])) == [1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(module._progress([1, 2], ["pad float32", "pad float16"])) == [1, 2]
    shown = capsys.readouterr().err
    assert "[....................] pad float32" in shown and "[##########..........] pad float16" in shown
    assert shown.endswith("\r\033[K"), "the bar is gone at the end"
