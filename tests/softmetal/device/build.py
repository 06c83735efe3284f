"""Builds the torch extension that is the software mps device, on first use, into the compile cache."""
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from softmetal import runtime

_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "csrc", _HERE.parent / "faults" / "csrc")
_HEADERS = _HERE.parent / "runtime"
_FLAGS = ["-O2", "-fvisibility=hidden", "-Wno-unused-parameter"]
_module: ModuleType | None = None


def sources() -> list[Path]:
    """The C++ files of the extension."""
    return [file for folder in _FOLDERS for file in sorted(folder.glob("*.cpp"))]


def _digest() -> str:
    settings = (_FLAGS, sys.version_info[:2], sysconfig.get_platform(), os.environ.get("CXX"))
    digest = hashlib.sha256(repr(settings).encode())
    headers = [file for folder in (*_FOLDERS, _HEADERS) for file in sorted(folder.glob("*.h"))]
    for file in [*sources(), *headers]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _import(name: str, path: Path) -> ModuleType:
    import torch  # noqa: F401  (the extension needs its libraries in the process)

    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def load() -> ModuleType:
    """The extension, built now if the cache lacks one for these sources and this torch; loaded once a process.

    Raises RuntimeError with the compiler's words if it does not build.
    """
    global _module
    if _module is not None:
        return _module
    runtime.load()  # the extension's smr_* symbols are the runtime's
    name = f"softmetal_device_{_digest()}"
    folder = runtime.build_directory() / name
    library, done = folder / f"{name}.so", folder / "built"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "building", "w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # released by the system even if a build is killed
            if not done.exists():
                _build(name, folder)
                done.touch()
    _module = _import(name, library)
    return _module


def _build(name: str, folder: Path) -> None:
    from torch.utils import cpp_extension

    (folder / "lock").unlink(missing_ok=True)  # torch's own lock, left behind by a killed build, would wait for ever
    includes = [str(path) for path in (*_FOLDERS, _HEADERS)]
    cpp_extension.load(name, [str(file) for file in sources()], extra_cflags=_FLAGS, extra_include_paths=includes,
                       build_directory=str(folder), is_python_module=True)
