"""What a compiled library is to its users: plain data, and its form in the cache."""

from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Argument:
    """A [[buffer(index)]] parameter. `element_size` and `alignment` (bytes) are of the type pointed or referred to."""

    index: int
    name: str
    type: str
    address_space: str  # "device" or "constant"
    is_reference: bool
    const: bool
    element_size: int
    alignment: int
    kind: str = "buffer"


@dataclass(frozen=True)
class Kernel:
    """A kernel by its host name. `symbol` is an `msl_entry` of softmetal_abi.h.

    function_constants, threadgroup_arguments: names of what a host must give it, and compile_shader cannot.
    """

    name: str
    symbol: str
    arguments: list[Argument]
    max_total_threads: int | None
    threadgroup_bytes: int
    line: int
    function_constants: list[str] = field(default_factory=list)
    threadgroup_arguments: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Library:
    """`path`: a shared object, loadable once the runtime's symbols are there. `checked`: it reports accesses."""

    path: Path
    kernels: dict[str, Kernel] = field(default_factory=dict)
    checked: bool = True

    def to_json(self) -> dict:
        return {"checked": self.checked, "kernels": [asdict(kernel) for kernel in self.kernels.values()]}

    @classmethod
    def from_json(cls, path: Path, data: dict) -> "Library":
        kernels = [Kernel(**dict(k, arguments=[Argument(**a) for a in k["arguments"]])) for k in data["kernels"]]
        return cls(path, {kernel.name: kernel for kernel in kernels}, data["checked"])
