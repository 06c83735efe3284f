"""The memory report in a real ComfyUI, on a stock whose pads keep driver memory (torch 2.13)."""
import json

import pytest
from graphs import error, node, pad, switch
from server import Refused

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600)]

EVENT = "metal_kernels.memory"
ENOUGH = 2**20
NOTHING = {"threads": 0, "watched": False, "session": False}


def report(source=None, **inputs):
    return node("MetalMemoryReport", **({"value": (source, 0)} if source else {}), **inputs)


def event(client, prompt_id):
    """The final report's event of a prompt."""
    return client.until(lambda kind, data: kind == EVENT and data["prompt_id"] == prompt_id)


def rows(found):
    return {each["id"]: each for each in found["nodes"]}


def test_its_inputs_are_final(comfyui):
    info = comfyui.get("/object_info")["MetalMemoryReport"]
    assert list(info["input"].get("required", {})) == []
    assert list(info["input"]["optional"])[:3] == ["value", "save_json", "filename_prefix"]
    assert info["output_name"][:5] == ["value", "report", "table", "json", "picture"]
    assert info["output"][:5] == ["COMFY_MATCHTYPE_V3", "STRING", "STRING", "STRING", "IMAGE"]


def test_the_padding_node_is_named_and_what_stops_it(comfyui, client):
    graph = {"S": switch("not cached", pad="off"), "up": node("TestShapes", shapes=3), "M": report("leaks"),
             "leaks": node("TestShapes", value=("S", 0), shapes=5), "table": node("TestShow", value=("M", 2))}
    graph["leaks"]["_meta"] = {"title": "Decode"}
    prompt = client.queue(graph)
    assert client.end(prompt)[0] == "execution_success"
    told = event(client, prompt)
    assert told["nodes"] == ["M"] and told["files"] == [] and told["report"]["final"]
    found, by_id = told["report"], rows(told["report"])
    assert set(by_id) == {"S", "up", "leaks", "table"} and {each["status"] for each in found["nodes"]} == {"ran"}
    assert by_id["leaks"]["growth"]["outside"] > ENOUGH > abs(by_id["up"]["growth"]["outside"])
    assert by_id["leaks"]["kernels"] == {"pad": {"taken": 0, "passed": 5}}
    assert by_id["up"]["kernels"] == {"pad": {"taken": 3, "passed": 0}}
    assert (found["growth"]["node"], found["growth"]["kernel"], found["growth"]["can_stop"]) == ("leaks", "pad", True)
    assert "Decode (#leaks) made outside grow by" in told["text"] and "set pad to on" in told["text"]
    methods = {name: number["method"] for name, number in found["numbers"].items()}
    assert methods == {"current": "counted", "reserved": "counted", "driver": "sampled", "outside": "sampled",
                       "footprint": "sampled"}
    assert found["environment"]["device"] in told["text"]
    shown = comfyui.end(prompt)["outputs"]
    assert shown["M"]["images"] and "so far" in shown["M"]["text"][0] and "Decode (#leaks)" in shown["M"]["text"][0]
    assert shown["table"]["shown"][0]["text"].startswith("| node")


def test_json_and_picture_reach_other_nodes(comfyui):
    graph = {"p": pad(seed=120), "M": report("p"), "j": node("PreviewAny", source=("M", 3)),
             "d": node("PreviewImage", images=("M", 4))}
    outputs = comfyui.run(graph)["outputs"]
    told = json.loads(outputs["j"]["text"][0])
    assert not told["final"] and told["recommended_maximum"] > 0 and list(told["numbers"]) == [
        "current", "reserved", "driver", "outside", "footprint"]
    for name, number in told["numbers"].items():
        assert number["peak"] >= max(number["start"], number["end"]) >= 0, name
        assert rows(told)["p"]["peaks"][name] <= number["peak"]
    assert told["numbers"]["footprint"]["peak"] > told["numbers"]["current"]["peak"] > 0
    assert len(outputs["d"]["images"]) == 1


