"""The guard of tests/conftest.py: a kernel's fault that a fallback hid fails its test."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A stand-in for the device: the guard looks at the log only.
SUITE = """
import collections, sys, types
import pytest

shader = types.ModuleType("softmetal.shader")
shader.fault_log = collections.deque()

def provoke():
    sys.modules["softmetal.shader"] = shader
    shader.fault_log.append(RuntimeError("race in kernel 'k'"))

def test_first_without_the_device(): assert "softmetal.shader" not in sys.modules
def test_hides(): provoke()
def test_after_it(): assert not shader.fault_log
@pytest.mark.kernel_faults
def test_means_it(): provoke()
def test_last(): assert not shader.fault_log
"""


def test_a_hidden_fault_fails_its_test_and_no_other(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider",
         "-c", ROOT / "pyproject.toml", f"--rootdir={tmp_path}", tmp_path / "test_suite.py"],
        env=dict(os.environ, PYTHONPATH=str(ROOT / "tests")), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "5 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR" in done.stdout and "test_hides" in done.stdout.split("short test summary")[1]
    assert "race in kernel 'k'" in done.stdout
