"""From load to the first sampler step the process needs the file's size and little more, measured from outside."""
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(1800)]

MIB, GIB = 2**20, 2**30
SCRIPT = Path(__file__).with_name("fp8_memory.py")
TINY, MIDDLE, LARGE = (dict(hidden=1024, double=2, single=4), dict(hidden=3072, double=2, single=5),
                       dict(hidden=3072, double=4, single=11))  # fmt: skip
WEIGHTS = {"tiny": 130 * MIB, "middle": 1370 * MIB, "large": 2700 * MIB, "clip": 1400 * MIB}  # least bytes, in FP8
ITSELF = 640 * MIB  # Python, torch and ComfyUI
EMBEDDING = 151936 * 2048 * 2  # of Qwen3 1.7B, in bfloat16
QUANTISED, SCALED, QUANT = {"kind": "wide", "quantize": "per row"}, {"kind": "scaled"}, {"kind": "quant"}
# glibc raises the size from which on a block is mapped by itself to that of the last one it gave back, up to 32 MiB,
# and keeps smaller ones when they are free. A Mac's allocator maps every large one, and gives it back.
MAPPED = {"MALLOC_MMAP_THRESHOLD_": str(2**18), "MALLOC_TRIM_THRESHOLD_": str(2**20)}
linux = pytest.mark.skipif(sys.platform == "darwin", reason="/proc: a Mac's footprint is read in other ways")


def measured(comfyui_path, folder, checks="0", **settings):
    command = [sys.executable, str(SCRIPT), str(comfyui_path), str(folder), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500,
                          env={**os.environ, **MAPPED, "SOFTMETAL_CHECKS": checks})  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["finite"] and found["varied"] > 0 and found["samples"] > 20
    found["resident"] = int(re.search(r"resident .*\(([\d,]+) bytes\)", found["report"])[1].replace(",", ""))
    print({key: f"{found[key] / MIB:.0f} MiB" for key in (
        "file", "resident", "private", "device", "allocated", "total")})  # fmt: skip
    return found


@pytest.fixture
def folder(tmp_path):
    """A place for a file of gigabytes, which goes with the test."""
    yield tmp_path
    for file in tmp_path.iterdir():
        file.unlink()


def full(*values, **named):
    return pytest.param(*values, marks=pytest.mark.full, **named)


@linux
@pytest.mark.parametrize("size, settings", [
    pytest.param("tiny", TINY, id="model-136 MiB"),
    pytest.param("tiny", TINY | QUANTISED, id="model-136 MiB-quantised"),
    pytest.param("tiny", TINY | QUANT, id="model-136 MiB-quant"),
    full("middle", MIDDLE | SCALED, id="model-1.4 GB-scaled"), full("middle", MIDDLE | QUANT, id="model-1.4 GB-quant"),
    full("middle", MIDDLE, id="model-1.4 GB"), full("middle", MIDDLE | QUANTISED, id="model-1.4 GB-quantised"),
    full("large", LARGE, id="model-2.9 GB"), full("large", LARGE | QUANTISED, id="model-2.9 GB-quantised"),
    full("middle", MIDDLE | {"loader": "checkpoint"}, id="checkpoint-1.4 GB"),
    full("middle", MIDDLE | QUANTISED | {"loader": "checkpoint"}, id="checkpoint-1.4 GB-quantised"),
    full("clip", {"loader": "clip"}, id="clip-2 GB"),
    full("clip", QUANTISED | {"loader": "clip"}, id="clip-2 GB-quantised"),
])  # fmt: skip
def test_the_peak_is_the_file_and_little_more(comfyui_path, folder, size, settings):
    """The device's memory and all of the process's private memory, Python, torch and ComfyUI included: at every moment,
    and the peak of the one and the peak of the other added, though they come at two times. (But for a text encoder's,
    whose embedding of words passes through the one before it is in the other.)

    Each by itself: the device holds what is resident and little more; of the weights, private memory sees none of
    what is stored in FP8, what was quantised until it is on the device, and that embedding.
    """
    found = measured(comfyui_path, folder, **settings)
    wide = settings.get("kind") == "wide"
    assert found["file"] >= WEIGHTS[size] * (2 if wide else 1)
    assert found["total"] < found["file"] + GIB, found
    if size != "clip":
        assert found["private"] + found["device"] < found["file"] + GIB, found
    assert found["allocated"] <= found["device"] < found["resident"] + 300 * MIB, found
    passing = found["resident"] if wide else EMBEDDING if size == "clip" else 0
    assert found["private"] < ITSELF + passing, found
    # Modulation and embedders stay wide when quantising.
    assert found["resident"] <= found["file"] * (0.85 if wide else 1.05)


@linux
def test_what_is_not_counted_is_the_software_devices_own(comfyui_path, folder):
    """The same run with the device's checks: its tensors take as much, and its records come on top."""
    plain = measured(comfyui_path, folder, **TINY)
    checked = measured(comfyui_path, folder, checks="1", **TINY)
    assert checked["file"] == plain["file"] and abs(checked["allocated"] - plain["allocated"]) < 16 * MIB
    assert plain["file"] < checked["private"] - plain["private"] < 3 * plain["file"]


def test_the_weights_in_readmes_table(comfyui_path):
    """Counted in ComfyUI's own classes: an FP8 file has a byte for each, and a header."""
    spec = importlib.util.spec_from_file_location("mac_memory", SCRIPT.parents[1] / "nodes" / "fp8" / "mac_memory.py")
    mac_memory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mac_memory)
    done = subprocess.run([sys.executable, str(SCRIPT.with_name("model_sizes.py")), str(comfyui_path)],
                          capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    counted = json.loads(done.stdout.splitlines()[-1])
    stated = {name: weights for name, weights, _ in mac_memory.MODELS}
    assert stated.pop("Wan 2.2 A14B, both models") == 2 * counted["Wan 2.1 14B"]
    assert stated == counted
