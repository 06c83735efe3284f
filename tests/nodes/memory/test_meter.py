"""When numbers are read, through the executor's own hooks: what runs, fails, overlaps, nests; else nothing."""
import asyncio
import logging
import threading
import time
from types import SimpleNamespace

import pytest
from executor import node, run
from memory_toys import MIB

NODE = "MetalMemoryReport"


@pytest.fixture
def executor(world):
    """`Grow` sets numbers and moves its progress bar, `Fail`, `Cancel`, `Wait`, `Expand`, and the report node."""
    toys, seen = world.toys, {}

    def grow(executor, node_id, item):
        inputs = executor.graph.get_node(node_id)["inputs"]
        toys.set(**inputs.get("peak", {}))
        executor.registry.update_progress(node_id, 1, 2)
        toys.set(**inputs.get("after", {}))

    def fail(executor, node_id, item):
        grow(executor, node_id, item)
        raise ValueError("no memory for that")

    def cancel(executor, node_id, item):
        raise world.comfyui.execution.Interrupted

    async def wait(executor, node_id, item):
        await asyncio.sleep(0.05)

    def expand(executor, node_id, item):
        return executor.graph.get_node(node_id)["inputs"]["makes"]

    def report(executor, node_id, item):
        inputs = executor.graph.get_node(node_id)["inputs"]
        seen[node_id] = world.now.report_now(**{key: inputs[key] for key in inputs if key != "value"})

    async def another(executor, node_id, item):
        inner = world.comfyui.execution.PromptExecutor(executor.functions)
        await inner.execute_async(executor.graph.get_node(node_id)["inputs"]["prompt"], "inner", {}, [])

    made = world.comfyui.execution.PromptExecutor({
        "Grow": grow, "Fail": fail, "Cancel": cancel, "Wait": wait, "Expand": expand, NODE: report, "Run": another,
        "Count": lambda executor, node_id, item: seen.update(threads=threads())})
    made.seen = seen
    return made


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "metal memory"]


def statuses(session):
    return {node_id: each.status for node_id, each in session.nodes.items()}


def test_nothing_happens_without_a_report_node(world, executor):
    run(executor, {"a": node("Grow"), "n": node("Count")})
    assert (world.toys.reads, world.toys.made, world.delivered) == (0, 0, [])
    assert executor.seen["threads"] == [] and executor.registry.handlers == {}, "not even a progress handler"


def test_nothing_happens_where_there_is_nothing_to_read(world, executor):
    world.toys.obstacle = "This is Linux."
    run(executor, {"a": node("Grow"), "M": node(NODE)})
    assert world.toys.reads == 0 and world.delivered == []
    assert executor.seen["M"] == {"schema": 1, "available": False, "reason": "This is Linux."}


def test_a_prompt_with_a_report_node(world, executor):
    run(executor, {"a": node("Grow", peak={"driver": 50, "current": 20}, after={"driver": 40, "current": 2}),
                   "M": node(NODE), "b": node("Grow"), "n": node("Count")})
    (session,) = world.delivered
    assert statuses(session) == {"a": "ran", "b": "ran", "n": "ran"}, "the report node itself is left out"
    assert session.nodes["a"].peaks["driver"].value == 50 * MIB, "read at the step"
    assert session.nodes["b"].peaks["driver"].value == 40 * MIB
    so_far = executor.seen["M"]
    assert [each["id"] for each in so_far["nodes"]] == ["a"] and not so_far["final"]
    assert session.outcome.kind == "success" and len(executor.seen["threads"]) == 1 and threads() == []


@pytest.mark.parametrize("class_type, kind", [("Fail", "failed"), ("Cancel", "interrupted")])
def test_a_prompt_that_does_not_get_to_its_report(world, executor, class_type, kind):
    run(executor, {"a": node("Grow"), "f": node(class_type, peak={"driver": 30}), "M": node(NODE)})
    (session,) = world.delivered
    assert (session.outcome.kind, session.outcome.node_id) == (kind, "f")
    assert statuses(session) == {"a": "ran", "f": kind} and "M" not in executor.seen and threads() == []


