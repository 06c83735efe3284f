"""What another program has of the kernels beside torch's operations: it goes in after them and comes out before them.

The library does not know such a program. Who puts something into one (a backend into a registry, a function before
another) adds an extension, and `install()` and `uninstall()` then speak for the whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

log = logging.getLogger("metal_kernels")


class Extension(Protocol):
    """A module or an object. Both functions may be called when there is nothing for them to do."""

    def install(self) -> None:
        """Put in place what serves the other program."""

    def uninstall(self) -> None:
        """Leave the other program as it was found."""


class Extensions:
    """In the order in which they were added. One that raises is logged, and takes neither the others nor the kernels
    with it."""

    def __init__(self) -> None:
        self._all: list[Extension] = []

    def __iter__(self) -> Iterator[Extension]:
        return iter(tuple(self._all))

    def add(self, extension: Extension) -> bool:
        """Whether it is new."""
        if any(extension is each for each in self._all):
            return False
        self._all.append(extension)
        return True

    def remove(self, extension: Extension) -> bool:
        """Whether it was there."""
        rest = [each for each in self._all if each is not extension]
        self._all, found = rest, len(rest) < len(self._all)
        return found

    def install(self) -> None:
        for extension in self:
            self.put(extension)

    def uninstall(self) -> None:
        """The last one first: what it stands on is still there."""
        for extension in reversed(self._all):
            self.take(extension)

    @staticmethod
    def put(extension: Extension) -> None:
        try:
            extension.install()
        except Exception:
            log.exception("Metal Kernels: the extension %s can't be installed", _name(extension))

    @staticmethod
    def take(extension: Extension) -> None:
        try:
            extension.uninstall()
        except Exception:
            log.exception("Metal Kernels: the extension %s can't be uninstalled", _name(extension))


def _name(extension: Extension) -> str:
    return getattr(extension, "__name__", type(extension).__name__)
