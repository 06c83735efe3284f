"""What a CPU build of torch lacks beneath torch.mps: parts that a Mac's build has in C++."""
import torch


def compile_shader(source: str):
    """torch.mps.compile_shader's inner part: the library made from MSL source; SyntaxError if it does not compile."""
    from softmetal import shader

    return shader.compile_shader(source)


def new_storage(cls, *args, device=None, **kwargs):
    """torch.UntypedStorage.__new__, which also knows mps: an integer makes so many bytes, a sequence is copied."""
    if device is None or torch.device(device).type != "mps" or kwargs:
        return torch._C.StorageBase.__new__(cls, *args, **({} if device is None else {"device": device}), **kwargs)
    content = args[0] if args else 0
    if isinstance(content, int):
        return torch.empty(content, dtype=torch.uint8, device="mps").untyped_storage()
    return torch.tensor(list(content), dtype=torch.uint8, device="mps").untyped_storage()
