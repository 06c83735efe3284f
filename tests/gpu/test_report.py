"""RESULTS.md: bars, and what counts as a miss."""

import json

import pytest

from gpu import report
from gpu.bars import ALL, BARS, Bar, best_peer, one_token, verdict

MIB = 2**20


def row(table, name, ours, copy, torch=None, moved=2**28, peers=()):
    return {
        "row": table, "name": name, "ours": ours, "copy": copy, "torch": torch, "moved": moved,
        "peers": [{"peer": p, "title": "", "us": us, "error": error} for p, us, error in peers],
    }  # fmt: skip


def found(table, rows, number=0):
    said = verdict(BARS[table][number], rows, one_token(rows))
    return said.ratios, said.missed, said.far


def test_a_bar_over_the_copy():
    rows = [row("pad", "a", 1.0, 1.0), row("pad", "b", 1.2, 1.0), row("pad", "c", 1.5, 1.0)]
    assert found("pad", rows) == ([1.0, 1.2, 1.5], 2, 1)


def test_a_bar_over_one_row_of_the_same_layer():
    rows = [
        row("linear M=1", "linear 1x4096 8192 bfloat16", 10.0, 10.0),
        row("linear M=8", "linear 8x4096 8192 bfloat16", 13.5, 10.0),
        row("linear M=8", "linear 8x1024 8192 bfloat16", 99.0, 10.0),  # too small for the bar
    ]
    said = verdict(BARS["linear M=8"][0], rows[1:], one_token(rows))
    assert (said.ratios, said.missed, said.far) == ([1.35], 1, 0)


def test_rows_of_vocabularies_are_no_attention():
    rows = [row("softmax", "_softmax 1x128256 float32", 6.0, 2.0, moved=2**20)]
    assert found("softmax", rows) == ([], 0, 0)


def test_a_bar_over_the_best_peer_counts_those_that_are_right():
    peers = (("MLX", 3.0, 0.5), ("MLX", 4.0, 0.5), ("PyTorch 2.15", 1.0, float("inf")), ("PyTorch 2.15", None, None))
    one = row("pad", "a", 3.3, 1.0, torch=2.0, peers=peers)
    assert best_peer(one) == 3.0 and best_peer(one, ALL) == 2.0 and best_peer(one, ("PyTorch 2.15",)) is None
    ratios, missed, far = found("pad", [one], 1)
    assert ratios == [pytest.approx(1.1)] and (missed, far) == (1, 0)


@pytest.mark.parametrize(("name", "counted"), [
    ("_softmax 1x128256 float32", True), ("_log_softmax 8x151936 bfloat16", True), ("_softmax 64x1000 float32", False),
    ("_softmax 9x151936 float32", False), ("_softmax 8x77x4096 float16 dim 1", False),
    ("_softmax_backward_data 1x151936 float32", False),
])  # fmt: skip
def test_half_the_best_peer_on_vocabulary_rows(name, counted):
    one = row("softmax", name, 5.1, 2.0, torch=40.0, peers=(("PyTorch 2.15", 10.0, 0.0),))
    ratios, missed, _ = found("softmax", [one], 1)
    assert ratios == ([pytest.approx(0.51)] if counted else []) and missed == counted


def test_a_bar_of_the_geomean_is_one_miss_at_most():
    peers = [(("MLX", us, 0.0),) for us in (1.0, 2.0)]
    rows = [row("linear M=1", f"linear 1x8 {n} bfloat16", 1.5, 1.0, peers=p) for n, p in enumerate(peers)]
    ratios, missed, far = found("linear M=1", rows, 1)
    assert ratios == [1.5, 0.75] and (missed, far) == (1, 0)


def test_every_bar_says_what_it_is_measured_against():
    for bar in (bar for bars in BARS.values() for bar in bars):
        assert isinstance(bar, Bar) and bar.over in ("copy", "torch", "one", "bfloat16", "peer") and bar.text


def test_an_fp8_layer_beside_the_same_one_in_bfloat16():
    """Of the layers that are timed in both, the large ones."""
    wide = [row("linear M=1", f"linear 1x4096 {n} bfloat16", 10.0, 9.0) for n in (4096, 1024)]
    narrow = [row("fp8 linear M=1", f"fp8 linear 1x4096 {n} float8_e4m3fn bfloat16 scale per row", us, 5.0)
              for n, us in ((4096, 6.0), (1024, 9.0), (8192, 9.0))]  # fmt: skip
    bar = next(bar for bar in BARS["fp8 linear M=1"] if bar.over == "bfloat16")
    found = verdict(bar, narrow, one_token(wide + narrow))
    assert found.ratios == [pytest.approx(0.6)] and found.missed == 1 and found.far == 0


