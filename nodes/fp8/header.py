"""The header of a safetensors file, checked against the file before anything of it is used.

The format (huggingface.co/docs/safetensors): 8 bytes with the length of a JSON text, that text, the tensors' bytes. The
tensors lie one behind the other, without gaps and to the end of the file.
"""
import json
import math
import os
from dataclasses import dataclass

import torch

from ..given import Unfit

MAX_HEADER = 100_000_000  # bytes; the format's own limit
MAX_DIMENSIONS, LARGEST = 64, 2**63 - 1  # torch's: of a tensor, and of its sizes
# Bits of one value, and the dtype that torch has for it (None where this torch has none).
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F4": 4,
}  # fmt: skip
NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
TORCH = {code: getattr(torch, name, None) for code, name in NAMES.items()}
CODES = {dtype: code for code, dtype in TORCH.items() if dtype is not None}


class ModelFileError(Unfit):
    """A file, a name or a setting that can't be used: one sentence for the person at the graph.

    Names come from files and may hold anything; what can't be printed is shown escaped, so that it stays one line.
    """

    def __init__(self, sentence):
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in sentence))


class Unfamiliar(ModelFileError):
    """As above, of a file that other loaders may well understand."""


@dataclass(frozen=True)
class Entry:
    """One tensor: `code` is its dtype in the file's words, `begin` to `end` its bytes, from the file's start."""

    name: str
    code: str
    shape: tuple
    begin: int
    end: int

    @property
    def dtype(self):
        """The torch dtype; None where this torch has none."""
        return TORCH[self.code]

    @property
    def numel(self):
        return math.prod(self.shape)

    @property
    def nbytes(self):
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """A file's tensors by name and its metadata. `size` counts the whole file."""

    path: str
    name: str
    size: int
    entries: dict
    metadata: dict


def read(path, name=None):
    """The `Header` of the safetensors file at `path`, called `name` in messages.

    Raises ModelFileError when it is no safetensors file, is cut off, or contradicts itself.
    """
    name = name or os.path.basename(path)
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            text = file.read(length) if length <= MAX_HEADER else b""
    except OSError as problem:
        raise ModelFileError(f"{name} can't be read: {problem.strerror or problem}.") from problem
    if len(start) < 8:
        raise ModelFileError(f"{name} is no safetensors file: it holds {size} bytes, not even the length of a header.")
    if length > MAX_HEADER or text[:1] not in (b"{", b""):
        raise ModelFileError(f"{name} is no safetensors file: it starts with {start!r}{_what(start)}.")
    if len(text) < length or not text:
        raise ModelFileError(f"{name} is cut off: its header has {length:,} bytes and the file only {size:,}. {_AGAIN}")
    try:
        tensors = parsed(text)
    except ValueError as problem:
        raise ModelFileError(f"{name} is no safetensors file: its header is no JSON ({problem}).") from problem
    if not isinstance(tensors, dict):
        raise ModelFileError(f"{name} is no safetensors file: its header is {tensors!r:.60}, not an object of tensors.")
    metadata = tensors.pop("__metadata__", None) or {}
    base = 8 + length
    entries = {key: _entry(name, key, value, base) for key, value in tensors.items()}
    _check_places(name, entries.values(), base, size)
    return Header(path, name, size, entries, metadata if isinstance(metadata, dict) else {})


def parsed(text):
    """What a JSON text says. Raises ValueError for everything that is none, too deep a one as well."""
    try:
        return json.loads(text)
    except RecursionError as problem:
        raise ValueError("it is nested too deeply") from problem


_AGAIN = "Download or copy it again."


def _what(start):
    if start[:2] == b"PK":
        return ", as a zip does: a .pt, .ckpt or .bin file by another name. Load it with ComfyUI's own nodes"
    if start[:4] == b"GGUF":
        return ": this is GGUF, which other nodes load"
    if start[:1] in (b"<", b"{"):
        return ": a web page or a pointer was saved instead of the model"
    return ""


def _entry(name, key, value, base):
    try:
        code, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
        fits = isinstance(code, str) and len(shape) <= MAX_DIMENSIONS
        fits = fits and all(type(n) is int and 0 <= n <= LARGEST for n in (*shape, begin, end))
        fits = fits and math.prod(n for n in shape if n) <= LARGEST
    except (TypeError, KeyError, ValueError):
        fits = False
    if not fits:
        raise ModelFileError(f"{name} contradicts itself: its header says {value!r:.120} of {key}: no tensor. {_AGAIN}")
    if code not in BITS:
        raise Unfamiliar(f"{name} holds {key} in the format {code!r}, which these nodes don't know.")
    entry = Entry(key, code, shape, base + begin, base + end)
    if entry.numel * BITS[code] != 8 * entry.nbytes:
        raise ModelFileError(
            f"{name} contradicts itself: {key} is {NAMES[code]} of shape {shape} in {entry.nbytes:,} bytes. {_AGAIN}"
        )
    return entry


def _check_places(name, entries, base, size):
    """Every byte of the file belongs to one tensor."""
    at = base
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.end > size:
            raise ModelFileError(
                f"{name} is cut off: {entry.name} ends at byte {entry.end:,} and the file has {size:,}. {_AGAIN}"
            )
        if entry.begin != at:
            raise ModelFileError(
                f"{name} contradicts itself: {entry.name} starts at byte {entry.begin:,}, and what lies before it ends "
                f"at {at:,}. {_AGAIN}"
            )
        at = entry.end
    if at != size:
        raise ModelFileError(f"{name} contradicts itself: its tensors end at byte {at:,} and the file has {size:,}.")
