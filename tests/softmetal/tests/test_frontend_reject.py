"""What Metal refuses is refused, at the right line, in words that say what is wrong."""

import pytest
from softmetal.frontend import CompileError, compile

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
BODY = HEAD + "kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n%s\n}\n"


def in_body(statement: str) -> str:
    """A kernel whose only statement is on line 4."""
    return BODY % statement


def kernel(parameters: str) -> str:
    """A kernel whose parameters are on line 3."""
    return HEAD + f"kernel void f({parameters}) {{}}\n"


TYPES = [
    ("double", in_body("double y = 1.0;"), 4, "'double' is not supported in Metal"),
    ("long double", in_body("long double y = 1;"), 4, "'long double' is not supported in Metal"),
    ("double by macro", "#define D double\n" + in_body("D y = 1.0;"), 5, "'double' is not supported in Metal"),
    ("double vector", in_body("double2 y;"), 4, "use of undeclared identifier 'double2'"),
    ("float to bfloat", in_body("bfloat y = x[i];"), 4, "implicit conversion from 'float' to 'bfloat'"),
    (
        "bfloat to float",
        in_body("bfloat y = bfloat(x[i]); x[i] = y;"),
        4,
        "implicit conversion from 'bfloat' to 'float'",
    ),
    ("half to bfloat", in_body("half h = 1.0h; bfloat y = h;"), 4, "'half'"),
    ("bfloat to half", in_body("bfloat y = bfloat(1.0f); half h = y;"), 4, "'bfloat'"),
    (
        "bfloat argument",
        HEAD + "float g(float v) { return v; }\nkernel void f(device bfloat* x) {\nx[0] = bfloat(g(x[1]));\n}\n",
        5,
        "implicit conversion from 'bfloat' to 'float'",
    ),
    (
        "bfloat compound",
        HEAD + "kernel void f(device bfloat* x) {\nx[0] += 2.0f;\n}\n",
        4,
        "implicit conversion from 'float' to 'bfloat'",
    ),
    (
        "bfloat mixed",
        HEAD + "kernel void f(device bfloat* x, device float* y) {\ny[0] = x[0] * y[1];\n}\n",
        4,
        "implicit conversion from 'bfloat' to 'float'",
    ),
    (
        "bfloat in a template",
        HEAD + "template <typename T> [[kernel]] void f(device T* x) {\nfloat v = x[0];\nx[0] = T(v);\n}\n"
        'template [[host_name("f_b")]] [[kernel]] decltype(f<bfloat>) f<bfloat>;\n',
        4,
        "implicit conversion from 'bfloat' to 'float'",
    ),
    (
        "bfloat return",
        HEAD + "float g(bfloat v) {\nreturn v;\n}\nkernel void f(device float* x) { x[0] = g(bfloat(1.0f)); }\n",
        4,
        "implicit conversion from 'bfloat' to 'float'",
    ),
    ("math on bfloat", HEAD + "kernel void f(device bfloat* x) {\nx[0] = bfloat(exp(x[1]));\n}\n", 4, "bfloat"),
    (
        "vectors of other elements",
        in_body("int4 a = int4(1); float4 b = a;"),
        4,
        "cannot initialize a variable of type",
    ),
    ("vector cast by bits", in_body("int4 a = int4(1); float4 b = (float4)a;"), 4, "reinterpret the bits"),
    ("mask as integers", in_body("int2 m = float2(1) < float2(2);"), 4, "comparing vectors gives a vector of bool"),
    ("mask as floats", in_body("float2 m = float2(float2(1) < x[i]);"), 4, "comparing vectors gives a vector of bool"),
    ("mask element", in_body("x[i] = (float2(1) == x[i]).x;"), 4, "comparing vectors gives a vector of bool"),
    ("mask of not", in_body("x[i] += (!float2(1)).x;"), 4, "comparing vectors gives a vector of bool"),
    ("too many elements", in_body("float4 v = float4(1, 2, 3, 4, 5);"), 4, "as many elements"),
    ("simd_sum of bool", in_body("bool b = simd_sum(true);"), 4, "no matching function for call to 'simd_sum'"),
    ("simd_sum of long", in_body("long b = simd_sum(1L);"), 4, "no matching function for call to 'simd_sum'"),
    ("long long", in_body("long long y = 1;"), 4, "'long long' is not supported"),
    ("ambiguous max", in_body("uint y = max(i, 1);"), 4, "call to 'max' is ambiguous"),
]

