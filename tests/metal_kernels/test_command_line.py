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
    assert status == 1
    assert table_of(text) == [
        ["kernel", "dtype", "state", "result", "worst error"],
        ["good", "float32", "patched", "ok", ""], ["good", "float16", "patched", "ok", ""],
        ["bad", "float32", "stock", "ok", ""], ["bad", "float16", "stock", "FAILED", ""],
    ]  # fmt: skip
    assert "bad float16: SelfCheckFailure: 3 of 8 bytes differ" in text and "3 passed, 1 failed, in" in text
    assert text.startswith(f"torch {torch.__version__.split('+')[0]}")
    status, text = command("selftest", "--json")
    report = json.loads(text)
    assert status == 1 and (report["passed"], report["failed"]) == (3, 1)
    reason = "SelfCheckFailure: 3 of 8 bytes differ"
    assert report["results"][3] | {"ms": 0} == {
        "kernel": "bad", "dtype": "float16", "state": "stock", "passed": False, "cases": 0, "worst_ulps": None, "ms": 0,
        "why": reason, "all": [reason],
    }  # fmt: skip


def table_of(text):
    """The cells of the Markdown table in `text`, row by row, without its rule."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if set(row[0]) != {"-"}]


def test_every_kernel_of_the_library_passes_its_selftest(command, core):
    status, text = command("selftest", "--json")
    report = json.loads(text)
    assert status == 0 and report["failed"] == 0, [r for r in report["results"] if not r["passed"]]
    assert report["passed"] == sum(len(kernel.dtypes) for kernel in core.face.KERNELS) > 0
    assert all(r["worst_ulps"] is not None and 0 <= r["worst_ulps"] <= 0.501 and r["cases"] for r in report["results"])
    assert report["build"].startswith("torch 2.") and report["macos"] and report["chip"]
    assert core.face.registered_now() == core.face.needed(), "what the test switched on is off again"


def test_a_wrong_result_fails_the_selftest(command, core, monkeypatch):
    """Not seen by the self-check, but by a case of the table; and a kernel that went to stock is no pass."""
    conformance = importlib.import_module(f"{core.face.__name__}.conformance")
    cases = tuple(case for case in conformance.COMPACT if case.op == "softmax" and case.dtype is torch.float32)
    monkeypatch.setattr(conformance, "COMPACT", cases)
    softmax = next(kernel for kernel in core.face.KERNELS if kernel.name == "softmax")
    host = importlib.import_module(f"{core.face.__name__}.softmax.host")
    monkeypatch.setattr(importlib.import_module(f"{core.face.__name__}.__main__"), "KERNELS", [softmax])
    compute = host.compute
    monkeypatch.setattr(host, "compute", lambda name, inputs, *a, **k: compute(name, inputs, *a, **k) * 1.001)
    status, text = command("selftest")
    assert status == 1
    row = next(row for row in table_of(text) if row[:2] == ["softmax", "float32"])
    assert row[3] == "FAILED" and "ulps of float32 off, 0.5 allowed" in text


def test_stocks_answer(core, mps):
    """The A/B that a Mac sees, here on a stock with the faults of torch 2.13."""
    import softmetal

    selftest = importlib.import_module(f"{core.face.__name__}.selftest")
    compact = importlib.import_module(f"{core.face.__name__}.conformance").COMPACT
    core.face.uninstall()
    with softmetal.profile(faults="2.13"):

        def answer(op, dtype):
            return selftest.stocks_answer(tuple(case for case in compact if (case.op, case.dtype) == (op, dtype)))

        assert answer("pad", torch.float16) == "wrong in 1 of 3"
        assert answer("fp8_decode", torch.float8_e4m3fn) == "refuses 3 of 3"
        assert answer("linear", torch.float32).endswith(" ulps")
        assert answer("fp8_quantize", torch.float8_e4m3fn) == ""


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
    header, pad, refused = table_of(text)
    assert header == ["op", "shape", "dtype", "stock", "patched"]
    assert pad[0] == "aten::constant_pad_nd" and pad[2] == "float32"
    assert pad[4].endswith(" ms") and float(pad[4].removesuffix(" ms")) >= 0
    assert refused == ["aten::refused", "x", "float16", "-", "-"]
    assert text.startswith("torch ") and ("software Metal" in text or "Apple GPU" in text)
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
