"""CUDA's driver by ctypes: PTX to functions, and launches on torch's current stream."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch


class GpuError(RuntimeError):
    """There is no GPU to run on, or it refuses what it is given. One sentence for a person."""


MINIMUM = (9, 0)  # the compute capability that the PTX is for: targets.py


def find_gpu() -> str:
    """The GPU's name. Raises GpuError where there is none, or one that this PTX is not for."""
    if not torch.cuda.is_available():
        raise GpuError("no NVIDIA GPU: torch.cuda.is_available() is False, so there is nothing to run these kernels on")
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if capability < MINIMUM:
        raise GpuError(
            f"{name} has compute capability {capability[0]}.{capability[1]}; the PTX is for "
            f"{MINIMUM[0]}.{MINIMUM[1]} and newer (tests/softmetal/frontend/targets.py says which)"
        )
    return name


class Driver:
    """Modules of PTX files, compiled side by side by the GPU's driver."""

    def __init__(self):
        torch.zeros(1, device="cuda")  # the context
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._modules: dict[str, ctypes.c_void_p] = {}
        self._context = ctypes.c_void_p()
        self._check(self._cuda.cuCtxGetCurrent(ctypes.byref(self._context)), "cuCtxGetCurrent")

    def _check(self, code: int, what: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise GpuError(f"{what}: {(text.value or b'?').decode()}")

    def load(self, paths: list[Path]) -> None:
        with ThreadPoolExecutor(16) as pool:
            for path, module in zip(paths, pool.map(self._load, paths), strict=True):
                self._modules[path.name] = module

    def _load(self, path: Path) -> ctypes.c_void_p:
        self._check(self._cuda.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
        # CU_JIT_ERROR_LOG_BUFFER, and its size: what the compiler says of PTX that it refuses
        options = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        code = self._cuda.cuModuleLoadDataEx(ctypes.byref(module), path.read_bytes() + b"\0", 2, options, values)
        said = log.value.decode(errors="replace").strip()
        self._check(code, f"the GPU's driver does not compile {path.name}: {said}")
        return module

    def function(self, file: str, symbol: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        code = self._cuda.cuModuleGetFunction(ctypes.byref(function), self._modules[file], symbol.encode())
        self._check(code, f"{symbol} of {file}")
        return function

    def registers(self, function: ctypes.c_void_p) -> tuple[int, int]:
        """(registers of a thread, bytes of local memory of a thread)"""
        values = []
        for attribute in (4, 3):  # CU_FUNC_ATTRIBUTE_NUM_REGS, _LOCAL_SIZE_BYTES
            value = ctypes.c_int()
            self._check(self._cuda.cuFuncGetAttribute(ctypes.byref(value), attribute, function), "cuFuncGetAttribute")
            values.append(value.value)
        return tuple(values)

    def launch(self, function, groups, group, parameters) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = self._cuda.cuLaunchKernel(function, *groups, *group, 0, stream, parameters, None)
        if code:
            self._check(code, f"launch of {groups} groups of {group}")
