"""What people and programs are told."""
import json
import re

import pytest
from memory_toys import MIB, Prompt, ended

OOM = ("MPS backend out of memory (MPS allocated: 8.07 GiB, other allocations: 139.12 GiB, max allowed: 163.20 GiB). "
       "Tried to allocate 256.00 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit.")


@pytest.fixture
def leak(toys):
    """A session in which b made outside grow by 20 MiB, with nine of its pads in stock."""
    session = toys.session(a="Load", b="Decode")
    toys.run(session, "a", current=5, reserved=8, driver=9)
    session.call_started("b")
    toys.passed["pad"], toys.taken["pad"] = 9, 1
    toys.set(driver=29)
    session.call_ended("b")
    session.node_finished("b")
    return session


def test_the_data(toys, leak):
    data = toys.data(leak, "success")
    assert data["available"] and data["final"] and data["outcome"] == "success" and data["failure"] is None
    assert data["seconds"] == 1.0 and data["recommended_maximum"] == 1024 * MIB and data["interval_seconds"] == 0.01
    outside = data["numbers"]["outside"]
    assert (outside["peak"], outside["start"], outside["end"], outside["growth"]) == (21 * MIB, MIB, 21 * MIB, 20 * MIB)
    assert outside["peak_during"] == ["b"] and outside["method"] == "sampled"
    a, b = data["nodes"]
    assert (b["id"], b["class_type"], b["status"], b["calls"]) == ("b", "Decode", "ran", 1)
    assert b["kernels"] == {"pad": {"taken": 1, "passed": 9}} and a["kernels"] == {}
    assert b["growth"]["outside"] == 20 * MIB and b["peaks"]["driver"] == 29 * MIB
    assert data["timeline"]["columns"] == ["seconds", "current", "reserved", "driver", "outside"]
    assert max(row[3] for row in data["timeline"]["rows"]) == 29 * MIB


def test_json_is_strict_and_the_same(memory, toys, leak):
    data = toys.data(leak, "success")
    assert json.loads(memory.report.as_json(data)) == data


@pytest.mark.parametrize("counts, method", [(True, "counted"), (False, "sampled")])
def test_counted_and_sampled_are_told_apart(toys, counts, method):
    toys.counts_peaks = counts
    numbers = toys.data(toys.session())["numbers"]
    assert {name: number["method"] for name, number in numbers.items()} == {
        "current": method, "reserved": method, "driver": "sampled", "outside": "sampled", "footprint": "sampled"}


def test_the_text_names_the_node_the_growth_and_the_way_out(memory, toys, leak):
    text = memory.report.as_text(toys.data(leak, "success"))
    assert text.startswith("Metal memory of this prompt: 1.00 s, 2 nodes ran.")
    assert "Decode (#b) made outside grow by 20.0 MiB. 9 pad calls in it ran in torch's own kernel (stock keeps " \
        "memory); 1 ran in this pack's." in text
    assert "set pad to on" in text and "METAL_KERNELS=pad=on" in text and "until ComfyUI is restarted" in text
    assert '"other allocations"' in text and "Metal recommends at most 1.00 GiB" in text and "3% of that" in text
    (line,) = re.findall(r"^outside .*$", text, re.MULTILINE)
    assert line.split() == ["outside", "21.0", "MiB", "sampled", "in", "Decode", "(#b)", "1.0", "MiB", "21.0", "MiB",
                            "driver", "-", "reserved,", "read", "together"]
    assert "toy footprint" in text


def test_so_far_and_at_the_end(memory, toys, leak):
    assert memory.report.as_text(toys.data(leak)).startswith("Metal memory of this prompt so far: ")
    assert " now " in memory.report.as_text(toys.data(leak)) and "at the end" not in memory.report.as_text(
        toys.data(leak))
    assert "at the end" in memory.report.as_text(toys.data(leak, "success"))


def test_no_growth(memory, toys):
    session = toys.session(a="A")
    toys.run(session, "a", reserved=500, driver=501, current=400)
    data = toys.data(session, "success")
    assert data["growth"]["can_stop"] is None and data["growth"]["node"] is None
    assert data["growth"]["text"] == "Outside memory did not grow in this prompt."


