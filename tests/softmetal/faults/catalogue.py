"""The faults of stock MPS and the versions of PyTorch that show them.

Sources are issue numbers of pytorch/pytorch unless another place is named. A version's profile is the set of its
faults.
"""
from collections.abc import Iterable
from dataclasses import dataclass

VERSIONS = {"2.9": "2.9.1", "2.12": "2.12.0", "2.13": "2.13.0", "2.14": "2.14.0", "2.15": "2.15.0"}
"""Profiles, and the torch version that each presents."""

_ALL = frozenset(VERSIONS)
_BEFORE_2_15 = _ALL - {"2.15"}
_BEFORE_2_14 = _BEFORE_2_15 - {"2.14"}


@dataclass(frozen=True)
class Fault:
    """One way in which stock MPS misbehaves.

    id: its name for `activate(faults={...})`. title: what happens. source: who reported it. versions: profiles that
    show it. switch: name of the C++ switch. lacks: ops that have no MPS kernel while the fault is on. macos: first
    major version of macOS that shows it.
    """

    id: str
    title: str
    source: str
    versions: frozenset[str]
    switch: str | None = None
    lacks: tuple[str, ...] = ()
    macos: int = 0


def _kernel(id: str, title: str, source: str, versions: frozenset[str], macos: int = 0) -> Fault:
    return Fault(id, title, source, versions, switch=id, macos=macos)


FAULTS: dict[str, Fault] = {fault.id: fault for fault in (
    _kernel("pad-inner-extent", "constant pad of rank 5 and more writes the fill value (bfloat16: NaN) over the data "
            "once the output's last dimension, or its extent behind the outermost padded dimension, reaches 65536",
            "#194922, Apple FB24527244", _BEFORE_2_15),
    _kernel("pad-long-vector", "constant pad of a vector of 2^17 elements or more gives the fill value, then zeros",
            "#121961", _BEFORE_2_15),
    _kernel("pad-empty-list", "an empty pad list raises", "#161066", _BEFORE_2_15),
    _kernel("pad-keeps-memory", "each distinct constant pad (shape, dtype, padding) keeps driver memory for ever",
            "#194922", _BEFORE_2_15),
    _kernel("linear-batch-bias", "F.linear of a contiguous input with more than 65536 batches loses the bias past them",
            "#189495, repaired by #189496", _BEFORE_2_14),
    _kernel("linear-vector-bias", "F.linear drops the bias when the penultimate dimension is 1",
            "#188438, repaired by #188619", _BEFORE_2_14, macos=26),
    # Reported for 2.8 and repaired about 2.9: it lives in the oldest profile.
    _kernel("linear-strided-weight", "F.linear reads a transposed weight as if it were contiguous", "#162730, #161640",
            frozenset({"2.9"})),
    _kernel("fp8-type-error", "casts and strided copies of FP8 tensors raise TypeError", "reports of 2.9 users",
            frozenset({"2.9"})),
    _kernel("fp8-undefined", "casts and strided copies of FP8 tensors raise RuntimeError: Undefined type",
            "ComfyUI #16107", _BEFORE_2_15 - {"2.9"}),
    _kernel("fp8-e4m3-only", "FP8 types other than e4m3fn raise RuntimeError: Undefined type", "PyTorch 2.15's wheel",
            frozenset({"2.15"})),
    Fault("scaled-mm-missing", "F.scaled_mm has no MPS kernel", "PyTorch's wheels", _BEFORE_2_15,
          lacks=("aten::_scaled_mm_v2",)),
    Fault("grouped-mm-syncs", "_grouped_mm has no MPS kernel: the composite one loops over the groups and copies offs "
          "to the host", "PyTorch's wheels", _BEFORE_2_15, lacks=("aten::_grouped_mm",)),
)}
"""All faults by id. (torch._scaled_mm, the first API, has no MPS kernel in any version: nothing to switch. Nor
does any count integers with histc, #176879: the CPU's kernel underneath refuses them too, and names itself instead of
"histogram_mps".)"""


def select(faults: str | Iterable[str] | None) -> frozenset[Fault]:
    """The faults of a profile ("2.13"), of a set of ids, or none for None. Raises ValueError for an unknown name."""
    if faults is None:
        return frozenset()
    if isinstance(faults, str):
        if faults not in VERSIONS:
            raise ValueError(f"no profile {faults!r}; there are {', '.join(VERSIONS)}, None, and sets of fault ids")
        return frozenset(fault for fault in FAULTS.values() if faults in fault.versions)
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise ValueError(f"no fault {unknown[0]!r}; there are {', '.join(FAULTS)}")
    return frozenset(FAULTS[id] for id in faults)


def switch(device, chosen: frozenset[Fault], macos: int = 15) -> None:
    """Makes the stock kernels of `device` (the extension) show exactly `chosen`, on that major version of macOS."""
    lacking = {op for fault in chosen for op in fault.lacks}
    for fault in FAULTS.values():
        if fault.switch and not device.set_fault(fault.switch, fault in chosen and macos >= fault.macos):
            raise RuntimeError(f"the device has no switch {fault.switch!r}")
        for op in fault.lacks:
            device.set_op_absent(op, op in lacking)
    device.forget_graphs()