def test_a_growth_that_no_kernel_can_stop_is_said_to_be_one(comfyui, client):
    prompt = client.queue({"grows": node("TestOutside", shapes=4), "M": report("grows")})
    told = event(client, prompt)
    assert told["report"]["growth"]["node"] == "grows" and told["report"]["growth"]["can_stop"] is False
    assert "No kernel of this pack can stop that: there was no pad call in it." in told["text"]


def test_the_value_passes_through_and_it_runs_again_each_time(comfyui, client):
    graph = {"1": node("TestNumber", number=7), "M": report("1"), "s": node("TestShow", value=("M", 0)), "p": pad()}
    for status in "ran", "cached":
        prompt = client.queue(graph)
        told = event(client, prompt)
        entry = comfyui.end(prompt)
        assert entry["outputs"]["s"]["shown"][0] == {"text": "7", "type": "int"}
        if status == "cached":
            assert rows(told["report"])["1"]["status"] == "cached" and rows(told["report"])["p"]["peaks"] is None
        assert rows(told["report"])["s"]["status"] == "ran"


def test_a_failing_prompt_is_reported_and_saved(comfyui, client):
    graph = {"S": switch(pad="off"), "f": node("TestShapes", value=("S", 0), shapes=3, fail=True),
             "M": report("f", save_json=True, filename_prefix="tests/failed")}
    prompt = client.queue(graph)
    assert client.end(prompt)[0] == "execution_error"
    told = event(client, prompt)
    assert told["report"]["outcome"] == "failed" and rows(told["report"])["f"]["status"] == "failed"
    assert rows(told["report"])["f"]["growth"]["outside"] > ENOUGH
    assert "TestShapes (#f) failed: this node always fails" in told["text"]
    (file,) = told["files"]
    assert json.loads((comfyui.folder / "output" / file).read_text()) == told["report"]
    assert "this node always fails" in error(comfyui.end(prompt))["exception_message"]


def test_an_out_of_memory_message_is_read(comfyui, client):
    prompt = client.queue({"S": switch(pad="off"), "h": node("TestHungry", value=("S", 0)), "M": report("h")})
    assert client.end(prompt)[0] == "execution_error"
    told = event(client, prompt)
    found = told["report"]["out_of_memory"]
    assert set(found) == {"reserved", "outside", "limit"} and f"was {found['outside']}" in told["text"]
    number, unit = found["outside"].split()
    outside = float(number) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    assert abs(outside - told["report"]["numbers"]["outside"]["end"]) < 0.02 * outside, "one and the same number"


def test_an_interrupted_prompt_is_reported_and_saved(comfyui, client):
    prompt = client.queue({"s": node("TestSlow", seed=103),
                           "M": report("s", save_json=True, filename_prefix="tests/interrupted")})
    client.until(lambda kind, data: kind == "progress_state" and data["prompt_id"] == prompt
                 and data["nodes"].get("s", {}).get("value"))
    comfyui.post("/interrupt", {})
    assert client.end(prompt)[0] == "execution_interrupted"
    told = event(client, prompt)
    assert told["report"]["outcome"] == "interrupted" and rows(told["report"])["s"]["status"] == "interrupted"
    assert "TestSlow (#s) was interrupted" in told["text"]
    (file,) = told["files"]
    assert json.loads((comfyui.folder / "output" / file).read_text()) == told["report"]
    assert comfyui.get("/test/memory") == NOTHING, "and nothing records any more"


def test_files_are_numbered_and_nothing_is_overwritten(comfyui, client):
    graph = {"M": report(save_json=True, filename_prefix="tests/mem")}
    names = [event(client, client.queue(graph))["files"] for _ in range(2)]
    assert names == [["tests/mem_00001_.json"], ["tests/mem_00002_.json"]]


@pytest.mark.parametrize("prefix", ["../up", "/etc/x", "a/../../x", "", "C:\\x", "a\0b"])
def test_a_prefix_outside_the_output_folder_is_refused_before_anything_runs(comfyui, prefix):
    with pytest.raises(Refused) as caught:
        comfyui.queue({"M": report(save_json=True, filename_prefix=prefix)})
    (told,) = caught.value.args[0]["node_errors"]["M"]["errors"]
    assert repr(prefix) in told["details"]


