"""The kernel switch in graphs of every shape, in a real ComfyUI: expansions, subgraphs, lists, lazy and async nodes."""
import pytest
from graphs import by, cached, error, node, pad, reports, switch

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600), pytest.mark.usefixtures("left_as_found")]


def test_an_expansion_is_governed_as_the_node_that_made_it(comfyui):
    """Its first node links to nothing outside, so that ComfyUI alone would serve a stale result after a toggle."""
    seen = {}
    for mode in "off", "on", "off":
        graph = {"S": switch(pad=mode), "E": node("TestExpand", value=("S", 0)),
                 "1": node("TestShow", value=("E", 1)), "2": node("TestShow", value=("E", 2))}
        entry = comfyui.run(graph)
        shown = tuple(entry["outputs"][node_id]["shown"][0]["text"] for node_id in "12")
        assert seen.setdefault(mode, shown) == shown
    assert all(off != on for off, on in zip(seen["off"], seen["on"], strict=True))


def test_a_subgraph_of_the_browser_is_governed_across_its_border(comfyui):
    """The browser takes subgraphs apart: their nodes come with ids like 7:3, linked as if there were no border."""
    entry = comfyui.run({"1": node("TestText", text="x"), "S": switch(("1", 0), pad="off"), "7:1": pad("S", seed=41),
                         "7:2": switch(("7:1", 0), pad="on"), "7:3": pad("7:2", seed=42), "8": pad("7:3", seed=43),
                         "9": pad("7:1", seed=44)})
    assert by(entry, "7:1", "7:3", "8", "9") == ["stock", "pack", "pack", "stock"]


def test_a_switch_inside_an_expansion_is_the_nearest(comfyui):
    def digest(mode, inner):
        entry = comfyui.run({"S": switch(pad=mode), "E": node("TestExpand", value=("S", 0), inner=inner),
                             "1": node("TestShow", value=("E", 1)), "2": node("TestShow", value=("E", 2))})
        return tuple(entry["outputs"][node_id]["shown"][0]["text"] for node_id in "12")

    off, on = digest("off", ""), digest("on", "")
    assert digest("off", "on") == (off[0], on[1]) and digest("on", "off") == (on[0], off[1])


def test_each_item_of_a_list_is_governed(comfyui):
    entry = comfyui.run({"L": node("TestList", items="a,b,c"), "S": switch(("L", 0), pad="off"), "p": pad("S")})
    assert [report["by"] for report in reports(entry, "p")] == ["stock"] * 3


def test_a_switch_over_a_list_of_equal_values(comfyui):
    entry = comfyui.run({"L": node("TestList", items="off,off"), "S": switch(pad=("L", 0)), "p": pad("S")})
    assert [report["by"] for report in reports(entry, "p")] == ["stock"] * 2


def test_a_switch_over_a_list_of_different_values_is_an_error(comfyui):
    entry = comfyui.end(comfyui.queue({"L": node("TestList", items="off,on"), "S": switch(pad=("L", 0)),
                                       "p": pad("S")}))
    assert "was given a list of different values (pad=off, then pad=on)" in error(entry)["exception_message"]
    assert "p" not in entry["outputs"]


@pytest.mark.parametrize("graph", [
    {"L": node("TestList", items="!,off"), "S": switch(pad=("L", 0))},
    {"L": node("TestList", items="!,x"), "t": node("TestText", text="off"), "S": switch(("L", 0), pad=("t", 0))},
    {"L": node("TestList", items="x,!"), "t": node("TestText", text="off"), "S": switch(("L", 0), pad=("t", 0))},
], ids=["mode", "value", "last"])
def test_a_list_of_which_an_item_is_blocked_is_governed_warm_as_cold(comfyui, graph):
    for seed in 60, 61:
        entry = comfyui.run({**graph, "p": pad("S", seed=seed)})
        assert "stock" in by(entry, "p") and (seed == 60 or {"L", "S"} <= cached(entry))


def test_a_lazy_branch_that_is_not_taken_governs_nothing(comfyui):
    graph = {"t": node("TestText", text="off"), "S": switch(pad=("t", 0)), "T": switch(pad="auto"),
             "z": node("TestLazy", a=("S", 0), b=("T", 0), chosen="b")}
    assert by(comfyui.run(graph), "z") == "pack"
    graph["z"]["inputs"]["chosen"] = "a"
    graph["T"]["inputs"]["pad"] = "off"
    assert by(comfyui.run(graph), "z") == "stock"


def test_a_lazy_branch_that_is_not_taken_says_the_same_warm_and_cold(comfyui):
    """Even if its switch has run for another node, or in another prompt."""
    base = {"t": node("TestText", text="off"), "x": node("TestText", text="y"), "S": switch("v", pad=("t", 0))}
    lazy = {**base, "z": node("TestLazy", a=("S", 0), b=("x", 0), chosen="b", seed=702)}
    both = {"p": pad("S", seed=701), **lazy}
    for graphs in (lazy, both), (both, lazy):
        comfyui.forget()
        for graph in graphs:
            assert by(comfyui.run(graph), "z") == "pack"
            (conflict,) = comfyui.get("/test/state")["conflicts"]
            assert conflict["node"] == "z" and conflict["kind"] == "lazy"
    comfyui.forget()
    comfyui.run({"p": pad("S", seed=703), **base})
    assert by(comfyui.run(lazy), "z") == "pack", "S is cached, z is not"


def test_a_lazy_node_that_waits_is_no_overlap(comfyui):
    entry = comfyui.run({"S": switch(pad="off"), "T": switch(pad="on"), "a": pad("T", seed=1),
                         "z": node("TestLazy", value=("S", 0), a=("a", 0))})
    assert by(entry, "a", "z") == ["pack", "stock"] and comfyui.get("/test/state")["conflicts"] == []


def test_async_nodes_that_overlap_get_the_defaults_and_are_named(comfyui):
    entry = comfyui.run({"S": switch(pad="off"), "T": switch(("S", 0), pad="on"),
                         "w": node("TestAsync", value=("S", 0), seconds=1.0),
                         "b": node("TestSlow", value=("T", 0), seconds=0.2),
                         "status": node("MetalKernelsStatus", after=("w", 0))})
    assert by(entry, "w", "b") == ["stock+pack", "pack"]
    conflicts = {each["node"]: each for each in comfyui.get("/test/state")["conflicts"]}
    assert set(conflicts) == {"w", "b"} and conflicts["w"]["kind"] == "overlap"
    text = entry["outputs"]["status"]["text"][0]
    assert "TestAsync (#w) ran at the same time as TestSlow (#b), under different switches" in text


def test_what_overlapped_is_not_served_to_a_later_prompt(comfyui):
    alone = {"S": switch(pad="off"), "w": node("TestAsync", value=("S", 0), seconds=1.0, seed=900),
             "after": node("TestExpand", value=("w", 0)), "shown": node("TestShow", value=("after", 2))}
    both = {**alone, "T": switch(("S", 0), pad="on"), "b": node("TestSlow", value=("T", 0), seconds=0.2, seed=901)}
    comfyui.forget()  # T runs, so that b begins after w has
    assert by(comfyui.run(both), "w", "b") == ["stock+pack", "pack"]
    entry = comfyui.run(alone)
    assert by(entry, "w") == "stock" and cached(entry) == {"S"}
    assert comfyui.get("/test/state")["conflicts"] == []
    assert cached(comfyui.run(alone)) == set(alone)
