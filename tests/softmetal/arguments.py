"""compile_shader's arguments: from Python values to the bytes that a kernel sees, with torch's own errors."""

import re
import struct

import torch

_CASTS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}
_MAX_BYTES = 4096  # setBytes' limit
_POINTER_BYTES = 8
_INT64 = range(-(2**63), 2**63)


class Packed(bytes):
    """The bytes of an argument by value. kind, item_size: of what they were made ("int64", 8). tensor: a 0-dim one."""

    def __new__(cls, data: bytes, kind: str, item_size: int, tensor: bool = False):
        made = super().__new__(cls, data)
        made.kind, made.item_size, made.tensor = kind, item_size, tensor
        return made


class Pointers(list):
    """Tensors of which [[buffer(n)]] gets the addresses, as an array of pointers."""


class ArgumentCasts:
    """arg_casts=: None, one cast for all values, or {index: cast}."""

    def __init__(self, casts):
        self.default, self.by_index = "", {}
        if casts is None:
            return
        if isinstance(casts, str):
            self.default = casts
        elif isinstance(casts, dict):
            if not all(isinstance(k, int) and k >= 0 and isinstance(v, str) for k, v in casts.items()):
                raise RuntimeError(
                    "Unable to cast Python instance of type <class 'dict'> to C++ type "
                    "'std::unordered_map<unsigned int, std::string>'"
                )
            self.by_index = casts
        else:
            raise RuntimeError(f"Unexpected caster arg type {type(casts).__name__}")

    def bytes_of(self, index: int, values: list, kind: type) -> Packed:
        """The array of `values` (all int or all float) as the kernel gets it: int64, float32, or cast."""
        cast = self.by_index.get(index, self.default)
        if kind is int:
            for value in values:
                if value not in _INT64:
                    raise RuntimeError(
                        f"Unable to cast Python instance of type <class 'int'> to C++ type 'long long': {value}"
                    )
        if not cast:
            if kind is int:
                return Packed(struct.pack(f"<{len(values)}q", *values), "int64", 8)
            return Packed(_floats(values).numpy().tobytes(), "float32", 4)
        if cast not in _CASTS:
            raise RuntimeError(f"Unsupported cast instruction {self.default}")
        tensor = torch.tensor(values, dtype=torch.int64, device="cpu") if kind is int else _floats(values)
        dtype = _CASTS[cast]
        if kind is int and dtype.is_floating_point:
            tensor = tensor.to(torch.float32)  # C++ converts the integer to float, then rounds to the short format
        return Packed(tensor.to(dtype).view(torch.uint8).numpy().tobytes(), str(dtype).split(".")[1], dtype.itemsize)


def _floats(values: list) -> torch.Tensor:
    # A double beyond float32's range becomes an infinity, as C++'s cast does.
    return torch.tensor(values, dtype=torch.float64, device="cpu").to(torch.float32)


