"""The dispatch costs of bench_dispatch.py, within three times their bars."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def bench():
    path = Path(__file__).with_name("bench_dispatch.py")
    spec = importlib.util.spec_from_file_location("bench_dispatch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_falling_through_is_cheap(core, mps, bench):
    core.face.uninstall()
    results = bench.measure(core)
    for op, times in results.items():
        print(f"{op}: {times['cost']:.2f} us over stock, bar {times['bar']} us")
    assert bench.failures(results) == []


def test_no_mode_is_installed(install, make_kernel, mps):
    """Modes would cost every op of torch, not only the patched ones."""
    import torch

    before = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    install(make_kernel())
    assert (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) == before
