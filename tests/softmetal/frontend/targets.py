"""The two targets of the one front end: this computer's processor, and an NVIDIA GPU through PTX."""

from dataclasses import dataclass

# Strict IEEE arithmetic: no contraction, half and bfloat rounded after every operation, as Metal's safe math does.
# Type punning through pointers is common in Metal, so no strict aliasing. C++'s promise that loops end is not Metal's:
# one that spins must spin.
_COMMON = (
    "-std=c++17",
    "-nostdinc",
    "-nostdinc++",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-fno-color-diagnostics",
    "-ferror-limit=400",
    "-ftemplate-backtrace-limit=4",
    "-fdiagnostics-print-source-range-info",
    "-fno-caret-diagnostics",
    "-Xclang",
    "-disable-llvm-passes",
    "-fconvergent-functions",
    "-fno-finite-loops",
)


@dataclass(frozen=True)
class Target:
    """flags: of clang from rewritten source to LLVM IR, and of the precompiled library. suffix: of what is built."""

    name: str
    flags: tuple[str, ...]
    suffix: str


# _Float16 needs F16C; every x86-64-v3 has it. The runtime tells collectives apart by the calls that led to them: every
# function may hold one (convergent), keeps a frame pointer and makes real calls. A variable that nobody set is NaN or a
# number nobody wants; an index outside a private array or a vector traps.
CPU = Target(
    "cpu",
    (
        *_COMMON,
        "-march=x86-64-v3",
        "-fPIC",
        "-gline-tables-only",
        "-gdwarf-4",
        "-O2",
        "-fsanitize=kernel-address",
        "-fno-omit-frame-pointer",
        "-mno-omit-leaf-frame-pointer",
        "-fno-optimize-sibling-calls",
        "-ftrivial-auto-var-init=pattern",
        "-ftrivial-auto-var-init-max-size=16384",
        "-fsanitize=array-bounds",
        "-fsanitize-trap=array-bounds",
        "-fno-sanitize-merge",
    ),
    ".so",
)
NVPTX_MACHINE = ("--target=nvptx64-nvidia-cuda", "-march=sm_90")
NVPTX = Target("nvptx", (*_COMMON, *NVPTX_MACHINE, "-O3"), ".ptx")
TARGETS = {target.name: target for target in (CPU, NVPTX)}
