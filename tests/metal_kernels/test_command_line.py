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
        monkeypatch.setattr(module.benchmark, name, 2)

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
        ["kernel", "dtype", "state", "result", "of tolerance"],
        ["good", "float32", "patched", "ok", ""], ["good", "float16", "patched", "ok", ""],
        ["bad", "float32", "stock", "ok", ""], ["bad", "float16", "stock", "FAILED", ""],
    ]  # fmt: skip
    assert "state stock: this torch does not need the kernel; it was switched on for the test." in text
    assert "bad float16: SelfCheckFailure: 3 of 8 bytes differ" in text and "3 passed, 1 failed, in" in text
    assert text.startswith(f"torch {torch.__version__.split('+')[0]}")
    status, text = command("selftest", "--json")
    report = json.loads(text)
    assert status == 1 and (report["passed"], report["failed"]) == (3, 1)
    reason = "SelfCheckFailure: 3 of 8 bytes differ"
    assert report["results"][3] | {"ms": 0} == {
        "kernel": "bad", "dtype": "float16", "state": "stock", "passed": False, "cases": 0, "worst": None, "ms": 0,
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
    assert all(r["worst"] is not None and 0 <= r["worst"] <= 1.0001 and r["cases"] for r in report["results"])
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
    assert row[3] == "FAILED" and "ulps of float32 off, " in text


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
        assert answer("linear", torch.float32).endswith("%")
        assert answer("fp8_quantize", torch.float8_e4m3fn) == ""


BENCH_HEADER = ["op", "shape", "dtype", "stock", "patched", "moves", "computes", "of bandwidth", "auto"]


@pytest.fixture
def pads(families, make_kernel, core):
    """pads(need): a pad kernel with two cases to time, one of which no kernel can run. Its calls are in pads.calls."""
    import dataclasses

    calls = []

    def cases(device):
        x = torch.zeros(4, device=device)
        pad = (1, 1)
        call = lambda: torch.constant_pad_nd(x, pad)  # noqa: E731
        yield core.kernel.Case("constant_pad_nd", "4 + (1, 1)", x.dtype, call, (x, pad))
        yield core.kernel.Case("refused", "x", torch.float16, lambda: torch.constant_pad_nd(x, (1,)), (x,))

    def use(need, bench=cases):
        kernel = make_kernel(
            name="pad", need=need,
            run=lambda x, *a: calls.append(1) or x.new_zeros(6), supports=lambda x, pad, *a: len(pad) == 2,
        )  # fmt: skip
        return families(dataclasses.replace(kernel, bench=bench))

    use.calls = calls
    return use


def test_bench(command, pads):
    installation = pads(False)
    status, text = command("bench")
    assert status == 0 and len(pads.calls) == 4, "patched runs: one to warm up, two, and one for its cost"
    header, pad, refused = table_of(text)
    assert header == BENCH_HEADER
    assert pad[0] == "aten::constant_pad_nd" and pad[2] == "float32"
    assert pad[4].endswith(" ms") and float(pad[4].removesuffix(" ms")) >= 0
    assert pad[5] == f"{4 * (4 + 6) / 1e6:.3g} MB" and pad[6] == "-"
    assert refused == ["aten::refused", "x", "float16", *"------"]
    assert text.startswith("torch ") and ("software Metal" in text or "Apple GPU" in text)
    status, text = command("bench", "--json")
    report = json.loads(text)
    assert report["results"][0]["stock_ms"] > 0 and report["results"][1]["patched_ms"] is None
    assert report["results"][0]["bytes"] == 40 and report["results"][0]["flops"] == 0
    assert report["device"] in ("software Metal", "Apple GPU") and report["build"].startswith("torch 2.")
    assert installation.patcher.overrides == {}


def test_a_mistake_in_a_case_is_not_a_figure(command, pads, core):
    def cases(device):
        yield core.kernel.Case("nothing", "none", torch.float16, lambda: torch._C._this_is_missing_here())

    pads(False, cases)
    with pytest.raises(AttributeError):
        command("bench")


@pytest.mark.skipif(sys.platform == "darwin", reason="software Metal is what is simulated")
def test_bench_on_software_metal_says_that_its_times_are_a_simulations(command, pads):
    pads(True)
    _, text = command("bench")
    assert "every time here is a simulation's, on this computer's processor" in text
    for row in table_of(text)[1:]:
        assert row[7:] == ["-", "-"], "no share of a bandwidth, and nothing that pays"
    _, text = command("bench", "--json")
    report = json.loads(text)
    assert "simulation" in report["note"]
    assert all(r["bandwidth_share"] is None and r["auto"] is None for r in report["results"])


def on_a_gpu(installation, monkeypatch, module, chip, stock, patched):
    """As if the times were those of an Apple GPU with this chip."""
    import dataclasses

    there = dataclasses.replace(installation.environment, chip=chip, device=module.benchmark.GPU)
    monkeypatch.setattr(installation, "_environment", there)
    times = iter((stock, patched) * 10)
    monkeypatch.setattr(module.benchmark, "_median", lambda call: next(times))


@pytest.mark.parametrize(("need", "stock", "patched", "said"), [
    (True, 2.0, 1.0, "pays"), (True, 1.0, 1.0, "does not pay"), (True, None, 1.0, "pays"),
    (False, 2.0, 1.0, "left to stock"), (True, 1.0, None, None),
])  # fmt: skip
def test_bench_on_a_gpu_says_whether_auto_pays(core, mps, pads, monkeypatch, need, stock, patched, said):
    module = importlib.import_module(f"{core.face.__name__}.__main__")
    installation = pads(need)
    installation.install()
    try:
        on_a_gpu(installation, monkeypatch, module, "Apple M1", stock, patched)
        kernel = module.KERNELS[0]
        with installation.registered("pad"):
            row = module.benchmark.time_case(installation, kernel, next(iter(kernel.bench(mps))))
        assert row["auto"] == said
        # 40 bytes at 68.25 GB/s take 0.6 ns
        share = None if patched is None else pytest.approx(40 / 68.25e9 / (patched / 1e3))
        assert row["bandwidth_share"] == share
    finally:
        installation.uninstall()


@pytest.mark.parametrize(("chip", "said"), [
    ("Apple M2 Max", "Share of the memory bandwidth of Apple M2 Max: 400 GB/s, as Apple states it."),
    ("Apple M4 Max", "546 GB/s (with the smaller of its two GPUs 410), as Apple"),
    ("Apple M9", "No share of the bandwidth: that of Apple M9 is not in the table"),
    ("", "that of this chip is not in the table"),
])  # fmt: skip
def test_bench_names_the_bandwidth_that_its_shares_are_of(core, mps, pads, monkeypatch, chip, said):
    module = importlib.import_module(f"{core.face.__name__}.__main__")
    installation = pads(True)
    on_a_gpu(installation, monkeypatch, module, chip, 1.0, 1.0)
    assert said in module.benchmark.chip_note(installation)


def test_every_case_that_is_timed_says_what_it_moves(core):
    """Worked out on the meta device, where nothing is computed: no row of the benchmark is without bytes."""
    cost = importlib.import_module(f"{core.face.__name__}.cost")
    for kernel in core.face.KERNELS:
        for case in kernel.bench("meta"):
            result = case.call()
            results = result if isinstance(result, tuple) else (result,)
            least = cost.operation(case.op, case.args, results)
            moved = sum(t.nbytes for t in results) + case.args[0].nbytes
            assert least.bytes >= moved if case.op != "copy_" else least.bytes == sum(t.nbytes for t in case.args)
            assert bool(least.flops) == (case.op in ("linear", "_grouped_mm")), f"{case.op} {case.shape}"


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
