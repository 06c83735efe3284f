"""What clang refuses and Metal takes, spelled anew, gives what Metal gives; function constants and threadgroup
arguments are read, and such a kernel cannot be had through compile_shader."""

from pathlib import Path

import numpy as np
import pytest
from softmetal import shader
from softmetal.frontend import CompileError, compile
from softmetal.runtime import KernelFault
from softmetal.tests.frontend_driver import HEAD, run

PARTS = [
    part.split("\n", 1) for part in Path(__file__).with_name("frontend_members.metal").read_text().split("//// ")[1:]
]


@pytest.mark.parametrize(("title", "text"), PARTS, ids=[title.split(":")[0] for title, _ in PARTS])
def test_values(title, text):
    wanted = [float(value) for value in title[title.rindex(":") + 1 :].split()]
    out = np.zeros(len(wanted) + 2, np.float32)
    run(HEAD + text, "f", out, threads=1, group_size=1)
    assert out[: len(wanted)].tolist() == wanted


@pytest.mark.parametrize("modulo", [4, 8, 32])
@pytest.mark.parametrize("delta", [0, 1, 3])
@pytest.mark.parametrize("way", ["up", "down"])
def test_shuffle_and_fill(way, delta, modulo):
    source = HEAD + (
        "kernel void f(device float* out, uint i [[thread_position_in_grid]]) {\n"
        f"  out[i] = simd_shuffle_and_fill_{way}(float(i), 100.0f + float(i), ushort({delta}), ushort({modulo}));\n}}\n"
    )
    out = np.zeros(32, np.float32)
    run(source, "f", out, threads=32)
    for i in range(32):
        first, source_lane = i - i % modulo, i + (delta if way == "down" else -delta)
        inside = first <= source_lane < first + modulo
        assert out[i] == (source_lane if inside else 100 + first + (source_lane - first) % modulo), i


def test_vectors_of_bool_in_buffers():
    """A byte an element, three in four bytes, as Metal lays them out."""
    source = HEAD + (
        "kernel void f(device bool4* a, const device bool3* b, constant bool2& c,\n"
        "              uint i [[thread_position_in_grid]]) {\n"
        "  a[i] = a[i] || bool4(b[i], c.x);\n  a[i].y |= c[1];\n  if (!all(b[i].xy)) a[i][0] = false;\n}\n"
    )
    a = np.array([[0, 0, 1, 0], [1, 0, 0, 0]], np.uint8)
    b = np.array([[1, 1, 0, 9], [0, 0, 1, 9]], np.uint8)
    run(source, "f", a, b, np.array([1, 1], np.uint8), threads=2)
    assert a.tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]


def test_an_index_outside_a_vector_of_bool_is_caught():
    source = HEAD + (
        "kernel void f(device int* x) { bool3 b = bool3(true); b[x[0]] = false; x[1] = b.x + b.y * 2 + b.z * 4; }\n"
        "kernel void g(device int* x) { bool3 b = bool3(true); x[1] = b[x[0]]; }\n"
    )
    for kernel, line in (("f", 3), ("g", 4)):
        x = np.array([2, 0], np.int32)
        run(source, kernel, x, threads=1)
        assert x[1] == (3 if kernel == "f" else 1)
        with pytest.raises(KernelFault, match=f"index outside .* at line {line}"):
            run(source, kernel, np.array([3, 0], np.int32), threads=1)


def test_names_of_the_source_s_own_global_namespace():
    source = HEAD + """
namespace own { namespace metal { struct pair { float a, b; }; constant float limit = 2; } }
inline float twice(float x) { return x * ::own::metal::limit; }
template <typename T> struct box { typedef T type; };
using ::own::metal::pair;
kernel void f(device float* out, const device ::own::metal::pair* p) {
  typename ::box<float>::type y = 1;
  typename decltype(::box<float>())::type x =
    ::twice(p->a) > ::own::metal::limit ? ::metal::max(p->a, p->b) : float(::half(1));
  out[0] = x * y;
}
"""
    out = np.zeros(1, np.float32)
    run(source, "f", out, np.array([3, 5], np.float32), threads=1)
    assert out[0] == 5


