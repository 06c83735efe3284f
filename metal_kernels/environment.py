"""This machine: torch, macOS, chip; what stops the kernels here, and what this torch already does well by itself.

The only file that knows torch versions. `TABLE` says, by torch release, what stock MPS does with the ops that the
kernel families repair (sources: PyTorch's pull requests and wheels). Where the table cannot tell, a family probes.
"""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

FLOOR_TORCH = (2, 9)
FLOOR_MACOS = (15, 0)


@dataclass(frozen=True)
class Stock:
    """What stock MPS does. good: True needs no kernel, False needs one, None must be probed."""

    good: bool | None
    text: str


NEWEST = (2, 15)  # the last release that the table tells of

# feature -> the release from which on stock is like this. A release that is not named is like the one before it.
TABLE: dict[str, dict[tuple[int, int], Stock]] = {
    "pad": {
        (2, 9): Stock(False, "MPSGraph pads wrongly from rank 5 on and keeps driver memory for each shape"),
        (2, 14): Stock(None, "MPSGraph pads, with or without its faults: to be probed"),
        (2, 15): Stock(True, "this torch pads with a Metal kernel of its own"),
    },
    "softmax": {
        (2, 9): Stock(False, "softmax runs through MPSGraph"),
        (2, 15): Stock(True, "this torch has Metal kernels for the forward softmax"),
    },
    "softmax_backward": {
        (2, 9): Stock(False, "the backward of softmax runs through MPSGraph"),
    },
    "linear_one_row": {
        (2, 9): Stock(False, "F.linear with one row runs through MPSGraph"),
        (2, 14): Stock(False, "F.linear with one row does not reach the GEMV kernel that mm has"),
        (2, 15): Stock(True, "this torch has a GEMV kernel for F.linear with one row"),
    },
    "linear_few_rows": {
        (2, 9): Stock(False, "F.linear with 2 to 15 rows is slow, up to 8.5 times slower as [B, 1, K]"),
        (2, 14): Stock(False, "F.linear with 2 to 15 rows is slow; more than two dimensions no longer make it slower"),
        (2, 15): Stock(False, "F.linear with 2 to 15 rows is still slow"),
    },
    "linear_many_batches": {
        (2, 9): Stock(False, "F.linear with more than 65536 batches loses the bias past them (#189495)"),
        (2, 14): Stock(True, "F.linear keeps the bias of all batches"),
    },
    "linear_vector_bias": {
        (2, 9): Stock(False, "F.linear of [B, 1, K] drops the bias on macOS 26 (#188438)"),
        (2, 14): Stock(True, "F.linear of [B, 1, K] keeps the bias"),
    },
    "linear_strided_weight": {
        (2, 9): Stock(False, "F.linear may read a weight that is not contiguous as if it were (#162730)"),
        (2, 10): Stock(True, "F.linear follows the weight's strides"),
    },
    "grouped_mm": {
        (2, 9): Stock(False, "_grouped_mm loops over the groups and waits for the device to read offs"),
        (2, 15): Stock(True, "this torch has Metal kernels for _grouped_mm"),
    },
    "float8_e4m3fn": {
        (2, 9): Stock(False, "float8_e4m3fn has storage but no cast (TypeError) and no strided copy"),
        (2, 10): Stock(False, "float8_e4m3fn has storage but no cast (Undefined type) and no strided copy"),
        (2, 15): Stock(True, "this torch has float8_e4m3fn on MPS"),
    },
    "float8_e5m2": {
        (2, 9): Stock(False, "float8_e5m2 has storage but no cast and no strided copy"),
    },
    "scaled_mm": {
        (2, 9): Stock(False, "torch._scaled_mm is missing on MPS"),
    },
    "scaled_mm_v2": {
        (2, 9): Stock(False, "this torch has no F.scaled_mm"),
        (2, 10): Stock(False, "F.scaled_mm is missing on MPS"),
        (2, 15): Stock(False, "F.scaled_mm runs at 0.12 of bfloat16's speed"),
    },
    "scaled_mm_v2_op": {  # so that what is wrong with its arguments is said by someone
        (2, 9): Stock(False, "F.scaled_mm is missing on MPS"),
        (2, 15): Stock(True, "F.scaled_mm is there"),
    },
    "peak_statistics": {
        (2, 9): Stock(False, "torch.accelerator has no memory statistics for MPS"),
        (2, 13): Stock(True, "torch.accelerator reports MPS memory and its peaks"),
    },
}


