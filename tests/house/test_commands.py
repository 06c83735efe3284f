"""The commands that people and CI type: they say what is missing, and fail when something fails."""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from demo.progress import waiting
from pack import ROOT


def run(*command, cwd=ROOT, **environment):
    """The finished process. The variables of the `make` that runs these tests are kept from it."""
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**clean, **environment}, timeout=250)


def test_make_alone_lists_the_commands():
    done = run("make")
    assert done.returncode == 0
    for command in ("demo", "test", "test-full", "selftest", "bench", "test-torch", "test-comfyui", "lint", "clean"):
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


def test_make_asks_for_pythons_headers(tmp_path):
    """Compiling would fail minutes later, and name neither the header nor the package that has it."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in *sysconfig*) echo {tmp_path}/include;; '
                      f'*) exec {sys.executable} "$@";; esac\n')
    python.chmod(0o755)
    done = run("make", "need-tools", f"PYTHON={python}", "VENV=nowhere")
    assert done.returncode != 0
    assert "apt-get install python3-dev" in done.stderr and f"{tmp_path}/include/Python.h" in done.stderr
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    assert run("make", "need-tools", f"PYTHON={python}", "VENV=nowhere").returncode == 0


@pytest.mark.parametrize("recipe, status", [("@echo '3 passed in 0.1s'", 0), ("@echo '1 failed'; exit 1", 1)])
def test_ci_is_make_test(tmp_path, recipe, status):
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(f"test:\n\t{recipe}\n")
    done = run("bash", ".ci/run", cwd=tmp_path, CI="true")
    assert (done.returncode != 0) == (status != 0)
    assert done.stdout.splitlines()[0] in ("3 passed in 0.1s", "1 failed")


@pytest.mark.parametrize("command, does", [
    ("test", ["tests/prepare.py", "-m pytest -q -n 2 --dist worksteal"]), ("demo", ["-m demo"])])
def test_a_second_run_sets_nothing_up(tmp_path, command, does):
    """The venv is used again as long as the requirements are the same ones."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "requirements.txt").write_text("torch==2.13.0\n")
    (tmp_path / "tests" / "set_up.py").write_text(
        "import sys\nopen('log', 'a').write('set up ' + ' '.join(sys.argv[2:]) + '\\n')\n")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ncase "$1" in -c) exec {sys.executable} "$@";; *) echo "$*" >> log;; esac\n')
    python.chmod(0o755)

    def ran():
        (tmp_path / "log").write_text("")
        done = run("make", command, f"PYTHON={sys.executable}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return [line.strip() for line in (tmp_path / "log").read_text().splitlines()]

    set_up = "set up -r tests/requirements.txt"
    assert ran() == [set_up, *does]
    assert ran() == does and ran() == does
    (tmp_path / "tests" / "requirements.txt").write_text("torch==2.14.0\n")
    assert ran() == [set_up, *does]
    assert ran() == does


def test_a_failed_set_up_shows_what_pip_said(tmp_path):
    wrong = tmp_path / "requirements.txt"
    wrong.write_text("not a requirement\n")
    done = run(sys.executable, str(ROOT / "tests" / "set_up.py"), sys.executable, "-r", str(wrong))
    assert done.returncode != 0
    assert "Invalid requirement" in done.stderr


def test_set_up_counts_what_pip_unpacks(tmp_path):
    """pip says nothing between "Installing collected packages" and the end, which is most of the time."""
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "tests" / "set_up.py")
    set_up = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(set_up)
    progress = set_up.Progress(tmp_path)
    progress.read("  Downloading torch-2.13.0-cp311-none-any.whl.metadata (29 kB)\n")
    assert progress.text().endswith("s  downloading torch-2.13.0-cp311-none-any.whl.metadata (29 kB)")
    progress.read("Installing collected packages: numpy, SQLAlchemy, typing-extensions\n")
    assert progress.text().endswith("installing packages: 0 of 3")
    (tmp_path / "numpy-2.4.6.dist-info").mkdir()
    (tmp_path / "typing_extensions-4.15.0.dist-info").mkdir()
    assert progress.text().endswith("installing packages: 2 of 3")


def test_waiting_shows_how_much_is_done(capsys):
    with waiting("Compiling ", patience=0, progress=lambda: (3, 12, "C++ files")):
        time.sleep(0.3)
    assert "Compiling" in (shown := capsys.readouterr().err) and "|#####               | 3 of 12 C++ files" in shown


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the device itself")
def test_the_device_is_prepared_once_and_then_quickly():
    """prepare.py imports nothing before softmetal, and the second run finds everything compiled."""
    for _ in range(2):
        done = run(sys.executable, str(ROOT / "tests" / "prepare.py"))
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the device itself")
def test_the_packs_command_line_runs_on_the_software_device():
    done = run(sys.executable, "-m", "softmetal", "--faults", "2.15", "--chip", "Apple M1", "status", "--json",
               PYTHONPATH=str(ROOT / "tests"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["environment"]["device"] == "software Metal" and report["environment"]["chip"] == "Apple M1"
    assert report["kernels"]["pad"]["state"] == "stock", "torch 2.15 pads by itself"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the device itself")
def test_an_unknown_profile_is_refused(capsys):
    from softmetal.__main__ import main

    with pytest.raises(SystemExit) as refused:
        main(["--faults", "1.0", "status"])
    assert refused.value.code == 2 and "no profile '1.0'" in capsys.readouterr().err


def test_tests_that_need_a_comfyui_say_so_when_they_skip():
    """And none of them fails for want of one."""
    done = run(sys.executable, "-m", "pytest", "-m", "comfyui", "-p", "no:cacheprovider", "tests/comfyui",
               COMFYUI_PATH="")
    assert done.returncode == 0, done.stdout[-3000:]
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert skipped and all(
        "needs a ComfyUI and COMFYUI_PATH is not set: make test-comfyui COMFYUI_PATH=/path/to/ComfyUI" in line
        for line in skipped), skipped
    assert sum(int(re.match(r"SKIPPED \[(\d+)\]", line)[1]) for line in skipped) > 100


def test_a_path_that_holds_no_comfyui_is_no_reason_to_skip(tmp_path):
    done = run(sys.executable, "-m", "pytest", "-m", "comfyui", "-x", "-p", "no:cacheprovider",
               "tests/comfyui/test_pack.py", COMFYUI_PATH=str(tmp_path))
    assert done.returncode == 1 and "holds no ComfyUI: make test-comfyui COMFYUI_PATH=" in done.stdout


def test_demo_with_a_comfyui_runs_the_example_workflows_through_it(tmp_path):
    """The recipe; `make test-comfyui` runs what it starts."""
    for arguments, expected in ((), 0), ((f"COMFYUI_PATH={tmp_path}",), 1):
        done = run("make", "-n", "demo", "COMFYUI_VENV=nowhere", *arguments)
        lines = done.stdout.splitlines()
        assert done.returncode == 0, done.stderr
        assert sum("-m demo" in line for line in lines) == 1
        called = [line for line in lines if "tests/comfyui/examples.py" in line]
        assert len(called) == expected
        assert all(f'"{tmp_path}" out/demo/comfyui' in line for line in called)
