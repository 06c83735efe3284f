"""How fast the software Metal device runs kernels, checked and shuffled: `python tests/softmetal/benchmark.py`.

Prints processor and wall-clock seconds of one core and fails if a bar is missed. The device is "software Metal":
these figures say nothing about any GPU; they only tell how long a test that launches such a kernel will take.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from pack import load

import softmetal
from softmetal import shader

SOURCE = """
#include <metal_stdlib>
using namespace metal;

// One SIMD-group a row, four elements a load.
kernel void gemv(device const float4* weight [[buffer(0)]], device const float4* x [[buffer(1)]],
                 device float* y [[buffer(2)]],
                 constant long& vectors [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]]) {
  float4 sum = 0;
  for (long k = lane; k < vectors; k += 32) sum += weight[row * vectors + k] * x[k];
  const float total = simd_sum(sum.x + sum.y + sum.z + sum.w);
  if (lane == 0) y[row] = total;
}

kernel void nothing(device float* x [[buffer(0)]]) {}
"""


def pad() -> Callable[[], None]:
    """The pack's own pad of (1, 96, 6, 240, 416) float16, from a Wan VAE, compared with the CPU's once."""
    load().metal_kernels.install()
    x = torch.arange(96 * 6 * 240 * 416, dtype=torch.int32).to(torch.float16).view(1, 96, 6, 240, 416)
    on_device, amounts = x.to("mps"), (1, 1, 1, 1, 2, 0)
    assert torch.equal(F.pad(on_device, amounts).cpu().view(torch.int16), F.pad(x, amounts).view(torch.int16))
    return lambda: F.pad(on_device, amounts)


def gemv() -> Callable[[], None]:
    """A plain matrix-vector product, 4096 x 4096 float32."""
    library, n = torch.mps.compile_shader(SOURCE), 4096
    weight, x = torch.randn(n, n, device="mps"), torch.randn(n, device="mps")

    def run() -> torch.Tensor:
        y = torch.empty(n, device="mps")
        library.gemv(weight, x, y, n // 4, threads=n * 32, group_size=32)
        return y

    torch.testing.assert_close(run().cpu(), weight.cpu() @ x.cpu(), rtol=1e-4, atol=1e-3)
    return run


def threads() -> Callable[[], None]:
    """4 M threads that do nothing: what starting a thread costs."""
    library, x = torch.mps.compile_shader(SOURCE), torch.zeros(4, device="mps")
    return lambda: library.nothing(x, threads=1 << 22)


def launches() -> Callable[[], None]:
    """1000 launches of four threads: what a launch costs."""
    library, x = torch.mps.compile_shader(SOURCE), torch.zeros(4, device="mps")

    def run() -> None:
        for _ in range(1000):
            library.nothing(x)

    return run


# name -> (work, most processor seconds allowed)
WORK = {
    "pad (1,96,6,240,416) fp16": (pad, 2.0),
    "gemv 4096x4096 fp32": (gemv, 2.0),
    "4 M empty threads": (threads, None),
    "1000 launches": (launches, None),
}


def best(run: Callable[[], None], rounds: int) -> tuple[float, float]:
    """(processor, wall-clock) seconds of the round with the fewest processor seconds."""
    times = []
    for seed in range(rounds):
        with shader.schedule(seed=seed):
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            times.append((time.process_time() - cpu, time.perf_counter() - wall))
    return min(times)


def main() -> int:
    """Returns 0 if every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    softmetal.activate(faults="2.13")
    print("device: software Metal, one core, shuffled schedule")
    missed = 0
    for name, (prepare, bar) in WORK.items():
        run = prepare()
        cpu, wall = best(run, rounds)
        with shader.schedule(checks=False):
            unchecked, _ = best(run, rounds)
        verdict = "" if bar is None else f"  bar {bar:g} s: {'met' if cpu <= bar else 'MISSED'}"
        missed += bar is not None and cpu > bar
        print(
            f"{name:28} {cpu:7.3f} s of processor, {wall:7.3f} s of wall clock; without checks {unchecked:7.3f} "
            f"s{verdict}",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
