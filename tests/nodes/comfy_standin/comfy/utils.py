"""What ComfyUI makes of the older scaled files."""


def convert_old_quants(state_dict, model_prefix="", metadata=None):
    return state_dict, metadata
