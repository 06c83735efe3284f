"""One ComfyUI for all tests here. COMFYUI_PATH names its checkout; `make test-comfyui` sets it."""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fp8.harness import (  # noqa: E402, F401  (fixtures)
    elsewhere,
    encoders_on_mps,
    fp8_models,
    macs,
    on_the_cpu,
    small_mac,
    wide,
)


@pytest.fixture(scope="session")
def comfyui_path():
    """The checkout."""
    path = os.environ.get("COMFYUI_PATH", "")
    if not path:
        pytest.skip("needs a ComfyUI and COMFYUI_PATH is not set: make test-comfyui COMFYUI_PATH=/path/to/ComfyUI")
    if not Path(path, "main.py").is_file():
        pytest.fail(f"COMFYUI_PATH={path!r} holds no ComfyUI: make test-comfyui COMFYUI_PATH=/path/to/ComfyUI")
    return path


@pytest.fixture(scope="session")
def comfyui(comfyui_path):
    """One server for all tests, on a stock with the faults of torch 2.13.

    Its execution cache keeps what earlier prompts made, as ComfyUI's default does where there is memory to spare.
    """
    from server import running

    with running(comfyui_path, arguments=["--cache-lru", "100"]) as server:
        yield server


@pytest.fixture
def client(comfyui):
    from client import connected

    with connected(comfyui) as browser:
        yield browser


@pytest.fixture
def left_as_found(comfyui):
    """Nothing is left switched, registered or taken out by the test."""
    before = comfyui.get("/test/state")["registered"]
    yield
    state = comfyui.get("/test/state")
    assert state["workflow"] == {} and state["registered"] == before and "pad" in before
