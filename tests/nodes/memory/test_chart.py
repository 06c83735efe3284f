"""The picture: every report can be drawn, what is drawn can be seen and told apart."""
import copy

import pytest
import torch
from memory_toys import MIB


def has(picture, colour):
    """How many pixels of this colour, as "#rrggbb"."""
    wanted = tuple(int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return sum(count for count, found in picture.getcolors(1 << 24) if found == wanted)


@pytest.fixture
def data(toys):
    session = toys.session(a="Load", b="Decode")
    toys.run(session, "a", 2.0, current=30, reserved=40, driver=41)
    session.call_started("b")
    toys.set(current=20, driver=90)
    session.sample()
    toys.run(session, "b", 6.0)
    return toys.data(session, "success")


def test_every_number_has_its_colour_over_time_and_as_bars(memory, data):
    picture = memory.chart.draw(data)
    assert picture.width == 1200 and 600 < picture.height < 1400
    for colour in memory.chart.COLOURS.values():
        assert has(picture, colour) > 500
    assert has(picture, memory.chart.COLOURS["outside"]) > 10000, "the area between driver and reserved"


def test_as_an_image_of_ComfyUI(memory, data):
    image = memory.chart.as_image(data)
    assert image.dtype == torch.float32 and image.shape[0] == 1 and image.shape[3] == 3
    assert 0 <= image.min() < 0.2 and image.max() == 1


def test_without_the_pool_there_is_no_outside(memory, toys):
    toys.has_reserved = toys.counts_peaks = False
    session = toys.session(a="A")
    toys.run(session, "a", driver=90)
    picture = memory.chart.draw(toys.data(session, "success"))
    assert has(picture, memory.chart.COLOURS["driver"]) > 500
    assert has(picture, memory.chart.COLOURS["outside"]) < 1000, "only the legend, which says that it is not available"


def test_the_recommended_maximum_is_drawn_when_it_is_near(memory, data):
    far, near = copy.deepcopy(data), copy.deepcopy(data)
    near["recommended_maximum"] = 100 * MIB
    plain, with_line = (memory.chart.draw(each) for each in (far, near))
    assert has(with_line, memory.canvas.INK) > has(plain, memory.canvas.INK) + 300


@pytest.mark.parametrize("count", [0, 1, 40])
def test_any_number_of_nodes(memory, toys, count):
    session = toys.session(**{f"n{i}": "Node" for i in range(count)})
    for i in range(count):
        toys.run(session, f"n{i}", driver=10 + i)
    data = toys.data(session, "success")
    picture = memory.chart.draw(data)
    assert picture.height < 2600
    shown, left_out = memory.chart._shown(data)
    assert len(shown) == min(count, memory.chart.MOST) and left_out == count - len(shown)


def test_the_node_that_grew_is_never_left_out(memory, toys):
    session = toys.session(**{f"n{i}": "Node" for i in range(30)})
    toys.run(session, "n0", driver=500)
    for i in range(1, 30):
        toys.run(session, f"n{i}")
    shown, _ = memory.chart._shown(toys.data(session, "success"))
    assert "n0" in {node["id"] for node in shown}


def test_nodes_that_did_nothing_to_speak_of_are_left_to_the_table(memory, toys):
    session = toys.session(a="Load", b="Note", c="Decode")
    toys.run(session, "a", 5.0)
    toys.run(session, "b", 0.001)
    toys.run(session, "c", 0.001, driver=200)
    shown, left_out = memory.chart._shown(toys.data(session, "success"))
    assert [node["id"] for node in shown] == ["a", "c"] and left_out == 1


@pytest.mark.parametrize("name", ["デコード", "x" * 300, "two\nlines", "Größe", ""])
def test_any_title(memory, data, name):
    data["nodes"][0]["name"] = name
    assert memory.chart.draw(data).width == 1200


def test_a_title_that_the_font_lacks_becomes_the_class(memory, data):
    data["nodes"][0]["name"] = "デコード (#a)"
    assert memory.chart._name(data["nodes"][0]) == "Load (#a)"


def test_nodes_that_overlap_lie_under_one_another(memory, toys):
    session = toys.session(a="A", b="B", c="C")
    session.call_started("a")
    session.call_started("b")
    session.call_ended("b")
    session.call_ended("a")
    toys.run(session, "c")
    assert memory.chart._lanes(toys.data(session, "success")) == {"a": 0, "b": 1, "c": 0}


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_prompts_that_did_not_end_well(memory, toys, outcome):
    session = toys.session(a="A")
    session.call_started("a")
    assert memory.chart.draw(toys.data(session, outcome)).width == 1200


def test_while_a_node_still_runs(memory, toys):
    session = toys.session(a="A")
    session.call_started("a")
    toys.time += 3
    assert memory.chart.draw(toys.data(session)).width == 1200


def test_nothing_to_tell(memory):
    picture = memory.chart.draw(memory.report.nothing("This is Linux; these kernels are for Apple's MPS device only."))
    assert has(picture, memory.canvas.INK) > 200


@pytest.mark.parametrize("ceiling, labels", [
    (100, ["0 B", "20 B", "40 B", "60 B", "80 B", "100 B"]),
    (300 * MIB, ["0 MiB", "100 MiB", "200 MiB", "300 MiB"]),
    (1500 * MIB, ["0 MiB", "500 MiB", "1000 MiB", "1500 MiB"]),
    (270 * 2**30, ["0 GiB", "100 GiB", "200 GiB"]),
])
def test_ticks_are_round(memory, ceiling, labels):
    assert [label for _, label in memory.chart._ticks(ceiling)] == labels
