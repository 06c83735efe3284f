"""The planted faults: which kernel of planted.metal is broken how, its right twin, and what the report must say."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


def floats(n):
    return torch.arange(n, dtype=torch.float32).to("mps")


def longs(n):
    return torch.arange(n).to("mps")


def zeros(n, dtype=torch.float32):
    return torch.zeros(n, dtype=dtype, device="mps")


def line_of(text: str, after: str) -> int:
    """The line of planted.metal that holds `text`, the first one after the kernel `after`."""
    lines = (Path(__file__).parent / "planted.metal").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f" {after}(" in line)
    return next(i for i, line in enumerate(lines[start:], start) if text in line) + 1


@dataclass
class Planted:
    broken: str
    fixed: str | None
    kind: str
    arguments: Callable[[], tuple]  # for each launch afresh; the last tensor is the result
    threads: int = 64
    group: int = 64
    lanes: int = 1
    lines: tuple[str, ...] = ()  # pieces of the lines that the report's lanes are at, in any order
    says: tuple[str, ...] = ()
    name: str | None = None


def xy(n=64):
    return lambda: (floats(n), zeros(n))


TILE = "threadgroup_barrier(mem_flags::mem_threadgroup)"
PLANTED = [
    Planted(
        "reverse_broken",
        "reverse_fixed",
        "race",
        xy(128),
        128,
        lanes=2,
        lines=("tile[t] = x[i];", "y[i] = tile[63 - t]"),
        says=(TILE,),
        name="tile",
    ),
    Planted("rounds_broken", "rounds_fixed", "race", xy(), lanes=2, name="tile", says=(TILE,)),
    Planted("exchange_broken", "exchange_fixed", "race", xy(), lanes=2, name="x", says=("mem_flags::mem_device",)),
    Planted("wrong_flag_broken", "reverse_fixed", "race", xy(), lanes=2, name="tile"),
    Planted("no_flag_broken", "reverse_fixed", "race", xy(), lanes=2, name="tile"),
    Planted("simd_barrier_broken", "simd_barrier_fixed", "race", xy(), lanes=2, name="tile"),
    Planted("collective_broken", "collective_fixed", "race", xy(), lanes=2, name="tile"),
    Planted(
        "same_value_broken",
        "same_value_fixed",
        "race",
        lambda: (zeros(1, torch.int32),),
        lanes=2,
        lines=("y[0] = 1;", "y[0] = 1;"),
        name="y",
    ),
    Planted(
        "overlap_broken", "overlap_fixed", "race", lambda: (zeros(96),), 96, 32, lanes=2, name="y", says=("any order",)
    ),
    Planted(
        "halves_broken",
        "halves_fixed",
        "race",
        lambda: (zeros(64, torch.float16), zeros(64, torch.int32)),
        lanes=2,
        name="y",
    ),
    Planted(
        "read_past_broken",
        "read_past_fixed",
        "out_of_bounds",
        xy(),
        lines=("y[i] = x[i + 1];",),
        name="x",
        says=("reads 4 bytes", "element 64", "256 bytes", "4 bytes past its end", "buffer(0) 'x'"),
    ),
    Planted("read_before_broken", None, "out_of_bounds", xy(), name="x", says=("4 bytes before its start",)),
    Planted(
        "write_past_broken",
        "write_past_fixed",
        "out_of_bounds",
        xy(),
        lines=("y[i + 1] = x[i];",),
        name="y",
        says=("writes 4 bytes", "buffer(1) 'y'"),
    ),
    Planted("write_const_broken", None, "read_only_write", xy(), name="x"),
    Planted(
        "list_broken",
        "list_fixed",
        "out_of_bounds",
        lambda: ([1, 2, 3, 4], zeros(4, torch.int64)),
        4,
        4,
        name="sizes",
        says=("element 4",),
    ),
    Planted(
        "table_broken",
        "table_fixed",
        "out_of_bounds",
        lambda: (zeros(4),),
        4,
        4,
        says=("program-scope constant", "16 bytes"),
    ),
    Planted(
        "tile_read_broken",
        "tile_read_fixed",
        "out_of_bounds",
        lambda: (zeros(32),),
        32,
        32,
        name="tile",
        says=("threadgroup variable", "128 bytes"),
    ),
    Planted("tile_write_broken", None, "out_of_bounds", lambda: (zeros(32),), 32, 32, name="tile", says=("writes",)),
    Planted("struct_broken", None, "out_of_bounds", lambda: ([2, 3], zeros(4, torch.int64)), 4, 4, name="shape"),
    Planted(
        "wide_int_broken",
        "wide_int_fixed",
        "out_of_bounds",
        lambda: (5, zeros(4, torch.int64)),
        4,
        4,
        name="n",
        says=("of 8 bytes", "wider than what was bound"),
    ),
    Planted(
        "tail_broken",
        "tail_fixed",
        "out_of_bounds",
        lambda: (floats(150), zeros(3)),
        150,
        64,
        name="x",
        says=("threadgroup (2, 0, 0)",),
    ),
    Planted("vector_broken", "vector_fixed", "misaligned", lambda: (floats(65), zeros(64)), 16, 16, name="x"),
    Planted("half_read_broken", "half_read_fixed", "misaligned", xy(66), 16, 16, name="x",
            lines=("*(device const float4*)",), says=("reads 16 bytes",)),
    Planted("half_write_broken", "half_write_fixed", "misaligned", lambda: (zeros(66),), 16, 16, name="y",
            lines=("*(device float4*)",), says=("writes 16 bytes",)),
    Planted("half_tile_broken", "half_tile_fixed", "misaligned", lambda: (zeros(16),), 16, 16, name="tile",
            says=("writes 8 bytes", "threadgroup variable")),
    Planted("half_long_broken", "half_long_fixed", "misaligned", lambda: (longs(66), zeros(16, torch.int64)), 16, 16,
            name="x", says=("reads 32 bytes",)),
    Planted("half_struct_broken", "half_struct_fixed", "misaligned", lambda: (floats(138), zeros(16)), 16, 16, name="x",
            lines=("aligned_pair pair",), says=("reads 32 bytes",)),
    Planted("half_atomic_broken", "half_atomic_fixed", "misaligned",
            lambda: (zeros(8, torch.uint8), zeros(16, torch.int32)), 16, 16, name="n"),
    Planted("atomic_load_broken", "atomic_load_fixed", "race", lambda: (zeros(1, torch.int32), zeros(64, torch.int32)),
            lanes=2, lines=("n[0] = 1;", "atomic_load_explicit"), name="n", says=("atomically load",)),
    Planted("atomic_read_broken", "atomic_read_fixed", "race", lambda: (zeros(1, torch.int32), zeros(64, torch.int32)),
            lanes=2, name="n"),
    Planted("atomic_tile_broken", "atomic_tile_fixed", "uninitialised_read", lambda: (zeros(16, torch.int32),), 16, 16,
            name="n"),
    Planted(
        "unset_tile_broken",
        "unset_tile_fixed",
        "uninitialised_read",
        lambda: (zeros(32),),
        32,
        32,
        name="tile",
        says=("byte 124",),
        lines=("y[t] = tile[t];",),
    ),
    Planted("padding_broken", "padding_fixed", "uninitialised_read", lambda: (zeros(32),), 32, 32, name="s",
            lines=("padded p = s[31 - t];",)),
    Planted("padding_device_broken", "padding_device_fixed", "uninitialised_read",
            lambda: (torch.empty(64, device="mps"), zeros(32)), 32, 32, name="s", lines=("padded p = s[i];",)),
    Planted("private_array_broken", "private_array_fixed", "out_of_bounds", lambda: (zeros(5),), 5, 5,
            lines=("y[t] = a[(t + 1) % n];",), says=("an array or vector of its own memory",)),
    Planted("component_broken", "component_fixed", "out_of_bounds", lambda: (zeros(8),), 8, 8, lines=("y[t] = v[t];",)),
    *(Planted("far_table_broken", "far_table_fixed", "out_of_bounds", lambda n=n: (n, zeros(4)), 4, 4,
              says=("program-scope constant",)) for n in (67, -1, -64)),
    Planted(
        "early_return_broken",
        "early_return_fixed",
        "divergence",
        lambda: (zeros(64),),
        lines=("threadgroup_barrier",),
        says=("threads 0-39 are at threadgroup_barrier", "threads 40-63 have finished"),
    ),
    Planted("two_barriers_broken", None, "divergence", lambda: (zeros(64),), says=("thread 0 is at", "thread 1 is at")),
    Planted(
        "collective_return_broken",
        "collective_return_fixed",
        "simd_divergence",
        lambda: (zeros(32),),
        32,
        32,
        lines=("simd_sum",),
        says=("lane 7 has finished", "lanes 8-31 are at simd_sum"),
    ),
    Planted(
        "two_collectives_broken",
        None,
        "simd_divergence",
        lambda: (zeros(32),),
        32,
        32,
        says=("lanes 0-15 are at simd_sum", "lanes 16-31 are at simd_max"),
    ),
    Planted(
        "collective_or_barrier_broken",
        None,
        "simd_divergence",
        lambda: (zeros(32),),
        32,
        32,
        says=("lanes 16-31 are at threadgroup_barrier",),
    ),
    Planted("one_line_broken", "one_line_fixed", "simd_divergence", lambda: (zeros(32),), 32, 32,
            lines=("if (t < 16) y[t]",), says=("lanes 0-15 are at simd_sum", "lanes 16-31 are at another simd_sum")),
    Planted("ternary_broken", None, "simd_divergence", lambda: (zeros(32),), 32, 32, says=("at another simd_max",)),
    Planted("one_line_barrier_broken", None, "divergence", lambda: (zeros(64),),
            says=("threads 0-39 are at threadgroup_barrier", "threads 40-63 are at another threadgroup_barrier")),
    Planted("helper_broken", "helper_fixed", "simd_divergence", lambda: (zeros(32),), 32, 32,
            says=(f"called from line {line_of('first way', 'helper_broken')})",
                  f"called from line {line_of('second way', 'helper_broken')})")),
    Planted("helper_barrier_broken", None, "divergence", lambda: (zeros(64),),
            says=("threads 40-63 are at another threadgroup_barrier",)),
    Planted("iteration_broken", "iteration_fixed", "simd_divergence", lambda: (zeros(32),), 32, 32,
            lines=("simd_sum(float(i + 1))",),
            says=(f"iteration 2 of the loop at line {line_of('for (uint i', 'iteration_broken')}", "iteration 1 of")),
    Planted("iteration_barrier_broken", None, "divergence", lambda: (zeros(64),),
            says=(f"in iteration 2 of the loop at line {line_of('do {', 'iteration_barrier_broken')}",)),
    Planted("nested_iteration_broken", "loops_fixed", "simd_divergence", lambda: (zeros(64),), 64, 64,
            says=(f"in iteration 2 of the loop at line {line_of('for (uint i', 'nested_iteration_broken')}",)),
    Planted("tail_lane_broken", "tail_lane_fixed", "missing_lane", lambda: (zeros(40),), 40, 64, says=("8 lanes",)),
    Planted("divide_broken", None, "arithmetic", lambda: (0, zeros(4, torch.int32)), 4, 4, lines=("7 / int(n)",)),
    Planted("stack_broken", None, "stack_overflow", lambda: (zeros(4, torch.int32),), 4, 4),
]
