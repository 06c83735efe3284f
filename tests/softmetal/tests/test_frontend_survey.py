"""`python -m softmetal.frontend --survey`: include roots, places of errors, and the share."""

import pytest
from softmetal.frontend import survey
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
    assert main(["--survey", str(sources / "kernels"), "-I", str(sources / "root")]) == 1
    out = capsys.readouterr().out
    assert "ok      good.metal: 2 kernels" in out and "REFUSED bad.metal: bad.metal:5:10: error:" in out
    assert out.endswith("2 of 3 files compile, 3 kernels\n")
    (sources / "kernels/bad.metal").unlink()
    assert main(["--survey", str(sources / "kernels"), "-I", str(sources / "root")]) == 0
