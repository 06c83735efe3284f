"""What compiled kernels do: swizzles, positions, address spaces, threadgroup memory, collectives, atomics."""

from pathlib import Path

import numpy as np
import pytest
import torch
from softmetal.runtime import KernelFault
from softmetal.tests.frontend_driver import HEAD, evaluate, run


def test_swizzles_as_targets():
    helpers = """
inline float4 g(float4 v) {
  v.xz = v.yw;
  v.w += 1;
  v.yx *= float2(2, 3);
  v.b = 9;
  float4 u = v;
  u.xyz = float3(u.z, u.y, u.x);
  return u;
}
"""
    got = evaluate([f"g(float4(1, 2, 3, 4))[{i}]" for i in range(4)], helpers=helpers)
    assert got.tolist() == [9, 4, 6, 5]  # v: (2, 2, 4, 4), w 5, yx (6, 4), b 9


@pytest.mark.parametrize("width", ["threads_per_simdgroup", "thread_execution_width"])  # two names of one thing
def test_positions(width):
    names = [
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
        "threadgroups_per_grid",
        "threads_per_grid",
        "threads_per_threadgroup",
        "dispatch_threads_per_threadgroup",
    ]
    indices = [
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
        "simdgroups_per_threadgroup",
        "dispatch_simdgroups_per_threadgroup",
        width,
        "quadgroup_index_in_threadgroup",
        "thread_index_in_quadgroup",
    ]
    declared = [f"uint3 p{i} [[{n}]]" for i, n in enumerate(names)] + [
        f"ushort i{i} [[{n}]]" for i, n in enumerate(indices)
    ]
    writes = [f"o[{3 * i + a}] = p{i}.{'xyz'[a]};" for i in range(7) for a in range(3)] + [
        f"o[{21 + i}] = i{i};" for i in range(8)
    ]
    source = HEAD + (
        f"kernel void f(device uint* out, {', '.join(declared)}) {{\n"
        f"device uint* o = out + 29 * ((p0.z * p4.y + p0.y) * p4.x + p0.x); {' '.join(writes)} }}\n"
    )
    grid, group = (11, 5, 3), (8, 3, 2)
    out = np.zeros((3, 5, 11, 29), np.uint32)
    run(source, "f", out, threads=grid, group_size=group)
    for z, y, x in np.ndindex(3, 5, 11):
        at, row = (x, y, z), out[z, y, x].tolist()
        groups = [-(-n // g) for n, g in zip(grid, group, strict=True)]
        number = [p // g for p, g in zip(at, group, strict=True)]
        inside = [p % g for p, g in zip(at, group, strict=True)]
        size = [min(g, n - k * g) for n, g, k in zip(grid, group, number, strict=True)]
        index = inside[0] + size[0] * (inside[1] + size[1] * inside[2])
        threads = size[0] * size[1] * size[2]
        want = [
            *at,
            *inside,
            *number,
            *groups,
            *grid,
            *size,
            *group,
            index,
            index % 32,
            index // 32,
            -(-threads // 32),
            2,
            32,
            index // 4,
            index % 4,
        ]
        assert row == want, at


def test_structures_move_between_address_spaces():
    source = (
        HEAD
        + """
struct S { float a; int b[2]; packed_float3 c; };
constant S fixed[2] = {{1, {2, 3}, packed_float3(4, 5, 6)}, {7, {8, 9}, packed_float3(10, 11, 12)}};
inline S twice(S s) { s.a *= 2; s.b[1] *= 2; return s; }
kernel void f(device S* x, constant S& y, uint i [[thread_position_in_grid]]) {
  threadgroup S shared[2];
  if (i == 0) {
    shared[0] = x[0];
    shared[1] = twice(shared[0]);
    S local = y;
    local.c = shared[1].c;
    float3 v = local.c;
    local.c = packed_float3(v * 2.0);
    x[1] = local;
    x[2] = shared[1];
    x[3] = fixed[int(x[0].a)];
    x[4] = x[3];
    x[4].c = x[2].c;
  }
}
"""
    )
    kind = np.dtype([("a", "f4"), ("b", "i4", 2), ("c", "f4", 3)])
    x = np.zeros(5, kind)
    x[0] = (1, [2, 3], [4, 5, 6])
    y = np.array([(10, [20, 30], [40, 50, 60])], kind)
    run(source, "f", x, y, threads=1, group_size=1)
    assert x[1] == np.array((10, [20, 30], [8, 10, 12]), kind)
    assert x[2] == np.array((2, [2, 6], [4, 5, 6]), kind)
    assert x[3] == np.array((7, [8, 9], [10, 11, 12]), kind)
    assert x[4] == np.array((7, [8, 9], [4, 5, 6]), kind)


def test_overloads_by_address_space():
    source = (
        HEAD
        + """
inline float g(const device float* p) { return p[0] + 1000; }
inline float g(const threadgroup float* p) { return p[0] + 2000; }
inline float g(constant float* p) { return p[0] + 3000; }
inline float g(const thread float* p) { return p[0] + 4000; }
constant float fixed[1] = {5};
kernel void f(device float* x, constant float* y) {
  threadgroup float s[1];
  s[0] = 2;
  float t[1] = {3};
  x[1] = g(x); x[2] = g(s); x[3] = g(y); x[4] = g(t); x[5] = g(fixed);
}
"""
    )
    x, y = np.ones(6, np.float32), np.full(1, 4, np.float32)
    run(source, "f", x, y, threads=1, group_size=1)
    assert x.tolist() == [1, 1001, 2002, 3004, 4003, 3005]


def test_threadgroup_variables_are_shared_and_apart():
    source = (
        HEAD
        + """
template <typename T, int N>
[[kernel]] void reverse(device T* x, uint i [[thread_position_in_threadgroup]],
                        uint g [[threadgroup_position_in_grid]]) {
  threadgroup T a[N], first;
  threadgroup T b[2][N];
  a[i] = x[g * N + i];
  b[1][i] = a[i] + T(1);
  if (i == 0) first = a[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[g * N + i] = a[N - 1 - i] + b[1][i] + first;
}
template [[host_name("reverse_64")]] [[kernel]] decltype(reverse<float, 64>) reverse<float, 64>;
template [[host_name("reverse_half")]] [[kernel]] decltype(reverse<half, 32>) reverse<half, 32>;
"""
    )
    x = np.arange(192, dtype=np.float32)
    want = (x.reshape(3, 64)[:, ::-1] + x.reshape(3, 64) + 1 + x.reshape(3, 64)[:, :1]).reshape(-1)
    run(source, "reverse_64", x, threads=192, group_size=64)
    assert x.tolist() == want.tolist()


def collectives(expressions, values, kind="float"):
    """What each expression of v, this lane's value, is in every lane of one threadgroup with a thread a value."""
    source = HEAD + "".join(
        f"kernel void f{n}(device const {kind}* in, device {kind}* out, uint lane [[thread_index_in_simdgroup]], "
        f"uint i [[thread_position_in_grid]]) {{ {kind} v = in[i]; out[i] = {kind}({e}); }}\n"
        for n, e in enumerate(expressions)
    )
    values = np.asarray(values, {"float": np.float32, "uint": np.uint32, "int": np.int32, "half": np.float16}[kind])
    results = []
    for n in range(len(expressions)):
        out = np.zeros_like(values)
        run(source, f"f{n}", values, out, threads=len(values), group_size=len(values))
        results.append(out)
    return results


def test_collectives():
    x = np.arange(1, 33, dtype=np.float32)
    lanes = np.arange(32)
    rows = {
        "simd_sum(v)": np.full(32, 528),
        "simd_max(v)": np.full(32, 32),
        "simd_min(v)": np.full(32, 1),
        "simd_product(v > 3 ? 1.0 : v)": np.full(32, 6),
        "simd_shuffle(v, 5)": np.full(32, 6),
        "simd_shuffle(v, ushort(31 - lane))": x[::-1],
        "simd_shuffle_xor(v, 3)": x[lanes ^ 3],
        "simd_shuffle_up(v, 2)": np.where(lanes < 2, x, np.roll(x, 2)),
        "simd_shuffle_down(v, 2)": np.where(lanes > 29, x, np.roll(x, -2)),
        "simd_shuffle_rotate_up(v, 3)": np.roll(x, 3),
        "simd_shuffle_rotate_down(v, 3)": np.roll(x, -3),
        "simd_shuffle_and_fill_up(v, -v, 2)": np.where(lanes < 2, -np.roll(x, 2), np.roll(x, 2)),
        "simd_shuffle_and_fill_down(v, -v, 2)": np.where(lanes > 29, -np.roll(x, -2), np.roll(x, -2)),
        "simd_broadcast(v, 7)": np.full(32, 8),
        "simd_broadcast_first(v)": np.full(32, 1),
        "simd_prefix_inclusive_sum(v)": np.cumsum(x),
        "simd_prefix_exclusive_sum(v)": np.cumsum(x) - x,
        "simd_is_first()": lanes == 0,
        "simd_any(v > 31)": np.ones(32),
        "simd_all(v > 1)": np.zeros(32),
        "simd_all(v > 0)": np.ones(32),
        "popcount(uint(ulong(simd_ballot(v > 16))))": np.full(32, 16),
        "simd_sum(float2(v, 1)).y": np.full(32, 32),
        "quad_sum(v)": x.reshape(8, 4).sum(1).repeat(4),
        "quad_max(v)": x.reshape(8, 4).max(1).repeat(4),
        "quad_broadcast(v, 2)": x.reshape(8, 4)[:, 2].repeat(4),
        "quad_shuffle_xor(v, 1)": x[lanes ^ 1],
    }
    for (expression, want), got in zip(rows.items(), collectives(list(rows), x), strict=True):
        assert got.tolist() == np.asarray(want, np.float32).tolist(), expression
    bits = np.arange(32, dtype=np.uint32) + 64
    got = collectives(["simd_and(v)", "simd_or(v)", "simd_xor(v)"], bits, "uint")
    assert [set(values.tolist()) for values in got] == [{64}, {95}, {np.bitwise_xor.reduce(bits)}]
    assert set(collectives(["simd_sum(v)"], x, "half")[0]) == {528}
    assert set(collectives(["simd_max(v)"], -x, "int")[0]) == {-1}


def test_collectives_of_a_partial_simdgroup():
    x = np.arange(1, 41, dtype=np.float32)
    got = collectives(["simd_sum(v)"], x)[0]
    assert got[:32].tolist() == [528] * 32 and got[32:].tolist() == [sum(range(33, 41))] * 8


def test_atomics():
    source = (
        HEAD
        + """
kernel void f(device atomic_uint* n, device atomic_float* s, device int* out, uint i [[thread_position_in_grid]]) {
  threadgroup atomic_int t;
  if (i == 0) atomic_store_explicit(&t, 7, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint before = atomic_fetch_add_explicit(n, 2u, memory_order_relaxed);
  atomic_fetch_add_explicit(s, 0.5, memory_order_relaxed);
  atomic_fetch_max_explicit(&t, int(i), memory_order_relaxed);
  atomic_fetch_or_explicit(&n[1], 1u << (i % 8), memory_order_relaxed);
  uint expected = 0;
  bool mine = atomic_compare_exchange_weak_explicit(&n[2], &expected, i + 1, memory_order_relaxed,
                                                    memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = mine ? -1 : atomic_load_explicit(&t, memory_order_relaxed);
  out[64 + before / 2] = 1;
}
"""
    )
    n, s, out = np.zeros(3, np.uint32), np.zeros(1, np.float32), np.zeros(128, np.int32)
    run(source, "f", n, s, out, threads=64, group_size=64)
    assert n[0] == 128 and n[1] == 255 and s[0] == 32
    assert sorted(out[:64].tolist()) == [-1] + [63] * 63 and out[n[2] - 1] == -1
    assert out[64:].tolist() == [1] * 64  # each thread saw another value


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float", torch.float32), ("half", torch.float16), ("bfloat", torch.bfloat16)]
)
def test_simdgroup_matrix(kind, dtype):
    source = (
        HEAD
        + f"""
#include <metal_simdgroup_matrix>
kernel void f(device const {kind}* a, device const {kind}* b, device float* c) {{
  simdgroup_matrix<{kind}, 8, 8> A, B;
  simdgroup_float8x8 C = simdgroup_float8x8(2.0f);
  simdgroup_load(A, a, 16, ulong2(8, 0));
  simdgroup_load(B, b, 8, ulong2(0, 0), true);
  simdgroup_multiply_accumulate(C, A, B, C);
  simdgroup_store(C, c, 8);
  simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(3.0f), c + 64, 8);
}}
"""
    )
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, n, generator=generator).to(dtype) for n in (16, 8))
    c = np.zeros((2, 8, 8), np.float32)
    raw = [t.view(torch.int16).numpy() if t.element_size() == 2 else t.numpy() for t in (a, b)]
    run(source, "f", *raw, c, threads=32, group_size=32)
    want = a.double()[:, 8:] @ b.double().T + 2 * torch.eye(8, dtype=torch.float64)
    assert np.allclose(c[0], want.numpy(), rtol=1e-5, atol=1e-5) and (c[1] == 3).all()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float", torch.float32), ("half", torch.float16), ("bfloat", torch.bfloat16)]
)
def test_thread_elements_of_a_simdgroup_matrix(kind, dtype):
    """Two of a row for each lane, where Apple's GPUs have them: read, written, and kept by a function's copy."""
    source = HEAD + f"""
#include <metal_simdgroup_matrix>
inline simdgroup_matrix<{kind}, 8, 8> swapped(simdgroup_matrix<{kind}, 8, 8> m) {{
  const {kind} first = m.thread_elements()[0];
  m.thread_elements()[0] = m.thread_elements()[1];
  m.thread_elements()[1] = first;
  return m;
}}
kernel void f(device const {kind}* a, device {kind}* held, device {kind}* b, device {kind}* c,
              uint lane [[thread_index_in_simdgroup]]) {{
  simdgroup_matrix<{kind}, 8, 8> A, B;
  simdgroup_load(A, a, 8);
  held[2 * lane] = A.thread_elements()[0];
  held[2 * lane + 1] = A.thread_elements()[1];
  B.thread_elements() = vec<{kind}, 2>({kind}(float(2 * lane)), {kind}(float(2 * lane + 1)));
  simdgroup_store(B, b, 8);
  simdgroup_store(swapped(A), c, 8);
}}
"""
    # Rows of 8 lanes in two halves: which lane holds (row, columns 2n and 2n + 1).
    lanes = np.array([[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]])
    lanes = np.concatenate([lanes, lanes + 16])
    a = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    arrays = [a, *(torch.zeros(8, 8, dtype=dtype) for _ in range(3))]
    arrays = [t.view(torch.int16).numpy() if t.element_size() == 2 else t.numpy() for t in arrays]
    run(source, "f", *arrays, threads=32)
    bits, held, b, c = arrays
    assert (held.reshape(32, 2)[lanes] == bits.reshape(8, 4, 2)).all()
    assert (c.reshape(8, 4, 2) == bits.reshape(8, 4, 2)[:, :, ::-1]).all()
    numbers = torch.from_numpy(b).view(dtype).float().numpy().reshape(8, 4, 2)
    assert (numbers == np.stack([2 * lanes, 2 * lanes + 1], axis=-1)).all()


