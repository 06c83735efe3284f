"""Which switch governs a node: the rules, on graphs alone."""
import importlib

import pytest
import torch
from executor import node, standin
from pack import load


@pytest.fixture
def rules():
    return importlib.import_module(f"{load().__name__}.nodes.switch.governance")


def switch(source=None, **modes):
    return node("MetalKernelsSwitch", value=[source, 0] if source else 1, **modes)


def under(*sources, **inputs):
    return node("Any", **{f"in{i}": [source, 0] for i, source in enumerate(sources)}, **inputs)


def graph(prompt, expanded=()):
    """ComfyUI's DynamicPrompt over `prompt`, and (parent, {id: node}) of each expansion."""
    with standin() as comfyui:
        made = comfyui.execution.DynamicPrompt(prompt)
    for parent, nodes in expanded:
        for node_id, info in nodes.items():
            made.add_ephemeral_node(node_id, info, parent, parent)
    return made


def settings(rules, made, node_id, known=()):
    known = dict(known)
    return rules.govern(made, node_id,
                        lambda switch: known.get(switch, rules.written(made, switch, ("pad", "softmax"))))


def test_it_governs_what_is_downstream_and_nothing_else(rules):
    made = graph({"up": under(), "S": switch("up", pad="off"), "down": under("S"), "far": under("down"),
                  "beside": under("up")})
    assert settings(rules, made, "down") == ({"pad": "off"}, ("S",), ())
    assert settings(rules, made, "far").settings == {"pad": "off"}
    for outside in ("up", "beside", "S"):
        assert settings(rules, made, outside) == rules.NONE


def counted(made):
    """How often the graph is asked for a node."""
    calls, stock = [], made.get_node
    made.get_node = lambda node_id: calls.append(node_id) or stock(node_id)
    return calls


def test_what_is_known_is_not_looked_for_again(rules):
    """Cache keys ask for every pair of nodes: of a long chain, and of a loop, each round of which makes the next."""
    chain = {"S": switch(pad="off")} | {f"{n}": under(f"{n - 1}" if n else "S") for n in range(100)}
    rounds = [(f"r{n - 1}" if n else "99", {f"r{n}": under()}) for n in range(100)]
    made = graph(chain, rounds)
    calls, known = counted(made), {}

    def ask(*node_ids):
        before = len(calls)
        for node_id in node_ids:
            said = {} if node_id == "S" else {"pad": "off"}
            assert rules.govern(made, node_id, lambda _: {"pad": "off"}, known).settings == said
        return len(calls) - before

    ask(*chain)
    assert ask(*(f"r{n}" for n in range(100))) <= 300, "a round asks of the one before it alone"
    assert ask(*chain, *(f"r{n}" for n in range(100))) == 0


def test_a_ruling_by_values_that_are_not_known_yet_is_not_kept(rules):
    made = graph({"S": switch(pad=["t", 0]), "t": under(), "a": under("S"), "b": under("a")}, [("b", {"c": under()})])
    known, values = {}, {}
    for _ in range(2):
        assert rules.govern(made, "c", values.get, known).settings == {}
    values["S"] = {"pad": "off"}
    assert rules.govern(made, "c", values.get, known).settings == {"pad": "off"}
    assert set(known) == {"b", "c"}


def test_the_nearest_wins_by_number_of_links(rules):
    made = graph({"S": switch(pad="off"), "a": under("S"), "T": switch("a", pad="on"), "b": under("T"),
                  "c": under("b", "S"), "d": under("b", "a")})
    assert settings(rules, made, "a").settings == {"pad": "off"}
    assert settings(rules, made, "b").settings == {"pad": "on"}
    assert settings(rules, made, "c") == ({"pad": "off"}, ("S",), ()), "one link to S, two to T"
    assert settings(rules, made, "d").conflict == ("pad",), "two links to each"
    assert settings(rules, made, "T").settings == {"pad": "off"}, "a switch is downstream of another"


