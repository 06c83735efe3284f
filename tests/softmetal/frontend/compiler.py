"""The whole way from source text to a Library: preprocess, translate, compile, judge, wrap shifts, announce alignments,
erase address spaces, link."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import cache, nvptx, reflection, toolchain
from .alignment import announce_alignments
from .bounds import keep_private_bounds
from .constants import define_external_constants
from .conversions import check_conversions
from .copies import ROUNDS, spell_copies
from .diagnostics import CompileError, error_lines, from_clang, message
from .erase import erase_address_spaces
from .initialisers import spell_initialisers
from .kernels import Entry
from .library import Argument, Kernel, Library
from .members import spell_members
from .rules import check_source
from .shifts import wrap_shifts
from .targets import CPU, NVPTX, TARGETS, Target
from .translate import Translation

MAX_THREADGROUP_BYTES = 32768
MAX_THREADS = 1024
_SPACES = {1: "device", 4: "constant"}
_SPELLINGS = (spell_initialisers, spell_copies, spell_members)
_FIELDS = 6  # numbers that MSL_DESCRIBE gives for each buffer, after its index


def compile(  # noqa: A001 - the name that users of the module look for
    source: str,
    *,
    checked: bool = True,
    target: str = "cpu",
    partial_simdgroups: bool = False,
    constant_tensors: bool = False,
    house_rules: bool = True,
) -> Library:
    """Compile MSL source text.

    checked   every memory access is reported to the runtime; else vectorised code without checks ("fast mode").
    target    "cpu": a shared object for the runtime. "nvptx": PTX for an NVIDIA GPU, where nothing is checked; its
              entries are described in include/msl/target_nvptx.h.
    partial_simdgroups   nvptx: some lanes of a SIMD-group may be missing at a collective.
    constant_tensors     nvptx: `constant T*` are pointers to device memory, not blocks by value.
    house_rules  what this project asks of its own kernels beyond Metal: Metal 3.1 (rules.py), and conversions of bfloat
                 written out (conversions.py). False for the sources of others.

    Raises CompileError for a source that Metal would refuse, ToolchainError when the compiler is missing.
    """
    check_source(source)
    machine = TARGETS[target]
    if machine is NVPTX:
        defines = nvptx.defines(source, partial_simdgroups, constant_tensors)
        checked = False
    else:
        defines = ()
    key = cache.key(source, checked, machine, defines, house_rules)
    return cache.load(key) or _build(source, checked, key, machine, defines, house_rules)


def check(source: str, *, house_rules: bool = True) -> list[Kernel]:
    """Everything that `compile` does up to machine code: raises what it raises, returns the kernels, keeps nothing."""
    preprocessed = toolchain.preprocess(source)
    if preprocessed.returncode:
        raise CompileError(from_clang(preprocessed.stderr, source))
    translation = Translation(preprocessed.stdout, house_rules)
    with tempfile.TemporaryDirectory(prefix="softmetal-") as scratch:
        ir = _to_ir(translation.text, Path(scratch), source, CPU, ())
        kernels = _kernels(translation.entries, reflection.read(ir))
        check_conversions(toolchain.syntax_tree(Path(scratch), CPU, ()), house_rules)
    return kernels


def _build(
    source: str, checked: bool, key: str, target: Target, defines: tuple[str, ...], house_rules: bool
) -> Library:
    preprocessed = toolchain.preprocess(source)
    if preprocessed.returncode:
        raise CompileError(from_clang(preprocessed.stderr, source))
    translation = Translation(preprocessed.stdout, house_rules)
    with tempfile.TemporaryDirectory(prefix="softmetal-") as scratch, ThreadPoolExecutor(1) as beside:
        folder = Path(scratch)
        ir = _to_ir(translation.text, folder, source, target, defines)
        conversions = beside.submit(
            lambda: check_conversions(toolchain.syntax_tree(folder, target, defines), house_rules)
        )
        kernels = _kernels(translation.entries, reflection.read(ir))
        ir = wrap_shifts(define_external_constants(ir))
        if target is NVPTX:
            built = nvptx.to_ptx(ir, folder)
        else:
            ir = keep_private_bounds(ir, checked)
            flat = erase_address_spaces(announce_alignments(ir) if checked else ir)
            built = toolchain.to_shared_object(flat, folder, checked)
        conversions.result()  # raises what the syntax tree shows
        return cache.store(key, Library(built, {k.name: k for k in kernels}, checked))


def _to_ir(text: str, folder: Path, source: str, target: Target, defines: tuple[str, ...]) -> str:
    made = first = toolchain.to_ir(text, folder, target, defines)
    for _ in range(ROUNDS):
        if not made.returncode:
            break
        text = next(filter(None, (spell(text, made.stderr) for spell in _SPELLINGS)), None)
        if text is None:
            break
        made = toolchain.to_ir(text, folder, target, defines)
    if made.returncode:
        raise CompileError(from_clang(first.stderr, source, error_lines(made.stderr)))
    return (folder / toolchain.IR_FILE).read_text()


def _kernels(entries: list[Entry], module: reflection.Module) -> list[Kernel]:
    kernels = []
    for number, entry in enumerate(entries):
        target = module.targets[number]
        threads, *numbers = module.meta[number]
        memory = sum(module.functions[name].threadgroup_bytes for name in module.reached(target))
        if memory > MAX_THREADGROUP_BYTES:
            raise CompileError(
                message(
                    entry.definition.line,
                    (
                        f"kernel '{entry.host_name}': threadgroup memory size ({memory}) exceeds "
                        f"the maximum threadgroup memory allowed ({MAX_THREADGROUP_BYTES})"
                    ),
                )
            )
        called = (module.reached(target) - {target}) & set(module.targets.values())
        if called:
            raise CompileError(
                message(entry.definition.line, f"kernel '{entry.host_name}' calls another kernel, which Metal refuses")
            )
        if threads > MAX_THREADS:
            raise CompileError(
                message(
                    entry.definition.line,
                    f"kernel '{entry.host_name}': max_total_threads_per_threadgroup({threads}) is over {MAX_THREADS}",
                )
            )
        missing = module.undefined(target)
        if missing:
            raise CompileError(
                message(entry.definition.line, f"kernel '{entry.host_name}': undefined function '{missing}'")
            )
        looping = module.recursive(target)
        if looping:
            raise CompileError(
                message(
                    entry.definition.line,
                    f"kernel '{entry.host_name}': recursive function calls are not supported in Metal ('{looping}')",
                )
            )
        kernels.append(
            Kernel(
                entry.host_name,
                entry.symbol,
                _arguments(entry, numbers, module.types.get(number, [])),
                threads or None,
                memory,
                entry.definition.line,
                sorted({*module.function_constants(target), *entry.definition.conditions}),
                [p.name for p in entry.definition.parameters if p.is_threadgroup],
            )
        )
    return kernels


def _arguments(entry: Entry, numbers: list[int], types: list[str]) -> list[Argument]:
    arguments = []
    for position, parameter in enumerate(entry.buffers):
        index, space, reference, const, size, alignment = numbers[position * _FIELDS : (position + 1) * _FIELDS]
        arguments.append(
            Argument(
                index, parameter.name, types[position], _SPACES[space], bool(reference), bool(const), size, alignment
            )
        )
    return sorted(arguments, key=lambda argument: argument.index)
