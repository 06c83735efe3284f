"""Runs one compiled kernel on numpy arrays through the runtime's C interface: what the front end's tests need."""

import ctypes
import functools

import numpy as np
from softmetal import frontend, runtime


class _Binding(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("index", ctypes.c_uint32),
        ("element_size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
        ("bindings", ctypes.POINTER(_Binding)),
        ("binding_count", ctypes.c_uint32),
        ("threads", ctypes.c_uint32 * 3),
        ("group_size", ctypes.c_uint32 * 3),
        ("flags", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("watchdog_seconds", ctypes.c_double),
    ]


@functools.cache
def _shared_object(path):
    return ctypes.CDLL(str(path))


def dims(value):
    values = (value,) if isinstance(value, int) else tuple(value)
    return (ctypes.c_uint32 * 3)(*values, *(1,) * (3 - len(values)))


def run(source: str, kernel: str, *arrays: np.ndarray, threads, group_size=32, checked: bool = True) -> int:
    """Bind each array to buffer(i) in arena memory, run, copy back. Returns the runtime's verdict (0: no fault)."""
    library = frontend.compile(source, checked=checked)
    found = library.kernels[kernel]
    rt = runtime.load()
    rt.smr_arena_alloc.restype = ctypes.c_void_p
    rt.smr_arena_alloc.argtypes = [ctypes.c_size_t]
    rt.smr_arena_free.argtypes = [ctypes.c_void_p]
    names = {argument.index: argument for argument in found.arguments}
    bindings = (_Binding * len(arrays))()
    blocks = []
    for index, array in enumerate(arrays):
        block = rt.smr_arena_alloc(array.nbytes)
        blocks.append(block)
        ctypes.memmove(block, array.ctypes.data, array.nbytes)
        rt.smr_mark_written(ctypes.c_void_p(block), ctypes.c_size_t(array.nbytes))
        argument = names[index]
        bindings[index] = _Binding(
            block,
            array.nbytes,
            argument.name.encode(),
            index,
            argument.element_size,
            1 if argument.address_space == "constant" else 0,
        )
    entry = ctypes.cast(getattr(_shared_object(library.path), found.symbol), ctypes.c_void_p)
    launch = _Launch(
        entry, kernel.encode(), bindings, len(arrays), dims(threads), dims(group_size), int(checked), 1, 20.0
    )
    report = ctypes.create_string_buffer(4096)
    verdict = rt.smr_launch(ctypes.byref(launch), report)
    for array, block in zip(arrays, blocks, strict=True):
        ctypes.memmove(array.ctypes.data, block, array.nbytes)
        rt.smr_arena_free(block)
    return verdict


HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def evaluate(expressions, inputs=(), kind="float", helpers="", count=None):
    """The values of MSL expressions of type `kind` in one thread; `inputs` is bound as `device const float* in`."""
    dtype = {
        "float": np.float32,
        "uint": np.uint32,
        "int": np.int32,
        "ulong": np.uint64,
        "long": np.int64,
        "half": np.float16,
    }[kind]
    lines = "".join(f"  out[{i}] = {kind}({e});\n" for i, e in enumerate(expressions))
    source = HEAD + helpers + f"kernel void f(device const float* in, device {kind}* out) {{\n{lines}}}\n"
    out = np.zeros(len(expressions), dtype)
    data = np.array(list(inputs) or [0.0], np.float32)
    assert run(source, "f", data, out, threads=1, group_size=1) == 0
    return out
