"""The kernel switch in a real ComfyUI, on a stock whose large pads are wrong: who took a pad shows in its result."""
import time

import pytest
from graphs import by, cached, digests, error, node, pad, reports, switch
from server import Refused

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600), pytest.mark.usefixtures("left_as_found")]


def test_its_inputs_are_final(comfyui):
    info = comfyui.get("/object_info")["MetalKernelsSwitch"]
    assert list(info["input"]["required"]) == ["value"]
    assert list(info["input"]["optional"])[:1] == ["pad"]
    kind, options = info["input"]["optional"]["pad"]
    assert kind == "COMBO" and options["options"] == ["auto", "on", "off"] and options["default"] == "auto"
    assert info["output"] == ["COMFY_MATCHTYPE_V3", "STRING"] and info["output_name"] == ["value", "kernels"]
    assert info["input"]["required"]["value"][1]["template"]["template_id"] == \
        info["output_matchtypes"][0] if "output_matchtypes" in info else True


def test_it_governs_what_is_downstream_and_nothing_else(comfyui):
    entry = comfyui.run({"up": pad(), "S": switch(("up", 0), pad="off"), "down": pad("S", seed=1),
                         "far": pad("down", seed=2), "beside": pad("up", seed=3)})
    assert by(entry, "up", "down", "far", "beside") == ["pack", "stock", "stock", "pack"]
    assert reports(entry, "down")[0]["right"] is False, "stock's pad is wrong: otherwise this shows nothing"
    assert reports(entry, "beside")[0]["right"] is True


@pytest.mark.parametrize("source, shown", [
    (node("EmptyLatentImage", width=64, height=64, batch_size=1), "dict"),
    (node("EmptyImage", width=64, height=64, batch_size=1, color=0), "Tensor"),
    (node("TestTinyVAE"), "TinyWanVAE"), (node("TestNumber", number=7), "int"),
])
def test_any_value_passes_through(comfyui, source, shown):
    entry = comfyui.run({"1": source, "S": switch(("1", 0), pad="off"), "3": node("TestShow", value=("S", 0)),
                         "4": node("TestShow", value=("S", 1))})
    assert entry["outputs"]["3"]["shown"][0]["type"] == shown
    assert entry["outputs"]["4"]["shown"][0]["text"] == "pad=off"


def test_it_stands_on_a_typed_wire(comfyui):
    entry = comfyui.run({"1": node("EmptyImage", width=64, height=64, batch_size=1, color=0),
                         "S": switch(("1", 0), pad="off"), "3": node("ImageInvert", image=("S", 0)),
                         "4": node("PreviewImage", images=("3", 0))})
    assert len(entry["outputs"]["4"]["images"]) == 1


BRANCHES = {"S": None, "p": pad("S"), "E": node("TestExpand", value=("S", 0)), "q": pad("E", seed=3),
            "1": node("TestShow", value=("E", 1)), "2": node("TestShow", value=("E", 2)),
            "L": node("TestList", items="a,b"), "T": switch(("L", 0)), "l": pad("T", "S", seed=4),
            "beside": pad(seed=5)}


def off_on_off(comfyui, between):
    """digests of three runs of one graph, `between` called before each."""
    found = []
    for mode in "off", "on", "off":
        between()
        found.append(digests(comfyui.run({**BRANCHES, "S": switch(pad=mode)})))
    return found


def test_off_on_off_with_everything_cached_equals_three_cold_runs(comfyui):
    """Bit for bit: with a node behind the switch, an expansion and a list in the graph."""
    cold = off_on_off(comfyui, comfyui.forget)
    warm = off_on_off(comfyui, lambda: None)
    assert warm == cold
    assert warm[0] == warm[2] and all(warm[0][node_id] != warm[1][node_id] for node_id in ("p", "q", "1", "2"))
    assert warm[0]["beside"] == warm[1]["beside"]
    assert cached(comfyui.run({**BRANCHES, "S": switch(pad="on")})) == set(BRANCHES), "all was cached, in every mode"


def test_toggling_runs_again_just_what_it_governs(comfyui):
    comfyui.forget()
    comfyui.run({**BRANCHES, "S": switch(pad="off")})
    entry = comfyui.run({**BRANCHES, "S": switch(pad="auto")})
    assert cached(entry) == {"L", "T", "beside"}
    entry = comfyui.run({**BRANCHES, "S": switch(pad="auto")})
    assert cached(entry) == set(BRANCHES)


