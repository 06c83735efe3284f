"""The executor's hooks, against a miniature of ComfyUI's executor."""
import asyncio
import logging

import pytest
from executor import node, run, standin
from pack import load

SEAMS = [("execution", "PromptExecutor", "execute_async"), ("progress", "ProgressRegistry", "__init__"),
         ("utils", "CurrentNodeContext", "__enter__"), ("utils", "CurrentNodeContext", "__exit__")]


@pytest.fixture
def hooks():
    return load().nodes.execution


@pytest.fixture
def comfyui(hooks, monkeypatch):
    """The stand-in, hooked; no listener but the test's own."""
    monkeypatch.setattr(hooks, "_listeners", [])
    monkeypatch.setattr(hooks, "_complained", set())
    hooks.uninstall()
    monkeypatch.setitem(hooks._state, "drop_cache", False)
    with standin() as modules:
        hooks.install()
        yield modules
        hooks.uninstall()


def attributes(comfyui):
    return [vars(getattr(getattr(comfyui, module), cls))[name] for module, cls, name in SEAMS]


@pytest.fixture
def recorder(hooks):
    """A listener that writes down what it hears."""
    class Recorder(hooks.Listener):
        def __init__(self):
            self.heard, self.prompt, self.outcome = [], None, None

        def prompt_started(self, prompt):
            self.prompt = prompt
            self.heard.append("prompt")

        def prompt_ended(self, outcome):
            self.outcome = outcome
            self.heard.append(outcome.kind)

        def node_progress(self, node_id, value, maximum):
            self.heard.append(f"{node_id} at {value}/{maximum}")

    for event, word in {"node_started": "start", "node_finished": "finish", "node_cached": "cached",
                        "call_started": "call", "call_ended": "return"}.items():
        setattr(Recorder, event, lambda self, node_id, word=word: self.heard.append(f"{word} {node_id}"))
    listener = Recorder()
    hooks.add_listener(listener)
    return listener


def quiet(executor, node_id, item):
    pass


def test_a_prompt_from_start_to_end(comfyui, recorder):
    def steps(executor, node_id, item):
        executor.registry.update_progress(node_id, 1, 2)

    run(comfyui.execution.PromptExecutor({"A": quiet, "B": steps}), {"1": node("A"), "2": node("B")}, "p7", {"x": 1})
    assert recorder.heard == ["prompt", "start 1", "call 1", "return 1", "finish 1", "start 2", "call 2", "2 at 1/2",
                              "return 2", "finish 2", "success"]
    prompt = recorder.prompt
    assert (prompt.prompt_id, prompt.extra_data) == ("p7", {"x": 1})
    assert prompt.class_type("2") == "B" and prompt.name("2") == "B (#2)" and prompt.dynprompt.has_node("1")


def test_the_title_that_the_user_gave_is_the_name(hooks):
    prompt = hooks.Prompt("p", {"1": {"class_type": "A", "inputs": {}, "_meta": {"title": "My node"}}}, {})
    assert prompt.name("1") == "My node (#1)" and prompt.name("9") == "node (#9)" and prompt.class_type("9") is None


def test_each_item_of_a_list_is_a_call(comfyui, recorder):
    run(comfyui.execution.PromptExecutor({"A": quiet}), {"1": node("A", items=[1, 2])})
    assert recorder.heard[1:-1] == ["start 1", "call 1", "return 1", "call 1", "return 1", "finish 1"]


def test_a_cached_node_never_starts(comfyui, recorder):
    executor = comfyui.execution.PromptExecutor({"A": quiet})
    executor.caches.outputs.entries["1"] = object()
    run(executor, {"1": node("A")})
    assert recorder.heard == ["prompt", "cached 1", "success"]


def test_a_node_that_fails(comfyui, recorder):
    run(comfyui.execution.PromptExecutor({"A": fail, "B": quiet}), {"1": node("A"), "2": node("B")})
    assert recorder.heard == ["prompt", "start 1", "call 1", "return 1", "failed"]
    assert (recorder.outcome.node_id, recorder.outcome.message) == ("1", "the picture is empty")


def fail(executor, node_id, item):
    raise ValueError("the picture is empty")


def messages(executor):
    return [data["exception_message"] for event, data in executor.status_messages if event == "execution_error"]


