"""Compiled libraries on disk, by the hash of all that goes into them. Several processes may read and write at once."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from . import toolchain
from .library import Library
from .targets import CPU, Target


def key(
    source: str, checked: bool, target: Target = CPU, defines: tuple[str, ...] = (), house_rules: bool = True
) -> str:
    flags = (target, defines, toolchain.WARNING_FLAGS, toolchain.CODE_FLAGS, toolchain.CHECK_FLAGS)
    parts = (source, repr((checked, house_rules)), repr(flags), toolchain.headers_digest(), toolchain.version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def load(name: str) -> Library | None:
    """The stored library, or None when there is none or it is damaged (it is then built anew)."""
    folder = toolchain.cache_directory()
    try:
        data = json.loads((folder / f"{name}.json").read_text())
        path = folder / data["file"]
        if _digest(path) != data["digest"]:
            return None
        return Library.from_json(path, data["library"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store(name: str, library: Library) -> Library:
    """Move a built library into the cache; the returned one lives there. The index is written last,
    so that a reader never sees half.

    The file carries its own digest in its name: a process that has an older file loaded keeps that one untouched.
    """
    folder = toolchain.cache_directory()
    folder.mkdir(parents=True, exist_ok=True)
    digest = _digest(library.path)
    file = f"{name}-{digest[:12]}{library.path.suffix}"
    _publish(folder / file, lambda temporary: shutil.copyfile(library.path, temporary))
    text = json.dumps({"file": file, "digest": digest, "library": library.to_json()})
    _publish(folder / f"{name}.json", lambda temporary: Path(temporary).write_text(text))
    return Library.from_json(folder / file, library.to_json())


def _publish(target: Path, write) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
    os.close(handle)
    write(temporary)
    os.replace(temporary, target)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
