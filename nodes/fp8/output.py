"""Where a saved model goes: a numbered file in ComfyUI's output folder."""
import contextlib
import os
import tempfile

from ..given import described, shortened
from .header import ModelFileError
from .writer import PART, missing_folders

LONGEST = 255  # bytes of a file's name, on every file system that matters
_WHAT = "it must name a place within ComfyUI's output folder"


def path(filename_prefix):
    """The next free path of a prefix ("diffusion_models/name"); nothing is created.

    Raises ModelFileError for what is no name, or lies outside the output folder.
    """
    import folder_paths

    if not isinstance(filename_prefix, str):
        raise ModelFileError(f"filename_prefix is {described(filename_prefix)}: {_WHAT}.")
    given = f"filename_prefix is {shortened(filename_prefix)}"
    if not filename_prefix.isprintable():
        raise ModelFileError(f"{given}: it has characters that are not for names.")
    root = folder_paths.get_output_directory()
    try:
        plain = _plain(filename_prefix)
        new = missing_folders(os.path.join(root, os.path.dirname(os.path.normpath(plain))))
        try:
            folder, name, counter, _, _ = folder_paths.get_save_image_path(filename_prefix, root)
        finally:  # ComfyUI makes the folder; the writer does when there is something to write
            for each in new:
                with contextlib.suppress(OSError):
                    os.rmdir(each)
    except Exception as problem:
        said = f" ({problem.strerror})" if isinstance(problem, OSError) and problem.strerror else ""
        raise ModelFileError(f"{given}: {_WHAT}{said}.") from problem
    inside = os.path.relpath(folder, root)
    if any(part.startswith(".") for part in (*(() if inside == os.curdir else inside.split(os.sep)), name)):
        raise ModelFileError(f"{given}: what begins with a dot is hidden, or no name. Give the file one.")
    file = f"{name}_{counter:05}_.safetensors"
    if len(os.fsencode(file + PART)) > LONGEST:
        most = LONGEST - len(os.fsencode(file + PART)) + len(os.fsencode(name))
        raise ModelFileError(f"{given}: its name has {len(os.fsencode(name))} bytes, and {most} are possible.")
    return os.path.join(folder, file)


def _plain(prefix):
    """The prefix with ComfyUI's variables (%year%) in their places."""
    import folder_paths

    if "%" not in prefix:
        return prefix
    inside = prefix.lstrip(os.sep)
    with tempfile.TemporaryDirectory() as empty:
        return prefix[: len(prefix) - len(inside)] + folder_paths.get_save_image_path(inside, empty)[4]