SPACES = [
    (
        "pointer without space",
        HEAD + "float g(float* p) { return *p; }\n",
        3,
        "pointer type must have explicit address space qualifier",
    ),
    (
        "reference without space",
        HEAD + "void g(float& p) { p = 1; }\n",
        3,
        "reference type must have explicit address space qualifier",
    ),
    (
        "template pointer without space",
        HEAD + "template <typename T> T g(const T* p) { return *p; }\n",
        3,
        "pointer type must have explicit address space qualifier",
    ),
    (
        "local pointer without space",
        in_body("float y = 1; float* p = &y;"),
        4,
        "pointer type must have explicit address space qualifier",
    ),
    (
        "member pointer without space",
        HEAD + "struct S {\nfloat* p;\n};\n",
        4,
        "pointer type must have explicit address space qualifier",
    ),
    (
        "device to threadgroup",
        in_body("threadgroup float* p = x;"),
        4,
        "cannot initialize a variable of type 'threadgroup float *' with an lvalue of type 'device float *'",
    ),
    ("device to thread", in_body("thread float* p = x;"), 4, "cannot initialize a variable"),
    ("cast between spaces", in_body("threadgroup float* p = (threadgroup float*)x;"), 4, "address space"),
    (
        "wrong space of argument",
        HEAD + "float g(constant float* p) { return p[0]; }\nkernel void f(device float* x) {\nx[0] = g(x);\n}\n",
        5,
        "no matching function for call to 'g'",
    ),
    (
        "write to constant",
        HEAD + "kernel void f(constant float* x) {\nx[0] = 1;\n}\n",
        4,
        "read-only variable is not assignable",
    ),
    ("global without space", HEAD + "float table[2] = {1, 2};\n", 3, "must reside in constant address space"),
    ("constexpr global without space", HEAD + "constexpr int n = 2;\n", 3, "must reside in constant address space"),
    ("global not initialised", HEAD + "constant float table[2];\n", 3, "must be initialized"),
    ("declared only", HEAD + "float g(float* p);\n", 3, "pointer type must have explicit address space qualifier"),
    ("result", HEAD + "float* g(device float* p);\n", 3, "pointer type must have explicit address space qualifier"),
    (
        "method",
        HEAD + "struct S {\nvoid g(float& p) const {}\n};\n",
        4,
        "reference type must have explicit address space qualifier",
    ),
    ("alias", HEAD + "using P = float*;\n", 3, "pointer type must have explicit address space qualifier"),
    ("typedef", HEAD + "typedef const float* P;\n", 3, "pointer type must have explicit address space qualifier"),
    (
        "pointer in a for statement",
        in_body("float y[2] = {1, 2}; for (float* p = y; p < y + 2; ++p) x[i] += *p;"),
        4,
        "pointer type must have explicit address space qualifier",
    ),
    (
        "global computed at run time",
        HEAD + "constant float table[2] = {1, exp(2.0)};\n",
        3,
        "global constructor",
    ),
    (
        "threadgroup at program scope",
        HEAD + "threadgroup float s[2];\n",
        3,
        "may only be declared in a kernel function",
    ),
    (
        "threadgroup in a function",
        HEAD + "void g() {\nthreadgroup float s[2];\n}\n",
        4,
        "may only be declared in a kernel function",
    ),
    ("threadgroup initialised", in_body("threadgroup float s[2] = {1, 2};"), 4, "cannot have an initializer"),
    ("constant in a function", in_body("constant float s = 2;"), 4, "must be declared at program scope"),
    (
        "reinterpret_cast between spaces",
        in_body("threadgroup float* p = reinterpret_cast<threadgroup float*>(x);"),
        4,
        "is not allowed",
    ),
    ("device variable", in_body("device float s;"), 4, "address space"),
    (
        "33 KiB",
        HEAD + "kernel void f(device float* x) {\nthreadgroup float s[8448]; s[0] = x[0];\n}\n",
        3,
        "exceeds the maximum threadgroup memory allowed (32768)",
    ),
    (
        "33 KiB in two",
        HEAD
        + "template <int N> [[kernel]] void f(device float* x) {\n"
        + "threadgroup float s[N]; threadgroup half t[N]; s[0] = x[0]; t[0] = 1;\n}\n"
        'template [[host_name("big")]] [[kernel]] decltype(f<5632>) f<5632>;\n',
        3,
        "threadgroup memory size (33792)",
    ),
]

