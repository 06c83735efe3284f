"""What of the GPU lane can be tested without a GPU: what is recorded, what is built, and what is said to bad input."""

import json
import sys

import pytest
import softmetal
import torch
from pack import ROOT, load
from softmetal.frontend import toolchain
from softmetal.frontend.translate import Translation

from gpu import build, conformance, driver, paths, replay, run
from gpu.cases import all_cases, layers, linear_case, pad_case, softmax_case
from gpu.plan import Plan
from gpu.small import small

METAL = sorted((ROOT / "metal_kernels").glob("*/*.metal"))


@pytest.fixture
def library():
    softmetal.activate(faults="2.13")
    return load().metal_kernels


FEW = (
    pad_case((2, 3, 5, 70), (1, 1, 1, 1), "float16", "small"),
    linear_case(3, 40, 256, "float32", "small", bias=True),
    softmax_case("_softmax", (2, 33000), "float32", "small"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder of the build step with a few cases in it."""
    folder = tmp_path_factory.mktemp("out")
    build.build(folder, list(FEW))
    return folder


def test_every_kernel_of_every_family_is_in_the_small_table():
    made, sources = build.record_all(list(small()))
    launched = {step["kernel"] for case in made for step in case["steps"] if "kernel" in step}
    names = set()
    for source in sources.values():
        names |= {entry.host_name for entry in Translation(toolchain.preprocess(source).stdout).entries}
    assert len(sources) == len(METAL) and len(names) > 250
    assert names <= launched


def test_the_tables_hold_the_shapes_of_the_bars():
    cases = all_cases()
    rows = {case.row for case in cases if case.table == "speed"}
    assert {f"linear M={m}" for m in (1, 2, 4, 8, 16)} <= rows
    assert {"pad", "softmax", "grouped decode", "grouped prefill", "topk", "scaled_mm"} <= rows
    assert {"fp8 linear M=1", "fp8 linear M=4", "fp8 linear M=1024", "fp8 quantise", "fp8 dequantise"} <= rows
    assert sum(case.row == "linear M=1" for case in cases) == len(layers()) == 96
    elements = {case.name: case.args[0].bytes for case in cases if case.table == "large"}
    assert max(elements.values()) > 2**32


def test_a_recording_is_what_software_metal_runs(library):
    """The same kernels, grids and values as when the call is really made."""
    from softmetal.shader import launches

    made, _ = build.record_all([FEW[1]])
    x, weight, bias = (torch.randn(n, device="mps") for n in ((3, 256), (40, 256), (40,)))
    with launches.record() as real:
        library.linear.host.linear(x, weight, bias)
    (step,), (launch,) = made[0]["steps"], real
    assert step["kernel"] == launch.kernel
    assert tuple(step["threads"]) == launch.threads and tuple(step["group"]) == launch.group_size
    header = launch.arguments[4]
    assert bytes.fromhex(step["args"][4]["hex"]) == b"".join(int(n).to_bytes(8, "little", signed=True) for n in header)


def test_nothing_is_touched_while_recording():
    """A pad of 4.5 GB is described in a moment: its memory is address space and no more."""
    case = pad_case((3, 1000, 1500000), (1, 1, 1, 0, 0, 1), "uint8", "large")
    ((made,), _) = build.record_all([case])
    assert max(made["storages"]) > 2**32
    assert len(made["steps"]) > 1  # a launch numbers its elements in 31 bits


def test_what_is_built(built):
    plan = json.loads((built / "plan.json").read_text())
    assert [case["name"] for case in plan["cases"]] == [case.name for case in FEW]
    for key, kernel in plan["kernels"].items():
        text = (built / kernel["file"]).read_text()
        assert f".visible .entry {kernel['symbol']}(" in text, key
        assert f".maxntid {kernel['max_threads']}" in text
    (pad,) = (case for case in plan["cases"] if case["op"] == "constant_pad_nd")
    assert [a["as"] for a in plan["kernels"][pad["steps"][0]["kernel"]]["args"]] == ["pointer"] * 2 + ["value"] * 2


def test_threadgroups_that_end_inside_a_simdgroup():
    assert not build.has_partial_simdgroups({"threads": [512, 3, 1], "group": [256, 1, 1]})
    assert build.has_partial_simdgroups({"threads": [500, 1, 1], "group": [256, 1, 1]})
    assert build.has_partial_simdgroups({"threads": [480, 1, 1], "group": [48, 1, 1]})


def refused(capsys, *arguments) -> str:
    assert run.main([*map(str, arguments)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_no_gpu_is_one_sentence(built, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no NVIDIA GPU" in refused(capsys, built)


def test_another_gpu_is_one_sentence(built, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    line = refused(capsys, built)
    assert "NVIDIA T4 has compute capability 7.5" in line and "9.0" in line


def test_no_plan_is_one_sentence(tmp_path, capsys):
    assert f"run python -m gpu.build {tmp_path} first" in refused(capsys, tmp_path)


def test_stale_ptx_is_one_sentence(built, tmp_path):
    for path in METAL:
        folder = tmp_path / path.parent.name
        folder.mkdir()
        (folder / path.name).write_text(path.read_text())
    assert Plan(built, tmp_path).cases
    changed = tmp_path / "pad" / "pad.metal"
    changed.write_text(changed.read_text() + "\n// changed\n")
    with pytest.raises(driver.GpuError, match="is stale: pad.metal has changed since"):
        Plan(built, tmp_path)


def test_stale_ptx_stops_the_run(built, tmp_path, capsys):
    for path in built.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    plan = json.loads((tmp_path / "plan.json").read_text())
    plan["sources"]["softmax"] = "of other times"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    line = refused(capsys, tmp_path)
    assert f"the PTX in {tmp_path} is stale: softmax.metal has changed since; run python -m gpu.build" in line


def test_a_library_that_was_not_carried_is_one_sentence(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "metal_kernels"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(driver.GpuError, match="has no Python files: rows of the conformance table are judged by them"):
        replay.library(tmp_path)


def test_more_than_can_be_carried_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build, "all_cases", lambda: [FEW[0]])
    monkeypatch.setattr(build, "MOST_BYTES", 100)
    assert build.main([str(tmp_path), "--table", "small"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "too many to carry" in line


def test_a_missing_file_and_another_version_are_one_sentence(built, tmp_path):
    for path in built.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    next(tmp_path.glob("*.ptx")).unlink()
    with pytest.raises(driver.GpuError, match="lacks .*ptx: run python -m gpu.build"):
        Plan(tmp_path, None)
    plan = json.loads((tmp_path / "plan.json").read_text()) | {"format": 0}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(driver.GpuError, match="another version of the build step"):
        Plan(tmp_path, None)


# Host code that the sanitised calls need not go through, and why.
DECIDES = "decides or describes, and launches nothing"
WORDS = "the words of an error, and no launch"
VALUES = "asks the CPU for values, and launches nothing"
STOCK = "stock's own, without a kernel of ours"
COVERED = "calls of ours that other cases make"
OUTSIDE = {
    "pad/host.py supports": DECIDES, "softmax/host.py supports": DECIDES, "softmax/host.py supports_backward": DECIDES,
    "linear/host.py supports": DECIDES, "linear/host.py is_one_row": DECIDES, "linear/host.py _fits": DECIDES,
    "grouped_mm/host.py supports": DECIDES, "grouped_mm/host.py has_layout": DECIDES,
    "grouped_mm/routing.py supports_topk": DECIDES, "grouped_mm/routing.py supports_histc": DECIDES,
    "fp8/cast.py touches_fp8": DECIDES, "fp8/cast.py dtype_of_copy": DECIDES, "fp8/cast.py supports_copy": DECIDES,
    "fp8/cast.py stock_copies_well": DECIDES, "fp8/linear.py supports_backward": DECIDES,
    "fp8/scaled_mm.py supports": DECIDES, "fp8/scaled_mm.py supports_v2": DECIDES,
    "fp8/scaled_mm.py _scales_fit": DECIDES, "pad/geometry.py crop: return None": DECIDES,
    "softmax/host.py _described": DECIDES, "linear/host.py _described": DECIDES,
    "grouped_mm/host.py _described": DECIDES, "grouped_mm/routing.py _described": DECIDES,
    "pad/host.py fill_bits": VALUES, "pad/host.py _fill_bits": VALUES, "pad/host.py _cpu_takes": VALUES,
    # linear() of many rows is torch's, or torch's in another form; a patch's run() goes through the latter.
    "linear/host.py linear: if misread(x, weight, bias):": STOCK,
    "linear/host.py linear: return reread(x, weight, bias)": STOCK,
    "linear/host.py linear: return torch.nn.functional.linear(x, weight, bias)": STOCK,
    "fp8/cast.py _to_cpu": "a cast, which is covered, and a move to the CPU, which no launch follows",
    "fp8/cast.py _from_cpu": "a move from the CPU, and a cast, which is covered",
    "fp8/cast.py copy_: _to_cpu(self, src)": "as there",
    "fp8/cast.py copy_: _from_cpu(self, src)": "as there",
    "fp8/cast.py cast: return as_bytes(x).clone().view(dtype)": STOCK,
    "fp8/linear.py linear_grad_input: total = grad.new_zeros(grad.shape[0], cols)": "no weight, and no launch",
    # x in FP8: casts and a linear, which are covered.
    "fp8/linear.py linear_unscaled: wide = linear(cast(input, torch.float32), weight, None, None if bias is None else "
    "cast(bias, torch.float32))": COVERED,
    "fp8/linear.py linear_unscaled: return cast(wide, input.dtype)": COVERED,
    "fp8/scaled_mm.py _refusal": WORDS,
    'fp8/scaled_mm.py _described: return f"mat_{name}.dtype()={_name(matrix.dtype)}, scale_{name}=None"': WORDS,
    "fp8/scaled_mm.py scaled_mm: out.zero_() if bias is None else out.copy_(bias)": "no K, and no launch",
}  # fmt: skip


def one_of_each(rows):
    """A row of each operation, layout, number of dimensions and choice of options: the build step takes them all."""
    kinds = {}
    for row in rows:
        ranks = tuple(len(shape) for shape in row.shapes)
        options = tuple((name, str(value)[:12]) for name, value in row.options.items())
        kinds.setdefault((row.op, row.layout, ranks, 0 in sum(row.shapes, ()), options), row)
    return list(kinds.values())


@pytest.fixture(scope="module")
def sanitised():
    """(cases that the sanitizer runs, the host code that they go through)"""
    executed = paths.Executed(build.METAL)
    made, _ = build.record_all(list(small()), None, one_of_each(conformance.rows()), executed)
    return [case for case in made if case["sanitised"]], executed


def test_the_sanitizer_sees_every_host_path(sanitised):
    cases, executed = sanitised
    assert paths.missed(build.METAL, executed, OUTSIDE) == []
    assert {case["table"] for case in cases} == {"small", "conformance"}
    assert sum(case["table"] == "conformance" for case in cases) < 100, "the sanitizer is slow"


def test_nothing_is_outside_that_is_gone_or_covered():
    """A reason for what is no longer there would hide a new path of the same name."""
    empty = paths.Executed(build.METAL)
    everything = paths.missed(build.METAL, empty, {})
    functions = {what.partition(":")[0] for what in everything}
    assert not [what for what in OUTSIDE if what not in functions and what not in everything]


def test_a_path_that_no_call_takes_is_named(tmp_path):
    (tmp_path / "pad").mkdir()
    source = "def f(x):\n    '''It says so.'''\n    if (\n        x\n    ):\n        return 1\n    raise ValueError\n"
    for module in paths.MODULES:
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text(source if module == "pad/host.py" else "")
    executed = paths.Executed(tmp_path)
    executed.lines["pad/host.py"] = {4}
    assert paths.missed(tmp_path, executed, {}) == ["pad/host.py f: return 1"]
    assert paths.missed(tmp_path, executed, {"pad/host.py f": "a reason"}) == []
