"""house_rules: what Metal takes and this project's own kernels may not have (bfloat that widens by itself, Metal 3.2);
and what the fences of 3.2 do."""

import numpy as np
import pytest
from softmetal.frontend import CompileError, cache, compile
from softmetal.runtime import KernelFault
from softmetal.tests.frontend_driver import HEAD, run

WIDENING = HEAD + """
inline float twice(float v) { return 2 * v; }
kernel void f(device const bfloat* x, device float* out) {
  out[0] = x[0];
  out[1] = twice(x[1]);
  out[2] += x[0];
  out[3] = x[0] * 3.0f;
  float2 pair = {x[0], x[1]};
  out[4] = pair.y;
}
"""
INTEGERS = HEAD + "kernel void f(device bfloat* x, constant uint& n) { x[0] = n; x[1] = x[1] + n * bfloat(2.0); }\n"
FENCE = HEAD + """
kernel void f(volatile coherent(system) device uint* x, device float* coherent) {
  x[0] = 7;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  coherent[0] = x[0];
}
"""


def test_bfloat_widens_for_others():
    x = np.array([0x3FC0, 0xC000], np.uint16)  # 1.5, -2
    out = np.zeros(5, np.float32)
    run(WIDENING, "f", x, out, threads=1, house_rules=False)
    assert out.tolist() == [1.5, -4, 1.5, 4.5, -2]


def test_integers_become_bfloat_for_others():
    x = np.array([0, 0x3FC0], np.uint16)
    run(INTEGERS, "f", x, np.array([3], np.uint32), threads=1, house_rules=False)
    assert x.tolist() == [0x4040, 0x40F0]  # 3, 7.5
    with pytest.raises(CompileError, match="implicit conversion from 'uint' to 'bfloat'"):
        compile(INTEGERS)


def test_a_bfloat_is_a_condition_for_others():
    source = HEAD + (
        "inline bool given(bfloat v) { return v; }\n"
        "kernel void f(device const bfloat* x, device float* out) { \n"
        "  out[0] = given(x[0]) ? 2 : 1;\n  if (x[1]) out[1] = 3;\n}\n"
    )
    out = np.zeros(2, np.float32)
    run(source, "f", np.array([0, 0x3FC0], np.uint16), out, threads=1, house_rules=False)
    assert out.tolist() == [1, 3]
    with pytest.raises(CompileError, match="implicit conversion from 'bfloat' to 'bool'"):
        compile(source)


def test_a_function_calls_itself_for_others():
    source = HEAD + (
        "inline float sum(device const float* x, int n, float so_far) {\n"
        "  return n == 0 ? so_far : sum(x + 1, n - 1, so_far + x[0]);\n}\n"
        "kernel void f(device const float* x, device float* out) { out[0] = sum(x, 4, 0); }\n"
    )
    out = np.zeros(1, np.float32)
    run(source, "f", np.array([1, 2, 3, 4], np.float32), out, threads=1, house_rules=False)
    assert out[0] == 10
    with pytest.raises(CompileError, match="recursive function calls are not supported in Metal"):
        compile(source)
    mutual = HEAD + (
        "float odd(int n);\ninline float even(int n) { return n == 0 ? 1 : odd(n - 1); }\n"
        "float odd(int n) { return n == 0 ? 0 : even(n - 1); }\n"
        "kernel void f(device float* out) { out[0] = even(4); }\n"
    )
    with pytest.raises(CompileError, match="recursive function calls are not supported in Metal"):
        compile(mutual, house_rules=False)


