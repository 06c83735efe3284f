"""What a CPU build of torch lacks beneath torch.mps: parts that a Mac's build has in C++."""
import ctypes
import os

import torch


def compile_shader(source: str):
    """torch.mps.compile_shader's inner part: the library made from MSL source; SyntaxError if it does not compile."""
    from softmetal import shader

    return shader.compile_shader(source)


def host_alias_storage(storage):
    """torch.mps._host_alias_storage's inner part: a CPU UntypedStorage over the memory of an mps one.

    It keeps that memory alive. What the CPU writes there is not followed, so all of it counts as written.
    """
    from softmetal import runtime

    size = storage.nbytes()
    if storage.device.type != "mps":
        raise RuntimeError(f"expected a storage on mps, got one on {storage.device}")
    if size == 0:
        return torch.UntypedStorage(0)
    buffer = (ctypes.c_char * size).from_address(storage.data_ptr())
    buffer.owner = storage
    runtime.load().smr_mark_written(ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(size))
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def new_storage(cls, *args, device=None, **kwargs):
    """torch.UntypedStorage.__new__, which also knows mps: an integer makes so many bytes, a sequence is copied."""
    if device is None or torch.device(device).type != "mps" or kwargs:
        return torch._C.StorageBase.__new__(cls, *args, **({} if device is None else {"device": device}), **kwargs)
    content = args[0] if args else 0
    if isinstance(content, int):
        return torch.empty(content, dtype=torch.uint8, device="mps").untyped_storage()
    return torch.tensor(list(content), dtype=torch.uint8, device="mps").untyped_storage()


class Capture:
    """torch.mps.profiler's inner part for GPU traces: nothing is recorded, and `capturing` is true in between."""

    def __init__(self):
        self.capturing = False

    @staticmethod
    def enabled() -> bool:
        """Whether the process was started with MTL_CAPTURE_ENABLED=1, as Metal asks for."""
        return os.environ.get("MTL_CAPTURE_ENABLED") == "1"

    def start(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"startCapture(): the trace's name must be str, not {type(name).__name__}")
        self.capturing = True

    def stop(self) -> None:
        torch._C._mps_deviceSynchronize()
        self.capturing = False


def load_metallib(data: bytes | str):
    """torch.mps.load_metallib's inner part, for bytes and for a path."""
    raise RuntimeError("the software Metal device compiles MSL source; a .metallib holds code for Apple's GPUs")
