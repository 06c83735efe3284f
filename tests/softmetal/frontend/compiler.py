"""The whole way from source text to a Library: preprocess, translate, compile, judge, wrap shifts, announce alignments,
erase address spaces, link."""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

from . import cache, nvptx, reflection, toolchain
from .alignment import announce_alignments
from .bools import refuse_bits
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
    house_rules  what this project asks of its own kernels beyond the language: Metal 3.1 (rules.py), conversions of
                 bfloat written out (conversions.py), no function that calls itself (Apple's compiler takes MLX's, whose
                 last act that is), and no more threadgroup memory than any GPU has, which Metal refuses when it makes
                 the pipeline. False for the sources of others.

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
    if stored := cache.load(key):
        return stored
    with tempfile.TemporaryDirectory(prefix="softmetal-") as scratch:
        translation = _translate(source, house_rules)
        numbers = range(len(translation.entries))
        built = _build(translation, numbers, source, Path(scratch), checked, machine, defines, house_rules)
        return cache.store(key, built)


def check(source: str, *, house_rules: bool = True) -> list[Kernel]:
    """Everything that `compile` does up to machine code: raises what it raises, returns the kernels, keeps nothing."""
    translation = _translate(source, house_rules)
    with tempfile.TemporaryDirectory(prefix="softmetal-") as scratch:
        ir = _to_ir(translation, range(len(translation.entries)), Path(scratch), source, CPU, ())
        kernels = _kernels(dict(enumerate(translation.entries)), reflection.read(ir), house_rules)
        check_conversions(toolchain.syntax_tree(Path(scratch), CPU, ()), house_rules)
    return kernels


def sample(source: str, folder: Path, *, house_rules: bool = True) -> Library:
    """Compile, checked, every kernel of the source, but of a template its first instantiation only, into `folder`."""
    translation = _translate(source, house_rules)
    return _build(translation, translation.firsts(), source, folder, True, CPU, (), house_rules)


def _translate(source: str, house_rules: bool) -> Translation:
    preprocessed = toolchain.preprocess(source)
    if preprocessed.returncode:
        raise CompileError(from_clang(preprocessed.stderr, source))
    return Translation(preprocessed.stdout, house_rules)


def _build(
    translation: Translation,
    numbers: Sequence[int],
    source: str,
    folder: Path,
    checked: bool,
    target: Target,
    defines: tuple[str, ...],
    house_rules: bool,
) -> Library:
    with ThreadPoolExecutor(1) as beside:
        ir = _to_ir(translation, numbers, folder, source, target, defines)
        conversions = beside.submit(
            lambda: check_conversions(toolchain.syntax_tree(folder, target, defines), house_rules)
        )
        kernels = _kernels({n: translation.entries[n] for n in numbers}, reflection.read(ir), house_rules)
        ir = wrap_shifts(define_external_constants(ir))
        if target is NVPTX:
            built = nvptx.to_ptx(ir, folder)
        else:
            ir = keep_private_bounds(ir, checked)
            flat = erase_address_spaces(announce_alignments(ir) if checked else ir)
            built = toolchain.to_shared_object(flat, folder, checked)
        conversions.result()  # raises what the syntax tree shows
    return Library(built, {k.name: k for k in kernels}, checked)


def _to_ir(
    translation: Translation,
    numbers: Sequence[int],
    folder: Path,
    source: str,
    target: Target,
    defines: tuple[str, ...],
) -> str:
    text = translation.text(numbers)
    made = first = toolchain.to_ir(text, folder, target, defines)
    firsts = translation.firsts()
    if made.returncode and len(firsts) < len(numbers):
        # What one instantiation of a template needs spelled anew, most need: found in a hundredth of the time.
        text, _ = _spelled(translation.text(firsts), None, folder, target, defines)
        text, made = translation.text(numbers, text), None
    text, made = _spelled(text, made, folder, target, defines)
    if made.returncode:
        raise CompileError(from_clang(first.stderr, source, error_lines(made.stderr)))
    ir = (folder / toolchain.IR_FILE).read_text()
    refuse_bits(ir)
    return ir


def _spelled(
    text: str, made: CompletedProcess | None, folder: Path, target: Target, defines: tuple[str, ...]
) -> tuple[str, CompletedProcess]:
    """The text with what clang refuses and Metal takes spelled anew, as far as that goes, and clang's last answer.

    made: clang's answer to the text as it is, where that is known.
    """
    made = made or toolchain.to_ir(text, folder, target, defines)
    for _ in range(ROUNDS):
        new = made.returncode and next(filter(None, (spell(text, made.stderr) for spell in _SPELLINGS)), None)
        if not new:
            break
        text, made = new, toolchain.to_ir(new, folder, target, defines)
    return text, made


def _kernels(entries: dict[int, Entry], module: reflection.Module, house_rules: bool) -> list[Kernel]:
    kernels, targets = [], set(module.targets.values())
    for number, entry in entries.items():
        target = module.targets[number]
        threads, *numbers = module.meta[number]
        memory = sum(module.functions[name].threadgroup_bytes for name in module.reached(target))
        if house_rules and memory > MAX_THREADGROUP_BYTES:
            raise CompileError(
                message(
                    entry.definition.line,
                    (
                        f"kernel '{entry.host_name}': threadgroup memory size ({memory}) exceeds "
                        f"the maximum threadgroup memory allowed ({MAX_THREADGROUP_BYTES})"
                    ),
                )
            )
        called = (module.reached(target) - {target}) & targets
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
        looping = module.recursive(target, by_others=not house_rules)
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
