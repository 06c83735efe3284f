"""What is known of this machine: obstacles in one sentence, the table of torch releases, and torches that are newer."""

import importlib
import platform
import sys

import pytest
import torch


@pytest.fixture
def machine(monkeypatch):
    """machine(...): make this process look like another machine to environment.detect()."""

    def set_up(
        version="2.13.0", system="Darwin", arch="arm64", macos="15.5", available=True, built=True, cuda=None, hip=None
    ):
        monkeypatch.setattr(torch, "__version__", version)
        monkeypatch.setattr(sys, "platform", "darwin" if system == "Darwin" else system.lower())
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: arch)
        monkeypatch.setattr(platform, "mac_ver", lambda *a, **k: (macos, ("", "", ""), arch if macos else ""))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: available)
        monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
        monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M2 Max", raising=False)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)

    return set_up


NOWHERE = dict(macos="", available=False, built=False)
OBSTACLES = {
    "Linux": (
        dict(system="Linux", arch="x86_64", **NOWHERE),
        "This is Linux; these kernels are for Apple's MPS device, which needs macOS on Apple silicon.",
    ),
    "Windows": (
        dict(system="Windows", arch="AMD64", **NOWHERE),
        "This is Windows; these kernels are for Apple's MPS device, which needs macOS on Apple silicon.",
    ),
    "CUDA": (
        dict(system="Linux", arch="x86_64", cuda="12.8", **NOWHERE),
        "This machine computes on CUDA 12.8; these kernels are for Apple's MPS device only.",
    ),
    "ROCm": (
        dict(system="Linux", arch="x86_64", hip="6.4", **NOWHERE),
        "This machine computes on ROCm 6.4; these kernels are for Apple's MPS device only.",
    ),
    "Intel Mac": (
        dict(arch="x86_64"),
        "This Python is built for Intel Macs; these kernels need Apple silicon and a Python built for arm64.",
    ),
    "macOS 14": (dict(macos="14.7.1"), "macOS 14.7.1 is older than 15, the oldest that these kernels support."),
    "torch 2.8": (
        dict(version="2.8.0"),
        "torch 2.8.0 is older than 2.9, the oldest that these kernels support.",
    ),
    "torch 2.7 on Linux": (
        dict(version="2.7.1+cu126", system="Linux", arch="x86_64", **NOWHERE),
        "torch 2.7.1+cu126 is older than 2.9, the oldest that these kernels support.",
    ),
    "no MPS in this torch": (
        dict(available=False, built=False),
        "This torch is built without MPS; install the arm64 macOS build of torch.",
    ),
    "no MPS device": (
        dict(available=False),
        "This torch finds no MPS device (torch.backends.mps.is_available() is False).",
    ),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_nothing_is_patched_and_status_says_why(core, make_kernel, machine, case):
    setting, sentence = OBSTACLES[case]
    machine(**setting)
    installation = core.installation.Installation([make_kernel(name="pad")])
    installation.install()
    try:
        assert installation.patcher.overrides == {}
        assert installation.switches["pad"].state == ("unavailable", sentence)
        report = core.report.status(installation)
        assert report["environment"]["obstacle"] == sentence
        assert report["text"].count(sentence.rstrip(".")) >= 1
        installation.set_mode(pad="on")
        with installation.registered("pad"):
            installation.set_workflow({"pad": "on"})
        assert installation.patcher.overrides == {}, "nothing that a user sets may patch here"
        assert installation.switches["pad"].state == ("unavailable", sentence)
    finally:
        installation.uninstall()


def test_status_says_why_before_install_too(core, make_kernel, machine):
    machine(macos="14.0")
    installation = core.installation.Installation([make_kernel(name="pad")])
    assert core.report.status(installation)["kernels"]["pad"]["state"] == "unavailable"


@pytest.mark.parametrize("version", ["2.9.0", "2.9.1", "2.12.0", "2.13.0+cpu", "2.15.0"])
def test_supported(core, machine, version):
    machine(version)
    found = core.environment.detect()
    assert found.obstacle is None and found.untested is None
    assert (found.chip, found.device, found.macos) == ("Apple M2 Max", "Apple GPU", "15.5")


def test_mps_outside_macos_is_the_software_device(core, machine):
    machine(system="Linux", arch="x86_64")
    found = core.environment.detect()
    assert found.device == "software Metal" and found.obstacle is None


@pytest.mark.parametrize("version", ["2.16.0", "2.16.0.dev20261201", "2.16.0a0+git1234567", "3.0"])
def test_a_newer_torch_is_taken_for_the_newest_row_and_said_to_be_untested(core, make_kernel, machine, version):
    machine(version)
    found = core.environment.detect()
    assert found.obstacle is None
    assert found.untested == f"untested with torch {'.'.join(version.split('.')[:2])}"
    assert found.stock("pad") == core.environment.TABLE["pad"][2, 15]
    installation = core.installation.Installation([make_kernel(name="pad")], environment=found)
    assert found.untested in core.report.status(installation)["notes"]


def test_the_table(core, machine):
    """Spot checks against the table that the families were planned by; every row begins at the floor."""
    for feature, row in core.environment.TABLE.items():
        assert min(row) == core.environment.FLOOR_TORCH and max(row) <= core.environment.NEWEST, feature
        assert list(row) == sorted(row), feature
    expected = {
        "pad": {"2.9": False, "2.13": False, "2.14": None, "2.15": True},
        "softmax": {"2.14": False, "2.15": True},
        "linear_one_row": {"2.13": False, "2.14": False, "2.15": True},
        "linear_few_rows": {"2.15": False},
        "grouped_mm": {"2.14": False, "2.15": True},
        "float8_e4m3fn": {"2.9": False, "2.14": False, "2.15": True},
        "float8_e5m2": {"2.15": False},
        "scaled_mm": {"2.15": False},
        "scaled_mm_v2": {"2.9": False, "2.15": False},
        "peak_statistics": {"2.12": False, "2.13": True},
    }
    for feature, cells in expected.items():
        for version, good in cells.items():
            machine(f"{version}.0")
            assert core.environment.detect().stock(feature).good is good, (feature, version)


@pytest.mark.parametrize(
    ("text", "parsed"), [("2.13.0+cpu", (2, 13)), ("15.5", (15, 5)), ("26", (26, 0)), ("", (0, 0)), ("unknown", (0, 0))]
)
def test_versions(core, text, parsed):
    assert core.environment.parse_version(text) == parsed


def test_no_other_file_knows_versions_or_torchs_private_corners(core):
    """A line of code knows its room (the rooms are in the house rules of the pack)."""
    from pathlib import Path

    rooms = {
        "torch.__version__": {"environment.py", "__main__.py"},
        "mps.compile_shader": {"shader.py"},
        "torch.library": {"patcher.py", "define.py"},
    }
    folder = Path(importlib.import_module(core.face.__name__).__file__).parent
    for path in folder.rglob("*.py"):
        code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
        for words, allowed in rooms.items():
            assert words not in code or path.name in allowed, f"{path.name} mentions {words}"


class TestProbe:
    """Where the table cannot tell, stock is asked at the first call that `auto` would take."""

    @pytest.fixture
    def probed(self, core, make_kernel):
        def make(patch):
            asked = []

            def probe():
                asked.append(core.selfcheck.running())
                return core.kernel.Need(patch, "probed")

            kernel = make_kernel(name="pad")
            need = core.kernel.Need(True, "to be probed", probe=probe)
            return core.kernel.Kernel("pad", "t", kernel.patches, lambda e: need, kernel.selfcheck, "r"), asked

        return make

    @pytest.mark.parametrize("patch", [True, False])
    def test_asked_once_and_quietly(self, install, probed, mps, took, patch):
        kernel, asked = probed(patch)
        installation = install(kernel)
        assert asked == []
        for _ in range(2):
            assert took(torch.constant_pad_nd(torch.zeros(1, device=mps), (1, 1))) is patch
        assert asked == [True]
        assert installation.switches["pad"].state == ("patched" if patch else "stock", "probed")

    def test_on_does_not_ask(self, install, probed, mps, took):
        kernel, asked = probed(False)
        installation = install(kernel)
        installation.set_mode(pad="on")
        x = torch.zeros(1, device=mps)
        assert took(torch.constant_pad_nd(x, (1, 1))) and asked == []
        installation.set_mode(pad="auto")
        assert not took(torch.constant_pad_nd(x, (1, 1))) and asked == [True]
