"""The conformance table on the GPU lane: rows recorded, made again, replayed and judged; here on software Metal."""

import pytest
import torch
from pack import load

from gpu import build, conformance, replay
from gpu.cases import all_cases
from gpu.on_software import Libraries, SoftwareInstance

MOST = 3000  # elements of a row's first tensor, to be quick here


def chosen():
    """A few small rows of each operation, of different dtypes and layouts."""
    from conformance import library

    found, seen = {}, {}
    for row in conformance.rows():
        small = all(torch.Size(shape).numel() <= MOST for shape in row.shapes) and row.shapes
        if small and seen.setdefault((row.op, row.dtype, row.layout), 0) < 1 and len(found.get(row.op, ())) < 4:
            seen[row.op, row.dtype, row.layout] += 1
            found.setdefault(row.op, []).append(row)
    assert set(found) == set(library.OPERATIONS)
    return [row for rows in found.values() for row in rows]


@pytest.fixture(scope="module")
def recorded():
    made, sources = build.record_all([], None, chosen())
    return made, Libraries(sources)


@pytest.mark.timeout(900)  # the first of the suite may have to compile every kernel of every family
def test_a_replayed_row_gives_what_the_table_expects(recorded):
    from conformance import library as table

    made, libraries = recorded
    assert len(made) > 50 and any(step.get("op") for case in made for step in case["steps"])
    for case in made:
        instance = SoftwareInstance(case, libraries)
        replay.judge(table, case, instance)
        instance.close()


def test_a_wrong_replay_is_found(recorded):
    from conformance import library as table

    made, libraries = recorded
    for op in ("linear", "pad", "topk"):
        case = next(case for case in made if case["op"] == op and len(case["steps"]) == 1)
        with pytest.raises(table.Mismatch):
            replay.judge(table, case, SoftwareInstance(case | {"steps": []}, libraries))


def test_every_row_is_written_into_the_plan_as_it_is():
    from conformance import library as table

    rows = conformance.rows()
    assert len(rows) > 8000
    for row in rows:
        assert replay.decode(table, conformance.encode(row)).id == row.id


def test_every_row_of_a_real_size_is_a_case():
    rows, cases = conformance.device_rows(), {case.name: case for case in all_cases()}
    assert len(rows) > 300 and {row.size for row in rows} == {"device"}
    elements = 0
    for case in conformance.large():
        assert case.name in cases
        elements = max(elements, case.args[0].bytes)
    assert {row.op for row in rows} - {"scaled_mm_v2"} == {
        "pad", "softmax", "log_softmax", "softmax_backward", "log_softmax_backward", "linear", "grouped_mm",
        "fp8_decode", "fp8_scaled_linear", "fp8_quantize", "scaled_mm",
    }  # fmt: skip
    assert elements > 2**28


def test_the_hot_sizes_of_the_issue_are_there():
    names = [case.name for case in all_cases() if case.table in ("large", "speed")]
    elements = [
        (case.op, torch.Size(case.args[0].shape).numel()) for case in all_cases() if case.table == "large"
    ]  # fmt: skip
    for op in ("constant_pad_nd", "_softmax"):
        assert max(n for o, n in elements if o == op) > 2**32
    for part in ("32768", "x151936 ", "x248320 ", "of 256 experts", " 151936 "):
        assert any(part in name for name in names), part


def test_casts_beyond_the_range_are_set_aside_where_another_torch_would_judge():
    from conformance import library as table

    formats = load().metal_kernels.fp8.formats
    here, other = {"saturates": formats.saturates()}, {"saturates": not formats.saturates()}
    e4m3fn, half = {"to": {"dtype": "float8_e4m3fn"}}, {"to": {"dtype": "float16"}}
    rows = (("fp8_encode", {}, False), ("fp8_decode", e4m3fn, False), ("fp8_decode", half, True), ("pad", {}, True))
    for op, options, judged in rows:
        case = {"op": op, "conformance": {"options": options}}
        assert replay.comparable(table, case, here)
        assert replay.comparable(table, case, other) == judged


def test_a_row_that_cuda_cannot_launch_is_left_out_and_named(tmp_path):
    from conformance import library as table

    row = table.Case("fp8_quantize", torch.float8_e4m3fn, ((65537, 16),), options={"per": "row"})
    plan = build.build(tmp_path, [], None, [row])
    assert plan["cases"] == [] and list(plan["left out"]) == [row.id]
    assert "65537 threads in groups of 1 are more groups than CUDA has" in plan["left out"][row.id]
