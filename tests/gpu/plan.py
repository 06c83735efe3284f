"""The build step's OUT, read by the run step; and a case of it on the GPU: memory, values, and its steps."""

from __future__ import annotations

import ctypes
import hashlib
import json
from pathlib import Path

import torch

from .driver import Driver, GpuError

FORMAT = 3


class Plan:
    """Raises GpuError for a folder that build.py did not write, or wrote for other sources than those beside it."""

    def __init__(self, folder: Path, sources: Path | None):
        path = folder / "plan.json"
        if not path.exists():
            raise GpuError(f"{path} is not there: run python -m gpu.build {folder} first")
        self.folder, self.data = folder, json.loads(path.read_text())
        if self.data.get("format") != FORMAT:
            raise GpuError(f"{path} is of another version of the build step: run python -m gpu.build {folder} again")
        for family, digest in self.data["sources"].items() if sources else ():
            text = sources / family / f"{family}.metal"
            if not text.exists() or hashlib.sha256(text.read_bytes()).hexdigest() != digest:
                raise GpuError(
                    f"the PTX in {folder} is stale: {text.name} has changed since; "
                    f"run python -m gpu.build {folder} again"
                )
        missing = [k["file"] for k in self.data["kernels"].values() if not (folder / k["file"]).exists()]
        if missing:
            raise GpuError(f"{folder} lacks {missing[0]}: run python -m gpu.build {folder} again")
        self.cases = self.data["cases"]

    def load(self, driver: Driver, cases: list[dict]) -> dict[str, tuple]:
        """key -> (function, signature) of the kernels that `cases` launch."""
        calls = [call for case in cases for call in (case, *case["peers"])]
        keys = {step["kernel"] for call in calls for step in call["steps"] if "kernel" in step}
        driver.load([self.folder / file for file in sorted({self.data["kernels"][key]["file"] for key in keys})])
        kernels = self.data["kernels"]
        return {key: (driver.function(kernels[key]["file"], kernels[key]["symbol"]), kernels[key]) for key in keys}


def dtype_of(reference: dict) -> torch.dtype:
    return getattr(torch, reference["dtype"])


