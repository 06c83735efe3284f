"""The clang and the linker inside the PyPI package ziglang, and where compiled things are kept."""

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import tempfile
from pathlib import Path

from ..runtime import build
from .targets import CPU, Target

INCLUDE = Path(__file__).resolve().parent / "include"
RUNTIME = Path(__file__).resolve().parents[1] / "runtime"  # softmetal_abi.h

WARNING_FLAGS = (
    "-Wno-everything",
    "-Werror=return-type",
    "-Werror=global-constructors",
    "-Werror=array-bounds",
    "-Werror=unknown-attributes",
    "-Werror=ignored-attributes",
    "-Werror=c++11-narrowing",
    "-Werror=vla-extension",
    "-Werror=zero-length-array",
    "-Werror=shift-count-overflow",
    "-Werror=shift-count-negative",
)
# Machine code keeps one call for each call of the source, and no more.
CODE_FLAGS = (
    "-O2",
    "-fPIC",
    "-march=x86-64-v3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-omit-frame-pointer",
    "-mllvm",
    "-enable-tail-merge=0",
    "-mllvm",
    "-disable-tail-duplicate",
    "-mllvm",
    "-disable-early-taildup",
    "-mllvm",
    "-tail-dup-placement=0",
)

# Every access becomes a call (__asan_load4_noabort ...), in the order in which the optimised code makes them; copies of
# structures become __asan_memcpy (the prefix, which the kernel mode leaves out of its own accord).
CHECK_FLAGS = (
    "-fsanitize=kernel-address",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-mllvm",
    "-asan-instrumentation-with-call-threshold=0",
    "-mllvm",
    "-asan-stack=0",
    "-mllvm",
    "-asan-globals=1",
    "-mllvm",
    "-asan-mapping-scale=9",  # the gap after a program-scope constant: 256 bytes at least
    "-mllvm",
    "-asan-opt=0",
    "-mllvm",
    "-asan-kernel-mem-intrinsic-prefix=1",
)


_DAMAGED_HEADER = re.compile(r"error: .*(?:\bPCH\b|precompiled|\bAST file\b)", re.IGNORECASE)


class ToolchainError(RuntimeError):
    """The compiler itself is missing or broken: not a fault of the Metal source."""


@functools.cache
def zig() -> str:
    """Path of the `zig` binary in the installed ziglang wheel."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("the software Metal device needs the PyPI package ziglang: pip install ziglang==0.17.1")
    return str(Path(list(spec.submodule_search_locations)[0]) / "zig")


@functools.cache
def version() -> str:
    return importlib.metadata.version("ziglang")


@functools.cache
def headers_digest() -> str:
    """A hash of the library headers and of the code that compiles: a change of either makes old cache entries stale."""
    digest = hashlib.sha256()
    for path in sorted([*INCLUDE.rglob("*"), *INCLUDE.parent.glob("*.py"), RUNTIME / "softmetal_abi.h"]):
        if path.is_file() and path.name not in ("survey.py", "__main__.py"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def cache_directory() -> Path:
    """What the front end keeps, in the device's cache."""
    return build.cache_root() / "frontend"


def run(*arguments, text: str | None = None, folder: Path | None = None) -> subprocess.CompletedProcess:
    """Run a tool of the wheel (`clang`, `ld.lld`) with `text` on its standard input, in `folder`."""
    environment = dict(os.environ, LC_ALL="C")
    return subprocess.run(
        [zig(), *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        cwd=folder,
    )


def preprocess(source: str) -> subprocess.CompletedProcess:
    flags = ("-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-undef", "-w", "-fno-color-diagnostics")
    return run(
        "clang",
        *flags,
        "-I",
        INCLUDE / "metal",
        "-include",
        INCLUDE / "preprocess.h",
        "-",
        text=f'# 1 "program_source"\n{source}\n',
        folder=INCLUDE / "metal",  # where #include "..." looks: nothing else may be found
    )


def library_header(target: Target = CPU, defines: tuple[str, ...] = ()) -> Path:
    """The metal:: library, precompiled: once for each version of headers, compiler and place. Safe among processes."""
    parts = (headers_digest(), version(), str(INCLUDE), target.name, *defines)
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    header = cache_directory() / f"library-{name}.pch"
    if not header.exists():
        _precompile(header, target, defines)
    return header


def _precompile(header: Path, target: Target, defines: tuple[str, ...]) -> None:
    header.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=header.parent, suffix=".tmp")
    os.close(handle)
    paths = ("-I", INCLUDE, "-I", INCLUDE / "abi", "-I", RUNTIME)
    # The content of the headers is in the name; their times say nothing (a fresh checkout has others).
    made = run("clang", "-x", "c++-header", *target.flags, *defines, "-w", "-Xclang", "-fno-pch-timestamp", *paths,
               INCLUDE / "msl" / "library.h", "-o", temporary)  # fmt: skip
    if made.returncode:
        Path(temporary).unlink(missing_ok=True)
        raise ToolchainError(f"the metal library headers do not compile:\n{made.stderr}")
    os.replace(temporary, header)


