"""What bench_dispatch.py and bench_step.py measure, within three times their bars."""

import importlib.util
from pathlib import Path

import pytest


def benchmark(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench():
    return benchmark("bench_dispatch")


def test_falling_through_is_cheap(core, mps, bench):
    core.face.uninstall()
    results = bench.measure(core)
    for op, times in results.items():
        print(f"{op}: {times['cost']:.2f} us over stock, bar {times['bar']} us")
    assert bench.failures(results) == []


@pytest.mark.full
def test_a_whole_step_is_hardly_slower(core, mps):
    """In the full suite only: beside other work on a busy machine, a step's own time varies by more than the bar."""
    bench = benchmark("bench_step")
    result = bench.measure(core.face)
    print(result)
    assert not bench.failed(result), result


def test_no_mode_is_installed(install, make_kernel, mps):
    """Modes would cost every op of torch, not only the patched ones."""
    import torch

    before = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    install(make_kernel())
    assert (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) == before