@pytest.mark.parametrize("argument", [[], ["--cache-classic"], ["--cache-none"]],
                         ids=lambda argument: " ".join(argument) or "default")
def test_under_ComfyUIs_other_caches(comfyui_path, argument):
    from server import running

    linked = {"t": node("TestText", text="off"), "S": switch(pad=("t", 0)), "mid": node("TestList", items="m"),
              "d": node("TestExpand", value=("S", 0)), "e": pad("d", "mid", seed=9)}
    with running(comfyui_path, arguments=argument) as comfyui:
        assert off_on_off(comfyui, lambda: None) == off_on_off(comfyui, comfyui.forget)
        for text, taker in ("off", "stock"), ("auto", "pack"), ("off", "stock"):
            graph = {**linked, "t": node("TestText", text=text)}
            assert by(comfyui.run(graph), "e") == taker
            assert by(comfyui.run({**graph, "e": pad("d", "mid", seed=10)}), "e") == taker


def test_a_linked_value(comfyui):
    graph = {"S": switch(pad=("t", 0)), "p": pad("S")}
    for text, taker in ("off", "stock"), ("on", "pack"), ("off", "stock"):
        entry = comfyui.run({**graph, "t": node("TestText", text=text)})
        assert by(entry, "p") == taker


def test_a_linked_value_of_a_switch_that_does_not_run_because_it_is_cached(comfyui):
    graph = {"t": node("TestText", text="off"), "S": switch(pad=("t", 0)), "p": pad("S", seed=1)}
    assert by(comfyui.run(graph), "p") == "stock"
    other = {"t": node("TestText", text="on"), "S": switch(pad=("t", 0)), "p": pad("S", seed=1)}
    assert by(comfyui.run(other), "p") == "pack", "and now a last-seen table would say `on`"
    entry = comfyui.run({**graph, "p": pad("S", seed=2)})
    assert {"t", "S"} <= cached(entry) and by(entry, "p") == "stock"


def test_a_linked_value_that_is_no_mode_stops_the_graph_and_is_named(comfyui):
    for source, value in ((node("TestText", text="sometimes"), "'sometimes'"), (node("TestNumber", number=3), "3"),
                          (node("TestText", text="ON"), "'ON'")):
        entry = comfyui.end(comfyui.queue({"t": source, "S": switch(pad=("t", 0)), "p": pad("S")}))
        data = error(entry)
        assert data["node_id"] == "S" and "p" not in entry["outputs"]
        assert data["exception_message"].strip() == (
            f"pad of the Metal Kernels Switch is {value}: it must be auto, on or off.")


def test_a_written_value_that_is_no_mode_is_refused_before_anything_runs(comfyui):
    with pytest.raises(Refused) as caught:
        comfyui.queue({"S": switch(pad="sometimes"), "p": pad("S")})
    assert "pad: 'sometimes' not in ['auto', 'on', 'off']" in str(caught.value.args[0]["node_errors"])


def test_the_nearest_of_several_wins(comfyui):
    entry = comfyui.run({"S": switch(pad="off"), "a": pad("S"), "T": switch(("a", 0), pad="on"), "b": pad("T", seed=1),
                         "c": pad("b", "S", seed=2)})
    assert by(entry, "a", "b", "c") == ["stock", "pack", "stock"]


def test_two_equally_near_that_disagree_leave_the_defaults_and_are_named(comfyui):
    graph = {"S": switch(pad="off"), "T": switch(pad="on"), "b": pad("S", "T"), "c": pad("S")}
    graph["b"]["_meta"] = {"title": "Decode"}
    entry = comfyui.run(graph)
    assert by(entry, "b", "c") == ["pack", "stock"]
    (conflict,) = comfyui.get("/test/state")["conflicts"]
    assert conflict["node"] == "b" and conflict["others"] == ["S", "T"]
    assert conflict["text"].startswith("Decode (#b) is equally near to")


def test_status_says_which_nodes_conflict(comfyui):
    entry = comfyui.run({"S": switch(pad="off"), "T": switch(pad="on"), "b": pad("S", "T"),
                         "status": node("MetalKernelsStatus")})
    assert "TestPad (#b) is equally near to" in entry["outputs"]["status"]["text"][0]


