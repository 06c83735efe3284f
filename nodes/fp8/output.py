"""Where a saved model goes: a numbered file in ComfyUI's output folder."""
import os

from .header import ModelFileError


def path(filename_prefix):
    """The next free path of a prefix ("diffusion_models/name"). Raises ModelFileError outside the output folder."""
    import folder_paths

    try:
        folder, name, counter, _, _ = folder_paths.get_save_image_path(
            filename_prefix, folder_paths.get_output_directory()
        )
    except Exception as problem:
        raise ModelFileError(
            f"filename_prefix is {filename_prefix!r}: it must name a place within ComfyUI's output folder."
        ) from problem
    return os.path.join(folder, f"{name}_{counter:05}_.safetensors")