CONSTANTS = HEAD + """
constant bool causal [[function_constant(0)]];
static constant constexpr int tile [[function_constant(1)]];
constant int span = 2 * tile + 1;
inline float inner(float x) { return causal && is_function_constant_defined(causal) ? x : 0; }
kernel void with(device float* x) { x[0] = inner(x[0]); }
kernel void derived(device float* x) { x[0] = span; }
kernel void without(device float* x) { x[0] = 1; }
kernel void optional(device float* x, const device float* mask [[buffer(1), function_constant(causal)]]) { x[0] = 2; }
kernel void shared(device float* x, threadgroup float* memory [[threadgroup(0)]], uint i [[thread_position_in_grid]]) {
  memory[i] = x[i];
  x[i] = memory[i];
}
"""


def test_what_a_host_must_give():
    kernels = compile(CONSTANTS).kernels
    wants = {name: (k.function_constants, k.threadgroup_arguments) for name, k in kernels.items()}
    assert wants == {
        "with": (["causal"], []), "derived": (["span"], []), "without": ([], []), "optional": (["causal"], []),
        "shared": ([], ["memory"]),
    }  # fmt: skip


def test_compile_shader_cannot_give_it(mps):
    import torch

    library, x = shader.compile_shader(CONSTANTS), torch.zeros(4, device="mps")
    for name in ("with", "derived", "optional"):
        with pytest.raises(RuntimeError, match=f"Failed to create function state object for: {name} .*(causal|span)"):
            getattr(library, name)
    library.without(x, threads=1)
    assert x.tolist() == [1, 0, 0, 0]


@pytest.mark.kernel_faults
def test_a_threadgroup_argument_has_no_length(mps):
    import torch

    with pytest.raises(KernelFault, match="threadgroup argument 'memory' has no length"):
        shader.compile_shader(CONSTANTS).shared(torch.zeros(4, device="mps"), threads=4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kernel void f(device array<float, 2>* a) { (*a).fill(1); }", "cannot initialize object parameter"),
        ("kernel void f(device float2x2* m) { m[0][2][0] = 1; m[0].missing = 1; }", "no member named 'missing'"),
        ("inline float g(uint3 v) { return v.x; }\nkernel void f(device float* x) { x[0] = g({1u, 2u}); }", "'g'"),
        ("struct S { float a; S(float v) : a(v) {} };\nconstant S s(1);\nkernel void f(device float* x) {\n"
         "constant S* p = &s; x[0] = p->a; }", "address space"),
        ("kernel void f(device float* x) { bool4 b = int4(1); x[0] = b.x; }", "program_source:3:.*write bool4"),
        ("kernel void f(device float* x) { int4 b = int4(x[0]) < 2; x[0] = b.x; }", "vector of bool, which"),
        ("kernel void f(device float* x) { auto b = int4(x[0]) < 2; x[0] = b.x; }", "vector of bool, which"),
        ("template <class T> float g(vec<T, 4> v) { return v[0]; }\n"
         "kernel void f(device float* x) { x[0] = g<bool>(true); }", "program_source:[34]:.*whose T is bool"),
        ("struct S { int a; S operator|(S o) { return o; } };\n"
         "kernel void f(device S* x) { x[0] |= S{1}; }", r"no viable overloaded '\|='|compound assignment"),
    ],
    ids=["member function elsewhere", "member of a matrix", "list of another length", "address of a constant",
         "integers as bools", "bools as integers", "bools as whatever", "bool as T", "compound elsewhere"],
)  # fmt: skip
def test_what_stays_refused(text, words):
    with pytest.raises(CompileError, match=words):
        compile(HEAD + text)
