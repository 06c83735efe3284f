"""Builds the torch extension that is the software mps device, on first use, into the compile cache."""
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from softmetal import runtime

_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "csrc", _HERE.parent / "faults" / "csrc")
_HEADERS = _HERE.parent / "runtime"
_FLAGS = ["-O2", "-fvisibility=hidden", "-Wno-unused-parameter"]
_NAME = "softmetal_device"
_module: ModuleType | None = None
_failure: RuntimeError | None = None  # of this process: torch builds once a process, and would load an older file then


def sources() -> list[Path]:
    """The C++ files of the extension."""
    return [file for folder in _FOLDERS for file in sorted(folder.glob("*.cpp"))]


def _settings() -> str:
    return repr((_FLAGS, sys.version_info[:2], sysconfig.get_platform(), os.environ.get("CXX"), str(_HERE)))


def _digest() -> str:
    digest = hashlib.sha256(_settings().encode())
    headers = [file for folder in (*_FOLDERS, _HEADERS) for file in sorted(folder.glob("*.h"))]
    for file in [*sources(), *headers]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def load() -> ModuleType:
    """The extension, built now if the cache lacks one for these sources and this torch; loaded once a process.

    Raises RuntimeError with the compiler's words if it does not build.
    """
    global _module
    if _module is not None:
        return _module
    if _failure is not None:
        raise RuntimeError(str(_failure))
    runtime.load()  # the extension's smr_* symbols are the runtime's
    library = _library()
    if not runtime.is_intact(library):
        library.parent.mkdir(parents=True, exist_ok=True)
        with open(library.parent / f"{_NAME}.building", "w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # released by the system even if a build is killed
            if not runtime.is_intact(library):
                _module = _build(library)
                return _module
    _module = _import(library)
    return _module


def _library() -> Path:
    return runtime.build_directory() / f"{_NAME}-{_digest()}.so"


def is_built() -> bool:
    """Whether load() has nothing to compile for these sources and this torch."""
    return runtime.is_built() and runtime.is_intact(_library())


def progress() -> tuple[int, int]:
    """(C++ files of the extension that need no compiling any more, C++ files in all), for whoever waits.

    Until the extension is there, objects count that are newer than their source and every header.
    """
    if runtime.is_intact(_library()):
        return len(sources()), len(sources())
    headers = [file for folder in (*_FOLDERS, _HEADERS) for file in folder.glob("*.h")]
    newest = max((file.stat().st_mtime for file in headers), default=0.0)
    objects = _objects(runtime.build_directory())
    compiled = 0
    for file in sources():
        made = objects / f"{file.stem}.o"
        compiled += made.exists() and made.stat().st_mtime >= max(newest, file.stat().st_mtime)
    return compiled, len(sources())


def _objects(folder: Path) -> Path:
    """Where objects are kept from build to build, so that a change in one file compiles that file."""
    return folder / f"{_NAME}-objects-{hashlib.sha256(_settings().encode()).hexdigest()[:8]}"


def _import(library: Path) -> ModuleType:
    import torch  # noqa: F401  (the extension needs torch's libraries in the process)

    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(_NAME, loader))
    loader.exec_module(module)
    return module


def _build(library: Path) -> ModuleType:
    """Builds, puts a copy at `library`, and returns the module, which is loaded then."""
    from torch.utils import cpp_extension

    objects = _objects(library.parent)
    objects.mkdir(exist_ok=True)
    (objects / "lock").unlink(missing_ok=True)  # torch's own lock, left behind by a killed build, would wait for ever
    includes = [str(path) for path in (*_FOLDERS, _HEADERS)]
    over = "\r" if sys.stderr.isatty() else ""  # a bar may stand there
    print(f"{over}{f'softmetal: building the mps device for {library.parent.name} ...':<78}", file=sys.stderr)
    (objects / f"{_NAME}.so").unlink(missing_ok=True)
    try:
        module = cpp_extension.load(_NAME, [str(file) for file in sources()], extra_cflags=_FLAGS,
                                    extra_include_paths=includes, build_directory=str(objects))
    except RuntimeError as error:
        global _failure
        _failure = error
        raise
    copy = library.with_suffix(f".{os.getpid()}")
    shutil.copyfile(objects / f"{_NAME}.so", copy)
    runtime.publish(copy, library)
    return module
