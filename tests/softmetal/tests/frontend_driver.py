"""Runs one compiled kernel on numpy arrays, without torch: what the front end's tests need."""

import ctypes
import functools

import numpy as np
from softmetal import frontend, runtime
from softmetal.runtime.launch import Bound, launch


@functools.cache
def _shared_object(path):
    return ctypes.CDLL(str(path))


def dims(value) -> tuple[int, int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (*values, 1, 1)[:3]


def run(source: str, kernel: str, *arrays: np.ndarray, threads, group_size=32, checked: bool = True, seed=1, **options):
    """Bind each array to buffer(i) in arena memory, run, copy back. options: of `compile`. Raises KernelFault."""
    rt = runtime.load()
    library = frontend.compile(source, checked=checked, **options)
    found = library.kernels[kernel]
    arguments = {argument.index: argument for argument in found.arguments}
    entry = ctypes.cast(getattr(_shared_object(library.path), found.symbol), ctypes.c_void_p).value
    blocks, bindings = [], []
    try:
        for index, array in enumerate(arrays):
            blocks.append(block := rt.smr_arena_alloc(array.nbytes))
            ctypes.memmove(block, array.ctypes.data, array.nbytes)
            rt.smr_mark_written(block, array.nbytes)
            argument = arguments[index]
            constant = argument.address_space == "constant"
            bindings.append(Bound(index, block, array.nbytes, argument.name, argument.element_size, constant))
        launch(str(library.path), entry, kernel, bindings, dims(threads), dims(group_size), seed=seed, checked=checked)
    finally:
        for array, block in zip(arrays, blocks, strict=False):
            ctypes.memmove(array.ctypes.data, block, array.nbytes)
            rt.smr_arena_free(block)


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
    run(source, "f", data, out, threads=1, group_size=1)
    return out
