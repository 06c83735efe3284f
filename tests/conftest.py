"""What every test shares: tests/ on sys.path, one thread a worker, no network, the software device on demand.

Importing this file imports neither torch nor softmetal: a test that needs no device stays cheap.
"""
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

# Before torch is imported. One thread each: the suite runs one worker a core, and sums come out the same on every
# machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
# A setting of the developer's own shell must not decide what is patched here.
os.environ.pop("METAL_KERNELS", None)


class _RootIsNoTestPackage:
    """The repository's root has the `__init__.py` of a ComfyUI pack; pytest would import it as a package of tests."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path, parent):
        if path == TESTS.parent:
            return pytest.Dir.from_parent(parent, path=path)
        return None


def pytest_configure(config):
    config.pluginmanager.register(_RootIsNoTestPackage())


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Compiles the software device before the first test, whose time limit it must not count against (a cold cache)."""
    without_device = TESTS / "house"
    if session.config.option.collectonly or all(without_device in item.path.parents for item in session.items):
        return
    prepare = [sys.executable, str(TESTS / "prepare.py")]
    with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        subprocess.run([*prepare, "--if-needed"], check=False)  # what fails there fails in the tests too


@pytest.fixture(autouse=True)
def large_tests_give_their_memory_back(request):
    """Some `full` tests take gigabytes, which torch's pool would keep for the rest of the process."""
    yield
    if request.node.get_closest_marker("full") and "softmetal.device" in sys.modules:
        import torch

        gc.collect()
        if torch.backends.mps.is_available():
            torch.mps.empty_cache()


@pytest.fixture(autouse=True)
def no_hidden_kernel_fault(request):
    """Fails a test in which a kernel did something wrong, though nobody said so.

    A patch that raises falls back to stock, whose result is right: a fault would hide behind it. A test that provokes
    faults is marked `kernel_faults`.
    """
    shader = sys.modules.get("softmetal.shader")
    if shader is not None:
        shader.fault_log.clear()
    yield
    shader = sys.modules.get("softmetal.shader")
    if shader is None or not shader.fault_log or request.node.get_closest_marker("kernel_faults"):
        return
    faults = [str(fault) for fault in shader.fault_log]
    shader.fault_log.clear()
    pytest.fail("\n".join(["kernels did something wrong (mark the test kernel_faults if it is meant to):", *faults]))


@pytest.fixture
def pack():
    """The whole pack, loaded as ComfyUI loads it: `pack.metal_kernels` is its library."""
    from pack import load

    return load()


@pytest.fixture
def mps():
    """`torch.device("mps")`: the software device with a faultless stock, on a Mac the GPU itself."""
    import torch

    if sys.platform != "darwin":
        import softmetal

        softmetal.activate()
    return torch.device("mps")