def test_an_error_that_leaves_the_executor(world, executor):
    executor.join = lambda node_ids: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(executor, {"a": node("Grow"), "M": node(NODE)})
    assert world.delivered[0].outcome.kind == "failed" and threads() == []


def test_prompts_in_a_row_do_not_mix(world, executor):
    graph = {"a": node("Grow", peak={"driver": 90}, after={"driver": 3}), "M": node(NODE)}
    run(executor, graph, "first")
    run(executor, {"b": node("Grow", peak={"driver": 8}), "M": node(NODE)}, "second")
    first, second = world.delivered
    assert first.prompt.prompt_id == "first" and first.peaks["driver"].value == 90 * MIB
    assert set(second.nodes) == {"b"} and second.peaks["driver"].value == 8 * MIB


def test_several_report_nodes_share_one_record(world, executor):
    run(executor, {"a": node("Grow"), "M": node(NODE), "b": node("Grow"), "N": node(NODE)})
    assert [[each["id"] for each in executor.seen[report]["nodes"]] for report in "MN"] == [["a"], ["a", "b"]]
    assert len(world.delivered) == 1 and world.toys.made == 1


def test_cached_nodes_are_reported_as_cached(world, executor):
    executor.caches.outputs.entries["a"] = SimpleNamespace(outputs=[[1]])
    run(executor, {"b": node("Grow"), "a": node("Grow"), "M": node(NODE)})
    assert statuses(world.delivered[0]) == {"a": "cached", "b": "ran"}


def test_expanded_nodes(world, executor):
    run(executor, {"E": node("Expand", makes={"E.0.x": node("Grow", peak={"driver": 77})}), "M": node(NODE)})
    (session,) = world.delivered
    assert session.made_by("E.0.x") == "E" and session.nodes["E.0.x"].peaks["driver"].value == 77 * MIB
    assert session.nodes["E"].peaks["driver"].value == 3 * MIB


def test_async_nodes_that_overlap(world, executor):
    run(executor, {"w": node("Wait"), "a": node("Grow", peak={"driver": 20}), "M": node(NODE),
                   "z": node("Grow", join=["w"])})
    (session,) = world.delivered
    assert session.nodes["w"].overlapped == {"a"} and session.nodes["z"].overlapped == set()
    assert session.nodes["w"].peaks["driver"].value == session.nodes["a"].peaks["driver"].value == 20 * MIB


def test_a_list_is_one_node(world, executor):
    run(executor, {"a": node("Grow", items=[1, 2, 3]), "M": node(NODE)})
    assert world.delivered[0].nodes["a"].calls == 3


@pytest.mark.parametrize("inner_reports", [True, False])
def test_a_node_that_runs_a_prompt_of_its_own(world, executor, inner_reports):
    inner = {"x": node("Grow", peak={"driver": 60, "current": 60}, after={"driver": 4, "current": 1})}
    inner |= {"N": node(NODE)} if inner_reports else {}
    run(executor, {"R": node("Run", prompt=inner), "M": node(NODE)})
    asyncio.run(asyncio.sleep(0))
    assert [session.prompt.prompt_id for session in world.delivered] == (["inner"] if inner_reports else []) + ["p1"]
    assert "x" not in world.delivered[-1].nodes
    if inner_reports:
        assert world.delivered[0].nodes["x"].peaks["driver"].value == 60 * MIB
        assert world.delivered[1].nodes["R"].peaks["current"].value == 60 * MIB
    assert threads() == []


def test_the_thread_sees_a_peak_inside_a_node(world, executor):
    world.meter.interval = 0.001
    done = threading.Event()

    def busy(executor, node_id, item):
        world.toys.set(driver=55)
        start = world.delivered, world.meter.session()[0].readings["thread"]
        end = time.monotonic() + 10
        while world.meter.session()[0].readings["thread"] < start[1] + 3 and time.monotonic() < end:
            time.sleep(0.001)
        world.toys.set(driver=3)
        done.set()

    executor.functions["Busy"] = busy
    run(executor, {"a": node("Busy"), "M": node(NODE)})
    (session,) = world.delivered
    assert done.is_set() and session.nodes["a"].peaks["driver"].value == 55 * MIB
    assert session.readings["thread"] >= 3


