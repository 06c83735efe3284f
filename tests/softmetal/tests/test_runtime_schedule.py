"""The order in which threads run: complete, shuffled by the seed, reproducible; and what lanes see of each other."""

import pytest
import torch

SOURCE = """
#include <metal_stdlib>
using namespace metal;

// Every thread draws a number: the order in which the runtime ran them. A race on purpose, so without checks only.
kernel void order(device int* y [[buffer(0)]], device int* next [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] = next[0];
  next[0] = y[i] + 1;
}

// A tree sum with barriers, one threadgroup of any size.
kernel void tree(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]],
                 uint t [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]],
                 uint size [[threads_per_threadgroup]]) {
  threadgroup float part[1024];
  part[t] = x[i];
  for (uint half_size = 512; half_size > 0; half_size /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < half_size && t + half_size < size) part[t] += part[t + half_size];
  }
  if (t == 0) y[g] = part[0];
}

// Partial sums of SIMD-groups, then of those: the usual two steps.
kernel void two_steps(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                      uint i [[thread_position_in_grid]], uint g [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_simdgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]) {
  threadgroup float part[32];
  float sum = simd_sum(x[i]);
  if (lane == 0) part[simd] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simd == 0) {
    sum = simd_sum(lane < simds ? part[lane] : 0.0f);
    if (lane == 0) y[g] = sum;
  }
}

// Many collectives in a row: a fast lane must not overwrite what a slow one still reads.
kernel void rotate(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
  int v = int(i);
  for (int k = 0; k < 65; ++k) v = simd_shuffle(v, (lane + 1) % 32);
  y[i] = v;
}

kernel void deep(device int* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  int large[8000];
  for (int k = 0; k < 8000; ++k) large[k] = k ^ int(i);
  threadgroup_barrier(mem_flags::mem_none);
  int sum = 0;
  for (int k = 0; k < 8000; ++k) sum += large[k] ^ int(i);
  y[i] = sum;
}
"""
SEEDS = range(6)


@pytest.fixture(scope="module")
def lib():
    import softmetal

    softmetal.activate()
    return torch.mps.compile_shader(SOURCE)


def drawn(lib, seed, threads=300, group=96):
    from softmetal import shader

    y, following = (torch.zeros(n, dtype=torch.int32, device="mps") for n in (threads, 1))
    with shader.schedule(seed=seed, checks=False):
        lib.order(y, following, threads=threads, group_size=group)
    return y.tolist()


def test_every_thread_runs_once(lib):
    for seed in SEEDS:
        assert sorted(drawn(lib, seed)) == list(range(300))


def test_the_seed_is_the_order(lib):
    orders = [drawn(lib, seed) for seed in SEEDS]
    assert orders == [drawn(lib, seed) for seed in SEEDS]
    assert len({tuple(order) for order in orders}) == len(SEEDS)
    assert all(order != sorted(order) for order in orders)
    assert len({order.index(0) for order in orders}) > 2  # another thread is first


def test_threadgroups_come_in_another_order_too(lib):
    firsts = set()
    for seed in range(12):
        order = drawn(lib, seed, threads=4 * 32, group=32)
        firsts.add(order.index(0) // 32)
    assert len(firsts) > 2


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100, 1000, 1024])
@pytest.mark.parametrize("kernel", ["tree", "two_steps"])
def test_same_bits_under_every_schedule(lib, kernel, size):
    from softmetal import shader

    x = torch.rand(3 * size, generator=torch.Generator().manual_seed(size))
    on_device, results = x.to("mps"), []
    for seed in SEEDS:
        y = torch.empty(3, device="mps")
        with shader.schedule(seed=seed):
            getattr(lib, kernel)(on_device, y, threads=3 * size, group_size=size)
        results.append(y.cpu())
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], x.view(3, size).sum(1))


def test_collectives_in_a_row(lib):
    from softmetal import shader

    for seed in SEEDS:
        y = torch.empty(128, dtype=torch.int32, device="mps")
        with shader.schedule(seed=seed):
            lib.rotate(y, group_size=64)
        assert y.tolist() == [i // 32 * 32 + (i + 65) % 32 for i in range(128)]


def test_each_of_1024_threads_has_its_own_stack(lib):
    y = torch.empty(1024, dtype=torch.int32, device="mps")
    lib.deep(y, group_size=1024)
    assert set(y.tolist()) == {sum(range(8000))}


def test_the_environment_sets_seed_and_checks(monkeypatch):
    from softmetal import shader

    monkeypatch.setenv("SOFTMETAL_SEED", "12")
    monkeypatch.setenv("SOFTMETAL_CHECKS", "0")
    fresh = shader._Settings()
    assert (fresh.seed, fresh.checked) == (12, False)