def test_a_listeners_note_is_in_the_error_that_the_browser_shows_and_nowhere_else(comfyui, recorder, hooks):
    recorder.failure_note = lambda node_id: f"A note on {node_id}."
    hooks.add_listener(hooks.Listener())  # has nothing to say
    executor = comfyui.execution.PromptExecutor({"A": fail})
    run(executor, {"1": node("A")})
    assert messages(executor) == ["the picture is empty\nA note on 1."]
    assert recorder.outcome.message == "the picture is empty", "what others make of it"
    assert "add_message" not in vars(executor), "put back"
    hooks.remove_listener(recorder)
    run(executor, {"1": node("A")})
    assert messages(executor) == ["the picture is empty\n"], "ComfyUI's own"


def test_a_note_that_fails_leaves_the_error_alone(comfyui, recorder, caplog):
    recorder.failure_note = lambda node_id: 1 / 0
    executor = comfyui.execution.PromptExecutor({"A": fail})
    run(executor, {"1": node("A")})
    assert messages(executor) == ["the picture is empty\n"] and "Recorder.failure_note failed" in caplog.text


def test_another_packs_add_message_is_left_alone(comfyui, recorder):
    heard = []
    executor = comfyui.execution.PromptExecutor({"A": fail})
    executor.add_message = theirs = lambda event, data: heard.append(event)
    recorder.failure_note = lambda node_id: "a note"
    run(executor, {"1": node("A")})
    assert executor.add_message is theirs and heard == ["execution_error"]


def test_an_interrupt(comfyui, recorder):
    def cancelled(executor, node_id, item):
        raise comfyui.execution.Interrupted

    run(comfyui.execution.PromptExecutor({"A": cancelled}), {"1": node("A")})
    assert recorder.heard[-2:] == ["return 1", "interrupted"] and recorder.outcome.node_id == "1"


@pytest.mark.parametrize("error, kind, message", [
    (KeyError("9"), "failed", "'9'"), (RuntimeError(), "failed", "RuntimeError"),
    (asyncio.CancelledError(), "interrupted", ""), (SystemExit(3), "failed", "3"),
])
def test_an_error_that_leaves_the_executor(comfyui, recorder, monkeypatch, error, kind, message):
    async def broken(tasks):
        raise error

    executor = comfyui.execution.PromptExecutor({})
    monkeypatch.setattr(executor, "join", broken)
    with pytest.raises(type(error)):
        run(executor, {})
    assert recorder.heard == ["prompt", kind] and recorder.outcome.message == message


def test_async_calls_overlap_and_end_each_for_itself(comfyui, recorder):
    async def wait(executor, node_id, item):
        await asyncio.sleep(0.01)

    run(comfyui.execution.PromptExecutor({"A": wait, "B": quiet}),
        {"1": node("A"), "2": node("B"), "3": node("B", join=["1"])})
    assert recorder.heard[1:-1] == ["start 1", "call 1", "start 2", "call 2", "return 2", "finish 2", "return 1",
                                    "finish 1", "start 3", "call 3", "return 3", "finish 3"]


def test_an_async_call_that_outlives_its_prompt_is_heard_of_no_more(comfyui, recorder):
    async def wait(executor, node_id, item):
        await asyncio.sleep(30)

    def fail(executor, node_id, item):
        raise ValueError

    run(comfyui.execution.PromptExecutor({"A": wait, "B": fail}), {"1": node("A"), "2": node("B")})
    assert recorder.heard[-2:] == ["return 2", "failed"] and recorder.heard.count("return 1") == 0


def test_an_expansion_is_heard_node_by_node(comfyui, recorder):
    def expand(executor, node_id, item):
        return {"1.0": node("B")}

    run(comfyui.execution.PromptExecutor({"A": expand, "B": quiet}), {"1": node("A")})
    assert recorder.heard[1:-1] == ["start 1", "call 1", "return 1", "start 1.0", "call 1.0", "return 1.0",
                                    "finish 1.0", "finish 1"]
    assert recorder.prompt.class_type("1.0") == "B"


def test_a_fingerprint_is_not_the_nodes_work(comfyui, recorder):
    def elsewhere(executor, node_id, item):
        with comfyui.utils.CurrentNodeContext(executor.prompt_id, "2"):  # as ComfyUI asks node 2 for its fingerprint
            pass

    run(comfyui.execution.PromptExecutor({"A": elsewhere, "B": quiet}), {"1": node("A"), "2": node("B")})
    assert recorder.heard.count("call 2") == 1