def checked(name, ok, error, table="small"):
    return {"name": name, "ok": ok, "error": error, "table": table, "family": "pad"}


def test_parts_of_different_runs_are_one_sentence(tmp_path, capsys):
    parts = [{"device": "NVIDIA H200", "built": built, "sources": {}} for built in ("today", "yesterday")]
    paths = [tmp_path / f"{part['built']}.json" for part in parts]
    for path, part in zip(paths, parts, strict=True):
        path.write_text(json.dumps(part))
    assert report.main([*map(str, paths), "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no parts of one run: built is today in one and yesterday in another" in line
    assert not (tmp_path / "RESULTS.md").exists()


def test_a_call_counts_once_and_what_was_not_compared_is_said(tmp_path):
    """Of one name there may be several calls; a second command may compare some of the first's again."""
    base = {"sources": {}, "device": "NVIDIA H200", "torch": "2", "cuda": "13", "date": "", "built": "", "speed": []}
    first = base | {"check": [checked("a", True, 0.1), checked("a", True, 0.2), checked("b", True, 0.1)]}
    second = base | {"check": [checked("a", True, 0.1), checked("b", True, 0.1), checked("b", True, 0.3)]}
    run = report.merged([first, second])
    assert [row["name"] for row in run["check"]] == ["a", "a", "b", "b"]
    plan = {"cases": [{"table": "small"}] * 4 + [{"table": "conformance"}]}
    assert report.calls(plan) == 4
    assert "All 4 calls compared" in report.text(run | {"calls": 4}, {})
    assert "**Only 4 of 9 calls** compared" in report.text(run | {"calls": 9}, {})


@pytest.fixture
def page(tmp_path):
    peers = (("PyTorch 2.15", 2.0, 0.0), ("MLX", 0.1, 1e9))
    run = {
        "sources": {}, "device": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "date": "2026-11-30",
        "built": "2026-11-30",
        "speed": [
            row("pad", "pad x", 1.1, 1.0, 3.0, moved=4.8e6 * 0.88, peers=peers),
            row("topk", "topk x", 1.0, 1.0),
        ],
        "check": [checked("a", True, 0.1), checked("b", False, 2.0)],
    }  # fmt: skip
    more = run | {"speed": [], "check": [checked("c", True, 0.5, "conformance")], "set aside": 7}
    paths = [tmp_path / "run.json", tmp_path / "more.json"]
    for path, part in zip(paths, (run, more), strict=True):
        path.write_text(json.dumps(part))
    assert report.main([*map(str, paths), "--sanitizer", "racecheck=0 hazards", "--out", str(tmp_path)]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["sanitizer"] == {"racecheck": "0 hazards"}
    assert kept["check"]["tables"] == {
        "small pad": {"calls": 2, "worst": 0.1},
        "conformance pad": {"calls": 1, "worst": 0.5},
    }
    assert [row["name"] for row in kept["check"]["wrong"]] == ["b"]
    return (tmp_path / "RESULTS.md").read_text()


def test_the_page_names_the_device_and_what_it_does_not_say(page):
    assert "**NVIDIA H200**, through NVPTX" in page and "says nothing of Apple's caches or matrix units" in page
    assert "| racecheck | 0 hazards |" in page and "Wrong: **1**" in page and "* b: 2.0" in page
    assert "2 calls compared with float64" in page and "1 rows of the conformance table replayed" in page
    assert "7 rows are set aside" in page


def test_the_page_shows_the_peers_beside_ours_and_the_bytes_over_peak(page):
    assert "| pad x | 1.10 | 1.00 | 3.00 |  | 2.00 | 1.10 | 0.55 | 0.80 |" in page
    assert "| pad | 1 | 1.10 | 0.37 |  | 0.55 | 0.80 |" in page
    assert "not counted because they are wrong: 1." in page and "* MLX  pad x: 1000000000.0" in page


def test_the_page_has_every_bar_of_the_run(page):
    assert "| pad | at most 1.15 times the copy | 1.15 | 1 | 1.10 | 1.10 | 0 | 0 |" in page
    assert "| pad | not slower than the best peer | 1.00 | 1 | 0.55 | 0.55 | 0 | 0 |" in page
    assert "0 of 2 misses (0%), 0 of them beyond 1.15 times the bar" in page
