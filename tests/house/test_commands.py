"""The commands that people and CI type: they say what is missing, and fail when something fails."""
import os
import shutil
import subprocess
import sys

import pytest
from pack import ROOT


def run(*command, cwd=ROOT, **environment):
    """The finished process. The variables of the `make` that runs these tests are kept from it."""
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**clean, **environment}, timeout=250)


def test_make_alone_lists_the_commands():
    done = run("make")
    assert done.returncode == 0
    for command in ("demo", "test", "test-full", "test-torch", "test-comfyui", "lint", "clean"):
        assert f"make {command} " in done.stdout


@pytest.mark.parametrize("arguments, says", [
    (("venv", "VENV=nowhere", "PYTHON="), "no Python 3.11 or newer"),
    (("test-torch",), "usage: make test-torch TORCH="),
    (("test-comfyui",), "Give a checkout of ComfyUI 0.30 or newer"),
    (("test-comfyui", "COMFYUI_PATH=/nowhere"), "'/nowhere' holds no main.py"),
])
def test_make_says_what_is_missing(arguments, says):
    done = run("make", *arguments)
    assert done.returncode != 0
    assert says in done.stderr
    assert not (ROOT / "nowhere").exists()


@pytest.mark.parametrize("recipe, status", [("@echo '3 passed in 0.1s'", 0), ("@echo '1 failed'; exit 1", 1)])
def test_ci_is_make_test(tmp_path, recipe, status):
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(f"test:\n\t{recipe}\n")
    done = run("bash", ".ci/run", cwd=tmp_path, CI="true")
    assert (done.returncode != 0) == (status != 0)
    assert done.stdout.splitlines()[0] in ("3 passed in 0.1s", "1 failed")


def test_a_failed_set_up_shows_what_pip_said(tmp_path):
    wrong = tmp_path / "requirements.txt"
    wrong.write_text("not a requirement\n")
    done = run(sys.executable, str(ROOT / "tests" / "set_up.py"), sys.executable, "-r", str(wrong))
    assert done.returncode != 0
    assert "Invalid requirement" in done.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the device itself")
def test_the_device_is_prepared_once_and_then_quickly():
    """prepare.py imports nothing before softmetal, and the second run finds everything compiled."""
    for _ in range(2):
        done = run(sys.executable, str(ROOT / "tests" / "prepare.py"))
        assert done.returncode == 0, done.stderr
