"""Builds the runtime into the cache, named by the content of its sources, and loads it."""

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SOURCES = _HERE / "csrc"
_FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-plt",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-pthread",
]
_lock = threading.Lock()
_loaded = None


def cache_root() -> Path:
    """Where compiled things are kept: `$SOFTMETAL_CACHE`, or `.cache/softmetal` in the repository. An absolute path."""
    named = os.environ.get("SOFTMETAL_CACHE")
    return Path(named).expanduser().absolute() if named else _HERE.parents[2] / ".cache" / "softmetal"


def build_directory() -> Path:
    """The part of the cache that depends on the installed torch."""
    root = cache_root()
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    return root / f"torch-{torch}"


def _compiler() -> list[str]:
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("The software Metal device needs a C++17 compiler: install g++ or clang++, or name one in CXX.")


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def is_intact(path: Path) -> bool:
    """Whether `publish` put that file there, whole: a damaged one would crash the process that loads it."""
    try:
        return _digest_file(path).read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return False


def publish(made: Path, path: Path) -> None:
    """Move `made`, on the same disk, to `path`, so that other processes see the whole file or none."""
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    os.replace(made, path)
    beside = made.with_suffix(".digest")
    beside.write_text(digest)
    os.replace(beside, _digest_file(path))


def _sources() -> list[Path]:
    return sorted(_SOURCES.glob("*.cpp"))


def _library(compiler: list[str]) -> Path:
    digest = hashlib.sha256(repr((compiler, _FLAGS, platform.machine())).encode())
    for file in [*_sources(), *sorted(_SOURCES.glob("*.h")), _HERE / "softmetal_abi.h"]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return build_directory() / f"libsoftmetal-{digest.hexdigest()[:16]}.so"


def is_built() -> bool:
    """Whether library_path() has nothing to compile."""
    return is_intact(_library(_compiler()))


def library_path() -> Path:
    """The runtime's shared object, built now if the cache lacks one for these very sources."""
    compiler = _compiler()
    path = _library(compiler)
    if is_intact(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = [
            *compiler,
            *_FLAGS,
            f"-I{_HERE}",
            *map(str, _sources()),
            f"-Wl,-soname,{path.name}",
            "-o",
            str(made),
            "-ldl",
            "-lrt",
        ]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"The software Metal runtime does not build: {shlex.join(command)}\n{result.stderr}")
        publish(made, path)
    return path


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Argument and result types of softmetal_abi.h's functions that Python calls."""
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("smr_arena_alloc", pointer, (size,)),
        ("smr_arena_free", None, (pointer,)),
        ("smr_mark_fresh", None, (pointer, size)),
        ("smr_mark_written", None, (pointer, size)),
        ("smr_first_unwritten", ctypes.c_int64, (pointer, ctypes.c_uint32, ctypes.c_int32, pointer, pointer)),
        ("smr_unwritten_kernel", ctypes.c_char_p, (pointer,)),
        ("smr_tracked_blocks", ctypes.c_int64, ()),
        ("smr_launch", ctypes.c_uint32, (pointer, pointer)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def load() -> ctypes.CDLL:
    """The runtime, loaded once a process with its symbols global, so that kernels and the torch extension find them."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _declare(ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_GLOBAL))
        return _loaded