def test_two_equally_near_that_agree(comfyui):
    assert by(comfyui.run({"S": switch(pad="off"), "T": switch(pad="off"), "b": pad("S", "T")}), "b") == "stock"
    assert comfyui.get("/test/state")["conflicts"] == []


def test_two_equally_near_agree_kernel_by_kernel(comfyui):
    named = {"softmax": "auto", "linear": "auto", "fp8": "auto"}
    graph = {"S": switch(pad="off"), "T": switch(pad="off", **named), "b": pad("S", "T", seed=404)}
    assert by(comfyui.run(graph), "b") == "stock" and comfyui.get("/test/state")["conflicts"] == []
    graph["T"]["inputs"]["softmax"] = "on"
    assert by(comfyui.run(graph), "b") == "stock", "they disagree about softmax alone"
    assert "which disagree about softmax:" in comfyui.get("/test/state")["conflicts"][0]["text"]


def test_a_failing_node_leaves_nothing_switched_and_names_its_kernels(comfyui):
    entry = comfyui.end(comfyui.queue({"S": switch(pad="on"), "f": node("TestFail", value=("S", 0))}))
    assert error(entry)["exception_message"] == (
        "this node always fails\nMetal Kernels that ran in this node: pad (1 call). A Metal Kernels Switch upstream "
        "turns them off."), "what the browser shows"
    assert comfyui.get("/test/state")["workflow"] == {}
    assert "TestFail (#f) failed. Kernels of this pack that ran in it: pad (1 call)." in comfyui.log
    assert comfyui.get("/test/taken/f") == {"pad": 1}
    entry = comfyui.end(comfyui.queue({"S": switch(pad="off"), "f": node("TestFail", value=("S", 0))}))
    assert error(entry)["exception_message"] == "this node always fails\n", "nothing is added where none ran"
    assert "TestFail (#f) failed. Kernels of this pack that ran in it: none." in comfyui.log
    assert by(comfyui.run({"p": pad(seed=20)}), "p") == "pack"


def test_an_interrupt_leaves_nothing_switched(comfyui, client):
    prompt = client.queue({"S": switch(pad="off"), "s": node("TestSlow", value=("S", 0))})
    client.until(lambda kind, data: kind == "progress_state" and data["nodes"].get("s", {}).get("value"))
    assert comfyui.get("/test/state")["workflow"] == {"pad": "off"}, "and while it runs it is switched"
    comfyui.post("/interrupt", {})
    assert client.end(prompt)[0] == "execution_interrupted"
    comfyui.end(prompt)
    assert comfyui.get("/test/state")["workflow"] == {}
    assert by(comfyui.run({"p": pad(seed=21)}), "p") == "pack"


def test_a_failure_while_an_async_node_is_under_way(comfyui):
    entry = comfyui.end(comfyui.queue({"S": switch(pad="off"), "w": node("TestAsync", value=("S", 0), seconds=2.0),
                                       "f": node("TestFail", value=("S", 0))}))
    assert entry["status"]["status_str"] == "error"
    assert comfyui.get("/test/state")["workflow"] == {}
    time.sleep(0.1)
    assert by(comfyui.run({"p": pad(seed=22)}), "p") == "pack"


def test_two_prompts_from_two_clients(comfyui, client):
    from client import connected

    with connected(comfyui) as other:
        graphs = {mode: {"S": switch(pad=mode), "s": node("TestSlow", value=("S", 0), seconds=0.5), "p": pad("s")}
                  for mode in ("off", "on")}
        prompts = [(browser, browser.queue(graphs[mode]), taker) for browser, mode, taker in
                   ((client, "off", "stock"), (other, "on", "pack"), (client, "off", "stock"), (other, "on", "pack"))]
        for browser, prompt, taker in prompts:
            assert browser.end(prompt)[0] == "execution_success"
            assert by(comfyui.end(prompt), "s", "p") == [taker, taker]
        assert all(not browser.of(prompt) for browser, prompt, _ in prompts[:1] for browser in (other,))