def test_validation_of_another_prompt_meanwhile_is_not_heard(comfyui, recorder, hooks):
    """ComfyUI validates on the server's thread, through the same context, while a node of the same id runs."""
    import threading

    def meanwhile(executor, node_id, item):
        def validate():
            assert hooks.current() is None
            with comfyui.utils.CurrentNodeContext("another", node_id):
                pass

        thread = threading.Thread(target=validate)
        thread.start()
        thread.join()

    run(comfyui.execution.PromptExecutor({"A": meanwhile}), {"1": node("A")})
    assert recorder.heard.count("call 1") == 1


def test_a_prompt_that_nobody_wants_runs_as_without_the_pack(comfyui, recorder, hooks):
    recorder.wanted = lambda prompt: "2" in prompt
    handlers = []
    executor = comfyui.execution.PromptExecutor({"A": lambda e, n, i: handlers.append(dict(e.registry.handlers))})
    run(executor, {"1": node("A")})
    assert recorder.heard == [] and handlers == [{}] and hooks.current() is None
    run(executor, {"1": node("A"), "2": node("A")})
    assert recorder.heard[0] == "prompt" and list(handlers[1]) == ["metal_kernels"]


def test_starts_in_order_of_registration_ends_in_reverse(comfyui, hooks):
    told = []

    class Tells(hooks.Listener):
        def __init__(self, name):
            self.name = name

        def call_started(self, node_id):
            told.append(f"{self.name} starts")

        def call_ended(self, node_id):
            told.append(f"{self.name} ends")

    first, second = Tells("first"), Tells("second")
    for listener in (first, second, first):
        hooks.add_listener(listener)
    run(comfyui.execution.PromptExecutor({"A": quiet}), {"1": node("A")})
    assert told == ["first starts", "second starts", "second ends", "first ends"]
    hooks.remove_listener(first)
    hooks.remove_listener(first)
    run(comfyui.execution.PromptExecutor({"A": quiet}), {"1": node("A")})
    assert told[4:] == ["second starts", "second ends"]


@pytest.mark.parametrize("event", ["wanted", "prompt_started", "node_started", "node_progress", "node_finished",
                                   "node_cached", "call_started", "call_ended", "prompt_ended"])
def test_a_broken_listener_breaks_no_prompt_and_is_logged_once(comfyui, recorder, hooks, caplog, event):
    def broken(*_):
        raise RuntimeError("broken")

    listener = hooks.Listener()
    setattr(listener, event, broken)
    hooks.add_listener(listener)
    executor = comfyui.execution.PromptExecutor({"A": lambda e, n, i: e.registry.update_progress(n, 1, 1)})
    executor.caches.outputs.entries["2"] = object()
    for _ in range(2):
        run(executor, {"1": node("A"), "2": node("A")})
    assert recorder.heard.count("success") == 2 and recorder.heard.count("finish 1") == 2
    assert sum(f"Listener.{event} failed" in record.getMessage() for record in caplog.records) == 1


def test_uninstall_restores_the_very_same_attributes(comfyui, hooks):
    hooked = attributes(comfyui)
    hooks.uninstall()
    stock = attributes(comfyui)
    assert all(a is not b for a, b in zip(hooked, stock, strict=True))
    assert all(getattr(a, "__wrapped__", None) is b for a, b in zip(hooked, stock, strict=True))
    hooks.install()
    hooks.install()
    hooks.uninstall()
    assert all(a is b for a, b in zip(attributes(comfyui), stock, strict=True))
    hooks.uninstall()
    assert hooks.problem() == "the hooks are not installed"


@pytest.mark.parametrize("module, cls, name", SEAMS)
def test_another_packs_wrapper_over_ours_is_left_alone(comfyui, hooks, recorder, module, cls, name):
    owner = getattr(getattr(comfyui, module), cls)
    ours, passed = vars(owner)[name], []

    def theirs(*args, **kwargs):
        passed.append(name)
        return ours(*args, **kwargs)

    setattr(owner, name, theirs)
    executor = comfyui.execution.PromptExecutor({"A": quiet})
    hooks.uninstall()
    assert vars(owner)[name] is theirs
    run(executor, {"1": node("A")})
    assert recorder.heard == [] and passed == [name] and executor.status_messages[-1][0] == "execution_success"
    hooks.install()
    run(executor, {"1": node("A")})
    assert recorder.heard == ["prompt", "start 1", "call 1", "return 1", "finish 1", "success"], "heard once, not twice"


