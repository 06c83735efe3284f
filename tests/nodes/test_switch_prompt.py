"""The switch round a whole prompt: registrations, errors, changed defaults, prompts that are not followed."""
import importlib
import logging

import pytest
from executor import node, run
from pack import load
from switch_world import switch, under


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
    assert told(executor) == ("no\nMetal Kernels that ran in this node: pad (3 calls). A Metal Kernels Switch upstream "
                              "turns them off."), "what the browser shows"
    caplog.clear()
    executor.functions["Fail"] = lambda *_: 1 / 0
    run(executor, {"b": node("Fail")})
    assert "Fail (#b) failed. Kernels of this pack that ran in it: none." in caplog.text
    assert told(executor) == "division by zero\n", "nothing is added where none ran"


def told(executor):
    """The message of the error that the browser was sent."""
    (message,) = [data["exception_message"] for event, data in executor.status_messages if event == "execution_error"]
    return message


def test_an_error_inside_an_expansion_is_told_of_the_node_that_the_user_sees(world, executor, caplog):
    run(executor, {"E": node("Expand", makes={"E.1": node("Pad"), "E.2": node("Fail")})})
    assert "Expand (#E) failed. Kernels of this pack that ran in it: pad (5 calls)." in caplog.text
    assert "ran in this node: pad (5 calls)." in told(executor)


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
