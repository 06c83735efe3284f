"""ShaderLibrary: compiled lazily, once; what must not reach a GPU is refused with the kernel's name in the message."""

import threading
import time

import pytest
import torch

SOURCE = """#include <metal_stdlib>
using namespace metal;

kernel void fill(device float* out [[buffer(0)]], constant long& n [[buffer(1)]], constant float& value [[buffer(2)]],
                 uint i [[thread_position_in_grid]]) {
  if (long(i) < n) out[i] = value;
}

kernel void gather(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                   constant long* index [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = x[index[i]];
}
"""


@pytest.fixture
def library(core, mps, tmp_path):
    path = tmp_path / "test.metal"
    path.write_text(SOURCE)
    return core.shader.ShaderLibrary(path)


@pytest.fixture
def compiler(monkeypatch, mps):
    """Counts compilations, slowly, and hands out kernels that note their calls."""

    class Library:
        def __init__(self):
            self.calls = []

        def __getattr__(self, name):
            if name == "missing":
                raise RuntimeError("Failed to create function state object for: missing")
            return lambda *args, **options: self.calls.append((name, args, options))

    made = []

    def compile_shader(source):
        time.sleep(0.02)
        if "broken" in source:
            made.append(None)
            raise SyntaxError("program_source:1:1: error: unknown type name 'broken'")
        made.append(Library())
        return made[-1]

    monkeypatch.setattr(torch.mps, "compile_shader", compile_shader)
    return made


def test_a_real_launch(library, mps):
    out = torch.zeros(5, device=mps)
    library.launch("fill", out, 3, 2.5, threads=5, group_size=4)
    assert out.tolist() == [2.5, 2.5, 2.5, 0, 0]
    result = torch.empty(2, device=mps)
    library.launch("gather", torch.arange(4.0, device=mps), result, [3, 1], threads=(2,))
    assert result.tolist() == [3, 1]
    view = torch.zeros(4, device=mps)[2:]
    library.launch("fill", view, 2, 1.0, threads=2)
    assert view.tolist() == [1, 1]


def test_a_real_compile_error_is_remembered(core, mps, tmp_path):
    path = tmp_path / "bad.metal"
    path.write_text("kernel void f(device float* x [[buffer(0)]]) { x[0] = y; }")
    library = core.shader.ShaderLibrary(path)
    for _ in range(2):
        with pytest.raises(
            core.shader.ShaderError, match=r"bad\.metal does not compile: [\s\S]*undeclared identifier 'y'"
        ):
            library.launch("f", torch.zeros(1, device=mps), threads=1)