def test_growth_that_no_kernel_stops(toys):
    session = toys.session(a="A")
    toys.run(session, "a", driver=50)
    growth = toys.data(session, "success")["growth"]
    assert (growth["node"], growth["can_stop"], growth["kernel"]) == ("a", False, None)
    assert growth["text"] == "A (#a) made outside grow by 47.0 MiB. No kernel of this pack can stop that: there was " \
        "no pad call in it."


def test_growth_of_several_nodes_names_the_largest_first(toys):
    session = toys.session(**{name: "Node" for name in "abcdef"})
    for name, driver in zip("abcdef", (3.5, 10, 40, 60, 62, 67), strict=True):
        toys.passed["pad"] += 2
        toys.run(session, name, driver=driver)
    session.nodes["c"].kernels, session.nodes["b"].kernels = {"pad": [1, 4]}, {"pad": [0, 3]}
    growth = toys.data(session, "success")["growth"]
    assert growth["nodes"] == ["c", "d", "b", "f", "e"] and growth["node"] == "c"
    assert growth["headline"] == "Node (#c) made outside grow by 30.0 MiB, Node (#d) by 20.0 MiB, Node (#b) by " \
        "6.5 MiB, 2 more nodes by less."
    assert "7 pad calls in them ran in torch's own kernel (stock keeps memory); 1 ran in this pack's." in growth["text"]


def test_growth_in_an_expansion_names_its_maker(toys):
    session = toys.session(E="Loop")
    session.prompt = Prompt({"E": "Loop", "E.0.x": "Decode"}, **{"E.0.x": "E"})
    toys.run(session, "E.0.x", driver=50)
    assert toys.data(session, "success")["growth"]["headline"] == \
        "Decode (#E.0.x), made by Loop (#E), made outside grow by 47.0 MiB."


def test_small_growth_beside_a_large_one_is_not_talked_of(toys):
    session = toys.session(a="A", b="B")
    toys.run(session, "a", driver=8)
    toys.run(session, "b", driver=208)
    growth = toys.data(session, "success")["growth"]
    assert growth["nodes"] == ["b"] and growth["headline"] == "B (#b) made outside grow by 200.0 MiB."


def test_growth_though_our_kernel_ran(toys):
    session = toys.session(a="A")
    session.call_started("a")
    toys.taken["pad"] = 4
    toys.set(driver=50)
    session.call_ended("a")
    assert "all 4 pad calls in it ran in this pack's kernel already" in toys.data(session, "success")["growth"]["text"]


def test_where_stock_is_good_no_kernel_is_recommended(toys, leak):
    toys.stock = {}
    growth = toys.data(leak, "success")["growth"]
    assert growth["can_stop"] is False and growth["text"].endswith("No kernel of this pack can stop that.")


@pytest.mark.parametrize("state", ["failed", "unavailable"])
def test_a_kernel_that_cannot_run_is_not_told_to_be_switched_on(toys, leak, state):
    toys.states["pad"] = (state, "another pack already patches aten::constant_pad_nd on MPS")
    text = toys.data(leak, "success")["growth"]["text"]
    assert f"it is {state}: another pack already patches" in text and "set pad" not in text


def test_growth_between_nodes(toys):
    session = toys.session(a="A")
    toys.run(session, "a")
    toys.set(driver=60)
    growth = toys.data(session, "success")["growth"]
    assert growth["node"] is None and "between nodes, in none of them" in growth["text"]


def test_growth_of_nodes_that_overlap_names_them_all(toys):
    session = toys.session(a="A", b="B")
    session.call_started("a")
    session.call_started("b")
    toys.set(driver=60)
    session.call_ended("b")
    session.call_ended("a")
    text = toys.data(session, "success")["growth"]["text"]
    assert "which ran at the same time" in text and "A (#a)" in text and "B (#b)" in text


