"""The switch at run time: the workflow layer round each call of a node, whatever becomes of the prompt."""
import math
from types import SimpleNamespace

import pytest
from executor import node, run
from switch_world import switch, under


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


@pytest.mark.parametrize("texts, mode", [([None, "pad=on"], "on"), (["pad=off", None], "off"), ([None, None], None),
                                         ([], None), (None, None)])
def test_items_of_a_cached_switch_that_were_blocked_say_nothing(world, executor, texts, mode):
    prompt = {"t": node("Text"), "S": switch(pad=["t", 0], items=[{"pad": "off"}]), "b": under("See", "S")}
    run(executor, prompt)
    blocked = SimpleNamespace(message=None)  # as comfy_execution.graph.ExecutionBlocker
    said = texts and [blocked if text is None else text for text in texts]
    executor.caches.outputs.entries["S"] = SimpleNamespace(outputs=[[1, 1], said])
    run(executor, prompt)
    assert executor.seen["b"][-1] == ({"pad": mode} if mode else {})


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
