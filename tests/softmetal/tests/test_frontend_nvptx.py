"""The front end's second target: every kernel of the pack becomes PTX, from the same text as for the CPU."""

import re
from pathlib import Path

import pytest
from softmetal.frontend import CompileError, compile

METAL_KERNELS = Path(__file__).resolve().parents[3] / "metal_kernels"
SOURCES = sorted(METAL_KERNELS.glob("*/*.metal"))

EVERYTHING = """
#include <metal_stdlib>
using namespace metal;
struct S { float3 a; uchar b; };
constant float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};
kernel void everything(device const S* x [[buffer(0)]], device S* y [[buffer(1)]], constant long* dims [[buffer(2)]],
                       constant int& n [[buffer(3)]], device atomic_uint* c, device float* z, device const half* h,
                       uint2 p [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float shared[32];
  const uint i = p.x + p.y;
  const S s = x[i];
  y[i * dims[i % 3]] = s;
  atomic_fetch_add_explicit(&c[n], 1u, memory_order_relaxed);
  shared[lane] = exp(z[i]) + fast::exp(z[i]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_float8x8 f, r;
  simdgroup_load(f, z, 8);
  simdgroup_half8x8 m;
  simdgroup_load(m, h, 8);
  simdgroup_multiply(r, m, m);
  simdgroup_multiply_accumulate(r, f, f, r);
  simdgroup_store(r, z + 64, 8);
  z[i] = table[i & 3] + shared[31 - lane] + simd_sum(z[i]) + float(simd_prefix_exclusive_sum(i)) + pow(z[i], 2.5f);
}
"""


def ptx(source: str, **options) -> str:
    return compile(source, target="nvptx", **options).path.read_text()


LARGE = ("fp8", "softmax")
FAMILIES = [
    pytest.param(path, id=path.parent.name, marks=[pytest.mark.full] if path.parent.name in LARGE else [])
    for path in SOURCES
]


@pytest.mark.parametrize("path", FAMILIES)
def test_every_kernel_of_a_family_is_an_entry(path):
    source = path.read_text()
    library = compile(source, target="nvptx")
    text = library.path.read_text()
    entries = re.findall(r"^\.visible \.entry (\w+)\(", text, re.M)
    assert sorted(entries) == sorted(kernel.symbol for kernel in library.kernels.values())
    assert ".visible .func" not in text  # all inlined, and nothing else left over
    cpu = compile(source)
    assert list(cpu.kernels) == list(library.kernels)
    for name, kernel in library.kernels.items():
        assert kernel.arguments == cpu.kernels[name].arguments
        assert kernel.threadgroup_bytes == cpu.kernels[name].threadgroup_bytes


def test_all_of_the_language_that_depends_on_the_target():
    text = ptx(EVERYTHING)
    assert re.search(r"\.shared \.align \d+ \.b8 \S*shared\[128\];", text)
    expected = ("bar.sync", "shfl.sync", "ex2.approx.ftz.f32", "movmatrix.sync", "mma.sync", "atom.", "ld.shared")
    for instruction in expected:
        assert instruction in text, instruction
    assert "activemask" not in text


def test_constant_arguments_arrive_by_value():
    text = ptx(EVERYTHING)
    assert re.search(r"\.param \.align 16 \.b8 msl_kernel_0_param_2\[1024\]", text)  # constant long*
    assert re.search(r"\.param \.[bu]32 msl_kernel_0_param_3", text)  # constant int&


def test_lanes_that_may_be_missing_are_asked_for():
    assert "activemask" in ptx(EVERYTHING, partial_simdgroups=True)


# Two tiles of W times the same X^T, 64 along K, their elements straight from memory.
PRODUCTS = """
#include <metal_stdlib>
using namespace metal;
kernel void products(device const uint4* w [[buffer(0)]], device const uint4* x [[buffer(1)]],
                     device float2* y [[buffer(2)]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<float, 8, 8> sums[2];
  for (int n = 0; n < 2; ++n) sums[n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint i = 0; i < 64; i += 32) {
    for (int t = 0; t < 4; ++t) {
      simdgroup_matrix<half, 8, 8> right;
      right.thread_elements() = as_type<half2>(x[i + lane][t]);
      for (int n = 0; n < 2; ++n) {
        simdgroup_matrix<half, 8, 8> left;
        left.thread_elements() = as_type<half2>(w[n * 64 + i + lane][t]);
        simdgroup_multiply_accumulate(sums[n], left, right, sums[n]);
      }
    }
  }
  for (int n = 0; n < 2; ++n) y[n * 32 + lane] = sums[n].thread_elements();
}
"""


def test_a_source_that_looks_at_the_elements_of_a_matrix_moves_none_of_them():
    """Its lanes are renumbered, so that Apple's places of the elements are the tensor cores' own."""
    text = ptx(PRODUCTS)
    assert "shfl" not in text and ".shared" not in text
    assert text.count("mma.sync") == 16
    assert text.count("movmatrix") == 8  # a right matrix is transposed once, for both products


def test_where_lanes_may_be_missing_a_product_moves_the_elements():
    assert "shfl.sync.idx" in ptx(PRODUCTS, partial_simdgroups=True)


SUMMED = """
#include <metal_stdlib>
using namespace metal;
kernel void f(device float* y, uint i [[thread_position_in_grid]]) { y[i] = simd_sum(y[i]); }
"""


def test_renumbered_lanes_are_added_up_in_the_same_order():
    looking = SUMMED + "inline half g(simdgroup_half8x8 m) { return m.thread_elements()[0]; }"
    masks = [re.findall(r"shfl\.sync\.bfly\.b32\s+\S+ \S+ (\d+),", ptx(text)) for text in (SUMMED, looking)]
    assert masks == [["16", "8", "4", "2", "1"], ["16", "2", "8", "4", "1"]]


def test_what_metal_refuses_is_refused_for_this_target_too():
    with pytest.raises(CompileError, match=r"program_source:2:\d+: error"):
        compile("#include <metal_stdlib>\nkernel void k(device float* x) { threadgroup float* p = x; }", target="nvptx")


def test_a_constant_pointer_may_be_a_tensors():
    text = ptx(EVERYTHING, constant_tensors=True)
    assert re.search(r"\.param \.u64 \.ptr \.global \.align \d+ msl_kernel_0_param_2", text)
