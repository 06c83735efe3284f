"""What a Library says about its kernels, where it is kept, and the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from softmetal import frontend
from softmetal.frontend import CompileError, cache, compile, toolchain
from softmetal.frontend.__main__ import main

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SOURCE = (
    HEAD
    + """
struct Params { int64_t sizes[4]; float scale; };
template <typename T>
[[kernel]] void scale(const device T* x [[buffer(3)]], device T* y [[buffer(1)]], constant Params& p [[buffer(0)]],
                      constant int64_t* strides, device packed_float3* z, device float4& w [[buffer(7)]],
                      uint3 position [[thread_position_in_grid]]) {
  threadgroup T rows[33]; threadgroup float total;
  rows[0] = x[0]; total = p.scale;
  y[position.x] = rows[0] * T(total) + T(float(strides[0]));
}
template [[host_name("scale_half")]] [[kernel]] decltype(scale<half>) scale<half>;
template [[host_name("scale_float")]] [[kernel]] decltype(scale<float>) scale<float>;
[[max_total_threads_per_threadgroup(128)]] kernel void plain(device void* x, uint i [[thread_position_in_grid]]) {}
"""
)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own that already has the precompiled headers."""
    headers = toolchain.library_header()
    monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path))
    folder = toolchain.cache_directory()
    folder.mkdir(parents=True)
    (folder / headers.name).symlink_to(headers)
    return folder


def test_reflection():
    library = compile(SOURCE)
    assert list(library.kernels) == ["scale_half", "scale_float", "plain"]
    kernel = library.kernels["scale_half"]
    assert kernel.line == 6 and kernel.max_total_threads is None
    assert kernel.threadgroup_bytes == 80 + 16  # 66 bytes and 4 bytes, each rounded up to 16
    assert library.kernels["scale_float"].threadgroup_bytes == 144 + 16
    assert library.kernels["plain"].max_total_threads == 128
    rows = [
        (a.index, a.name, a.type, a.address_space, a.is_reference, a.const, a.element_size, a.alignment)
        for a in kernel.arguments
    ]
    assert rows == [
        (0, "p", "constant Params &", "constant", True, True, 40, 8),
        (1, "y", "device half *", "device", False, False, 2, 2),
        (2, "strides", "constant long *", "constant", False, True, 8, 8),  # without an index: the lowest free one
        (3, "x", "const device half *", "device", False, True, 2, 2),
        (4, "z", "device packed_float3 *", "device", False, False, 12, 4),
        (7, "w", "device float4 &", "device", True, False, 16, 16),
    ]
    assert [a.element_size for a in library.kernels["plain"].arguments] == [1]


def test_thread_limit_of_a_template():
    source = HEAD + (
        "template <int N> [[kernel, max_total_threads_per_threadgroup(512)]] void g(device float* x) { x[0] = N; }\n"
        'template [[host_name("f")]] [[kernel]] decltype(g<1>) g<1>;\n'
    )
    assert compile(source).kernels["f"].max_total_threads == 512


def test_kernels_without_buffers():
    library = compile(
        HEAD
        + """
kernel void nothing() {}
kernel void place(uint i [[thread_position_in_grid]]) { threadgroup float tile[8]; tile[i % 8] = i; }
[[max_total_threads_per_threadgroup(64)]] kernel void limited() {}
"""
    )
    shown = {k.name: (k.arguments, k.max_total_threads, k.threadgroup_bytes) for k in library.kernels.values()}
    assert shown == {"nothing": ([], None, 0), "place": ([], None, 32), "limited": ([], 64, 0)}


def test_accesses_that_want_more_alignment_than_their_call_out_tells_are_announced():
    def announced(body, checked=True):
        source = HEAD + f"kernel void f(device float* x, device packed_float4* p, device half4* h) {{ {body} }}"
        return b"msl_rt_alignment" in compile(source, checked=checked).path.read_bytes()

    assert announced("*(device float4*)x = 0;") and announced("x[0] = (*(device float4*)(x + 1)).x;")
    assert announced("*(device ulong4*)x = 0;")
    assert not announced("x[0] = x[1]; h[0] = h[1];")  # the call-outs of up to 8 bytes tell it
    assert not announced("*(device float4*)x = 0;", checked=False)


def test_open_symbols_are_the_runtimes():
    # exp and its kin come from libm, which is in the process.
    data = compile(
        HEAD + "kernel void f(device float* x) { x[0] = exp(x[1]); threadgroup_barrier(mem_flags::mem_device); }"
    ).path.read_bytes()
    for name in (b"__asan_load4_noabort", b"__asan_store4_noabort", b"msl_rt_threadgroup_barrier", b"expf"):
        assert name in data
    unchecked = compile(HEAD + "kernel void f(device float* x) { x[0] = exp(x[1]); }", checked=False).path.read_bytes()
    assert b"__asan_load" not in unchecked


def test_cache_is_used(own_cache, monkeypatch):
    first = compile(SOURCE)
    assert first.path.parent == own_cache
    monkeypatch.setattr(toolchain, "run", lambda *a, **k: pytest.fail("compiled again"))
    assert compile(SOURCE) == first
    with pytest.raises(pytest.fail.Exception):
        compile(SOURCE + "// another source\n")
    with pytest.raises(pytest.fail.Exception):
        compile(SOURCE, checked=False)


