"""The models folders: which files there are, and where one is."""
from .header import ModelFileError

ENDINGS = (".safetensors", ".sft")
NONE = "none"


def choices(folder):
    """The names of the safetensors files in a models folder ("diffusion_models", "text_encoders", "checkpoints")."""
    import folder_paths

    return [name for name in folder_paths.get_filename_list(folder) if name.lower().endswith(ENDINGS)]


def find(folder, name):
    """The path of a file by its name in a models folder. Raises ModelFileError for any other name."""
    import folder_paths

    if not isinstance(name, str) or name not in folder_paths.get_filename_list(folder):
        raise ModelFileError(f"{name!r} is no file of the models folder {folder}: choose one that the list offers.")
    if not name.lower().endswith(ENDINGS):
        raise ModelFileError(f"{name!r} is no safetensors file: only those are loaded here.")
    try:
        return folder_paths.get_full_path_or_raise(folder, name)
    except FileNotFoundError as problem:  # it has gone since the list was made, or its link leads nowhere
        raise ModelFileError(f"{name!r} of the models folder {folder} is not there any more.") from problem