def parse_version(text: str) -> tuple[int, int]:
    """(major, minor) of a version text such as "2.13.0+cpu", "2.16.0a0+git123" or "15.5"; (0, 0) if it has none."""
    match = re.match(r"(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


@dataclass(frozen=True)
class Environment:
    """What was found on this machine.

    torch, macos, chip   as texts; macos and chip are "" elsewhere.
    device               who computes: "Apple GPU", "software Metal", or "" when there is no MPS.
    obstacle             why nothing can be patched here, in one sentence; None when kernels can run.
    """

    torch: str
    version: tuple[int, int]
    system: str
    machine: str
    macos: str
    chip: str
    device: str
    obstacle: str | None

    @property
    def untested(self) -> str | None:
        """ "untested with torch 2.16" when this torch is newer than the table, else None."""
        return f"untested with torch {self.version[0]}.{self.version[1]}" if self.version > NEWEST else None

    def stock(self, feature: str) -> Stock:
        """What this torch does by itself with `feature`, a key of TABLE. A newer torch: what the newest one does.

        Raises KeyError for a feature that the table does not have.
        """
        return _stock(feature, self.version)

    def as_dict(self) -> dict[str, object]:
        """For status reports: JSON-serialisable."""
        return {
            "torch": self.torch, "system": self.system, "machine": self.machine, "macos": self.macos or None,
            "chip": self.chip or None, "device": self.device or None, "obstacle": self.obstacle, "untested":
            self.untested,
        }  # fmt: skip


def stock(feature: str) -> Stock:
    """What the torch of this process does by itself with `feature`; cheap, for a patch's `spare`. KeyError as above."""
    return _stock(feature, _version(str(torch.__version__)))


def _stock(feature: str, version: tuple[int, int]) -> Stock:
    row = TABLE[feature]
    return row[max((release for release in row if release <= version), default=min(row))]


_version = lru_cache(maxsize=8)(parse_version)


def build() -> str:
    """Which build of torch this is, for figures that are to be compared: version and commit."""
    return f"torch {torch.__version__} ({(torch.version.git_version or '?')[:8]})"


def detect() -> Environment:
    """Look at this machine. Starts no GPU work and makes no tensor."""
    version = str(torch.__version__)
    available = torch.backends.mps.is_available()
    macos = platform.mac_ver()[0]
    found = Environment(
        torch=version, version=parse_version(version),
        system=platform.system(), machine=platform.machine(), macos=macos,
        chip=_chip() if available else "", device=_device() if available else "", obstacle=None,
    )  # fmt: skip
    return replace(found, obstacle=_obstacle(found, available))


def _obstacle(found: Environment, available: bool) -> str | None:
    """The first thing that keeps the kernels from running here, as a sentence for the person at the graph."""
    if found.version < FLOOR_TORCH:
        floor = ".".join(map(str, FLOOR_TORCH))
        return f"torch {found.torch} is older than {floor}, the oldest that these kernels support."
    if not available and not found.macos:
        accelerator = _other_accelerator()
        if accelerator:
            return f"This machine computes on {accelerator}; these kernels are for Apple's MPS device only."
        here = found.system or "not a Mac"
        return f"This is {here}; these kernels are for Apple's MPS device, which needs macOS on Apple silicon."
    if found.machine == "x86_64" and sys.platform == "darwin":
        return "This Python is built for Intel Macs; these kernels need Apple silicon and a Python built for arm64."
    if parse_version(found.macos) < FLOOR_MACOS:
        return f"macOS {found.macos} is older than {FLOOR_MACOS[0]}, the oldest that these kernels support."
    if not available:
        if not torch.backends.mps.is_built():
            return "This torch is built without MPS; install the arm64 macOS build of torch."
        return "This torch finds no MPS device (torch.backends.mps.is_available() is False)."
    return None


def _other_accelerator() -> str:
    """The accelerator that this torch is built for, without starting its driver; "" for none."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return "Intel XPU" if getattr(torch.version, "xpu", None) else ""


def _device() -> str:
    # MPS outside macOS can only be the software device of the tests. Its figures must never pass for a GPU's.
    return "Apple GPU" if sys.platform == "darwin" else "software Metal"


def _chip() -> str:
    """The chip's name as Metal gives it, "Apple M2 Max"; "" where torch cannot say."""
    try:
        return torch.backends.mps.get_name()
    except (AttributeError, RuntimeError):  # older torch
        return ""