def test_a_linked_prefix_stops_the_graph(comfyui):
    entry = comfyui.end(comfyui.queue({"t": node("TestText", text="../up"), "M": node(
        "MetalMemoryReport", save_json=True, filename_prefix=("t", 0))}))
    assert "filename_prefix '../up' leaves ComfyUI's output folder" in error(entry)["exception_message"]


def test_expanded_nodes_name_their_maker_and_overlapping_ones_each_other(comfyui, client):
    prompt = client.queue({"E": node("TestExpand"), "e": node("TestShow", value=("E", 1)), "w": node(
        "TestAsync", seconds=1.0, seed=104), "b": node("TestSlow", seconds=0.3, seed=105), "M": report()})
    told = event(client, prompt)
    by_id = rows(told["report"])
    made = {each["made_by"] for each in by_id.values()}
    others = by_id["w"]["overlapped"]
    assert made == {None, "E"} and others and all("w" in by_id[other]["overlapped"] for other in others)
    assert "each charged with the memory of all of them" in told["text"]


def test_several_report_nodes_and_two_prompts_in_a_row(comfyui, client):
    first = client.queue({"a": pad(seed=106), "M": report("a"), "b": pad("M", seed=107), "N": report("b")})
    second = client.queue({"c": pad(seed=108), "M": report("c")})
    told = [event(client, prompt) for prompt in (first, second)]
    assert [set(rows(each["report"])) for each in told] == [{"a", "b"}, {"c"}] and told[0]["nodes"] == ["M", "N"]
    shown = comfyui.end(first)["outputs"]
    assert "(#b)" not in shown["M"]["text"][0] and "(#b)" in shown["N"]["text"][0]
    assert len([1 for kind, data in client.messages if kind == EVENT]) == 2


def recording_while_it_runs(comfyui, client, graph):
    """What records while the graph's TestSlow "s" runs; the prompt is over afterwards."""
    prompt = client.queue(graph)
    client.until(lambda kind, data: kind == "progress_state" and data["prompt_id"] == prompt
                 and data["nodes"].get("s", {}).get("value"))
    found = comfyui.get("/test/memory")
    assert client.end(prompt)[0] == "execution_success"
    comfyui.end(prompt)
    return found


def test_without_a_report_node_nothing_records(comfyui, client):
    slow = {"s": node("TestSlow", seconds=1.0, seed=109)}
    assert recording_while_it_runs(comfyui, client, slow) == NOTHING
    slow["s"]["inputs"]["seed"] = 110
    with_report = recording_while_it_runs(comfyui, client, {**slow, "M": report()})
    assert with_report == {"threads": 1, "watched": True, "session": True}
    client.until(lambda kind, data: kind == EVENT)
    assert comfyui.get("/test/memory") == NOTHING
    assert len([1 for kind, _ in client.messages if kind == EVENT]) == 1


def test_a_torch_that_cannot_tell_the_pool_from_the_rest(comfyui_path):
    from client import connected
    from server import running

    with running(comfyui_path, faults="2.12") as comfyui, connected(comfyui) as client:
        prompt = client.queue({"S": switch(pad="off"), "leaks": node("TestShapes", value=("S", 0), shapes=5),
                               "M": report("leaks")})
        told = event(client, prompt)
    numbers = told["report"]["numbers"]
    assert {name: number["method"] for name, number in numbers.items()} == {
        "current": "sampled", "reserved": "not available", "driver": "sampled", "outside": "not available",
        "footprint": "sampled"}
    assert numbers["outside"]["peak"] is None and rows(told["report"])["leaks"]["peaks"]["reserved"] is None
    assert "TestShapes (#leaks) made driver grow by" in told["text"] and "5 pad calls in it" in told["text"]
    assert "That is not zero." in told["text"]


def test_another_client_does_not_hear_of_it(comfyui, client):
    from client import connected

    with connected(comfyui) as other:
        event(client, client.queue({"M": report()}))
        assert not [1 for kind, _ in other.messages if kind == EVENT]
