"""metal_kernels.ops, with nothing patched."""

import importlib

import pytest


@pytest.fixture
def ops(core, mps):
    core.face.uninstall()
    return importlib.import_module(f"{core.face.__name__}.ops")