KERNELS = [
    ("non-void", HEAD + "kernel int f(device float* x) { return 1; }\n", 3, "must have void return type"),
    ("ulong position", kernel("device float* x, ulong i [[thread_position_in_grid]]"), 3, "must be uint or ushort"),
    ("int position", kernel("device float* x, int i [[thread_position_in_grid]]"), 3, "must be uint or ushort"),
    ("int3 position", kernel("device float* x, int3 i [[thread_position_in_grid]]"), 3, "must be uint or ushort"),
    ("uint4 position", kernel("device float* x, uint4 i [[thread_position_in_grid]]"), 3, "must be uint or ushort"),
    ("vector index", kernel("device float* x, uint2 i [[thread_index_in_simdgroup]]"), 3, "must be uint or ushort"),
    (
        "pointer position",
        kernel("device float* x, device uint* i [[thread_position_in_grid]]"),
        3,
        "invalid type for 'thread_position_in_grid'",
    ),
    ("no attribute", kernel("device float* x, uint i"), 3, "needs an attribute"),
    ("float argument", kernel("device float* x, float a"), 3, "needs an attribute"),
    ("buffer by value", kernel("device float x"), 3, "a buffer is a pointer or a reference"),
    ("thread pointer", kernel("thread float* x [[buffer(0)]]"), 3, "must be in the device or constant address space"),
    ("plain pointer", kernel("float* x [[buffer(0)]]"), 3, "must be in the device or constant address space"),
    (
        "same index twice",
        kernel("device float* x [[buffer(1)]], device float* y [[buffer(1)]]"),
        3,
        "cannot reserve 'buffer' resource location at index 1",
    ),
    ("index 31", kernel("device float* x [[buffer(31)]]"), 3, "must be between 0 and 30"),
    ("32 buffers", kernel(", ".join(f"device float* x{i}" for i in range(32))), 3, "at most 31 buffers"),
    ("threadgroup argument by value", kernel("threadgroup float s"), 3, "threadgroup memory is a pointer"),
    (
        "threadgroup attribute of a buffer",
        kernel("device float* x [[threadgroup(0)]]"),
        3,
        "'threadgroup' attribute of 'x', which is not threadgroup memory",
    ),
    (
        "function constant with a value",
        HEAD + "constant int n [[function_constant(0)]] = 1;\n",
        3,
        "function constant 'n' has an initializer",
    ),
    (
        "function constant outside constant memory",
        HEAD + "int n [[function_constant(0)]];\n",
        3,
        "a scalar or vector in constant memory",
    ),
    (
        "wrong value of a derived function constant",
        HEAD + "constant int n [[function_constant(0)]];\nconstant int m = n + missing;\n",
        4,
        "use of undeclared identifier 'missing'",
    ),
    ("id outside a structure", HEAD + "constant int n [[id(0)]] = 1;\n", 3, "unknown attribute 'id'"),
    ("texture", kernel("texture2d<float> t [[texture(0)]]"), 3, "unknown attribute 'texture'"),
    ("unknown attribute", kernel("device float* x [[bufer(0)]]"), 3, "unknown attribute 'bufer'"),
    ("unknown kernel attribute", HEAD + "[[kernel, fast]] void f(device float* x) {}\n", 3, "unknown attribute 'fast'"),
    (
        "unknown statement attribute",
        in_body("[[unrol]] for (int k = 0; k < 2; ++k) x[k] = 1;"),
        4,
        "unknown attribute 'unrol'",
    ),
    (
        "instantiation of nothing",
        HEAD + 'template [[host_name("g")]] [[kernel]] decltype(g<float>) g<float>;\n',
        3,
        "no kernel template has that name",
    ),
    (
        "the same name twice",
        HEAD + "template <typename T> [[kernel]] void f(device T* x) {}\n"
        'template [[host_name("a")]] [[kernel]] decltype(f<float>) f<float>;\n'
        'template [[host_name("a")]] [[kernel]] decltype(f<half>) f<half>;\n',
        5,
        "two kernels have the name 'a'",
    ),
    ("kernel as member", HEAD + "struct S {\nkernel void f(device float* x) {}\n};\n", 4, "must not be a member"),
]

