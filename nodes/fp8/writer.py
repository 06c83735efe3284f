"""Writes a safetensors file tensor by tensor, so that none but the one at hand is in memory.

Wider dtypes come first, and names in order within a dtype: every tensor is aligned, and the same tensors make the same
bytes. The file has its name only once it is whole.
"""
import contextlib
import json
import os
import shutil

import torch

from ..memory.units import size
from .header import BITS, CODES, ModelFileError

PART = ".part"  # ends the name of a file that is not whole


class Writer:
    """`with Writer(path, shapes, metadata) as writer: writer.put(name, tensor)` for every name.

    shapes  {name: (torch dtype, shape)}.
    size    bytes of the file.

    Raises ModelFileError where the disk is too small or can't be written to. When the block fails nothing is left, no
    folder that was made for the file either.
    """

    def __init__(self, path, shapes, metadata=None):
        self.path, self._part, self._shapes = path, f"{path}{PART}", shapes
        self._places, header, at = {}, {}, 0
        if metadata:
            header["__metadata__"] = metadata
        for name in sorted(shapes, key=lambda name: (-shapes[name][0].itemsize, name)):
            dtype, shape = shapes[name]
            code = CODES[dtype]
            end = at + int(torch.Size(shape).numel()) * BITS[code] // 8
            header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [at, end]}
            self._places[name], at = at, end
        text = json.dumps(header, separators=(",", ":")).encode()
        self._header = text + b" " * (-len(text) % 8)
        self.size = 8 + len(self._header) + at
        self._left = set(shapes)
        self._folders, self._file = [], None

    def __enter__(self):
        folder = os.path.dirname(self.path) or "."
        self._folders = missing_folders(folder)
        try:
            with self._sentences():
                os.makedirs(folder, exist_ok=True)
                free = shutil.disk_usage(folder).free
                if free < self.size:
                    raise ModelFileError(f"{self.path} takes {size(self.size)} and its disk has {size(free)} free.")
                self._file = open(self._part, "wb")
                self._file.write(len(self._header).to_bytes(8, "little") + self._header)
        except BaseException:
            self._discard()
            raise
        return self

    def put(self, name, tensor):
        """Write one tensor, of the dtype and shape that were announced."""
        dtype, shape = self._shapes[name]
        if tensor.dtype is not dtype or tuple(tensor.shape) != tuple(shape):
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {tuple(shape)} as announced")
        if tensor.numel():
            data = memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
            with self._sentences():
                self._file.seek(8 + len(self._header) + self._places[name])
                self._file.write(data)
        self._left.discard(name)

    def __exit__(self, kind, *_):
        whole = False
        try:
            if kind is None and self._left:
                raise ValueError(f"{len(self._left)} tensors were not written, {sorted(self._left)[0]} among them")
            if kind is None:
                with self._sentences():
                    self._file.truncate(self.size)
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self._file.close()
                    os.replace(self._part, self.path)
                whole = True
        finally:
            if not whole:
                self._discard()

    @contextlib.contextmanager
    def _sentences(self):
        """What the system says of the file, as a sentence."""
        try:
            yield
        except OSError as problem:
            raise ModelFileError(f"{self.path} can't be written: {problem.strerror or problem}.") from problem

    def _discard(self):
        if self._file is not None:
            with contextlib.suppress(OSError):  # what can't be flushed to a full disk
                self._file.close()
            os.unlink(self._part)
        for folder in self._folders:
            with contextlib.suppress(OSError):  # it holds something by now
                os.rmdir(folder)


def missing_folders(folder):
    """`folder` and those above it that do not exist, the innermost first."""
    found = []
    while folder and not os.path.isdir(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found
