"""Hand out the final report at the prompt's end: an event, the asked-for files, and the log where nothing ran on."""
import logging
import os
import re

from .. import given
from ..given import described
from . import report

EVENT = "metal_kernels.memory"
PREFIX = "metal_memory/report"
TRIES = 1000
LONGEST = 240  # bytes of a file's name without number and ending: file systems take 255 in all

log = logging.getLogger("metal_kernels")


def deliver(session):
    """Send the session's final report. What fails is logged; nothing is raised."""
    data = report.collect(session)
    nodes = [node_id for node_id, node in session.prompt.prompt.items()
             if node.get("class_type") == "MetalMemoryReport"]
    files, unwritten = [], []
    for prefix in sorted(session.files):
        try:
            files.append(write(prefix, report.as_json(data)))
        except Exception as error:
            unwritten.append(f"The report can't be written to {prefix!r}: {error}")
            log.warning("Metal Kernels memory: %s", unwritten[-1])
    if data["outcome"] != "success":
        log.warning("Metal Kernels memory: %s", report.summary(data))
    try:
        send(session.prompt, data, nodes, files, unwritten)
    except Exception:
        log.warning("Metal Kernels memory: the report's event can't be sent", exc_info=True)


def send(prompt, data, nodes, files, unwritten=()):
    """To the browser that queued the prompt; to all of them where it has no name. A node that a failure kept from
    running shows a summary; and each shows which files could not be written and why, sentences in `unwritten`."""
    from server import PromptServer

    server, client = PromptServer.instance, prompt.extra_data.get("client_id")
    server.send_sync(EVENT, {
        "prompt_id": prompt.prompt_id, "nodes": nodes, "files": files, "unwritten": list(unwritten),
        "text": "\n".join([*unwritten, report.as_text(data)]), "report": data,
    }, client)  # fmt: skip
    shown = [*unwritten] if data["outcome"] == "success" else [report.summary(data), *unwritten]
    if shown:
        for node_id in nodes:
            server.send_progress_text(" ".join(shown), node_id, client)


def files_wanted(save_json=False, filename_prefix=PREFIX, **_):
    """The prefixes of the files that a node's inputs ask for: one or none. A linked input is known when it runs."""
    if unclear(save_json) is None and save_json and complaint(filename_prefix) is None:
        return (filename_prefix,)
    return ()


def unclear(save_json):
    """None, or one sentence: why this says neither yes nor no. It may be linked to anything."""
    try:
        given.flag("save_json", save_json)
    except given.Unfit as problem:
        return str(problem).rstrip(".")
    return None


def complaint(prefix):
    """None, or one sentence: why no file can have this prefix. Subfolders are fine, and so is what ComfyUI's server
    fills in: %year%, %month%, %day%, %hour%, %minute%, %second%. (%date:yyyy% the browser fills in, for ComfyUI's own
    nodes.)
    """
    if not isinstance(prefix, str):
        return f"filename_prefix is {described(prefix)}: give a text"
    parts = re.split(r"[/\\]", prefix)
    if not prefix.strip() or not parts[-1].strip(" ."):
        return f"filename_prefix {prefix!r} names no file"
    if os.path.isabs(prefix) or re.match(r"[A-Za-z]:|[/\\]", prefix) or ".." in parts:
        return f"filename_prefix {prefix!r} leaves ComfyUI's output folder; give a name inside it"
    if re.search(r'[\x00-\x1f<>:"|?*\\]', prefix):
        return f"filename_prefix {prefix!r} holds a character that file names can't have everywhere"
    for part in parts:
        if len(part.encode("utf-8", "replace")) > LONGEST:
            return f"filename_prefix {prefix[:40] + '...'!r} holds a name of {len(part)} characters; give a shorter one"
    return None


def write(prefix, text):
    """Write `text` to a new file PREFIX_00001_.json in ComfyUI's output folder; its path from there. Nothing is
    overwritten.

    Raises ValueError for an unfit prefix, OSError when it can't be written.
    """
    import folder_paths

    if complaint(prefix):
        raise ValueError(complaint(prefix))
    output = folder_paths.get_output_directory()
    folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(prefix, output)
    os.makedirs(folder, exist_ok=True)
    for number in range(counter, counter + TRIES):
        path = os.path.join(folder, f"{name}_{number:05}_.json")
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        return os.path.join(subfolder, os.path.basename(path))
    raise OSError(f"there are {TRIES} files like {path} already")