LANGUAGE = [
    ("non-ASCII comment", "// caf\u00e9\n" + in_body("x[i] = 1;"), 1, "non-ASCII character U+00E9"),
    ("non-ASCII identifier", in_body("float \u00e9 = 1;"), 4, "non-ASCII character"),
    ("unknown header", "#include <c10/metal/utils.h>\n" + HEAD, 1, "'c10/metal/utils.h' file not found"),
    ("C++ header", HEAD + "#include <vector>\n", 3, "'vector' file not found"),
    ("std", in_body("x[i] = std::exp(x[i]);"), 4, "use of undeclared identifier 'std'"),
    ("no header", "using namespace metal;\n", 1, "use of undeclared identifier 'metal'"),
    ("virtual", HEAD + "struct S {\nvirtual void f() {}\n};\n", 4, "virtual functions"),
    ("goto", in_body("goto end; end: x[i] = 1;"), 4, "'goto'"),
    ("throw", in_body("throw 1;"), 4, "exceptions"),
    ("try", in_body("try { x[i] = 1; } catch (...) {}"), 4, "exceptions"),
    ("new", in_body("thread float* p = new float[2];"), 4, "operator 'new'"),
    ("delete", in_body("delete &x[0];"), 4, "operator 'delete'"),
    ("thread_local", in_body("thread_local float y = 1;"), 4, "'thread_local'"),
    ("dynamic_cast", in_body("auto y = dynamic_cast<thread float*>(&x[0]);"), 4, "'dynamic_cast'"),
    ("static local", in_body("static float y = 1;"), 4, "static local variables"),
    ("lambda", in_body("auto g = [&](float v) { return v; };"), 4, "lambda"),
    ("function pointer", in_body("float (*g)(float) = nullptr;"), 4, "function pointers"),
    ("asm", in_body('asm("nop");'), 4, "inline assembly"),
    (
        "recursion",
        HEAD + "int g(int n) { return n < 2 ? n : g(n - 1); }\nkernel void f(device int* x) {\nx[0] = g(x[0]);\n}\n",
        4,
        "recursive",
    ),
    (
        "mutual recursion",
        HEAD + "int h(int n);\nint g(int n) { return n < 2 ? n : h(n - 1); }\nint h(int n) { return g(n - 1); }\n"
        "kernel void f(device int* x) { x[0] = g(x[0]); }\n",
        6,
        "recursive",
    ),
    ("static_assert", in_body('static_assert(sizeof(x[0]) == 2, "half only");'), 4, "half only"),
    ("undeclared", in_body("x[i] = y;"), 4, "use of undeclared identifier 'y'"),
    ("syntax", in_body("x[i] = ;"), 4, "expected expression"),
    (
        "missing return",
        HEAD + "float g(float v) {\n}\nkernel void f(device float* x) { x[0] = g(1); }\n",
        4,
        "does not return a value",
    ),
    ("unclosed brace", HEAD + "kernel void f(device float* x) {\n", 3, "is not closed"),
    (
        "positions of two widths",
        kernel("device float* x, uint i [[thread_position_in_grid]], uint3 g [[threadgroup_position_in_grid]]"),
        3,
        "either all scalar types or all vector types with the same number of elements",
    ),
    (
        "the SIMD width twice",
        kernel("device float* x, uint a [[thread_execution_width]], uint b [[threads_per_simdgroup]]"),
        3,
        "cannot both be used",
    ),
    (
        "an attribute after the parameters",
        HEAD + "kernel void f(device float* x) [[max_total_threads_per_threadgroup(64)]] { x[0] = 1; }\n",
        3,
        "cannot be applied to types",
    ),
    ("narrowing initialiser", in_body("int a{1.5f};"), 4, "cannot be narrowed"),
    ("array of variable length", in_body("float a[i]; a[0] = 1;"), 4, "variable length arrays"),
    ("array of no elements", in_body("float a[0];"), 4, "zero size arrays"),
    ("clang's builtins", in_body("x[i] = (float)__builtin_ia32_rdtsc();"), 4, "undeclared identifier '__builtin_ia32_"),
    (
        "a kernel calls a kernel",
        HEAD + "kernel void g(device float* x) { x[0] = 1; }\nkernel void f(device float* x) { g(x); }\n",
        4,
        "calls another kernel",
    ),
    (
        "1025 threads",
        HEAD + "[[kernel, max_total_threads_per_threadgroup(1025)]] void f(device float* x) { x[0] = 1; }\n",
        3,
        "max_total_threads_per_threadgroup(1025) is over 1024",
    ),
    (
        "undefined function",
        HEAD + "float g(float v);\nkernel void f(device float* x) { x[0] = g(1); }\n",
        4,
        "undefined",
    ),
    (
        "past a constant array",
        HEAD + "constant float t[3] = {1, 2, 3};\nkernel void f(device float* x) {\nx[0] = t[3];\n}\n",
        5,
        "past the end",
    ),
]


@pytest.mark.parametrize(
    ("source", "line", "words"), [pytest.param(*case[1:], id=case[0]) for case in TYPES + SPACES + KERNELS + LANGUAGE]
)
def test_is_refused(source, line, words):
    with pytest.raises(CompileError) as caught:
        compile(source)
    text = str(caught.value)
    assert f"program_source:{line}:" in text.split("\n")[0], text
    assert words in text, text
