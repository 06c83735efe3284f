"""From load to the first sampler step the process needs the file's size and little more, measured from outside."""
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(1800)]

MIB, GIB = 2**20, 2**30
SCRIPT = Path(__file__).with_name("fp8_memory.py")


def measured(comfyui_path, folder, **settings):
    command = [sys.executable, str(SCRIPT), str(comfyui_path), str(folder), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["finite"] and found["varied"] > 0
    resident = int(re.search(r"resident .*\(([\d,]+) bytes\)", found["report"])[1].replace(",", ""))
    return found, resident


@pytest.mark.skipif(sys.platform == "darwin", reason="/proc: a Mac's footprint is read in other ways")
@pytest.mark.parametrize("size, least", [
    (dict(hidden=1024, double=2, single=4), 130 * MIB),
    pytest.param(dict(hidden=3072, double=2, single=5), 1200 * MIB, marks=pytest.mark.full),
], ids=["136 MiB", "1.4 GB"])  # fmt: skip
@pytest.mark.parametrize("how", [{}, {"wide": True, "quantize": "per row"}], ids=["as stored", "quantised"])
def test_the_peak_is_the_file_and_little_more(comfyui_path, tmp_path, size, least, how):
    """All of the process's private memory, Python, torch and ComfyUI included, and the software device's own."""
    found, resident = measured(comfyui_path, tmp_path, **size, **how)
    assert found["file"] >= least * (2 if how else 1)
    assert found["total"] < found["file"] + GIB, found
    assert found["allocated"] < resident + 300 * MIB, found
    if how:
        assert resident < 0.85 * found["file"]  # modulation and embedders stay wide
    else:
        assert resident <= 1.05 * found["file"]


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