class Instance:
    """One copy of a case's memory on the GPU, and its steps bound to it."""

    def __init__(self, case: dict, functions: dict, driver: Driver, values: list[torch.Tensor] | None = None):
        """values: the inputs' storages as bytes, from another instance; None: filled by fill()."""
        self.case, self._driver = case, driver
        self.storages = [self._memory(max(size, 1)) for size in case["storages"]]
        inputs = {reference["storage"] for reference in case["inputs"]}
        for number, storage in enumerate(self.storages):
            if number not in inputs:
                storage.fill_(0xA5)  # what is left unwritten shows
            elif values is not None:
                storage.copy_(values[number])
        self.inputs = [self.view(reference) for reference in case["inputs"]]
        self.results = [self.view(reference) for reference in case["results"]]
        self._steps = [self._launch(s, functions) if "kernel" in s else self._operation(s) for s in case["steps"]]

    def _memory(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    def view(self, reference: dict) -> torch.Tensor:
        dtype = dtype_of(reference)
        storage = self.storages[reference["storage"]]
        flat = storage[: storage.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return flat.as_strided(reference["shape"], reference["stride"], reference["offset"])

    def run(self) -> None:
        for step in self._steps:
            step()

    def arguments(self) -> list:
        """The case's arguments, inputs in place of their descriptions."""
        inputs = iter(self.inputs)

        def decode(value):
            if isinstance(value, dict):
                return next(inputs)
            dtype = getattr(torch, value, None) if isinstance(value, str) else None
            return dtype if isinstance(dtype, torch.dtype) else value

        return [decode(value) for value in self.case["args"]]

    def _launch(self, step: dict, functions: dict):
        function, signature = functions[step["kernel"]]
        cells = []
        for argument in signature["args"]:
            value = step["args"][argument["index"]] if argument["index"] < len(step["args"]) else {"hex": ""}
            if "storage" in value:
                address = self.storages[value["storage"]].data_ptr() + value["offset"] * dtype_of(value).itemsize
                cells.append(ctypes.c_uint64(address))
            elif "null" in value:
                cells.append(ctypes.create_string_buffer(argument["size"]))
            elif argument["as"] == "pointer":
                raise GpuError(f"{step['kernel']}: argument {argument['index']} is a value, not a tensor")
            else:
                data = bytes.fromhex(value["hex"])
                if len(data) > argument["size"] and argument["size"] < 1024:
                    data = data[: argument["size"]]
                if len(data) > argument["size"]:
                    raise GpuError(f"{step['kernel']}: {len(data)} bytes by value, {argument['size']} fit")
                cells.append(ctypes.create_string_buffer(data, argument["size"]))
        cells += [ctypes.c_uint32(extent) for extent in step["threads"]]
        pointers = (ctypes.c_void_p * len(cells))(*[ctypes.cast(ctypes.byref(c), ctypes.c_void_p) for c in cells])
        groups = [-(-extent // size) for extent, size in zip(step["threads"], step["group"], strict=True)]
        launch, group = self._driver.launch, step["group"]

        def run(keep=cells):
            launch(function, groups, group, pointers)

        return run

    def _operation(self, step: dict):
        def decode(value):
            if isinstance(value, dict) and "storage" in value:
                return self.view(value)
            if isinstance(value, dict):
                return getattr(torch, value["dtype_value"]) if "dtype_value" in value else torch.tensor(value["value"])
            return [decode(item) for item in value] if isinstance(value, list) else value

        name, args, out = step["op"], decode(step["args"]), [self.view(reference) for reference in step["out"]]
        if step["in_place"]:
            return lambda: getattr(torch.ops.aten, name)(*args)
        (result,) = out
        if name == "linear":
            x, weight, bias = (*args, None)[:3]
            if x.dim() != 2 or weight.dim() != 2:
                return lambda: result.copy_(torch.nn.functional.linear(x, weight, bias))
            if bias is not None:
                return lambda: torch.addmm(bias, x, weight.t(), out=result)
            return lambda: torch.mm(x, weight.t(), out=result)
        if name == "mm":
            return lambda: torch.mm(*args, out=result)
        if name == "zeros":
            return result.zero_
        if name in ("_to_copy", "clone"):
            return lambda: result.copy_(args[0])
        return lambda: result.copy_(getattr(torch.ops.aten, name)(*args))


def fill(instance: Instance, generator: torch.Generator) -> None:
    """Values for the inputs, the same ones for the same seed. Made where the generator is."""
    case = instance.case
    for reference, tensor in zip(case["inputs"], instance.inputs, strict=True):
        storage = instance.storages[reference["storage"]]
        dtype = dtype_of(reference)
        flat = storage[: storage.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        if reference["values"] is not None:
            tensor.copy_(torch.tensor(reference["values"], dtype=dtype).view(tensor.shape))
        elif reference["fill"] in ("softmax", "log_softmax"):
            dim = case["args"][2]
            x = torch.randn(tensor.shape, generator=generator, device=generator.device)
            y = torch.softmax(x, dim) if reference["fill"] == "softmax" else torch.log_softmax(x, dim)
            _set(tensor, y)
        else:
            _fill_flat(flat, reference, generator)


_CHUNK = 2**28


def _fill_flat(flat: torch.Tensor, reference: dict, generator: torch.Generator) -> None:
    kind, device = reference["fill"], generator.device
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK]
        n = part.numel()
        if kind == "bytes" or kind == "exponents":
            low, high = (0, 256) if kind == "bytes" else (110, 140)
            bits = part.view(torch.uint8)
            options = {"generator": generator, "device": device, "dtype": torch.uint8}
            bits.copy_(torch.randint(low, high, (bits.numel(),), **options))
        elif kind == "integers":
            _set(part, torch.randint(0, reference["high"], (n,), generator=generator, device=device))
        elif kind == "positive":
            _set(part, torch.rand(n, generator=generator, device=device) * 0.5 + 0.5)
        elif kind == "ones":
            _set(part, torch.ones(n, device=device))
        else:
            scale = {"normal": 1.0, "weights": 0.05, "weight": 8.0}[kind]
            _set(part, torch.randn(n, generator=generator, device=device).mul_(scale))


def _set(part: torch.Tensor, values: torch.Tensor) -> None:
    """Converted where they were made: what comes from the CPU arrives by a copy that the sanitizer sees."""
    part.copy_(values.to(part.dtype))
