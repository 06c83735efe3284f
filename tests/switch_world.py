"""The stand-in executor with a fresh governor and a stand-in kernel library: what the tests of the switch share."""
import asyncio
import importlib
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from executor import node, standin
from pack import load


class Library:
    """Stands for the kernel library: two kernels, their layer, what is registered, what was taken."""

    def __init__(self):
        self.layer, self.history, self.held, self.counts = {}, [], set(), {"pad": 0, "softmax": 0}
        self.process = {"pad": "auto", "softmax": "auto"}
        self.patched = {"pad"}
        self.need = {"pad"}

    def names(self):
        return "pad", "softmax"

    def set_workflow(self, settings):
        self.layer = dict(settings)
        self.history.append(self.layer)

    @contextmanager
    def hold(self, kernels):
        self.held = set(kernels)
        yield
        self.held = set()

    def registered(self):
        return tuple(sorted(self.patched | self.held))

    def needed(self):
        return tuple(self.need)

    def modes(self):
        return dict(self.process)

    def taken(self):
        return dict(self.counts)


@pytest.fixture
def world(monkeypatch):
    """The stand-in executor, hooked, with one fresh governor as its only listener and a stand-in library."""
    pack = load()
    hooks = pack.nodes.execution
    state = importlib.import_module(f"{pack.__name__}.nodes.switch.state")
    library, governor = Library(), state.Governor()
    for name in ("names", "set_workflow", "hold", "registered", "needed", "modes", "taken"):
        monkeypatch.setattr(state.kernels, name, getattr(library, name))
    monkeypatch.setattr(state, "governor", governor)
    monkeypatch.setattr(hooks, "_listeners", [governor])
    monkeypatch.setattr(hooks, "_complained", set())
    hooks.uninstall()
    monkeypatch.setitem(hooks._state, "drop_cache", False)
    with standin() as comfyui:
        hooks.install()
        yield SimpleNamespace(hooks=hooks, state=state, library=library, governor=governor, comfyui=comfyui)
        hooks.uninstall()
    assert library.layer == {}, "something is left switched"
    assert library.held == set(), "something is left registered"


@pytest.fixture
def executor(world):
    """Node classes: the switch, `See` (notes the layer it runs under), `Pad` (takes two calls), `Fail`, `Cancel`..."""
    seen, library = {}, world.library

    def see(executor, node_id, item):
        seen.setdefault(node_id, []).append(dict(library.layer))

    def pad(executor, node_id, item):
        library.counts["pad"] += 2

    def fail(executor, node_id, item):
        see(executor, node_id, item)
        library.counts["pad"] += 3
        raise ValueError("no")

    def cancel(executor, node_id, item):
        see(executor, node_id, item)
        raise world.comfyui.execution.Interrupted

    async def wait(executor, node_id, item):
        see(executor, node_id, item)
        await asyncio.sleep(0.02)
        see(executor, node_id, item)

    def switch(executor, node_id, item):
        inputs = executor.graph.get_node(node_id)["inputs"]
        linked = item or {}
        values = {name: linked.get(name, inputs[name]) for name in ("pad", "softmax") if name in inputs}
        world.governor.switch_ran(values)
        text = world.state.as_text(values)
        executor.caches.outputs.entries[node_id] = SimpleNamespace(outputs=[[1], [text]])

    def expand(executor, node_id, item):
        return executor.graph.get_node(node_id)["inputs"]["makes"]

    made = world.comfyui.execution.PromptExecutor({
        "MetalKernelsSwitch": switch, "See": see, "Pad": pad, "Fail": fail, "Cancel": cancel, "Wait": wait,
        "Expand": expand, "Text": lambda executor, node_id, item: None})
    made.seen = seen
    return made


def switch(source=None, **inputs):
    return node("MetalKernelsSwitch", value=[source, 0] if source else 1, **inputs)


def under(class_type, *sources, **inputs):
    return node(class_type, **{f"in{i}": [source, 0] for i, source in enumerate(sources)}, **inputs)