def pack(index: int, value, casts: ArgumentCasts) -> torch.Tensor | bytes | Pointers:
    """What [[buffer(index)]] gets: an mps tensor as it is, a list of them as addresses, everything else as bytes."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            return value
        if value.dim():
            raise RuntimeError("Passed CPU tensor to MPS op")
        return _scalar_tensor(value)
    if isinstance(value, (list, tuple)):
        if not len(value):
            raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
        if isinstance(value[0], int):
            return _limited(index, casts.bytes_of(index, _all(value, int), int))
        if isinstance(value[0], float):
            return _limited(index, casts.bytes_of(index, _all(value, (int, float)), float))
        if isinstance(value[0], torch.Tensor):
            # An argument buffer of the tensors' GPU addresses (pytorch #150780, torch 2.8).
            _limited(index, bytes(_POINTER_BYTES * len(value)))
            return Pointers(_all(value, torch.Tensor))
        raise RuntimeError("Unexpected argument types")
    if isinstance(value, float):
        return casts.bytes_of(index, [value], float)
    if isinstance(value, int):
        return casts.bytes_of(index, [int(value)], int)
    raise RuntimeError("Unsupported argument type")


def _scalar_tensor(value: torch.Tensor) -> Packed:
    """A 0-dim CPU tensor by value. Metal has no double: those become floats."""
    narrow = {torch.float64: torch.float32, torch.complex128: torch.complex64}.get(value.dtype)
    if narrow:
        stored = torch.empty(0, dtype=value.dtype, device="cpu")  # without the marks of conjugate and negative views
        value = stored.set_(value.untyped_storage(), value.storage_offset(), ()).to(narrow)
    # Of other types torch passes the start of the storage, whatever the offset; a faithful device does too.
    data = bytes(value.untyped_storage()[: value.element_size()])
    parts = 2 if value.dtype.is_complex else 1
    return Packed(data, str(value.dtype).split(".")[1], value.element_size() // parts, tensor=True)


_SCALARS = {
    **dict.fromkeys(("bool", "char", "uchar"), 1),
    **dict.fromkeys(("short", "ushort", "half", "bfloat"), 2),
    **dict.fromkeys(("int", "uint", "float"), 4),
    **dict.fromkeys(("long", "ulong"), 8),
}
_FLOATS = ("half", "bfloat", "float")
_READS = {"int64": "long", "int32": "int", "int16": "short", "int8": "char", "uint8": "uchar"}
_READS |= {"float32": "float", "float16": "half", "bfloat16": "bfloat"}
_ELEMENT = re.compile(r"(?:packed_)?([a-z]+?)[234]?")


def misread(value: bytes, pointee: str) -> str | None:
    """How a parameter that points to `pointee` (a type of MSL) misreads an argument by value; None if it does not.

    Scalars and vectors only: what a structure's members are, only the kernel knows."""
    if not isinstance(value, Packed):
        return None
    words = [word for word in re.findall(r"\w+", pointee) if word not in ("const", "volatile", "constant", "device")]
    element = _ELEMENT.fullmatch(words[0]) if len(words) == 1 else None
    size = _SCALARS.get(element[1]) if element else None
    if size in (None, value.item_size):
        return None
    if value.tensor:
        advice = "convert the tensor or read its own type"
    elif value.kind != "int64":
        advice = f"read {_READS[value.kind]}"
    elif element[1] in _FLOATS:
        advice = "pass a float"
    else:
        cast = "uint8" if element[1] in ("uchar", "bool") else f"int{8 * size}"
        advice = f"pass arg_casts='{cast}' or read long"
    return f"is bound as {value.kind} ({value.item_size} bytes each) and read as {words[0]} ({size} bytes): {advice}"


def _all(values, kinds) -> list:
    for value in values:
        if not isinstance(value, kinds):
            raise RuntimeError(
                f"Unable to cast Python instance of type {type(values)} to C++ type 'std::vector': {value!r}"
            )
    return [int(v) if isinstance(v, int) else v for v in values]


def _limited(index: int, data: bytes) -> bytes:
    if len(data) > _MAX_BYTES:
        raise RuntimeError(
            f"argument {index} has {len(data)} bytes: setBytes takes {_MAX_BYTES} at most. Pass a tensor instead."
        )
    return data


def extents(name: str, value) -> tuple[int, ...] | None:
    """threads= or group_size=: None, an int, or one to three ints; all non-negative."""
    if value is None:
        return None
    given = (value,) if isinstance(value, int) else value
    try:
        given = tuple(given)
    except TypeError:
        given = (None,)
    if not all(isinstance(extent, int) and extent >= 0 for extent in given):
        raise RuntimeError(f"Unable to cast {name}={value!r} to C++ type 'std::vector<unsigned long long>'")
    if not 1 <= len(given) <= 3:
        raise RuntimeError(f"Expected vec.size() > 0 && vec.size() < 4 to be true, but got false: {name}={value!r}")
    return given


def check_error_index(index) -> None:
    """error_buf_idx=: None, or what C++ takes for an unsigned int."""
    if index is not None and not (isinstance(index, int) and 0 <= index < 2**32):
        raise RuntimeError(f"Unable to cast {index!r} of type {type(index)} to C++ type 'unsigned int'")


class ErrorBuffer:
    """What error_buf_idx= binds: the stream's buffer for messages of kernels, zeroed."""

    BYTES = 4096

    def __init__(self):
        self.tensor = torch.zeros(self.BYTES // 4, dtype=torch.int32, device="mps")
