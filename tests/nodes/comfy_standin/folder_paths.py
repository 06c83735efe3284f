"""Models folders without files; tests put some there."""
import os

FILES = {}  # folder -> {name: path}


def get_filename_list(folder):
    return sorted(FILES.get(folder, {}))


def get_full_path_or_raise(folder, name):
    return FILES[folder][name]


def get_folder_paths(folder):
    return []


def get_output_directory():
    raise NotImplementedError


def get_save_image_path(filename_prefix, output_dir, image_width=0, image_height=0):
    """(folder, name, next number, folder below the output's, prefix with its variables in place), as ComfyUI has it:
    the folder is made."""
    filename_prefix = filename_prefix.replace("%year%", "2026")
    below, name = os.path.split(os.path.normpath(filename_prefix))
    folder = os.path.join(output_dir, below)
    if os.path.commonpath([os.path.abspath(output_dir), os.path.abspath(folder)]) != os.path.abspath(output_dir):
        raise ValueError("outside the output folder")
    try:
        taken = [file.removeprefix(f"{name}_") for file in os.listdir(folder) if file.startswith(f"{name}_")]
    except FileNotFoundError:
        os.makedirs(folder)
        taken = []
    return folder, name, max((int(rest.split("_")[0]) for rest in taken), default=0) + 1, below, filename_prefix
