"""What a chip answers when torch asks for its name, cores and memory."""
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Chip:
    """One Apple silicon machine."""

    name: str
    gpu_cores: int
    memory: int
    """Bytes of unified memory."""

    @property
    def recommended_max_memory(self) -> int:
        """MTLDevice.recommendedMaxWorkingSetSize in bytes: two thirds of the memory, three quarters above 36 GiB."""
        return self.memory * 2 // 3 if self.memory <= 36 * GIB else self.memory * 3 // 4


_CHIPS = {chip.name: chip for chip in (
    Chip("Apple M1", 8, 16 * GIB), Chip("Apple M1 Pro", 16, 32 * GIB), Chip("Apple M1 Max", 32, 64 * GIB),
    Chip("Apple M1 Ultra", 64, 128 * GIB), Chip("Apple M2", 10, 24 * GIB), Chip("Apple M2 Pro", 19, 32 * GIB),
    Chip("Apple M2 Max", 38, 32 * GIB), Chip("Apple M2 Ultra", 76, 192 * GIB), Chip("Apple M3", 10, 24 * GIB),
    Chip("Apple M3 Pro", 18, 36 * GIB), Chip("Apple M3 Max", 40, 128 * GIB), Chip("Apple M3 Ultra", 80, 512 * GIB),
    Chip("Apple M4", 10, 32 * GIB), Chip("Apple M4 Pro", 20, 64 * GIB), Chip("Apple M4 Max", 40, 128 * GIB),
    Chip("Apple M5", 10, 32 * GIB))}


def find(name: str) -> Chip:
    """The chip of that name ("Apple M2 Max"); ValueError with the known names otherwise."""
    try:
        return _CHIPS[name]
    except KeyError:
        raise ValueError(f"unknown chip {name!r}; known: {', '.join(sorted(_CHIPS))}") from None
