"""`python -m softmetal.frontend --survey`: include roots, places of errors, and the share."""

import pytest
from softmetal.frontend import compiler, survey
from softmetal.frontend.__main__ import main

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


@pytest.fixture
def sources(tmp_path):
    """Two files that compile and one that does not, with headers beside them and below a root."""
    files = {
        "root/library/scale.h": "#pragma once\n#include <metal_math>\ninline float scale(float x) { return 2 * x; }\n",
        "kernels/twice.h": '#include "library/scale.h"\n#define TWICE(x) scale(x)\n',
        "kernels/good.metal": '// caf\u00e9\n#include "twice.h"\n#include <library/scale.h>\n'
        "kernel void a(device float* x) { x[0] = TWICE(x[1]); }\nkernel void b(device float* x) { x[0] = 1; }\n",
        "kernels/inner/other.metal": HEAD + "kernel void c(device float* x) { x[0] = 1; }\n",
        "kernels/bad.metal": HEAD + '#include "twice.h"\nkernel void d(device float* x) {\n  x[0] = missing;\n}\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_each_file_is_read(sources):
    roots = [sources / "root"]
    results = {path.name: survey.read(path, roots) for path in survey.files([sources / "kernels"])}
    assert {name: (r.kernels, r.problem is None) for name, r in results.items()} == {
        "bad.metal": (0, False), "good.metal": (2, True), "other.metal": (1, True),
    }  # fmt: skip
    assert results["bad.metal"].problem.startswith("bad.metal:5:10: error: use of undeclared identifier 'missing'")


def test_an_error_in_a_header_names_the_header(sources):
    (sources / "kernels/twice.h").write_text("inline float twice(float x) { return missing; }\n")
    problem = survey.read(sources / "kernels/bad.metal", []).problem
    assert problem.startswith("twice.h:1:38: error: use of undeclared identifier 'missing'")


def test_command_line(sources, capsys):
    command = ["--survey", str(sources / "kernels"), "-I", str(sources / "root")]
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("REFUSED bad.metal [") and "]: bad.metal:5:10: error:" in lines[0]
    assert lines[1].startswith("ok      good.metal [") and lines[1].endswith(" s]: 2 kernels")
    assert lines[-1] == "2 of 3 files, 3 kernels read"
    (sources / "kernels/bad.metal").unlink()
    assert main([*command, "--build", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.endswith(
        "2 of 2 files, 3 kernels read; 3 of them, one of each template, compiled with all checks and loaded\n"
    )


TEMPLATE = """
template <typename T> kernel void f(device T* x) { x[0] = T(x[1] / x[2]); }
template [[host_name("f_float")]] [[kernel]] decltype(f<float>) f<float>;
template [[host_name("f_int")]] [[kernel]] decltype(f<int>) f<int>;
kernel void g(device float* x) { x[0] = 1; }
"""


def test_of_a_template_one_instantiation_is_built_and_every_one_is_read(sources, tmp_path):
    (sources / "kernels/bad.metal").write_text(HEAD + TEMPLATE)
    result = survey.read(sources / "kernels/bad.metal", [], build=True)
    assert (result.kernels, result.built, result.problem) == (3, 2, None)
    assert list(compiler.sample(HEAD + TEMPLATE, tmp_path).kernels) == ["f_float", "g"]
    wrong = TEMPLATE + 'template [[host_name("f_pointer")]] [[kernel]] decltype(f<device int*>) f<device int*>;\n'
    (sources / "kernels/bad.metal").write_text(HEAD + wrong)
    assert "invalid operands to binary expression" in survey.read(sources / "kernels/bad.metal", [], build=True).problem


def test_kernels_with_too_much_threadgroup_memory_are_read_and_counted(sources):
    """Metal refuses them when it makes the pipeline: the file is good."""
    (sources / "kernels/bad.metal").write_text(
        HEAD + "kernel void d(device float* x) { threadgroup float a[9000]; a[0] = 1; x[0] = a[0]; }\n"
    )
    result = survey.read(sources / "kernels/bad.metal", [])
    assert (result.kernels, result.too_large, result.problem) == (1, 1, None)
    assert "1 kernels, 1 want over 32 KiB of threadgroup memory" in str(result)


def test_a_file_that_takes_too_long_is_reported(sources):
    result = survey.read_within(sources / "kernels/good.metal", [], build=False, limit=0.01)
    assert result.problem == "no result within 0 s"
