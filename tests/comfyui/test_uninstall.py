"""`metal_kernels.uninstall()` in a real ComfyUI: every attribute is the very object that it was before the pack."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

SEAMS = ["comfy.model_management.is_oom", "comfy.sd.load_checkpoint_guess_config", "comfy.sd.load_clip",
         "comfy.sd.load_diffusion_model", "comfy.utils.convert_old_quants", "comfy.utils.set_attr_param"]
EXECUTOR = ["comfy_execution.progress.ProgressRegistry.__init__", "comfy_execution.utils.CurrentNodeContext.__enter__",
            "comfy_execution.utils.CurrentNodeContext.__exit__", "execution.PromptExecutor.execute_async"]
CRASH, ONES = "Undefined type Float8_e4m3fn", [1.0] * 4


@pytest.fixture(scope="module")
def found(comfyui_path):
    """What `uninstalled.py` saw."""
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("uninstalled.py")), comfyui_path],
                          capture_output=True, text=True, timeout=500)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_the_pack_puts_in(found):
    """Nothing but this: whoever adds to it must find it taken out below."""
    names = found["loaded"]
    kitchen = [name for name in names if name.startswith(("registry.", "layouts["))]
    dispatcher = [name for name in names if name.startswith("aten::")]
    assert sorted(set(names) - set(kitchen) - set(dispatcher)) == sorted(SEAMS + EXECUTOR)
    assert {"registry._backends[metal]", "registry._priority"} < set(kitchen)
    assert any(name.startswith("layouts[aten.linear.default]") for name in kitchen)
    assert {"aten::copy_", "aten::linear", "aten::constant_pad_nd"} < set(dispatcher)
    assert found["cast"] == ONES and found["oom"] is True


def test_uninstall_takes_all_of_it_out(found):
    assert found["uninstalled"] == []
    assert found["stock cast"] == CRASH and found["stock oom"] is False


@pytest.mark.parametrize("mode", ["off", "on", "auto"])
def test_a_mode_puts_nothing_back(found, mode):
    assert found[f"uninstalled, {mode}"] == [[], CRASH]


def test_install_brings_all_of_it_back(found):
    assert found["again"] == found["loaded"]
    assert [found[f"installed, {mode}"] for mode in ("off", "on", "auto")] == [CRASH, ONES, ONES]


def test_what_others_put_over_it_stays(found):
    assert found["theirs stay"] and found["theirs stay still"]
    assert found["under others"] == sorted([*SEAMS, "registry._priority"])
    assert found["priority"] == ["eager", "cuda"], "their order, without ours"
    assert found["oom under others"] is False and found["oom over others"] is True