def test_on_where_nothing_is_registered_is_registered_for_the_prompt_alone(comfyui):
    comfyui.post("/test/mode", {"pad": "off"})
    try:
        assert "pad" not in comfyui.get("/test/state")["registered"]
        graph = {"S": switch(pad="on"), "s": pad("S", seed=30), "beside": pad(seed=31)}
        assert by(comfyui.run(graph), "s", "beside") == ["pack", "stock"]
        assert "pad" not in comfyui.get("/test/state")["registered"]
        linked = {"t": node("TestText", text="on"), "S": switch(pad=("t", 0)), "s": pad("S", seed=32)}
        assert by(comfyui.run(linked), "s") == "pack"
        entry = comfyui.end(comfyui.queue({"S": switch(pad="on"), "f": node("TestFail", value=("S", 0))}))
        assert entry["status"]["status_str"] == "error" and "pad" not in comfyui.get("/test/state")["registered"]
    finally:
        comfyui.post("/test/mode", {"pad": "auto"})


def test_auto_patches_what_the_process_has_switched_off(comfyui):
    """Whatever other switches are in the graph, so that warm is as cold."""
    comfyui.post("/test/mode", {"pad": "off"})
    try:
        graph = {"S": switch(pad="auto"), "q": pad("S", seed=35), "beside": pad(seed=36)}
        assert by(comfyui.run(graph), "q", "beside") == ["pack", "stock"]
        for extra in {"T": switch(pad="on"), "r": pad("T", seed=37)}, {}:
            assert by(comfyui.run({**graph, **extra}), "q") == "pack"
        assert "pad" not in comfyui.get("/test/state")["registered"]
        linked = {"t": node("TestText", text="auto"), "S": switch(pad=("t", 0)), "p": pad("S", seed=38)}
        assert by(comfyui.run(linked), "p") == "pack"
    finally:
        comfyui.post("/test/mode", {"pad": "auto"})


def test_a_switch_inside_an_expansion_cannot_register_and_says_so(comfyui):
    def digest(**more):
        entry = comfyui.run({"E": node("TestExpand", inner="on"), "2": node("TestShow", value=("E", 2)), **more})
        return entry["outputs"]["2"]["shown"][0]["text"]

    comfyui.post("/test/mode", {"pad": "off"})
    try:
        alone = digest()
        assert "a switch that was made while the graph ran says pad=on; ops are registered before" in comfyui.log
        comfyui.forget()
        assert digest(T=switch(pad="on"), r=pad("T", seed=39)) == alone
    finally:
        comfyui.post("/test/mode", {"pad": "auto"})


def test_status_speaks_of_this_prompt(comfyui):
    """Also where nothing is registered, so that a prompt without a switch is not followed."""
    registered = comfyui.get("/test/state")["registered"]
    comfyui.post("/test/mode", dict.fromkeys(registered, "off"))
    try:
        comfyui.run({"S": switch(pad="off"), "T": switch(pad="on"), "b": pad("S", "T", seed=33)})
        entry = comfyui.run({"status": node("MetalKernelsStatus")})
        assert "equally near" not in entry["outputs"]["status"]["text"][0]
    finally:
        comfyui.post("/test/mode", dict.fromkeys(registered, "auto"))


def test_a_changed_default_leaves_no_stale_result(comfyui):
    graph = {"p": pad(seed=40)}
    assert by(comfyui.run(graph), "p") == "pack"
    comfyui.post("/test/mode", {"pad": "off"})
    try:
        entry = comfyui.run(graph)
        assert by(entry, "p") == "stock" and cached(entry) == set()
    finally:
        comfyui.post("/test/mode", {"pad": "auto"})
    assert by(comfyui.run(graph), "p") == "pack"
    assert cached(comfyui.run(graph)) == {"p"}


def test_the_hooks_come_out_and_go_in_again(comfyui):
    assert all("metal-kernels" in path for path in comfyui.post("/test/hooks", {})["modules"])
    try:
        stock = comfyui.post("/test/hooks", {"install": False})["modules"]
        assert not any("metal-kernels" in path for path in stock)
        entry = comfyui.end(comfyui.queue({"S": switch(pad="off"), "p": pad("S", seed=50)}))
        assert "can switch nothing here: the hooks are not installed" in error(entry)["exception_message"]
    finally:
        comfyui.post("/test/hooks", {"install": True})
    assert by(comfyui.run({"S": switch(pad="off"), "p": pad("S", seed=50)}), "p") == "stock"