def test_a_patched_call_sees_what_the_blinded_thread_does_not(world, executor):
    """The thread's interval is an hour here: as if a C++ call held the interpreter's lock."""
    def pads(executor, node_id, item):
        for driver in 10, 44, 12:
            world.toys.set(driver=driver)
            world.toys.watcher()

    executor.functions["Pads"] = pads
    run(executor, {"a": node("Pads"), "M": node(NODE)})
    (session,) = world.delivered
    assert session.nodes["a"].peaks["driver"].value == 44 * MIB and session.readings["patched calls"] == 3


def test_a_self_check_is_no_nodes_work(world, executor):
    def pads(executor, node_id, item):
        world.toys.set(current=20)
        world.toys.pauser(True)
        world.toys.set(current=500)
        before = world.meter.session()[0].readings["thread"]
        time.sleep(0.02)
        assert world.meter.session()[0].readings["thread"] == before
        world.toys.set(current=5)
        world.toys.pauser(False)

    world.meter.interval = 0.001
    executor.functions["Pads"] = pads
    run(executor, {"a": node("Pads"), "M": node(NODE)})
    (session,) = world.delivered
    assert session.outcome.kind == "success" and session.nodes["a"].peaks["current"].value == 20 * MIB


def test_numbers_that_fail_break_no_prompt_and_are_told(world, executor, caplog):
    def breaks(executor, node_id, item):
        world.toys.trouble = RuntimeError("no numbers today")
        world.toys.set(driver=99)
        world.toys.watcher()
        world.toys.watcher()
        world.toys.trouble = None

    executor.functions["Breaks"] = breaks
    with caplog.at_level(logging.WARNING, "metal_kernels"):
        run(executor, {"a": node("Breaks"), "M": node(NODE), "b": node("Grow")})
    assert "RuntimeError: no numbers today" in executor.seen["M"]["trouble"]
    assert len([r for r in caplog.records if "could not be read" in r.message]) == 1
    assert world.delivered[0].nodes["b"].status == "ran"


def test_a_source_that_cannot_start_breaks_no_prompt(world, executor):
    world.toys.trouble = RuntimeError("none at all")
    run(executor, {"a": node("Grow"), "M": node(NODE)})
    assert world.delivered == [] and threads() == []
    assert executor.seen["M"]["reason"] == "Memory can't be read: RuntimeError: none at all."


def test_a_report_node_made_by_an_expansion_says_why_it_has_nothing(world, executor):
    run(executor, {"E": node("Expand", makes={"E.0.M": node(NODE)})})
    assert "made while the graph ran" in executor.seen["E.0.M"]["reason"] and world.toys.reads == 0


def test_files_asked_for_by_widgets_are_known_before_the_node_runs(world, executor):
    run(executor, {"f": node("Fail"), "M": node(NODE, save_json=True, filename_prefix="x/y"),
                   "N": node(NODE, save_json=False, filename_prefix="z"), "O": node(NODE, save_json=["f", 0])})
    assert world.delivered[0].files == {"x/y"}


def test_files_asked_for_by_links_are_known_once_it_ran(world, executor):
    run(executor, {"M": node(NODE, save_json=True, filename_prefix="a")})
    world.delivered.clear()

    def report(executor, node_id, item):
        world.now.report_now(True, "linked/name")

    executor.functions[NODE] = report
    run(executor, {"M": node(NODE, save_json=["1", 0], filename_prefix=["2", 0])})
    assert world.delivered[0].files == {"linked/name"}


def test_an_unfit_prefix_stops_the_graph_there(world, executor):
    run(executor, {"M": node(NODE, save_json=True, filename_prefix="../x"), "b": node("Grow")})
    assert world.delivered[0].outcome.message == "filename_prefix '../x' leaves ComfyUI's output folder; give a name " \
        "inside it."
    assert world.delivered[0].files == set()
