"""The cache of compiled things: used again, moved elsewhere, damaged, and filled before a suite's first test."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("damage", [
    "cut", "other bytes", *(pytest.param(name, marks=pytest.mark.full) for name in ("empty", "gone", "digest gone"))
])
def test_a_damaged_device_is_linked_again(moved, tmp_path, damage):
    """The objects are there still: nothing is compiled anew."""
    library = moved / build._library().relative_to(runtime.cache_root())
    whole = library.read_bytes()
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
    objects = {file: time for file, time in compiled(moved).items() if file.suffix == ".o"}
    assert "building the mps device" in use(moved, tmp_path)
    assert {file: time for file, time in compiled(moved).items() if file.suffix == ".o"} == objects
    assert library.read_bytes()[:4] == b"\x7fELF" and library.stat().st_size == len(whole)


@pytest.mark.full
def test_a_damaged_runtime_is_built_again(moved, tmp_path):
    library = moved / runtime.library_path().relative_to(runtime.cache_root())
    whole = library.read_bytes()
    library.write_bytes(whole[: len(whole) // 2])
    use(moved, tmp_path)
    assert library.stat().st_size == len(whole)


def test_a_device_that_does_not_build_is_not_passed_over(moved, tmp_path):
    """An older build lies in the same folder: it must not be taken for the new one, at the second attempt either."""
    code = f"""
import pathlib, softmetal
from softmetal.device import build
from softmetal.frontend import toolchain
broken = pathlib.Path({str(tmp_path)!r}) / "broken.cpp"
broken.write_text("no C++")
known = build.sources()
build.sources = lambda: [*known, broken]
build._digest = lambda: "another"
for _ in range(2):
    try:
        softmetal.activate()
    except RuntimeError as error:
        print("broken.cpp" in str(error))
"""
    environment = {**os.environ, "SOFTMETAL_CACHE": str(moved), "PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=280)
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert not list(moved.rglob("softmetal_device-another.so"))


def test_pytest_by_itself_compiles_before_the_first_test(moved, tmp_path):
    """The time limit of a test is too short for it on a loaded machine. Listing tests compiles nothing."""
    library = moved / build._library().relative_to(runtime.cache_root())
    library.unlink()
    environment = {**os.environ, "SOFTMETAL_CACHE": str(moved)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
               f"{TESTS}/softmetal/tests/test_device_activation.py::test_the_profiler_calls_do_nothing"]
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "building the mps device" in done.stderr and library.exists()
    environment["SOFTMETAL_CACHE"] = str(tmp_path / "no")
    collected = subprocess.run([*command, "--collect-only"], env=environment, cwd=TESTS.parent, capture_output=True,
                               text=True, timeout=280)  # fmt: skip
    assert collected.returncode == 0 and not (tmp_path / "no").exists()
