"""Whose memory it is: readings are charged to the nodes that run, and to the prompt."""
import pytest
from memory_toys import MIB, Prompt, ended


def peaks(node):
    return {name: peak.value and peak.value // MIB for name, peak in node.peaks.items()}


def test_each_node_gets_its_own_peaks_and_growth(toys):
    session = toys.session(a="Load", b="Decode")
    toys.run(session, "a", current=5, reserved=8, driver=10)
    toys.run(session, "b", current=4, reserved=8, driver=40)
    a, b = session.nodes["a"], session.nodes["b"]
    assert peaks(a) == {"current": 5, "reserved": 8, "driver": 10, "outside": 2, "footprint": 10}
    assert peaks(b) == {"current": 5, "reserved": 8, "driver": 40, "outside": 32, "footprint": 10}
    assert {name: value // MIB for name, value in a.growth.items()} == {
        "current": 4, "reserved": 6, "driver": 7, "outside": 1}
    assert b.growth["outside"] == 30 * MIB and b.growth["current"] == -MIB
    assert session.peaks["driver"].during == ("b",) and session.peaks["current"].during == ("a",)
    assert (a.seconds, a.calls, a.spans, b.spans) == (1.0, 1, [[0.0, 1.0]], [[1.0, 2.0]])


def test_outside_is_the_peak_of_the_difference_not_the_difference_of_the_peaks(toys):
    session = toys.session(a="A")
    session.call_started("a")
    toys.set(reserved=100, driver=110)
    session.sample()
    toys.set(reserved=20, driver=90)
    session.sample()
    assert peaks(session.nodes["a"])["outside"] == 70
    assert peaks(session.nodes["a"])["driver"] - peaks(session.nodes["a"])["reserved"] == 10


def test_the_allocators_own_peak_counts_between_two_readings(toys):
    session = toys.session(a="A", b="B")
    session.call_started("a")
    toys.set(current=50, reserved=60)
    toys.set(current=5, reserved=60)
    session.call_ended("a")
    toys.run(session, "b")
    assert peaks(session.nodes["a"])["current"] == 50
    assert peaks(session.nodes["b"])["current"] == 5, "the peak was a's, and the counter was reset"
    assert session.peaks["current"].value == 50 * MIB and session.peaks["current"].during == ("a",)


def test_what_was_counted_before_the_prompt_is_not_its_peak(toys):
    toys.set(current=900)
    toys.set(current=1)
    session = toys.session(a="A")
    toys.run(session, "a")
    assert session.peaks["current"].value == MIB


def test_a_list_adds_up_over_its_calls(toys):
    session = toys.session(a="A")
    for driver in 10, 20, 30:
        session.call_started("a")
        toys.set(driver=driver)
        toys.time += 2
        session.call_ended("a")
    node = session.nodes["a"]
    assert (node.calls, node.seconds, node.growth["driver"]) == (3, 6.0, 27 * MIB) and len(node.spans) == 3


def test_overlapping_nodes_are_all_charged_and_named(toys):
    session = toys.session(a="Async", b="B")
    session.call_started("a")
    session.call_started("b")
    toys.set(driver=50)
    session.sample()
    session.call_ended("b")
    session.call_ended("a")
    assert peaks(session.nodes["a"])["driver"] == peaks(session.nodes["b"])["driver"] == 50
    assert session.nodes["a"].overlapped == {"b"} and session.nodes["b"].overlapped == {"a"}
    assert set(session.peaks["driver"].during) == {"a", "b"}


def test_growth_between_nodes_is_no_nodes(toys):
    session = toys.session(a="A", b="B")
    toys.run(session, "a")
    toys.set(driver=33)
    toys.run(session, "b")
    assert session.between["driver"] == 30 * MIB
    assert session.nodes["a"].growth["driver"] == session.nodes["b"].growth["driver"] == 0
    assert session.peaks["driver"].during == ()


def test_cached_nodes(toys):
    session = toys.session(a="A", b="B")
    session.node_cached("a")
    toys.run(session, "b")
    assert session.nodes["a"].status == "cached" and session.nodes["b"].status == "ran"


def test_cached_nodes_that_ComfyUI_passes_over(toys):
    session = toys.session(a="A", b="B", c="C")
    session.prompt.cached = {"a": [[1]], "c": [[1]]}
    session.find_cached()
    session.prompt.cached = {"a": [[1]], "b": [[1]]}
    session.find_cached()
    toys.run(session, "b")
    toys.run(session, "c")
    assert {node_id: node.status for node_id, node in session.nodes.items()} == {"a": "cached", "c": "ran", "b": "ran"}


def test_kernels_of_each_node(toys):
    session = toys.session(a="A", b="B")
    session.call_started("a")
    toys.taken["pad"] += 3
    session.call_ended("a")
    session.call_started("b")
    toys.passed["pad"] += 4
    session.call_ended("b")
    assert session.nodes["a"].kernels == {"pad": [3, 0]} and session.nodes["b"].kernels == {"pad": [0, 4]}


@pytest.mark.parametrize("kind, statuses", [
    ("success", ["ran", "ran", "ran"]), ("failed", ["ran", "interrupted", "failed"]),
    ("interrupted", ["ran", "interrupted", "interrupted"]),
])
def test_what_is_open_at_the_end_is_closed(toys, kind, statuses):
    session = toys.session(done="A", w="Async", c="C")
    toys.run(session, "done")
    session.call_started("w")
    session.call_started("c")
    toys.set(driver=9)
    toys.time += 1
    if kind != "success":
        session.call_ended("c")
    session.end(ended(kind, None if kind == "success" else "c"))
    assert [session.nodes[node_id].status for node_id in ("done", "w", "c")] == statuses
    assert session.nodes["w"].growth["driver"] == 6 * MIB and session.nodes["w"].spans == [[1.0, 2.0]]
    assert session.seconds == 2.0 and session.running == []
    toys.time += 100
    assert session.seconds == 2.0, "time goes on, the prompt is over"


def test_a_failure_in_an_expansion_names_the_node_that_failed(toys):
    session = toys.session()
    session.prompt = Prompt({"E": "Loop"}, **{"E.0.x": "E"})
    session.call_started("E")
    session.call_ended("E")
    session.call_started("E.0.x")
    session.call_ended("E.0.x")
    session.end(ended("failed", "E", "no"))
    assert session.nodes["E.0.x"].status == session.nodes["E"].status == "failed"
    assert session.made_by("E.0.x") == "E" and session.made_by("E") is None


def test_numbers_that_this_torch_cannot_give_stay_away(toys):
    toys.has_reserved = False
    session = toys.session(a="A")
    toys.run(session, "a", driver=30)
    node = session.nodes["a"]
    assert peaks(node) == {"current": 1, "reserved": None, "driver": 30, "outside": None, "footprint": 10}
    assert node.growth["outside"] is None and node.growth["reserved"] is None and node.growth["driver"] == 27 * MIB
    assert session.between["outside"] is None


def test_a_glance_reads_only_what_is_new(toys):
    session = toys.session(a="A")
    session.call_started("a")
    before = toys.reads
    session.glance()
    assert toys.reads == before
    toys.set(driver=7)
    session.glance()
    toys.current = 3  # no peak of the allocator's: as on older torch
    session.glance()
    assert toys.reads == before + 2 and session.readings["patched calls"] == 2
    assert peaks(session.nodes["a"]) == {"current": 3, "reserved": 2, "driver": 7, "outside": 5, "footprint": 10}


def test_a_prompt_inside_a_node_counts_for_both(toys):
    outer = toys.session(a="RunsAnother")
    outer.call_started("a")
    toys.set(current=60)
    toys.set(current=1)
    inner = toys.session(outer, b="B")
    toys.run(inner, "b")
    inner.call_started("b")
    toys.set(current=70)
    toys.set(current=2)
    inner.call_ended("b")
    outer.call_ended("a")
    assert inner.peaks["current"].value == 70 * MIB
    assert peaks(outer.nodes["a"])["current"] == 70, "its node was running all the while"


def test_the_last_footprint_is_kept_when_a_reading_leaves_it_out(toys):
    session = toys.session(a="A")
    session.call_started("a")
    toys.set(driver=9)
    session.glance()
    assert session.last.footprint == 10 * MIB
