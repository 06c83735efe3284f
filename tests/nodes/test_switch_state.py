"""The switch at run time: the workflow layer round each call of a node, whatever becomes of the prompt."""
import asyncio
import importlib
import logging
import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from executor import node, run, standin
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


def test_the_layer_is_there_for_the_governed_nodes_alone(world, executor):
    run(executor, {"a": node("See"), "S": switch("a", pad="off"), "b": under("See", "S"), "c": under("See", "a")})
    assert executor.seen == {"a": [{}], "b": [{"pad": "off"}], "c": [{}]}
    assert world.library.history == [{"pad": "off"}, {}]


@pytest.mark.parametrize("last", ["Fail", "Cancel"])
def test_nothing_is_left_switched_after_a_failure_or_an_interrupt(world, executor, last):
    run(executor, {"S": switch(pad="off"), "b": under(last, "S")})
    assert executor.seen == {"b": [{"pad": "off"}]} and world.library.layer == {}


def test_nothing_is_left_switched_when_an_async_node_outlives_its_prompt(world, executor):
    run(executor, {"S": switch(pad="off"), "w": under("Wait", "S"), "f": node("Fail")})
    assert executor.status_messages[-1][0] == "execution_error" and world.library.layer == {}


def test_every_item_of_a_list(world, executor):
    run(executor, {"S": switch(pad="off"), "b": under("See", "S", items=[1, 2, 3]), "c": node("See")})
    assert executor.seen == {"b": [{"pad": "off"}] * 3, "c": [{}]}


def test_a_linked_value_is_what_the_switch_was_given(world, executor):
    run(executor, {"t": node("Text"), "S": switch(pad=["t", 0], softmax="on", items=[{"pad": "off"}]),
                   "b": under("See", "S")})
    assert executor.seen == {"b": [{"pad": "off", "softmax": "on"}]}


