"""The executor's stand-in, for tests without ComfyUI: `with standin() as comfyui` makes its modules importable."""
import asyncio
import importlib
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).resolve().parent / "nodes" / "executor_standin"
MODULES = ("comfy_execution", "comfy_execution.progress", "comfy_execution.utils", "execution")


@contextmanager
def standin():
    """Fresh modules each time; what was importable under their names before is so again afterwards."""
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        modules = [importlib.import_module(name) for name in MODULES]
        yield SimpleNamespace(progress=modules[1], utils=modules[2], execution=modules[3])
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def run(executor, prompt, prompt_id="p1", extra_data=None):
    """One prompt, as PromptExecutor.execute runs it."""
    asyncio.run(executor.execute_async(prompt, prompt_id, extra_data or {}, []))


def node(class_type, /, **inputs):
    """A node of a prompt."""
    return {"class_type": class_type, "inputs": inputs}