@functools.cache
def library_names() -> frozenset[str]:
    """The names in namespace metal."""
    with tempfile.TemporaryDirectory(prefix="softmetal-") as scratch:
        (Path(scratch) / SOURCE_FILE).write_text("\n")
        made = _front_end("-w", "-fsyntax-only", "-Xclang", "-ast-list", SOURCE_FILE, folder=Path(scratch),
                          target=CPU, defines=())  # fmt: skip
    if made.returncode:
        raise ToolchainError(f"clang does not list the library's names:\n{made.stderr}")
    return frozenset(re.findall(r"^metal::(\w+)$", made.stdout, re.M))


# The files of a compilation have fixed names in a folder of its own and are named relative to it: no path gets into the
# result, so that the same source always gives the same bytes.
SOURCE_FILE, IR_FILE, OBJECT_FILE, LIBRARY_FILE = "module.cpp", "module.ll", "module.o", "module.so"


def _front_end(*arguments, folder: Path, target: Target, defines: tuple[str, ...]) -> subprocess.CompletedProcess:
    """clang on the rewritten source, after the precompiled library. A damaged one is made anew, once."""
    for last in (False, True):
        header = library_header(target, defines)
        flags = ("-x", "c++", *target.flags, *defines, "-fdebug-compilation-dir=.", "-include-pch", header)
        made = run("clang", *flags, *arguments, folder=folder)
        if last or not made.returncode or not _DAMAGED_HEADER.search(made.stderr):
            return made
        header.unlink(missing_ok=True)


def to_ir(text: str, folder: Path, target: Target = CPU, defines: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """Rewritten MSL to LLVM IR that still has its address spaces."""
    (folder / SOURCE_FILE).write_text(text)
    arguments = (*WARNING_FLAGS, "-S", "-emit-llvm", SOURCE_FILE, "-o", IR_FILE)
    return _front_end(*arguments, folder=folder, target=target, defines=defines)


def syntax_tree(folder: Path, target: Target = CPU, defines: tuple[str, ...] = ()) -> str:
    """The AST of the user's own declarations (namespace msl_user), as text."""
    dump = ("-Xclang", "-ast-dump", "-Xclang", "-ast-dump-filter=msl_user")
    made = _front_end("-w", "-fsyntax-only", *dump, SOURCE_FILE, folder=folder, target=target, defines=defines)
    if made.returncode:
        raise ToolchainError(f"clang does not show the syntax tree:\n{made.stderr}")
    return made.stdout


def to_shared_object(ir: str, folder: Path, checked: bool) -> Path:
    """LLVM IR without address spaces to a shared object whose open symbols are the runtime's and libm's."""
    (folder / IR_FILE).write_text(ir)
    flags = (*CODE_FLAGS, *(CHECK_FLAGS if checked else ()))
    made = run("clang", "-x", "ir", "-w", *flags, "-c", IR_FILE, "-o", OBJECT_FILE, folder=folder)
    if made.returncode:
        raise ToolchainError(f"clang refuses the intermediate code:\n{made.stderr}")
    linked = run(
        "ld.lld",
        "-shared",
        "-nostdlib",
        "--hash-style=gnu",
        "-z",
        "nognustack",
        OBJECT_FILE,
        "-o",
        LIBRARY_FILE,
        folder=folder,
    )
    if linked.returncode:
        raise ToolchainError(f"the linker refuses the compiled code:\n{linked.stderr}")
    return folder / LIBRARY_FILE
