"""torch.mps's streams (torch 2.15), which a build without MPS knows by name only.

The software device runs everything at once, in the order of the program: a stream is a number, and one is current.
"""
import itertools
import threading

import torch

_DEVICE_TYPE = 13  # c10::DeviceType::MPS
_numbers = itertools.count(1)
_here = threading.local()


class Stream(torch.Stream):
    """torch.mps.Stream: a new one, or the one with number `stream_id` (0: the default stream)."""

    def __new__(cls, *, stream_id: int | None = None):
        number = next(_numbers) if stream_id is None else stream_id
        return super().__new__(cls, stream_id=number, device_index=0, device_type=_DEVICE_TYPE)

    def synchronize(self) -> None:
        """Waits for the kernels of this stream: all have run."""
        torch._C._mps_deviceSynchronize()

    def __repr__(self) -> str:
        return f"<torch.mps.Stream stream_id={self.stream_id}>"


def get_current_stream() -> Stream:
    """The stream of this thread."""
    return Stream(stream_id=getattr(_here, "stream_id", 0))


def set_stream(stream: Stream) -> None:
    """Makes `stream` current in this thread."""
    _here.stream_id = stream.stream_id
