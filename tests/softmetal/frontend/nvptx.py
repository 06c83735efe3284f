"""LLVM IR with Metal's address spaces to PTX.

NVPTX has the same numbers for device (1) and threadgroup (3) memory. constant (4) becomes generic: on this target what
it points to are the parameters of the launch, or constants of the program.
"""

import re
from pathlib import Path

from . import toolchain
from .erase import without_repeated_declarations
from .targets import NVPTX_MACHINE

PTX_FILE = "module.ptx"
_CODE_FLAGS = (*NVPTX_MACHINE, "-O3", "-ffp-contract=off", "-mllvm", "-nvptx-fma-level=0")
_TABLE = re.compile(r"^@msl_(?:meta|types|target|name)_\d+ = .*\n", re.M)
_USED = re.compile(r"^@llvm\.(?:compiler\.)?used = .*\n", re.M)
_ANNOUNCED = re.compile(r"^ +call void @msl_rt_threadgroup_variable\(.*\n", re.M)
_THREADGROUP = re.compile(r"^(@[^\n]*? addrspace\(3\) global .*?) zeroinitializer(?:, comdat(?:\([^)]*\))?)?", re.M)
# Of functions that are no entries, and of variables that have a value.
_LINKAGE = re.compile(
    r"^(define(?=[^\n]*? @(?!msl_kernel_))|@[^\n =]+ =)(?: (?:linkonce_odr|weak_odr|internal|hidden|dso_local))*"
    r"(?= (?!appending|external|private))",
    re.M,
)
# Clang does not see the value of nanf("") where string literals have an address space, and here is no library to call.
_NAN = re.compile(r"(%[\w.]+ = )(?:tail |notail )?call [^\n]*float @nanf\([^\n]*")
_BODY = re.compile(r"^(define internal [^\n]*\)(?: unnamed_addr| local_unnamed_addr)*) #(?=\d+[^\n]* \{$)", re.M)
_CAST = re.compile(r"addrspacecast( \(?)ptr addrspace\(4\)(?= [^\n]* to ptr(?! addrspace))")
_CAST_BACK = re.compile(r"addrspacecast( \(?)ptr(?= (?!addrspace)[^\n]* to ptr addrspace\(4\))")


def defines(source: str, partial_simdgroups: bool, constant_tensors: bool) -> tuple[str, ...]:
    """What of the source or of its launches the library must know: see include/msl/target_nvptx.h."""
    apple = "thread_elements" in source
    return (
        *(("-DMSL_PARTIAL_SIMDGROUPS",) if partial_simdgroups else ()),
        *(("-DMSL_CONSTANT_TENSORS",) if constant_tensors else ()),
        *(("-DMSL_APPLE_MATRICES",) if apple else ()),
    )


def to_ptx(ir: str, folder: Path) -> Path:
    """The PTX of the entries. Nothing else is visible from outside, so what they do not use is gone."""
    ir = _NAN.sub(r"\1bitcast i32 2143289344 to float", ir)
    ir = _ANNOUNCED.sub("", _USED.sub("", _TABLE.sub("", ir)))
    ir = _THREADGROUP.sub(r"\1 undef", ir)  # shared memory has no initial value, in Metal as here
    ir = _LINKAGE.sub(r"\1 internal", ir)
    ir = _BODY.sub(r"\1 alwaysinline #", ir)  # as Metal's compiler does
    ir = re.sub(r"^\$\S+ = comdat \w+\n", "", ir, flags=re.M)
    ir = re.sub(r",? comdat(?:\([^)]*\))?", "", ir)
    ir = _CAST_BACK.sub(r"bitcast\1ptr", _CAST.sub(r"bitcast\1ptr", ir))
    ir = ir.replace(" addrspace(4)", "")
    ir = re.sub(r"(@llvm\.[\w.]+)", lambda m: re.sub(r"\.p4(?=\.|$)", ".p0", m[1]), ir)
    (folder / toolchain.IR_FILE).write_text(without_repeated_declarations(ir))
    made = toolchain.run(
        "clang", "-x", "ir", "-w", *_CODE_FLAGS, "-S", toolchain.IR_FILE, "-o", PTX_FILE, folder=folder
    )
    if made.returncode:
        raise toolchain.ToolchainError(f"clang makes no PTX of the intermediate code:\n{made.stderr}")
    return folder / PTX_FILE