def test_what_this_torch_cannot_give_is_not_available_and_not_zero(memory, toys):
    toys.has_reserved, toys.counts_peaks = False, False
    session = toys.session(a="A")
    session.call_started("a")
    toys.passed["pad"] = 3
    toys.set(driver=50)
    session.call_ended("a")
    data = toys.data(session, "success")
    for name in "reserved", "outside":
        assert data["numbers"][name]["method"] == "not available" and data["numbers"][name]["peak"] is None
        assert data["nodes"][0]["peaks"][name] is None
    text = memory.report.as_text(data)
    assert len(re.findall(r"^(reserved|outside) +not available", text, re.MULTILINE)) == 2
    assert "from 2.13 on). That is not zero." in text
    assert data["growth"]["number"] == "driver" and "A (#a) made driver grow by 47.0 MiB. 3 pad calls" in text
    row = memory.report.as_table(data).splitlines()[2]
    assert row.count("not available") == 3, "reserved, outside, and its growth"


def test_a_failure_with_torchs_own_numbers(memory, toys):
    session = toys.session(a="Decode")
    session.call_started("a")
    session.call_ended("a")
    data = toys.data(session, ended("failed", "a", OOM))
    assert data["out_of_memory"] == {"reserved": "8.07 GiB", "outside": "139.12 GiB", "limit": "163.20 GiB"}
    assert data["failure"]["node"] == "a" and data["nodes"][0]["status"] == "failed"
    text = memory.report.as_text(data)
    assert "of this prompt, which failed" in text and "Decode (#a) failed: MPS backend out of memory" in text
    assert 'outside ("other allocations") was 139.12 GiB' in text
    assert "139.12 GiB" in memory.report.summary(data) and "WATERMARK" not in text


def test_other_messages(memory):
    no_limit = "MPS backend out of memory (MPS allocated: 1.00 MiB, other allocations: 384.00 KiB). Tried to allocate"
    assert memory.advice.out_of_memory(no_limit) == {"reserved": "1.00 MiB", "outside": "384.00 KiB", "limit": None}
    assert memory.advice.out_of_memory("CUDA out of memory") is memory.advice.out_of_memory("") is None


def test_a_cancel(memory, toys):
    session = toys.session(a="A")
    session.call_started("a")
    text = memory.report.as_text(toys.data(session, ended("interrupted", "a")))
    assert "which was interrupted" in text and "A (#a) was interrupted." in text


def test_the_table(memory, toys):
    session = toys.session(a="Load", b="De|code", c="Cached")
    session.node_cached("c")
    toys.run(session, "a", driver=2048)
    session.call_started("a")
    session.call_started("b")
    session.call_ended("b")
    session.call_ended("a")
    lines = memory.report.as_table(toys.data(session, "success")).splitlines()
    assert len({len(line) for line in lines}) == 1, "aligned as plain text"
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "node", "time", "current", "reserved", "driver", "outside", "footprint", "outside grew", "kernels", "note"]
    cached, load, decode = lines[2:]
    assert cached.rstrip("| ").endswith("cached") and "MiB" not in cached
    assert "2.00 GiB" in load and "at the same time as" in load
    assert "De\\|code (#b)" in decode


@pytest.mark.parametrize("seconds, text", [
    (0, "0 ms"), (0.004, "4 ms"), (9.5, "9.50 s"), (75.25, "75.2 s"), (200, "3 min 20 s")])
def test_durations(memory, seconds, text):
    assert memory.units.duration(seconds) == text


@pytest.mark.parametrize("count, text", [
    (None, "not available"), (0, "0"), (1, "0.1 KiB"), (512 * 1024, "512.0 KiB"), (5 * MIB, "5.0 MiB"),
    (-3 * MIB, "-3.0 MiB"), (139 * 2**30, "139.00 GiB"), (1234 * 2**30, "1,234.00 GiB")])
def test_sizes(memory, count, text):
    assert memory.units.size(count) == text


def test_signed_sizes(memory):
    assert [memory.units.size(count, sign=True) for count in (MIB, -MIB, 0)] == ["+1.0 MiB", "-1.0 MiB", "0"]


def test_nothing_to_tell(memory):
    data = memory.report.nothing("this machine computes on CUDA 12.8")
    assert memory.report.as_text(data) == "Nothing to record: This machine computes on CUDA 12.8."
    assert memory.report.as_table(data) == ""
