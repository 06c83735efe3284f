"""Rows of the conformance table on the GPU: the same inputs, the recorded launches, the table's own references.

Needs the folder metal_kernels beside tests: the operations of the table make the inputs from the seed of a row, and its
references are float64 on the CPU, or bit for bit what the CPU gives.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from .driver import GpuError
from .plan import Instance


def casts_beyond_range(case: dict) -> bool:
    """Whether the reference is the CPU's own cast of values beyond e4m3fn's range: releases of torch differ there, in
    the largest value or NaN."""
    options = case["conformance"]["options"]
    to_e4m3fn = options.get("to") == {"dtype": "float8_e4m3fn"}
    return case["op"] == "fp8_encode" or (case["op"] == "fp8_decode" and to_e4m3fn)


def library(folder: Path):
    """metal_kernels.conformance from the folder above `metal_kernels`."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("metal_kernels.conformance")
    except ImportError:
        raise GpuError(
            f"{folder / 'metal_kernels'} has no Python files: rows of the conformance table are judged by them; "
            "carry the folder, or choose other tables with --table"
        ) from None


def decode(table, made: dict):
    """The row that conformance.encode() wrote."""
    options = {name: _value(value) for name, value in made["options"].items()}
    return table.Case(made["op"], _value(made["dtype"]), _value(made["shapes"]), made["layout"], options, made["size"])


def _value(value):
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "dtype":
        return getattr(torch, inner)
    return complex(*inner) if kind == "complex" else tuple(map(_value, inner))


def comparable(table, case: dict, plan: dict) -> bool:
    """Whether this torch's CPU is a reference for what the plan's torch recorded."""
    formats = importlib.import_module(f"{table.__name__.rpartition('.')[0]}.fp8.formats")
    return not casts_beyond_range(case) or formats.saturates() == plan["saturates"]


def judge(table, case: dict, instance: Instance) -> float:
    """Run the case: the worst error, of the tolerance. Raises the table's Mismatch."""
    operation = table.OPERATIONS[case["op"]]
    arguments = fill(table, case, instance)
    instance.run()
    actual = tuple(_taken(instance, reference) for reference in case["results"])
    return table.compare(actual, operation.reference(*arguments), operation.tolerance, case["name"])


def fill(table, case: dict, instance: Instance) -> tuple:
    """The row's inputs, made on the CPU, into the instance's memory; returns the operation's arguments there."""
    arguments = table.OPERATIONS[case["op"]].make(decode(table, case["conformance"]))
    given = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)]
    for reference, tensor in zip(case["inputs"], given, strict=True):
        _put(instance, reference, tensor)
    return arguments


def _put(instance: Instance, reference: dict, tensor: torch.Tensor) -> None:
    """The tensor's whole storage, gaps and all."""
    bytes_ = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    instance.storages[reference["storage"]][: bytes_.numel()].copy_(bytes_)


def _taken(instance: Instance, reference: dict) -> torch.Tensor:
    """A result on the CPU, of the strides that it has on the device."""
    storage = instance.storages[reference["storage"]].cpu()
    dtype = getattr(torch, reference["dtype"])
    flat = storage[: storage.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return flat.as_strided(reference["shape"], reference["stride"], reference["offset"])