def test_the_nearest_counts_whole(rules):
    """A kernel that the nearest does not name keeps the process's mode, whatever a farther one says of it."""
    made = graph({"S": switch(pad="off", softmax="on"), "T": switch("S", pad="auto"), "a": under("T")})
    assert settings(rules, made, "a").settings == {"pad": "auto"}


def test_equally_near_and_of_one_mind(rules):
    made = graph({"S": switch(pad="off"), "T": switch(pad="off"), "a": under("S", "T")})
    assert settings(rules, made, "a") == ({"pad": "off"}, ("S", "T"), ())


def test_equally_near_they_are_compared_kernel_by_kernel(rules):
    made = graph({"S": switch(pad="off", softmax="on"), "T": switch(pad="off", softmax="auto"), "a": under("S", "T")})
    assert settings(rules, made, "a") == ({"pad": "off"}, ("S", "T"), ("softmax",)), "what they agree on is kept"


def test_an_input_that_one_leaves_out_stands_for_its_default(rules):
    made = graph({"S": switch(pad="off"), "T": switch(pad="off", softmax="auto"), "U": switch(pad="off", softmax="on"),
                  "a": under("S", "T"), "b": under("S", "U")})
    assert settings(rules, made, "a") == ({"pad": "off", "softmax": "auto"}, ("S", "T"), ())
    assert settings(rules, made, "b") == ({"pad": "off"}, ("S", "U"), ("softmax",))


def test_equally_near_and_at_odds(rules):
    made = graph({"U": switch(pad="on"), "S": switch("U", pad="off"), "T": switch("U", pad="auto"),
                  "a": under("S", "T"), "b": under("a")})
    for node_id in ("a", "b"):
        assert settings(rules, made, node_id) == ({}, ("S", "T"), ("pad",)), "the defaults apply, not the farther U"


def test_the_text_output_is_a_link_too(rules):
    made = graph({"S": switch(pad="off"), "a": node("Any", text=["S", 1])})
    assert settings(rules, made, "a").settings == {"pad": "off"}


def test_an_expansion_without_a_switch_continues_at_the_node_that_made_it(rules):
    made = graph({"S": switch(pad="off"), "P": under("S"), "other": under()},
                 [("P", {"P.1": under(), "P.2": under("P.1")}), ("P.2", {"P.2.1": under("P.1")}),
                  ("other", {"other.1": under()})])
    for node_id in ("P.1", "P.2", "P.2.1"):
        assert settings(rules, made, node_id) == ({"pad": "off"}, ("S",), ())
    assert settings(rules, made, "other.1") == rules.NONE


def test_an_expansions_own_switch_is_nearer_than_the_parents(rules):
    made = graph({"S": switch(pad="off"), "P": under("S")},
                 [("P", {"T": switch(pad="on"), "P.1": under("T"), "P.2": under()})])
    assert settings(rules, made, "P.1").settings == {"pad": "on"}
    assert settings(rules, made, "P.2").settings == {"pad": "off"}
    assert settings(rules, made, "T").settings == {"pad": "off"}


def test_an_expansion_that_links_out_of_itself_follows_the_link(rules):
    """The clones that a loop makes of its body's nodes."""
    made = graph({"S": switch(pad="off"), "body": under("S"), "T": switch(pad="on"), "loop": under("T")},
                 [("loop", {"body.2": under("body")})])
    assert settings(rules, made, "body.2").settings == {"pad": "off"}


def test_values_that_come_by_a_link(rules):
    made = graph({"text": under(), "S": switch(pad=["text", 0], softmax="on"), "a": under("S")})
    assert settings(rules, made, "a") == ({}, ("S",), ()), "it has not run: nothing is known, nothing is governed"
    assert settings(rules, made, "a", {"S": {"pad": "off", "softmax": "on"}}).settings["pad"] == "off"


def test_one_of_two_has_not_run(rules):
    made = graph({"S": switch(pad=["text", 0]), "text": under(), "T": switch(pad="off"), "a": under("S", "T")})
    assert settings(rules, made, "a") == ({"pad": "off"}, ("S", "T"), ())