def test_not_for_this_projects_kernels():
    compile(WIDENING, house_rules=False)  # what was compiled for others is not found again
    with pytest.raises(CompileError) as refused:
        compile(WIDENING)
    lines = [line for line in str(refused.value).split("\n") if "implicit conversion from 'bfloat' to 'float'" in line]
    assert [line.split(":")[1] for line in lines] == ["6", "7", "8", "9", "10", "10"]
    assert cache.key(WIDENING, True) != cache.key(WIDENING, True, house_rules=False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bfloat y = x[0];", "implicit conversion from 'float' to 'bfloat'"),
        ("bfloat y = bfloat(x[0]); y += x[1];", "implicit conversion from 'float' to 'bfloat'"),
        ("half h = bfloat(x[0]);", "cannot initialize a variable of type 'half'"),
        ("int n = bfloat(x[0]);", "implicit conversion from 'bfloat' to 'int'"),
    ],
)
def test_no_other_conversion_of_bfloat_is_implicit(line, words):
    with pytest.raises(CompileError, match=words):
        compile(HEAD + f"kernel void f(device float* x) {{ {line} }}\n", house_rules=False)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("atomic_thread_fence(mem_flags::mem_device, memory_order_relaxed);", "atomic_thread_fence"),
        ("thread_scope s = thread_scope(0);", "thread_scope"),
        ("int order = memory_order_seq_cst;", "memory_order_seq_cst"),
        ("coherent device float* y = x;", "coherent"),
        ("coherent(device) device float* y = x;", "coherent"),
    ],
)
def test_own_kernels_are_metal_3_1(text, word):
    source = HEAD + f"kernel void f(device float* x) {{\n{text}\n}}\n"
    with pytest.raises(CompileError, match=f"program_source:4:.*'{word}' needs Metal 3.2"):
        compile(source)
    compile(source, house_rules=False)


def test_coherent_memory_and_a_fence():
    x, out = np.zeros(1, np.uint32), np.zeros(1, np.float32)
    run(FENCE, "f", x, out, threads=1, house_rules=False)
    assert x[0] == 7 and out[0] == 7


def test_atomic_operations_are_relaxed():
    source = HEAD + "kernel void f(device atomic_uint* x) { atomic_store_explicit(x, 1u, memory_order_release); }\n"
    with pytest.raises(CompileError, match="can only be memory_order_relaxed"):
        compile(source, house_rules=False)


@pytest.mark.parametrize("checked", [True, False])
def test_a_store_before_a_fence_is_seen_by_loads_after_one(checked):
    """Two threads of different groups set their own flag and read the other's: one of them, at least, reads a one."""
    source = HEAD + """
kernel void f(device atomic_uint* flags, device uint* seen, uint i [[thread_position_in_grid]]) {
  const uint other = (i + 64) % 128;
  atomic_store_explicit(&flags[i], 1u, memory_order_relaxed);
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);
  seen[i] = atomic_load_explicit(&flags[other], memory_order_relaxed);
}
"""
    for seed in range(1, 6):
        flags, seen = np.zeros(128, np.uint32), np.full(128, 9, np.uint32)
        run(source, "f", flags, seen, threads=128, group_size=64, checked=checked, seed=seed, house_rules=False)
        assert set(seen.tolist()) <= {0, 1} and (seen[:64] + seen[64:] >= 1).all(), seed


@pytest.mark.parametrize("fence", [True, False])
def test_the_search_for_races_knows_barriers_only(fence):
    """Plain data behind a flag, which a fence orders in Metal: reported all the same, an error and no result."""
    line = "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);" if fence else ""
    source = HEAD + f"""
kernel void f(device atomic_uint* flag, device float* data, uint i [[thread_position_in_grid]]) {{
  if (i == 0) {{
    data[0] = 5;
    {line}
    atomic_store_explicit(flag, 1u, memory_order_relaxed);
  }} else if (i == 64) {{
    const uint set = atomic_load_explicit(flag, memory_order_relaxed);
    {line}
    data[1] = data[0] + float(set);
  }}
}}
"""
    flag, data = np.zeros(1, np.uint32), np.zeros(2, np.float32)
    with pytest.raises(KernelFault, match="race"):
        run(source, "f", flag, data, threads=128, group_size=64, house_rules=False)
