"""What users install: the registry's metadata, the packed files, and the registry's own standards."""
import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
from pack import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def tracked():
    """The files git tracks, with / between folders. A file deleted but not yet committed is left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def packed():
    """What `comfy node publish` packs: the tracked files less those of .comfyignore."""
    lines = (line.strip() for line in (ROOT / ".comfyignore").read_text().splitlines())
    patterns = [line for line in lines if line and not line.startswith("#")]

    def ignored(name):
        return any(name.startswith(p) if p.endswith("/") else fnmatch.fnmatch(name, p) for p in patterns)

    return [name for name in tracked() if not ignored(name)]


def test_nothing_for_the_manager_to_install():
    assert not (ROOT / "requirements.txt").exists(), "ComfyUI-Manager installs this into users' environments"
    assert not (ROOT / "install.py").exists(), "ComfyUI-Manager runs this on users' machines"
    assert PROJECT["project"]["dependencies"] == []


def test_registry_metadata():
    project, comfy = PROJECT["project"], PROJECT["tool"]["comfy"]
    assert project["name"] == "metal-kernels"
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert project["license"] == "MIT" and (ROOT / "LICENSE").read_text().startswith("MIT License")
    assert project["requires-python"] == ">=3.11"
    assert "Operating System :: MacOS" in project["classifiers"]
    environments = [c for c in project["classifiers"] if c.startswith("Environment ::")]
    assert environments == ["Environment :: GPU :: Apple Metal"], "one wrong entry voids the list"
    assert project["urls"]["Repository"].startswith("https://")
    assert (comfy["PublisherId"], comfy["DisplayName"]) == ("metal-kernels", "Metal Kernels")
    assert comfy["requires-comfyui"] == ">=0.30"


def test_the_icon_is_in_the_repository():
    repository, icon = PROJECT["project"]["urls"]["Repository"], PROJECT["tool"]["comfy"]["Icon"]
    path = icon.split(repository.removeprefix("https://github.com/") + "/main/", 1)[1]
    assert (ROOT / path).read_text().startswith("<svg")


def test_the_changelog_names_this_version():
    assert f"## {PROJECT['project']['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_packed_files():
    names = packed()
    for wanted in ("__init__.py", "LICENSE", "README.md", "pyproject.toml", "nodes/__init__.py", "nodes/status/node.py",
                   "metal_kernels/__init__.py", "metal_kernels/pad/pad.metal", "js/docs/MetalKernelsStatus.md"):
        assert wanted in names, wanted
    assert not [name for name in names if name.split("/")[0] in ("tests", ".ci", ".github", "out", ".venv")]
    metal = [name for name in tracked() if name.endswith(".metal") and not name.startswith("tests/")]
    assert set(metal) <= set(names)


def test_a_wheel_holds_the_library_and_its_metal_sources(tmp_path):
    source = tmp_path / "source"
    for name in packed():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
                           "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    held = zipfile.ZipFile(next(tmp_path.glob("metal_kernels-*.whl"))).namelist()
    assert "metal_kernels/pad/pad.metal" in held and "metal_kernels/patcher.py" in held
    assert not [name for name in held if name.split("/")[0] in ("nodes", "tests", "js")]


def test_registry_standards():
    """No exec, no eval, one statement a line: what `comfy node validate` asks ruff."""
    python = [name for name in packed() if name.endswith(".py")]
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", "--select", "S102,S307,E702", *python],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--output-format", "concise", "."],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("what, pattern", [
    ("a path of the machine it was written on", "/" + "(work|root|home)" + r"/\w|/" + r"tmp/\w"),
    ("the host of a package registry",
     r"pypi\." + r"org|python" + r"hosted\.org|npm" + r"js\.|download\." + r"pytorch"),
])
def test_no_line_names(what, pattern):
    found = []
    for name in tracked():
        try:
            lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if re.search(pattern, line)]
    assert not found, f"{what}:\n" + "\n".join(found)
