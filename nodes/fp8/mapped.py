"""A file's tensors as views of the file: pages are read when they are used, and no copy is kept."""
import torch

from .header import NAMES, ModelFileError


class Mapped:
    """`tensor(name)` of a `Header`: on the CPU, of the file's own bytes. Writing into one never reaches the file.

    Raises ModelFileError when the file is gone or shorter than its header says.
    """

    def __init__(self, header):
        self.header = header
        try:
            self._storage = torch.UntypedStorage.from_file(header.path, False, header.size)
        except RuntimeError as problem:  # moved or cut since its header was read
            raise ModelFileError(f"{header.name} can't be read: {str(problem).splitlines()[0]:.200}") from problem

    def tensor(self, name):
        """The tensor in its dtype and shape. Raises ModelFileError where this torch lacks the dtype."""
        entry = self.header.entries[name]
        dtype = entry.dtype
        if dtype is None:
            raise ModelFileError(
                f"{self.header.name} holds {name} as {NAMES[entry.code]}, which this version of torch does not have."
            )
        if not entry.numel:
            return torch.empty(entry.shape, dtype=dtype)
        raw = torch.empty(0, dtype=torch.uint8).set_(self._storage, entry.begin, (entry.nbytes,))
        if entry.begin % dtype.itemsize:  # allowed by the format, not by torch
            raw = raw.clone()
        return raw.view(dtype).view(self._shape(entry))

    @staticmethod
    def _shape(entry):
        # Two values of four bits share a byte, and torch counts pairs.
        return (*entry.shape[:-1], -1) if entry.code == "F4" else entry.shape