def test_uninstall_while_a_prompt_runs_ends_it_properly(comfyui, hooks, recorder):
    run(comfyui.execution.PromptExecutor({"A": lambda e, n, i: hooks.uninstall(), "B": quiet}),
        {"1": node("A"), "2": node("B")})
    assert recorder.heard[-1] == "success" and hooks.current() is None


@pytest.mark.parametrize("module, cls, name", SEAMS)
def test_a_seam_that_is_missing_is_named_and_nothing_is_touched(comfyui, hooks, monkeypatch, module, cls, name):
    hooks.uninstall()
    owner = getattr(getattr(comfyui, module), cls)
    monkeypatch.delattr(owner, name)
    before = [dict(vars(getattr(getattr(comfyui, m), c))) for m, c, _ in SEAMS]
    hooks.install()
    assert f"lacks {owner.__module__}.{cls}.{name}" in hooks.problem()
    assert [dict(vars(getattr(getattr(comfyui, m), c))) for m, c, _ in SEAMS] == before


def test_a_seam_with_other_parameters_is_named(comfyui, hooks, monkeypatch):
    hooks.uninstall()

    async def execute_async(self, job):
        pass

    monkeypatch.setattr(comfyui.execution.PromptExecutor, "execute_async", execute_async)
    hooks.install()
    assert "execute_async(extra_data, prompt, prompt_id)" in hooks.problem()


def test_outside_comfyui_it_says_so(hooks, caplog):
    hooks.uninstall()
    with caplog.at_level(logging.WARNING):
        hooks.install()
    assert hooks.problem().startswith("this ComfyUI's executor lacks execution.PromptExecutor")
    assert caplog.records == []


def test_the_cache_is_dropped_before_the_next_prompt_whoever_wants_it(comfyui, hooks):
    executor = comfyui.execution.PromptExecutor({"A": quiet})
    before = executor.caches
    hooks.drop_cache()
    run(executor, {"1": node("A")})
    dropped = executor.caches
    run(executor, {"1": node("A")})
    assert dropped is not before and executor.caches is dropped


def test_results_made_while_the_hooks_were_out_are_not_served(comfyui, hooks):
    executor = comfyui.execution.PromptExecutor({"A": quiet})
    before, _, _ = executor.caches, hooks.uninstall(), hooks.install()
    run(executor, {"1": node("A")})
    assert executor.caches is not before


def test_cache_keys_of_expansions_are_marked_for_this_prompt(comfyui, recorder, hooks):
    class Marks(hooks.Listener):
        def prompt_started(self, prompt):
            self.prompt, self.done = prompt, False

        def node_started(self, node_id):
            if not self.done:
                self.done = True
                self.prompt.mark_cache_keys(lambda node_id: marks.get(node_id, ""))

    def expand(executor, node_id, item):
        return {"a": node("B"), "b": node("B")}

    marks = {"1": "the keys of the prompt's own nodes are made before it begins", "a": "pad=off"}
    hooks.add_listener(Marks())
    executor = comfyui.execution.PromptExecutor({"A": expand, "B": quiet})
    run(executor, {"1": node("A")})
    assert executor.caches.outputs.keys == {"a": (False, "pad=off"), "b": False}
    marks.clear()
    run(executor, {"1": node("A")})
    assert executor.caches.outputs.keys == {"a": False, "b": False}


def test_a_spoiled_cache_key_equals_no_other(comfyui, recorder):
    executor = comfyui.execution.PromptExecutor({"A": quiet})
    run(executor, {"1": node("A"), "2": node("A")})
    recorder.prompt.spoil_cache_keys({"1", "gone"})
    keys = executor.caches.outputs.cache_key_set.keys
    assert keys["2"] == "2" and set(keys) == {"1", "2"}
    assert keys["1"] != (float("nan"), "1")
    executor.caches = None  # --cache-none
    recorder.prompt.spoil_cache_keys({"1"})


def test_a_cached_output_is_read_under_this_prompts_key(comfyui, recorder):
    from types import SimpleNamespace

    executor = comfyui.execution.PromptExecutor({"A": quiet})
    executor.caches.outputs.entries["1"] = SimpleNamespace(outputs=[["x"]])
    run(executor, {"1": node("A")})
    assert recorder.prompt.cached_outputs("1") == [["x"]] and recorder.prompt.cached_outputs("2") is None
    executor.caches = SimpleNamespace(outputs=object())  # --cache-none
    assert recorder.prompt.cached_outputs("1") is None
    recorder.prompt.mark_cache_keys(lambda node_id: "x")