def test_lazy_and_once(library, compiler, mps):
    assert compiler == []
    x = torch.zeros(1, device=mps)
    threads = [threading.Thread(target=library.launch, args=("fill", x), kwargs={"threads": 1}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (compiled,) = compiler
    assert [name for name, _, _ in compiled.calls] == ["fill"] * 4


def test_failures_are_remembered_not_retried(core, compiler, mps, tmp_path):
    path = tmp_path / "bad.metal"
    path.write_text("broken")
    library = core.shader.ShaderLibrary(path)
    for _ in range(3):
        with pytest.raises(core.shader.ShaderError, match=r"bad\.metal does not compile: program_source:1:1"):
            library.launch("f", torch.zeros(1, device=mps), threads=1)
    assert len(compiler) == 1


def test_a_missing_kernel_is_remembered(library, compiler, core, mps):
    for _ in range(2):
        with pytest.raises(
            core.shader.ShaderError, match=r"test\.metal has no usable kernel missing: Failed to create"
        ):
            library.launch("missing", torch.zeros(1, device=mps), threads=1)


@pytest.mark.parametrize("content", [None, "kernel void f() {} // \u00e9"])
def test_a_missing_or_non_ascii_file(core, compiler, mps, tmp_path, content):
    path = tmp_path / "x.metal"
    if content:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(core.shader.ShaderError, match="x.metal does not compile"):
        core.shader.ShaderLibrary(path).launch("f", torch.zeros(1, device=mps), threads=1)
    assert compiler == []


@pytest.mark.parametrize("threads", [0, (4, 0), (0, 1, 2)])
def test_nothing_to_do_launches_nothing(library, compiler, mps, threads):
    library.launch("fill", torch.zeros(0, device=mps), threads=threads)
    assert compiler == []


def test_options_reach_the_kernel(library, compiler, mps):
    x = torch.zeros(1, device=mps)
    library.launch("fill", x, 1, threads=(3, 2), group_size=(2, 1), arg_casts={1: "int32"})
    library.launch("fill", x, True, (1, 2), threads=7)
    assert compiler[0].calls == [
        ("fill", (x, 1), {"threads": (3, 2), "group_size": (2, 1), "arg_casts": {1: "int32"}}),
        ("fill", (x, True, (1, 2)), {"threads": 7}),
    ]


WRONG = {
    "a CPU tensor": (lambda x: ((torch.zeros(1),), {}), ValueError, "argument 0 is on cpu"),
    "a scalar on the CPU": (lambda x: ((x, torch.tensor(1.0)), {}), ValueError, "argument 1 is on cpu"),
    "no bytes": (lambda x: ((x, x[:0]), {}), ValueError, r"argument 1 of shape \(0,\) has no bytes"),
    "an empty list": (lambda x: ((x, []), {}), ValueError, "argument 1 is an empty list"),
    "too many ints": (lambda x: ((x, [0] * 513), {}), ValueError, "argument 1 has 513 ints; 512 fit"),
    "too many floats": (lambda x: ((x, [0.0] * 1025), {}), ValueError, "argument 1 has 1025 floats; 1024 fit"),
    "a mixed list": (lambda x: ((x, [1, 2.0]), {}), TypeError, "mixes types"),
    "an int of 65 bits": (lambda x: ((x, 2**63), {}), ValueError, "which int64 does not hold"),
    "a list with such an int": (lambda x: ((x, [1, 2**63]), {}), ValueError, "which int64 does not hold"),
    "None": (lambda x: ((x, None), {}), TypeError, "argument 1 is a NoneType"),
    "a string": (lambda x: ((x, "a"), {}), TypeError, "argument 1 is a str"),
    "a complex number": (lambda x: ((x, 1j), {}), TypeError, "argument 1 is a complex"),
    "a grid of four dimensions": (lambda x: ((x,), {"threads": (1, 1, 1, 1)}), ValueError, "one to three dimensions"),
    "a negative grid": (lambda x: ((x,), {"threads": -1}), ValueError, "-1 threads"),
    "2**32 threads": (lambda x: ((x,), {"threads": (1, 2**32)}), ValueError, "4294967296 threads in one dimension"),
    "a group of another rank": (lambda x: ((x,), {"group_size": (1, 1)}), ValueError, "another rank"),
    "1025 threads a group": (lambda x: ((x,), {"group_size": 1025}), ValueError, "1025 threads; 1 to 1024"),
    "an empty group": (lambda x: ((x,), {"group_size": 0}), ValueError, "0 threads; 1 to 1024"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_must_not_reach_a_gpu(library, compiler, mps, case):
    arguments, error, message = WRONG[case]
    args, options = arguments(torch.zeros(1, device=mps))
    with pytest.raises(error, match=f"fill: .*{message}"):
        library.launch("fill", *args, **{"threads": 1, **options})
    assert compiler == []


@pytest.mark.parametrize("count", [0, 1, 2**32 - 1, 2**32, 5 * 2**33 + 7])
def test_grids(core, count):
    grid = core.shader.grid(count)
    total = 1
    for extent in grid:
        assert extent < 2**32
        total *= extent
    assert total >= count and len(grid) == (1 if count < 2**32 else 2)
    if len(grid) == 2:
        assert total - count < grid[0]
