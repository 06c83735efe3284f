"""The demo's own parts, and the demo as `make demo` runs it."""
import json
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from pack import ROOT
from PIL import Image

from demo import compare, memory, pads, picture, report
from demo.workload import Workload, decode


@pytest.mark.parametrize("shape, pad, inner, faulty", [
    ((1, 16, 3, 258, 258), (1, 1, 1, 1, 2, 0), 66564, True),
    ((1, 16, 3, 130, 130), (1, 1, 1, 1, 2, 0), 16900, False),
    ((1, 1, 6, 64, 1024), (0, 0, 0, 0, 2, 0), 65536, True),
    ((1, 1, 6, 64, 1023), (0, 0, 0, 0, 2, 0), 65472, False),
    ((1, 8, 1, 256, 256), (0, 0, 0, 0, 0, 0), 65536, False),  # pads nothing: a copy
    ((8, 3, 258, 258), (1, 1, 1, 1, 2, 0), 66564, False),  # rank 4
    ((1, 1, 1, 1, 65536), (1, 1), 65536, True),
])
def test_the_rule(shape, pad, inner, faulty):
    assert pads.inner_extent(shape, pad) == inner
    assert pads.is_faulty(shape, pad) is faulty


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_counter_sees_each_pad_once(mode):
    x = torch.ones(1, 2, 1, 258, 256)
    with mode(), pads.PadCounter() as counter:
        F.pad(x, (1, 1, 0, 0, 2, 0))
        F.pad(x, (1, 1), value=3.0)
        torch.constant_pad_nd(x, (0, 0, 0, 0, 0, 0))
        F.pad(x, (1, 1, 1, 1, 0, 0), mode="replicate")
    assert (counter.calls, counter.past_threshold, counter.faulty) == (3, 2, 1)


def test_the_decode_makes_the_pads_that_the_report_is_about():
    vae, latent = Workload().build("cpu")
    with pads.PadCounter() as counter:
        out = decode(vae, latent)
    assert tuple(out.shape) == (1, 3, 5, 256, 256)
    assert (counter.calls, counter.past_threshold, counter.faulty) == (51, 12, 10)
    assert out.std() > 0.3, "a picture that does not fill its range hides what is wrong with it"


def test_the_workload_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = Workload().build("cpu")[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, Workload().build("cpu")[1])


def test_psnr():
    a = torch.rand(3, 4) * 2 - 1
    assert compare.psnr(a, a) == math.inf
    assert compare.psnr(a + 0.2, a) == pytest.approx(20.0, abs=1e-4)  # 10 log10(4 / 0.04)
    assert math.isnan(compare.psnr(torch.full_like(a, math.nan), a))
    with pytest.raises(ValueError, match=r"\(3, 1\), the reference \(3, 4\)"):
        compare.psnr(a[:, :1], a)


