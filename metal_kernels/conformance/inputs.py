"""Data of a case: values from a generator, laid out in memory as its layout says; and the same memory on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .case import Case

Make = Callable[[tuple[int, ...]], torch.Tensor]


def contiguous(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    return make(sizes)


def transposed(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    """The first dimension varies fastest."""
    return make(sizes[::-1]).permute(*reversed(range(len(sizes))))


def sliced(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    """Gaps between rows, an offset that no vector starts at, every other index of the first dimension."""
    if len(sizes) < 2:
        return make((2 * sizes[0] + 4,))[1::2][: sizes[0]]
    return make((2 * sizes[0] + 1, *sizes[1:-1], sizes[-1] + 3))[1::2][..., 1 : 1 + sizes[-1]]


def columns(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    """Some columns of a wider matrix, vectors still aligned where the size allows."""
    return make((*sizes[:-1], sizes[-1] + 32))[..., 16 : 16 + sizes[-1]]


def stepped(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    """Every third element along the last dimension."""
    return make((*sizes[:-1], 3 * sizes[-1]))[..., 1::3]


def offset(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    """Contiguous, from an odd element on."""
    return make((torch.Size(sizes).numel() + 5,))[5:].view(sizes)


def channels_last(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    """The second dimension varies fastest."""
    return make((*sizes[:1], *sizes[2:], *sizes[1:2])).movedim(-1, 1) if len(sizes) > 1 else make(sizes)


def expanded(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    """Stride 0 in the first and, where there are more, in the last dimension."""
    return make((1, *sizes[1:-1], 1) if len(sizes) > 1 else (1,)).expand(sizes)


def repeated(make: Make, sizes: tuple[int, ...]) -> torch.Tensor:
    """Stride 0 in the first dimension only: one row for all."""
    return make((1, *sizes[1:])).expand(sizes)


LAYOUTS = {
    layout.__name__: layout
    for layout in (contiguous, transposed, sliced, columns, stepped, offset, channels_last, expanded, repeated)
}


class Source:
    """What a case draws its data from."""

    def __init__(self, case: Case):
        self.case, self._generator = case, case.generator

    def normal(
        self, sizes: tuple[int, ...], dtype: torch.dtype, layout: str = "contiguous", scale: float = 1.0
    ) -> torch.Tensor:
        """Normal values times `scale`, rounded to `dtype`."""

        def make(sizes: tuple[int, ...]) -> torch.Tensor:
            values = torch.randn(sizes, generator=self._generator, dtype=torch.float32, device="cpu")
            return (values if scale == 1.0 else values * scale).to(dtype)

        return LAYOUTS[layout](make, tuple(sizes))

    def uniform(self, sizes: tuple[int, ...], low: float = 0.5, high: float = 1.5) -> torch.Tensor:
        """float32 in [low, high): scales."""
        return torch.rand(sizes, generator=self._generator, dtype=torch.float32, device="cpu") * (high - low) + low

    def integers(
        self, sizes: tuple[int, ...], low: int, high: int, dtype: torch.dtype, layout: str = "contiguous"
    ) -> torch.Tensor:
        """Whole numbers in [low, high)."""

        def make(sizes: tuple[int, ...]) -> torch.Tensor:
            values = torch.randint(low, high, sizes, generator=self._generator, dtype=torch.int64, device="cpu")
            return values.to(dtype)

        return LAYOUTS[layout](make, tuple(sizes))

    def bytes_of(self, sizes: tuple[int, ...], dtype: torch.dtype, layout: str = "contiguous") -> torch.Tensor:
        """Random bits: NaN payloads, infinities and subnormals included; a bool is 0 or 1."""

        def make(sizes: tuple[int, ...]) -> torch.Tensor:
            count = torch.Size(sizes).numel()
            high = 2 if dtype is torch.bool else 256
            raw = torch.randint(
                0, high, (count * dtype.itemsize,), dtype=torch.uint8, device="cpu", generator=self._generator
            )
            return raw.view(dtype).view(sizes)

        return LAYOUTS[layout](make, tuple(sizes))


def twin(value: object, device: str | torch.device) -> object:
    """The same storage, sizes, strides and offset on `device`; of lists and tuples each; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(twin(item, device) for item in value)
    if not isinstance(value, torch.Tensor):
        return value
    storage = torch.empty(0, dtype=torch.uint8, device="cpu").set_(value.untyped_storage()).to(device)
    return storage.view(value.dtype).as_strided(value.shape, value.stride(), value.storage_offset())
