"""The device is fast enough to test on: benchmark.py's bars, in processor time, every check on."""
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmark.py"


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the device itself")
def test_the_bars_are_met():
    """In a process of its own, as `make bench` runs it: one thread, and nobody else's memory."""
    done = subprocess.run([sys.executable, str(BENCHMARK)], capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bar 2 s: met") == 2, done.stdout