def test_a_linked_value_of_a_cached_switch_is_read_from_its_cached_output(world, executor):
    prompt = {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": "off"}]), "b": under("See", "S")}
    run(executor, prompt)
    run(executor, prompt)
    assert executor.seen["b"] == [{"pad": "off"}] * 2
    executor.caches.outputs.entries["S"] = SimpleNamespace(outputs=[[1], ["pad=on"]])
    run(executor, prompt)
    assert executor.seen["b"][-1] == {"pad": "on"}, "this prompt's cache, not what was last seen"


def test_a_cached_switch_is_read_before_memory_pressure_drops_it(world, executor):
    prompt = {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": "off"}]), "b": under("See", "S")}
    run(executor, prompt)
    executor.functions["Text"] = lambda executor, node_id, item: executor.caches.outputs.entries.clear()
    run(executor, {"S": prompt["S"], "t": prompt["t"], "b": prompt["b"]})
    assert executor.seen["b"] == [{"pad": "off"}] * 2


def test_without_an_execution_cache_a_linked_value_is_known_all_the_same(world, executor):
    executor.functions["See"] = lambda e, n, i: executor.seen.setdefault(n, []).append(dict(world.library.layer))
    stock = executor.functions["MetalKernelsSwitch"]

    def uncached(executor, node_id, item):
        stock(executor, node_id, item)
        executor.caches.outputs.entries.clear()

    executor.functions["MetalKernelsSwitch"] = uncached
    run(executor, {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": "off"}]), "b": under("See", "S")})
    assert executor.seen == {"b": [{"pad": "off"}]}


def test_beyond_a_lazy_input_a_linked_value_never_counts_whoever_has_run_the_switch(world, executor, monkeypatch):
    """Else the same cache key would stand for different results."""
    monkeypatch.setattr(world.hooks.Prompt, "is_lazy", lambda prompt, node_id, name: name == "lazy")
    prompt = {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": "off"}]), "a": under("See", "S"),
              "z": node("See", lazy=["S", 0])}
    for warm in False, True:
        executor.caches.outputs.entries = {"S": executor.caches.outputs.entries["S"]} if warm else {}
        run(executor, prompt)
        assert executor.seen == {"a": [{"pad": "off"}], "z": [{}]}
        (conflict,) = world.governor.conflicts()
        assert conflict["kind"] == "lazy" and conflict["text"] == (
            "See (#z) does not follow MetalKernelsSwitch (#S), whose values come by a link and which is beyond a lazy "
            "input: it may never run.")
        executor.seen.clear()


def test_an_unknown_linked_value_stops_the_graph_and_is_named(world, executor):
    run(executor, {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": "maybe"}]), "b": under("See", "S")})
    event, data = executor.status_messages[-1]
    assert event == "execution_error" and data["node_id"] == "S"
    assert data["exception_message"].strip() == (
        "pad of the Metal Kernels Switch is 'maybe': it must be auto, on or off.")
    assert executor.seen == {}


def test_a_list_of_different_values_is_an_error(world, executor):
    run(executor, {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": "on"}, {"pad": "off"}])})
    event, data = executor.status_messages[-1]
    assert event == "execution_error" and data["exception_message"].strip() == (
        "MetalKernelsSwitch (#S) was given a list of different values (pad=on, then pad=off): a switch governs with "
        "one set of values. Use one switch for each.")


def test_a_list_of_equal_values_is_none(world, executor):
    run(executor, {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": "on"}] * 2), "b": under("See", "S")})
    assert executor.seen == {"b": [{"pad": "on"}]}


def test_the_next_prompt_may_give_the_same_switch_another_value(world, executor):
    for value in "on", "off":
        executor.caches.outputs.entries.clear()
        run(executor, {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": value}]), "b": under("See", "S")})
    assert executor.seen["b"] == [{"pad": "on"}, {"pad": "off"}]


def test_async_nodes_that_overlap_under_different_switches_get_the_defaults(world, executor):
    run(executor, {"S": switch(pad="off"), "T": switch(pad="on"), "w": under("Wait", "S"), "b": under("See", "T"),
                   "c": under("See", "S", join=["w"])})
    assert executor.seen == {"w": [{"pad": "off"}, {}], "b": [{}], "c": [{"pad": "off"}]}
    found = {conflict["node"]: conflict for conflict in world.governor.conflicts()}
    assert set(found) == {"w", "b"} and found["w"]["kind"] == "overlap" and found["w"]["others"] == ["b"]
    assert found["b"]["text"] == ("See (#b) ran at the same time as Wait (#w), under different switches: the defaults "
                                  "apply to it.")


def test_what_async_nodes_made_while_they_overlapped_is_served_to_no_later_prompt(world, executor):
    prompt = {"S": switch(pad="off"), "w": under("Wait", "S"), "b": node("See"), "c": under("See", "w", join=["w"]),
              "E": under("Expand", "c", makes={"E.1": under("See", "c"), "E.2": node("See")})}
    run(executor, prompt)
    assert {conflict["node"] for conflict in world.governor.conflicts()} == {"w", "b"}
    keys = executor.caches.outputs.cache_key_set.keys
    assert {node_id for node_id, key in keys.items() if key != node_id} == {"w", "c", "E"}, "b ran as it should"
    assert world.governor._sessions == []
    alone = {"S": prompt["S"], "w": prompt["w"]}
    run(executor, alone)
    assert set(executor.caches.outputs.cache_key_set.keys.items()) == {("S", "S"), ("w", "w")}


def test_a_cache_key_made_after_an_overlap_says_so_of_what_is_upstream(world, executor):
    marks = {}
    executor.functions["Text"] = lambda *_: marks.update(
        {node_id: world.governor._session.cache_mark(node_id) for node_id in ("w", "b", "c")})
    run(executor, {"S": switch(pad="off"), "w": under("Wait", "S"), "b": node("See"),
                   "c": under("See", "w", join=["w"]), "t": node("Text")})
    assert math.isnan(marks["w"]) and math.isnan(marks["c"]) and marks["b"] == ""


def test_async_nodes_that_overlap_under_one_switch_keep_it(world, executor):
    run(executor, {"S": switch(pad="off"), "w": under("Wait", "S"), "v": under("Wait", "S"), "b": under("See", "S")})
    assert executor.seen == {"w": [{"pad": "off"}] * 2, "v": [{"pad": "off"}] * 2, "b": [{"pad": "off"}]}
    assert world.governor.conflicts() == []


def test_a_switch_that_runs_beside_an_async_node_is_no_conflict(world, executor):
    run(executor, {"S": switch(pad="off"), "w": under("Wait", "S"), "T": switch(pad="on"), "b": under("See", "S")})
    assert executor.seen["w"] == [{"pad": "off"}] * 2 and world.governor.conflicts() == []


def test_conflicts_are_known_before_the_nodes_run_and_after_the_prompt(world, executor):
    during = []
    executor.functions["Text"] = lambda *_: during.extend(world.governor.conflicts())
    prompt = {"status": node("Text"), "S": switch(pad="off"), "T": switch(pad="on"), "b": under("See", "S", "T")}
    prompt["b"]["_meta"] = {"title": "Decode"}
    run(executor, prompt)
    assert executor.seen == {"b": [{}]}
    assert during == world.governor.conflicts() == [{
        "node": "b", "name": "Decode (#b)", "kind": "distance", "others": ["S", "T"],
        "text": "Decode (#b) is equally near to MetalKernelsSwitch (#S), MetalKernelsSwitch (#T), which disagree "
                "about pad: there the default applies."}]
    run(executor, {"b": node("See")})
    assert world.governor.conflicts() == []


def test_an_expansion_is_governed_and_its_cache_key_says_so(world, executor):
    makes = {"E.1": node("See"), "E.2": under("See", "E.1")}
    run(executor, {"S": switch(pad="off"), "E": under("Expand", "S", makes=makes)})
    assert executor.seen == {"E.1": [{"pad": "off"}], "E.2": [{"pad": "off"}]}
    assert executor.caches.outputs.keys == {"E.1": (False, "pad=off"), "E.2": (False, "pad=off")}
    run(executor, {"E": node("Expand", makes=makes)})
    assert executor.caches.outputs.keys == {"E.1": False, "E.2": False}


def test_a_switch_inside_an_expansion_governs_there(world, executor, caplog):
    run(executor, {"E": node("Expand", makes={"T": switch(pad="off", softmax="on"), "E.1": under("See", "T"),
                                              "E.2": node("See")})})
    assert executor.seen == {"E.1": [{"pad": "off"}], "E.2": [{}]}
    assert "says softmax=on; ops are registered before a graph runs" in caplog.text


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_switch_inside_an_expansion_does_the_same_whatever_another_has_registered(world, executor, caplog, mode):
    """The cache keys of what it governs know nothing of the other."""
    world.library.process, world.library.patched = {"pad": "off", "softmax": "off"}, set()
    inner = {"E": node("Expand", makes={"T": switch(pad=mode), "E.1": under("See", "T")})}
    for graph in inner, {"S": switch(pad="on"), "a": under("See", "S"), **inner}:
        caplog.clear()
        executor.caches.outputs.entries.clear()
        run(executor, graph)
        assert executor.seen.pop("E.1") == [{}] and f"says pad={mode}; ops are registered" in caplog.text
    assert executor.seen == {"a": [{"pad": "on"}]}


def test_what_a_switch_switches_on_or_takes_from_a_link_is_registered_for_the_prompt(world, executor):
    held = []
    executor.functions["See"] = lambda *_: held.append(set(world.library.held))
    for inputs, expected in [({"pad": "on"}, {"pad"}), ({"pad": "off", "softmax": "auto"}, set()),
                             ({"pad": "auto", "softmax": ["a", 0]}, {"pad", "softmax"}),
                             ({"pad": "auto", "softmax": "auto"}, {"pad"})]:
        executor.caches.outputs.entries.clear()
        run(executor, {"a": node("See"), "S": switch("a", items=[{"softmax": "on"}], **inputs)})
        assert held.pop() == expected and world.library.held == set()


def test_conflicts_are_of_this_prompt_even_where_it_is_not_followed(world, executor):
    world.library.patched = set()
    prompt = {"S": switch(pad="off"), "T": switch(pad="on"), "b": under("Pad", "S", "T")}
    run(executor, prompt)
    assert world.governor.conflicts() and world.governor.kernels_taken("b")
    during = []
    executor.functions["Text"] = lambda *_: during.append(world.governor.conflicts())
    run(executor, {"t": node("Text")})
    assert during == [[]] and world.governor.conflicts() == [] and world.governor.kernels_taken("b") == {}
    run(executor, prompt)
    world.hooks.uninstall()
    assert world.governor.conflicts() == [], "prompts go by unseen"


def test_a_node_that_runs_a_prompt_of_its_own(world, executor):
    """It has its own switches, and the outer one's setting is back when it ends."""
    inner = world.comfyui.execution.PromptExecutor(executor.functions)

    def nested(outer, node_id, item):
        import threading

        prompt = {"T": switch(pad="on"), "x": under("See", "T"), "y": node("See")}
        thread = threading.Thread(target=run, args=(inner, prompt, "p2"))
        thread.start()
        thread.join()
        executor.functions["See"](outer, node_id, item)

    executor.functions["Nested"] = nested
    run(executor, {"S": switch(pad="off"), "n": under("Nested", "S"), "b": under("See", "S"), "c": node("See")})
    assert executor.seen == {"x": [{"pad": "on"}], "y": [{}], "n": [{"pad": "off"}], "b": [{"pad": "off"}], "c": [{}]}


def test_a_prompt_without_a_switch_is_followed_only_where_a_kernel_is_registered(world, executor):
    wanted = world.governor.wanted
    assert wanted({"a": node("See")}) and wanted({"S": switch()})
    world.library.patched = set()
    assert not wanted({"a": node("See")}) and wanted({"S": switch()})


def test_kernels_taken_by_each_node(world, executor):
    during = []
    executor.functions["Text"] = lambda *_: during.append(world.governor.kernels_taken("a"))
    run(executor, {"a": node("Pad", items=[1, 2]), "b": node("See"), "c": node("Pad"), "t": node("Text")})
    taken = world.governor.kernels_taken
    assert (taken("a"), taken("b"), taken("c"), taken("gone")) == ({"pad": 4}, {}, {"pad": 2}, {})
    assert during == [{"pad": 4}]
    run(executor, {"b": node("See")})
    assert taken("a") == {}, "of the last prompt"


def test_a_node_error_lists_the_kernels_that_the_node_took(world, executor, caplog):
    run(executor, {"a": node("Pad"), "b": {**node("Fail"), "_meta": {"title": "Decode"}}})
    assert "Decode (#b) failed. Kernels of this pack that ran in it: pad (3 calls)." in caplog.text
    caplog.clear()
    executor.functions["Fail"] = lambda *_: 1 / 0
    run(executor, {"b": node("Fail")})
    assert "Fail (#b) failed. Kernels of this pack that ran in it: none." in caplog.text


def test_an_error_inside_an_expansion_is_told_of_the_node_that_the_user_sees(world, executor, caplog):
    run(executor, {"E": node("Expand", makes={"E.1": node("Pad"), "E.2": node("Fail")})})
    assert "Expand (#E) failed. Kernels of this pack that ran in it: pad (5 calls)." in caplog.text


def test_success_and_interrupt_say_nothing(world, executor, caplog):
    with caplog.at_level(logging.INFO):
        run(executor, {"a": node("Pad")})
        run(executor, {"a": node("Cancel")})
    assert caplog.records == []


def test_a_changed_default_drops_the_execution_cache_at_the_next_prompt(world, executor):
    run(executor, {"a": node("See")})
    kept = executor.caches
    run(executor, {"a": node("See")})
    assert executor.caches is kept
    world.library.process["pad"] = "off"
    run(executor, {"a": node("See")})
    dropped = executor.caches
    assert dropped is not kept
    run(executor, {"a": node("See")})
    assert executor.caches is dropped


def test_where_nothing_can_be_governed_the_switch_says_so_unless_it_has_nothing_to_say(world):
    world.hooks.uninstall()
    world.governor.switch_ran({"pad": "auto"})
    with pytest.raises(ValueError, match="Switch can switch nothing here: the hooks are not installed."):
        world.governor.switch_ran({"pad": "off"})


@pytest.mark.parametrize("seam", ["PromptExecutor", "ProgressRegistry"])
def test_a_prompt_that_cannot_be_followed_stops_at_its_switch(world, executor, monkeypatch, seam):
    if seam == "PromptExecutor":
        monkeypatch.setattr(world.hooks, "Prompt", None)
    else:
        monkeypatch.setattr(world.comfyui.progress.ProgressRegistry, "register_handler", None)
    prompt = {"S": switch(pad="off"), "b": under("See", "S")}
    run(executor, prompt)
    message = executor.status_messages[-1][1]["exception_message"].strip()
    assert message == ("The Metal Kernels Switch can switch nothing here: this prompt can't be followed, the log says "
                       "why.")
    monkeypatch.undo()
    assert executor.seen == {}


def test_called_outside_a_prompt_it_passes_through(world):
    world.governor.switch_ran({"pad": "off"})
    with pytest.raises(ValueError, match="must be auto, on or off"):
        world.governor.switch_ran({"pad": "of"})


def test_the_packs_own_governor_listens():
    pack = load()
    state = importlib.import_module(f"{pack.__name__}.nodes.switch.state")
    assert state.governor in pack.nodes.execution._listeners
    assert state.conflicts() == [] and state.kernels_taken("1") == {}
