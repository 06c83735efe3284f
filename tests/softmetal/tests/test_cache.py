"""The cache of compiled things: used again, moved elsewhere, damaged, and filled before a suite's first test."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import softmetal  # noqa: F401  (the device is built, so that its files can be copied)
from softmetal import runtime
from softmetal.device import build
from softmetal.frontend import toolchain

TESTS = Path(__file__).resolve().parents[2]
USE = """
import sys
import softmetal, torch
softmetal.activate()
kernel = "kernel void k(device int* x, uint i [[thread_position_in_grid]]) { x[i] = int(i) * %s; }" % sys.argv[1]
x = torch.zeros(3, dtype=torch.int32, device="mps")
torch.mps.compile_shader("#include <metal_stdlib>\\n" + kernel).k(x)
print(x.tolist())
"""


def use(cache, cwd, factor=7):
    """Output and errors of a process that compiles and runs a kernel with `cache` as it is named in `cwd`."""
    environment = {**os.environ, "SOFTMETAL_CACHE": str(cache), "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", USE, str(factor)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([0, factor, 2 * factor])
    return done.stderr


@pytest.fixture
def moved(tmp_path):
    """What this process uses of its cache, in another place: <tmp_path>/elsewhere."""
    build.load()
    toolchain.library_header()
    here, there = runtime.cache_root(), tmp_path / "elsewhere"
    names = {library.stem for library in (runtime.library_path(), build._library())}
    for file in runtime.build_directory().iterdir():
        if file.stem in names or file == build._objects(runtime.build_directory()):
            to = there / file.relative_to(here)
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if file.is_dir() else shutil.copy2)(file, to)
    headers = there / "frontend"
    headers.mkdir()
    for header in (here / "frontend").glob("*.pch"):
        shutil.copy2(header, headers)
    return there


def compiled(cache):
    return {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.suffix in (".so", ".o", ".pch")}


def test_a_moved_cache_is_used(moved, tmp_path):
    before = compiled(moved)
    assert "building" not in use(moved, tmp_path)
    after = compiled(moved)
    assert {file: time for file, time in after.items() if file in before} == before
    new = set(after) - set(before)
    assert len(new) == 1 and new.pop().parent.name == "frontend"  # the kernel
    assert "building" not in use(moved, tmp_path) and compiled(moved) == after


@pytest.mark.parametrize("name", ["elsewhere", "~/elsewhere"])
def test_it_may_be_named_from_the_current_folder_or_from_home(moved, tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "building" not in use(name, tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {"elsewhere"}


@pytest.mark.parametrize("damage", ["cut", "empty", "other bytes", "gone", "digest gone"])
def test_a_damaged_device_is_built_again(moved, monkeypatch, damage):
    monkeypatch.setenv("SOFTMETAL_CACHE", str(moved))
    library = build._library()
    whole = library.read_bytes()
    assert library.is_relative_to(moved) and build.is_built()
    if damage == "cut":
        library.write_bytes(whole[: len(whole) // 2])
    elif damage == "empty":
        library.write_bytes(b"")
    elif damage == "other bytes":
        library.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    elif damage == "gone":
        library.unlink()
    else:
        library.with_suffix(".sha256").unlink()
    built = []

    def rebuild(path):
        built.append(path)
        made = path.with_suffix(".made")
        made.write_bytes(whole)
        runtime.publish(made, path)
        return path

    monkeypatch.setattr(build, "_module", None)
    monkeypatch.setattr(build, "_build", rebuild)
    monkeypatch.setattr(build, "_import", lambda path: path)
    assert not build.is_built()
    assert build.load() == library and built == [library] and build.is_built()
    monkeypatch.setattr(build, "_module", None)
    assert build.load() == library and built == [library]
    assert library.read_bytes() == whole and not list(library.parent.glob("*.made"))


@pytest.mark.full
def test_a_damaged_runtime_is_built_again(moved, tmp_path):
    library = moved / runtime.library_path().relative_to(runtime.cache_root())
    whole = library.read_bytes()
    library.write_bytes(whole[: len(whole) // 2])
    use(moved, tmp_path)
    assert library.stat().st_size == len(whole)


def test_a_device_that_does_not_build_is_not_passed_over(moved, monkeypatch):
    """torch builds once a process: when asked again after a failure it would load the file of an older build."""
    from torch.utils import cpp_extension

    monkeypatch.setenv("SOFTMETAL_CACHE", str(moved))
    older = build._objects(runtime.build_directory()) / "softmetal_device.so"
    assert older.exists()
    calls = []

    def load(name, files, **kwargs):
        calls.append(name)
        if len(calls) == 1:
            raise RuntimeError("error in native.cpp")
        return "an older build"

    monkeypatch.setattr(cpp_extension, "load", load)
    monkeypatch.setattr(build, "_digest", lambda: "another")
    monkeypatch.setattr(build, "_module", None)
    monkeypatch.setattr(build, "_failure", None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"error in native\.cpp"):
            build.load()
    assert len(calls) == 1 and not older.exists() and not build._library().exists()


class TestPytestByItself:
    """Without `make`, pytest compiles the device before the first test, whose time limit is too short for that."""

    @pytest.fixture
    def commands(self, request, monkeypatch):
        conftest = request.config.pluginmanager.getplugin(str(TESTS / "conftest.py"))
        made = []
        monkeypatch.setattr(conftest.subprocess, "run", lambda command, **_: made.append(command))

        def of(*paths, listing=False):
            made.clear()
            option = SimpleNamespace(collectonly=listing)
            config = SimpleNamespace(option=option, pluginmanager=request.config.pluginmanager)
            items = [SimpleNamespace(path=TESTS / path) for path in paths]
            assert conftest.pytest_runtestloop(SimpleNamespace(config=config, items=items)) is None
            return made

        return of

    def test_when(self, commands):
        prepared = [[sys.executable, str(TESTS / "prepare.py"), "--if-needed"]]
        assert commands("softmetal/tests/test_cache.py") == prepared
        assert commands("house/test_layout.py", "metal_kernels/test_load.py") == prepared
        assert commands("house/test_layout.py") == []  # needs no device
        assert commands() == []  # the process that only hands tests to its workers
        assert commands("softmetal/tests/test_cache.py", listing=True) == []

    def test_at_no_cost_when_it_is_built(self):
        code = ("import sys; sys.argv.append('--if-needed'); import runpy; "
                "runpy.run_path(sys.argv[1], run_name='__main__'); print('torch' in sys.modules)")
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        done = subprocess.run([sys.executable, "-c", code, str(TESTS / "prepare.py")], env=environment,
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        assert (done.stdout.strip(), done.stderr) == ("False", "")