def test_a_change_of_headers_or_flags_is_another_entry(monkeypatch):
    before = cache.key(SOURCE, True)
    monkeypatch.setattr(toolchain, "headers_digest", lambda: "changed")
    assert cache.key(SOURCE, True) != before
    monkeypatch.undo()
    monkeypatch.setattr(toolchain, "version", lambda: "0.0.0")
    assert cache.key(SOURCE, True) != before
    monkeypatch.undo()
    monkeypatch.setattr(toolchain, "CHECK_FLAGS", ())
    assert cache.key(SOURCE, True) != before


def _truncate(path: Path):
    path.write_bytes(path.read_bytes()[:1000])


def _flip(path: Path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_truncate, _flip, Path.unlink])
def test_a_damaged_shared_object_is_rebuilt(own_cache, damage):
    library = compile(SOURCE)
    good = library.path.read_bytes()
    damage(library.path)
    again = compile(SOURCE)
    assert again.kernels == library.kernels
    assert again.path.read_bytes() == good or cache.load(cache.key(SOURCE, True)) == again


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"file": "../x", "digest": 1}', '{"file": 3}', '{"file": "x.so", "digest": "0", "library": {}}'],
)
def test_a_damaged_index_is_rebuilt(own_cache, text):
    library = compile(SOURCE)
    index = own_cache / f"{cache.key(SOURCE, True)}.json"
    json.loads(index.read_text())
    index.write_text(text)
    assert compile(SOURCE) == library
    assert json.loads(index.read_text())["file"] == library.path.name


@pytest.mark.parametrize(
    "damage", [_truncate, lambda path: path.write_bytes(b"not a header"), lambda path: path.write_bytes(b"")]
)
def test_a_damaged_precompiled_library_is_rebuilt(own_cache, damage):
    header = toolchain.library_header()
    data = header.read_bytes()
    header.unlink()
    header.write_bytes(data)
    damage(header)
    assert "plain" in compile(SOURCE).kernels
    assert len(header.read_bytes()) > 100_000


def test_two_processes_at_once(own_cache):
    program = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom softmetal import frontend\n"
        "print(sorted(frontend.compile(sys.argv[2]).kernels))"
    )
    tests = str(Path(frontend.__file__).resolve().parents[2])
    running = [
        subprocess.Popen([sys.executable, "-c", program, tests, SOURCE], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert outputs == ["['plain', 'scale_float', 'scale_half']\n"] * 2
    assert not list(own_cache.glob("*.tmp"))


def test_command_line(tmp_path, capsys):
    good, bad = tmp_path / "good.metal", tmp_path / "bad.metal"
    good.write_text(SOURCE)
    bad.write_bytes(HEAD.encode() + "kernel void f(device float* x) { x[0] = 1.0; } // \u00e9\n".encode())
    assert main([str(good)]) == 0
    assert "scale_half(constant Params & p [[buffer(0)]], device half * y [[buffer(1)]]" in capsys.readouterr().out
    assert main([str(bad), str(good)]) == 1
    caught = capsys.readouterr()
    assert "program_source:3:51: error: non-ASCII character" in caught.err and "3 kernels" in caught.out


def test_additions_to_namespace_metal():
    source = "#include <metal_stdlib>\nnamespace metal { inline float half_of(float x) { return x / 2; } }\n" + (
        "using namespace metal;\nkernel void f(device float* x) {\n  x[0] = metal::half_of(exp(x[1])) + wrong;\n}\n"
    )
    with pytest.raises(CompileError, match=r"^program_source:5:38: error: use of undeclared identifier 'wrong'"):
        compile(source)
    assert "f" in compile(source.replace(" + wrong", "")).kernels


def test_quoted_includes_find_nothing_of_the_users_folder(tmp_path, monkeypatch):
    (tmp_path / "own.h").write_text("#define OWN 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match="'own.h' file not found"):
        compile('#include "own.h"\n' + HEAD)


def test_errors_quote_the_users_line():
    with pytest.raises(CompileError) as caught:
        compile(HEAD + "\n\nkernel void f(device float* x) {\n  x[0] = undefined_name;\n}\n")
    assert (
        str(caught.value)
        == "program_source:6:10: error: use of undeclared identifier 'undefined_name'\n    x[0] = undefined_name;"
    )


def test_lines_through_macros_and_comments():
    source = (
        HEAD
        + "/* a\n   comment */\n#define BAD(x) \\\n  x = undefined_name\n\n"
        + "kernel void f(device float* x) {\n  BAD(x[0]);\n}\n"
    )
    with pytest.raises(CompileError, match=r"^program_source:9:"):
        compile(source)


def test_an_error_in_a_template_names_the_instantiation():
    source = (
        HEAD
        + "template <typename T> [[kernel]] void g(device T* x) {\n  x[0] = x[0] % 2;\n}\n"
        + ('template [[host_name("g_f")]] [[kernel]] decltype(g<float>) g<float>;\n')
    )
    with pytest.raises(CompileError) as caught:
        compile(source)
    assert str(caught.value).startswith(
        "program_source:4:15: error: invalid operands to binary expression ('device float' and 'int')"
    )
    assert "program_source:6:" in str(
        caught.value
    ) and "in instantiation of function template specialization 'g<float>'" in str(caught.value)
