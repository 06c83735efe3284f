"""The stand-in for ComfyUI's node API, and the pack loaded through it."""
import sys

import pytest
from pack import NAME, STANDIN, load_as_comfyui
from switch_world import executor, world  # noqa: F401  (fixtures)


@pytest.fixture(autouse=True)
def no_extensions():
    """What a test added to the library's installation is forgotten after it, or a later test's `install()` would put
    it in again."""
    yield
    kernels = getattr(sys.modules.get(NAME), "metal_kernels", None)
    for extension in getattr(kernels, "_installation", None) and kernels._installation.extensions or ():
        kernels.remove_extension(extension)


@pytest.fixture
def comfy_api(monkeypatch):
    """`import comfy_api` gives the stand-in of this folder."""
    monkeypatch.syspath_prepend(STANDIN)


@pytest.fixture
def loaded(comfy_api):
    """(pack, {node id: node class}) after what ComfyUI does at start; the kernels are taken out again."""
    pack, nodes = load_as_comfyui()
    yield pack, {node.GET_SCHEMA().node_id: node for node in nodes}
    pack.metal_kernels.uninstall()