def test_reading_past_a_program_scope_constant_is_caught():
    source = HEAD + (
        "constant float a[3] = {1, 2, 3};\nconstant float b[3] = {4, 5, 6};\n"
        "kernel void f(device float* x, constant uint& n) { x[0] = a[n] + b[0]; }\n"
    )
    x = np.zeros(1, np.float32)
    run(source, "f", x, np.array([2], np.uint32), threads=1, group_size=1)
    assert x[0] == 7
    for index in (3, 6):
        with pytest.raises(KernelFault, match="program-scope constant"):
            run(source, "f", x, np.array([index], np.uint32), threads=1, group_size=1)


KERNELS = Path(__file__).with_name("frontend_kernels.metal").read_text()


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [("float", torch.float32, 1e-6), ("half", torch.float16, 1e-3), ("bfloat", torch.bfloat16, 8e-3)],
)
def test_softmax_of_rows(name, dtype, tolerance):
    rows, length = 3, 1001  # 251 threads of 4 elements: a partial SIMD-group and a partial last thread
    x = torch.randn(rows, length, generator=torch.Generator().manual_seed(0)).to(dtype)
    raw = x.numpy() if dtype == torch.float32 else x.view(torch.int16).numpy()
    y, n = np.zeros_like(raw), np.array([length], np.int32)
    run(KERNELS, f"softmax_{name}", raw, y, n, threads=rows * 256, group_size=256)
    got = torch.from_numpy(y).view(dtype).float()
    assert torch.allclose(got, x.float().softmax(-1), rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bfloat", torch.bfloat16)])
def test_fp8_weights(name, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    codes[[0x7F, 0xFF]] = 0  # the two NaN
    w = codes.repeat(4, 1)
    for row in range(4):
        w[row] = w[row].roll(row)
    x = torch.ones(256, dtype=dtype)
    x[::2] = -2
    y = np.zeros(4, np.int16)
    raw = [w.numpy(), x.view(torch.int16).numpy(), y, np.array([4, 256], np.uint32)]
    run(KERNELS, f"gemv_fp8_{name}", *raw, threads=4 * 32, group_size=32)
    want = w.view(torch.float8_e4m3fn).double() @ x.double()
    assert torch.equal(torch.from_numpy(y).view(dtype), want.to(dtype))


def test_strided_copy_with_a_structure_of_sizes():
    x = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    view = x.permute(2, 0, 1)
    shape = np.zeros(33, np.int64)
    shape[:3], shape[16:19], shape[32] = view.shape, view.stride(), 3
    y = np.zeros(24, np.int32)
    run(KERNELS, "strided", y, x.numpy().reshape(-1), shape, threads=(6, 2, 2), group_size=(4, 2, 1))
    assert y.tolist() == view.reshape(-1).tolist()


def test_arrays_by_reference():
    x = np.arange(5, dtype=np.float32)
    run(KERNELS, "arrays", x, threads=1, group_size=1)
    assert x[4] == 3
