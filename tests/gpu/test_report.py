"""RESULTS.md: bars, and what counts as a miss."""

import json

from gpu import report


def row(table, name, ours, copy, torch=None, moved=2**28):
    return {"row": table, "name": name, "ours": ours, "copy": copy, "torch": torch, "moved": moved}


def test_a_bar_over_the_copy():
    rows = [row("pad", "a", 1.0, 1.0), row("pad", "b", 1.2, 1.0), row("pad", "c", 1.5, 1.0)]
    ratios, missed, far = report.verdict("pad", rows, {})
    assert ratios == [1.0, 1.2, 1.5] and (missed, far) == (2, 1)


def test_a_bar_over_one_row_of_the_same_layer():
    rows = [
        row("linear M=1", "linear 1x4096 8192 bfloat16", 10.0, 10.0),
        row("linear M=8", "linear 8x4096 8192 bfloat16", 13.5, 10.0),
        row("linear M=8", "linear 8x1024 8192 bfloat16", 99.0, 10.0),  # too small for the bar
    ]
    ratios, missed, far = report.verdict("linear M=8", rows[1:], report.one_token(rows))
    assert ratios == [1.35] and (missed, far) == (1, 0)


def test_rows_of_vocabularies_are_no_attention():
    rows = [row("softmax", "_softmax 1x128256 float32", 6.0, 2.0, moved=2**20)]
    assert report.verdict("softmax", rows, {}) == ([], 0, 0)


def test_the_page_names_the_device_and_what_it_does_not_say(tmp_path):
    run = {
        "device": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "date": "2026-11-30", "built": "2026-11-30",
        "speed": [row("pad", "pad x", 1.1, 1.0, 3.0), row("topk", "topk x", 1.0, 1.0)],
        "check": [{"name": "a", "ok": True, "error": 0.1}, {"name": "b", "ok": False, "error": 2.0}],
    }  # fmt: skip
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    assert report.main([str(path), "--sanitizer", "racecheck=0 hazards", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "RESULTS.md").read_text()
    assert "**NVIDIA H200**, through NVPTX" in page and "says nothing of Apple's caches or matrix units" in page
    assert "| racecheck | 0 hazards |" in page and "Wrong: **1**" in page and "* b: 2.0" in page
    assert "| pad | 1 | 1.10 | 0.37 | at most 1.15 times the copy | 1 | 1.10 | 1.10 | 0 | 0 |" in page
    assert json.loads((tmp_path / "results.json").read_text())["sanitizer"] == {"racecheck": "0 hazards"}
