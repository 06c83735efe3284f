"""Where the final report goes: the event, the file, the log."""
import json
import logging
import sys
import time
import types

import pytest
import torch
from memory_toys import ended


@pytest.fixture
def comfy(monkeypatch, tmp_path):
    """ComfyUI's server and its folder_paths, writing below tmp_path/output."""
    seen = types.SimpleNamespace(events=[], texts=[], output=tmp_path / "output")

    class Server:
        def send_sync(self, event, data, sid=None):
            seen.events.append((event, json.loads(json.dumps(data)), sid))

        def send_progress_text(self, text, node_id, sid=None):
            seen.texts.append((text, node_id, sid))

    def get_save_image_path(prefix, output):
        subfolder, _, name = prefix.replace("%year%", str(time.localtime().tm_year)).rpartition("/")
        folder = seen.output / subfolder
        folder.mkdir(parents=True, exist_ok=True)
        taken = [int(path.stem.split("_")[-2]) for path in folder.glob(f"{name}_*_.json")]
        return str(folder), name, max(taken, default=0) + 1, subfolder, prefix

    def module(name, **contents):
        made = types.ModuleType(name)
        made.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, made)

    module("server", PromptServer=types.SimpleNamespace(instance=Server()))
    module("folder_paths", get_output_directory=lambda: str(seen.output), get_save_image_path=get_save_image_path)
    return seen


@pytest.fixture
def session(toys):
    made = toys.session(a="A", M="MetalMemoryReport")
    toys.run(made, "a")
    made.end(ended("success"))
    return made


def test_the_event_goes_to_the_browser_that_queued_the_prompt(memory, comfy, session):
    memory.deliver.deliver(session)
    ((event, data, client),) = comfy.events
    assert event == "metal_kernels.memory" and client == "browser" and comfy.texts == []
    assert (data["prompt_id"], data["nodes"], data["files"], data["unwritten"]) == ("p1", ["M"], [], [])
    assert data["report"]["final"] and data["text"].startswith("Metal memory of this prompt: ")


def test_to_everybody_where_the_prompt_has_no_browser(memory, comfy, session):
    session.prompt.extra_data = {}
    memory.deliver.deliver(session)
    assert comfy.events[0][2] is None


def test_a_failure_is_logged_and_shown_on_the_node_that_could_not_run(memory, comfy, toys, caplog):
    session = toys.session(a="A", M="MetalMemoryReport")
    session.call_started("a")
    session.end(ended("failed", "a", "no"))
    with caplog.at_level(logging.WARNING, "metal_kernels"):
        memory.deliver.deliver(session)
    assert any("A (#a) failed: no" in record.getMessage() for record in caplog.records)
    ((text, node_id, client),) = comfy.texts
    assert node_id == "M" and client == "browser" and "A (#a) failed: no" in text


def test_files_are_numbered_and_none_is_overwritten(memory, comfy, session):
    session.files = {"runs/mem"}
    for number in 1, 2:
        memory.deliver.deliver(session)
        assert comfy.events[-1][1]["files"] == [f"runs/mem_0000{number}_.json"]
    first = json.loads((comfy.output / "runs/mem_00001_.json").read_text())
    assert first == comfy.events[0][1]["report"]


def test_a_file_made_meanwhile_by_another_is_kept(memory, comfy, monkeypatch):
    (comfy.output).mkdir()
    sys.modules["folder_paths"].get_save_image_path = lambda prefix, output: (output, prefix, 1, "", prefix)
    (comfy.output / "x_00001_.json").write_text("theirs")
    assert memory.deliver.write("x", "ours") == "x_00002_.json"
    assert (comfy.output / "x_00001_.json").read_text() == "theirs"


def test_what_cannot_be_written_is_logged_and_the_event_goes_out(memory, comfy, session, caplog):
    session.files = {"x"}

    def full(prefix, output):
        raise OSError("disk full")

    sys.modules["folder_paths"].get_save_image_path = full
    memory.deliver.deliver(session)
    assert "disk full" in caplog.text and comfy.events[0][1]["files"] == []
    said = "The report can't be written to 'x': disk full"
    assert comfy.events[0][1]["unwritten"] == [said] and comfy.events[0][1]["text"].startswith(said + "\n")
    assert comfy.texts == [(said, "M", "browser")]


def test_an_event_that_cannot_be_sent_breaks_nothing(memory, comfy, session, caplog):
    session.files = {"x"}
    sys.modules["server"].PromptServer = None
    memory.deliver.deliver(session)
    assert "can't be sent" in caplog.text and (comfy.output / "x_00001_.json").exists()


@pytest.mark.parametrize("prefix", ["report", "a/b/c", "metal_memory/report", "Bericht ä", "%year%-%month%", "a.b",
                                    "n" * 240])
def test_fit_prefixes(memory, comfy, prefix):
    assert memory.deliver.complaint(prefix) is None
    assert (comfy.output / memory.deliver.write(prefix, "{}")).read_text() == "{}"


@pytest.mark.parametrize("prefix, reason", [
    ("", "names no file"), ("  ", "names no file"), ("a/", "names no file"), ("a/..", "names no file"),
    ("../x", "leaves"), ("a/../../x", "leaves"), ("/etc/x", "leaves"), ("\\x", "leaves"), ("C:/x", "leaves"),
    ("a\\..\\x", "leaves"), ("ab:c/d\0", "character"), ("x\n", "character"), ("a*", "character"), ("a\\b", "character"),
])
def test_unfit_prefixes_are_named(memory, comfy, prefix, reason):
    complaint = memory.deliver.complaint(prefix)
    assert reason in complaint and repr(prefix) in complaint
    with pytest.raises(ValueError, match="filename_prefix"):
        memory.deliver.write(prefix, "{}")
    assert not comfy.output.exists() and memory.deliver.files_wanted(True, prefix) == ()


@pytest.mark.parametrize("prefix", ["n" * 300, "folder/" + "n" * 241, "n" * 300 + "/x", "\u00e4" * 121])
def test_a_name_that_no_file_system_takes_is_refused(memory, comfy, prefix):
    complaint = memory.deliver.complaint(prefix)
    assert "characters; give a shorter one" in complaint and len(complaint) < 200
    assert memory.deliver.files_wanted(True, prefix) == ()


@pytest.mark.parametrize("prefix, what", [
    (3, "the int 3"), (None, "nothing (None)"), (["1", 0], "of type list"), (torch.zeros(2), "of type Tensor"),
])
def test_a_prefix_that_is_no_text_is_named(memory, prefix, what):
    assert memory.deliver.complaint(prefix) == f"filename_prefix is {what}: give a text"
    assert memory.deliver.files_wanted(True, prefix) == ()


@pytest.mark.parametrize("save_json, files", [
    (True, ("x",)), (1, ("x",)), (False, ()), (0, ()), ("yes", ()), (None, ()), (["1", 0], ()),
])
def test_files_are_wanted_where_it_is_clear(memory, save_json, files):
    assert memory.deliver.files_wanted(save_json, "x") == files
