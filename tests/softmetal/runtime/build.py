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


def build_directory() -> Path:
    """Where compiled things go: `$SOFTMETAL_CACHE`, or `.cache/softmetal` in the repository; then by torch."""
    root = os.environ.get("SOFTMETAL_CACHE")
    root = Path(root) if root else _HERE.parents[2] / ".cache" / "softmetal"
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


def library_path() -> Path:
    """The runtime's shared object, built now if the cache lacks one for these very sources."""
    sources = sorted(_SOURCES.glob("*.cpp"))
    compiler = _compiler()
    digest = hashlib.sha256(repr((compiler, _FLAGS, platform.machine())).encode())
    for file in [*sources, *sorted(_SOURCES.glob("*.h")), _HERE / "softmetal_abi.h"]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    path = build_directory() / f"libsoftmetal-{digest.hexdigest()[:16]}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = [
            *compiler,
            *_FLAGS,
            f"-I{_HERE}",
            *map(str, sources),
            f"-Wl,-soname,{path.name}",
            "-o",
            str(made),
            "-ldl",
            "-lrt",
        ]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"The software Metal runtime does not build: {shlex.join(command)}\n{result.stderr}")
        os.replace(made, path)  # atomic: another process sees the whole file or none
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
