"""Models folders without files; tests put some there."""
FILES = {}  # folder -> {name: path}


def get_filename_list(folder):
    return sorted(FILES.get(folder, {}))


def get_full_path_or_raise(folder, name):
    return FILES[folder][name]


def get_folder_paths(folder):
    return []
