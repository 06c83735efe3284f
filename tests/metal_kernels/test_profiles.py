"""The whole library on each torch that the software device can present: what auto decides, and one pad of each."""

import sys

import pytest
import torch
import torch.nn.functional as F

EXPECTED = {
    "2.9": ("patched", "MPSGraph pads wrongly"),
    "2.12": ("patched", "MPSGraph pads wrongly"),
    "2.13": ("patched", "MPSGraph pads wrongly"),
    "2.14": ("patched", "to be probed"),
    "2.15": ("stock", "a Metal kernel of its own"),
}


@pytest.fixture
def present(core):
    """present(faults, **machine): the software device as that torch on that machine, with the library not installed."""
    if sys.platform == "darwin":
        pytest.skip("a Mac shows its own torch only")
    import softmetal

    def set_up(faults=None, **machine):
        core.face.uninstall()
        core.face.reset_counters()
        softmetal.activate(faults=faults, **machine)

    yield set_up
    core.face.uninstall()
    softmetal.activate()


def pad_is_right():
    x = torch.arange(1.0, 4 * 64 * 1024 + 1).reshape(1, 1, 4, 256, 256)
    return torch.equal(F.pad(x.to("mps"), (0, 0, 0, 0, 2, 0)).cpu(), F.pad(x, (0, 0, 0, 0, 2, 0)))


@pytest.mark.parametrize("faults", EXPECTED)
def test_auto_patches_what_this_torch_needs(core, present, faults):
    present(faults)
    core.face.install()
    pad = core.face.status()["kernels"]["pad"]
    state, reason = EXPECTED[faults]
    assert pad["state"] == state and reason in pad["reason"]
    assert core.face.status()["environment"]["torch"].startswith(faults)
    assert pad_is_right()
    pad = core.face.status()["kernels"]["pad"]
    if faults == "2.14":
        assert pad["reason"].startswith("probed: ")
    assert pad["ops"]["constant_pad_nd"]["taken"] == (1 if pad["state"] == "patched" else 0)
    with core.face.using(pad="off"):
        assert pad_is_right() is (pad["state"] == "stock"), "stock's fault and the decision to patch go together"


def test_on_patches_a_torch_that_needs_nothing(core, present):
    present("2.15")
    core.face.install()
    core.face.set_mode(pad="on")
    try:
        assert core.face.status()["kernels"]["pad"]["state"] == "patched" and pad_is_right()
        assert core.face.taken()["pad"] > 0
    finally:
        core.face.set_mode(pad="auto")


def test_an_old_macos_is_left_alone(core, present):
    present("2.13", macos="14.7")
    core.face.install()
    assert core.face.registered_now() == ()
    assert core.face.status()["environment"]["obstacle"].startswith("macOS 14.7 is older than 15")
