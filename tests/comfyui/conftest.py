"""One ComfyUI for all tests here. COMFYUI_PATH names its checkout; `make test-comfyui` sets it."""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def comfyui():
    from server import running

    path = os.environ.get("COMFYUI_PATH", "")
    if not Path(path, "main.py").is_file():
        pytest.fail(f"COMFYUI_PATH={path!r} holds no ComfyUI: make test-comfyui COMFYUI_PATH=/path/to/ComfyUI")
    with running(path) as server:
        yield server