@pytest.mark.parametrize("value", [["gone", 0], ["S"], ["S", "x"], ["S", 0, 0], "S", {"S": 0}, None, [0, "S"]])
def test_what_is_no_link_is_not_followed(rules, value):
    made = graph({"S": switch(pad="off"), "a": node("Any", value=value)})
    assert settings(rules, made, "a") == rules.NONE


def test_a_switch_is_certain_to_have_run_without_a_lazy_input_between(rules):
    made = graph({"S": switch(), "a": under("S"), "z": node("Any", lazy=["a", 0]), "b": under("z"),
                  "y": node("Any", lazy=["S", 0], hard=["a", 0]), "P": under("y"), "Q": under("b")},
                 [("P", {"P.1": under()}), ("Q", {"Q.1": under("Q.2"), "Q.2": under()})])
    found = {node_id for node_id in made.all_node_ids()
             if rules.certain(made, node_id, "S", lambda _, name: name == "lazy")}
    assert found == {"a", "y", "P", "P.1"}
    assert not rules.certain(graph({"a": under("b"), "b": under("a")}), "a", "S", lambda *_: False)


def test_downstream(rules):
    made = graph({"a": under(), "b": under("a"), "c": under("b"), "P": under(), "d": under("P"), "e": under("a", "d")},
                 [("P", {"P.1": under(), "P.2": under("P.1")})])
    assert rules.downstream(made, ["b"]) == {"b", "c"}
    assert rules.downstream(made, ["P.1"]) == {"P.1", "P.2", "P", "d", "e"}
    assert rules.downstream(graph({"a": under("b"), "b": under("a")}), ["a"]) == {"a", "b"}


def test_a_cycle_ends(rules):
    made = graph({"a": under("b"), "b": under("a")})
    assert settings(rules, made, "a") == rules.NONE


def test_a_diamond_of_many_levels_is_walked_once(rules):
    prompt = {"S": switch(pad="off"), "0": under("S", "S")}
    prompt |= {str(i): under(str(i - 1), str(i - 1)) for i in range(1, 200)}
    assert settings(rules, graph(prompt), "199").settings == {"pad": "off"}


def test_what_may_have_to_be_registered(rules):
    node = switch(pad="on", softmax=["text", 0], linear="off", fp8="auto")
    kernels = "pad", "softmax", "linear", "fp8", "grouped_mm"
    assert rules.may_switch_on(node, kernels, ()) == {"pad", "softmax"}
    assert rules.may_switch_on(node, kernels, ("linear", "fp8", "grouped_mm")) == {"pad", "softmax", "fp8"}


@pytest.mark.parametrize("value", ["ON", "", "yes", None, 1, True, ["on"], {"on": 1}])
def test_an_unknown_value_is_named_in_one_sentence(rules, value):
    rules.check({"pad": "on", "softmax": "auto"})
    with pytest.raises(ValueError) as caught:
        rules.check({"softmax": "on", "pad": value})
    assert str(caught.value) == f"pad of the Metal Kernels Switch is {value!r}: it must be auto, on or off."


def test_what_is_no_plain_value_is_named_by_its_type(rules):
    """A picture's numbers, cut in the middle, would say nothing."""
    with pytest.raises(ValueError) as caught:
        rules.check({"pad": torch.zeros(1, 8, 8, 3)})
    assert str(caught.value) == "pad of the Metal Kernels Switch is of type Tensor: it must be auto, on or off."


def test_a_huge_unknown_value_is_cut(rules):
    with pytest.raises(ValueError) as caught:
        rules.check({"pad": "x" * 100_000})
    assert len(str(caught.value)) < 150


def test_the_text_is_read_back(rules):
    for values in ({}, {"pad": "off"}, {"pad": "on", "softmax": "auto"}):
        assert rules.from_text(rules.as_text(values)) == values
    assert rules.as_text({"pad": "on", "fp8": "off"}) == "pad=on,fp8=off", "METAL_KERNELS' notation"
    for other in (None, object(), "pad", "pad=maybe"):
        assert rules.from_text(other) is None
