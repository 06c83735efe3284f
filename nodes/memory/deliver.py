"""Hand out the final report at the prompt's end: an event, the asked-for files, and the log where nothing ran on."""
import logging
import os
import re

from . import report

EVENT = "metal_kernels.memory"
PREFIX = "metal_memory/report"
TRIES = 1000

log = logging.getLogger("metal_kernels")


def deliver(session):
    """Send the session's final report. What fails is logged; nothing is raised."""
    data = report.collect(session)
    nodes = [node_id for node_id, node in session.prompt.prompt.items()
             if node.get("class_type") == "MetalMemoryReport"]
    files = []
    for prefix in sorted(session.files):
        try:
            files.append(write(prefix, report.as_json(data)))
        except Exception as error:
            log.warning("Metal Kernels memory: the report can't be written to %r: %s", prefix, error)
    if data["outcome"] != "success":
        log.warning("Metal Kernels memory: %s", report.summary(data))
    try:
        send(session.prompt, data, nodes, files)
    except Exception:
        log.warning("Metal Kernels memory: the report's event can't be sent", exc_info=True)


def send(prompt, data, nodes, files):
    """To the browser that queued the prompt; to all of them where it has no name. A node that a failure kept from
    running shows a summary."""
    from server import PromptServer

    server, client = PromptServer.instance, prompt.extra_data.get("client_id")
    server.send_sync(EVENT, {
        "prompt_id": prompt.prompt_id, "nodes": nodes, "files": files, "text": report.as_text(data),
        "report": data,
    }, client)  # fmt: skip
    if data["outcome"] != "success":
        for node_id in nodes:
            server.send_progress_text(report.summary(data), node_id, client)


def files_wanted(save_json=False, filename_prefix=PREFIX, **_):
    """The prefixes of the files that a node's inputs ask for: one or none. A linked input is known when it runs."""
    if save_json is True and isinstance(filename_prefix, str) and complaint(filename_prefix) is None:
        return (filename_prefix,)
    return ()


def complaint(prefix):
    """None, or one sentence: why no file can have this prefix. Subfolders are fine, and %date%-like parts too."""
    parts = re.split(r"[/\\]", prefix)
    if not prefix.strip() or not parts[-1].strip(" ."):
        return f"filename_prefix {prefix!r} names no file"
    if os.path.isabs(prefix) or re.match(r"[A-Za-z]:|[/\\]", prefix) or ".." in parts:
        return f"filename_prefix {prefix!r} leaves ComfyUI's output folder; give a name inside it"
    if re.search(r'[\x00-\x1f<>:"|?*\\]', prefix):
        return f"filename_prefix {prefix!r} holds a character that file names can't have everywhere"
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