def results(growth=(100 * 2**20, 0), psnr=(9.8, 120.0), taken=(0, 51), kind="software Metal", state="patched",
            checked=True, spread=0.4):
    """What a run measures, made up."""
    device = {"kind": kind, "name": "for a test", "stock": "made up", "torch": "2.13.0", "checked": checked}
    counted = {"calls": 51, "distinct_shapes": 20, "past_threshold": 12, "faulty_by_rule": 10, "threshold": 65536}
    work = {"model": "none", "parameters": 1, "dtype": "float32", "latent": (1, 4, 2, 32, 32),
            "picture": [1, 3, 5, 256, 256]}
    found = {"cpu": {"seconds": 2.0, "pads": counted, "workload": work, "spread": spread}}
    for phase, grown, db, ours in zip(("stock", "repaired"), growth, psnr, taken, strict=True):
        rows = [[t / 10, 10 * 2**20, 30 * 2**20, 40 * 2**20 + grown * t // 9, 10 * 2**20 + grown * t // 9]
                for t in range(10)]
        peak = dict(zip(memory.NAMES, (max(column) for column in list(zip(*rows, strict=True))[1:]), strict=True))
        found[phase] = {
            "device": device, "seconds": 3.0, "pads": counted, "psnr_db": db,
            "pad_calls": {"metal_kernels": ours, "stock": 51 - ours}, "kernel": {"state": state, "reason": "made up"},
            "memory": {"peak": peak, "method": dict.fromkeys(memory.NAMES, "counted"), "driver_growth": grown,
                       "timeline": {"rows": rows}},
        }
    return found


def failed(found):
    checks = compare.checks(found["cpu"], found["stock"], found["repaired"],
                            found["stock"]["device"]["kind"] == "software Metal")
    return [check.name.split(":")[0] for check in checks if not check.passed]


def test_a_right_run_passes():
    assert failed(results()) == []
    assert failed(results(psnr=(9.8, math.inf))) == []


@pytest.mark.parametrize("wrong, who", [
    ({"psnr": (15.0, 120.0)}, ["stock"]),
    ({"psnr": (math.nan, 120.0)}, ["stock"]),
    ({"psnr": (9.8, 60.0)}, ["repaired"]),
    ({"psnr": (9.8, math.nan)}, ["repaired"]),
    ({"growth": (0, 0)}, ["stock"]),
    ({"growth": (100, 1)}, ["repaired"]),
    ({"taken": (1, 51)}, ["stock"]),
    ({"taken": (0, 50)}, ["repaired"]),
    ({"checked": False}, ["repaired"]),
    ({"spread": 0.0}, ["CPU"]),
])
def test_a_wrong_run_fails(wrong, who):
    assert failed(results(**wrong)) == who


def test_wrong_pad_counts_fail():
    found = results()
    found["cpu"]["pads"] = {"calls": 50, "past_threshold": 11, "faulty_by_rule": 9, "threshold": 65536}
    assert len(failed(found)) == 3


def test_a_mac_whose_torch_pads_rightly_passes():
    good = {"kind": "Apple GPU", "state": "stock", "taken": (0, 0), "growth": (5, 5)}
    assert failed(results(psnr=(110.0, 110.0), **good)) == []
    assert failed(results(psnr=(9.8, 110.0), **good)) == ["stock"]


def test_the_report_names_the_device_and_is_strict_json():
    found = results(psnr=(9.8, math.inf))
    checks = compare.checks(found["cpu"], found["stock"], found["repaired"], True)
    text = report.as_text(found, checks)
    assert "Device      software Metal" in text and "not a Mac's" in text
    document = json.loads(report.as_json(found, checks), parse_constant=lambda name: pytest.fail(name))
    assert document["passed"] is True and document["device"]["kind"] == "software Metal"
    assert document["phases"]["repaired"]["psnr_db"] == "inf"


def test_the_picture_shows_each_phase():
    shown = {"cpu": torch.full((1, 3, 2, 256, 256), 1.0), "stock": torch.full((1, 3, 2, 256, 256), math.nan),
             "repaired": torch.zeros(1, 3, 2, 256, 256)}
    page = picture.draw(results(), shown)
    middle = [page.getpixel((picture.SCALE * (picture.MARGIN + column * (picture.FRAME + picture.GAP) + 128),
                             picture.SCALE * 300)) for column in range(3)]
    assert middle == [(255, 255, 255), (0, 0, 0), (128, 128, 128)]


def test_the_timeline_keeps_the_peak_when_thinned():
    line = memory.Timeline(torch.nn.Identity())
    line.readings = [memory.Reading(n, 1, 2, 900 if n == 517 else 3, 1) for n in range(2000)]
    thin = line.thinned(100)
    assert len(thin) == 100 and max(row[3] for row in thin) == 900
    assert line.peaks() == {"current": 1, "reserved": 2, "driver": 900, "outside": 1}


@pytest.mark.timeout(600)
def test_the_main_job(tmp_path):
    """`make demo`: garbage from stock, the CPU's picture once repaired, and no driver memory kept."""
    done = subprocess.run([sys.executable, "-m", "demo", "--out", str(tmp_path)], cwd=ROOT / "tests",
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["passed"] is True and all(check["passed"] for check in document["checks"])
    assert document["phases"]["stock"]["psnr_db"] < 15 and document["phases"]["repaired"]["psnr_db"] > 60
    if sys.platform != "darwin":
        assert document["device"]["kind"] == "software Metal" and "software Metal" in done.stdout
    with Image.open(tmp_path / "report.png") as image:
        assert image.width > 1000
