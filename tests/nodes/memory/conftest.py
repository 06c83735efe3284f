"""The modules of nodes/memory, and a world in which every byte is set by hand."""
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from executor import standin
from pack import load

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture
def memory():
    """nodes.memory's modules by name."""
    name = f"{load().__name__}.nodes.memory"
    return SimpleNamespace(**{part: importlib.import_module(f"{name}.{part}") for part in (
        "advice", "calls", "canvas", "chart", "deliver", "footprint", "meter", "now", "report", "series", "session",
        "source", "units")})


@pytest.fixture
def toys(memory):
    """A source, a clock and kernel counters; `session(**nodes)` makes a Session on them."""
    from memory_toys import Toys

    return Toys(memory)


@pytest.fixture
def world(memory, toys, monkeypatch):
    """The stand-in executor, hooked, with one fresh meter as its only listener."""
    hooks = load().nodes.execution
    delivered = []
    meter = memory.meter.Meter(toys.make_source, lambda: toys.obstacle, toys, interval=toys.interval,
                               deliver=delivered.append)
    monkeypatch.setattr(memory.now, "meter", meter)
    monkeypatch.setattr(hooks, "_listeners", [meter])
    monkeypatch.setattr(hooks, "_complained", set())
    hooks.uninstall()
    monkeypatch.setitem(hooks._state, "drop_cache", False)
    with standin() as comfyui:
        hooks.install()
        yield SimpleNamespace(hooks=hooks, comfyui=comfyui, meter=meter, delivered=delivered, now=memory.now, toys=toys)
        hooks.uninstall()
    assert toys.watcher is None, "patched calls are still watched"
    assert meter.session()[0] is None and meter._thread is None
