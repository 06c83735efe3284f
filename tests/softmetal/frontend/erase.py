"""LLVM IR with Metal's address spaces to LLVM IR for a CPU, whose only memory is flat."""

import re

_SPACE = re.compile(r" addrspace\(\d+\)")
# Promises that the optimiser would use to move or drop the very accesses that are to be checked.
_PROMISES = re.compile(
    r" (?:dereferenceable(?:_or_null)?\(\d+\)|inrange\([^)]*\))|"
    r"(?<=getelementptr) (?:inbounds|nuw|nusw)(?: (?:nuw|nusw))*"
)
_CONSTANT = re.compile(r"^(@[\w.$]+ = .*?)addrspace\(4\) constant (?=[\[%<{])", re.M)


# Loads and stores of the thread's own memory: no buffer, nothing to check.
_PRIVATE = re.compile(
    r"^( +(?:%[\w.]+ = load (?:volatile )?[^,\n]+|store (?:volatile )?[^\n]+?), ptr (?!addrspace)[^\n]*)$", re.M
)


def erase_address_spaces(ir: str) -> str:
    """Erase address spaces; drop in-bounds promises; keep arrays in constant memory from being folded into the code.

    Accesses that had no address space are the thread's own memory; they are marked so that no check is made of them.
    """
    node = 1 + max((int(number) for number in re.findall(r"^!(\d+) =", ir, re.M)), default=-1)
    ir = _PRIVATE.sub(rf"\1, !nosanitize !{node}", ir) + f"\n!{node} = !{{}}\n"
    ir = _CONSTANT.sub(r"\1externally_initialized global ", ir)
    ir = _PROMISES.sub("", ir)
    ir = ir.replace("addrspacecast (ptr", "bitcast (ptr").replace("addrspacecast ptr", "bitcast ptr")
    ir = _SPACE.sub("", ir)
    ir = re.sub(r"(@llvm\.[\w.]+)", lambda m: re.sub(r"\.p[134](?=\.|$)", ".p0", m[1]), ir)
    return without_repeated_declarations(ir)


def without_repeated_declarations(ir: str) -> str:
    """llvm.memcpy.p0.p1 and llvm.memcpy.p0.p4 have become one function, which is declared once."""
    seen, lines = set(), []
    for line in ir.split("\n"):
        if line.startswith("declare "):
            name = line[line.index("@") : line.index("(", line.index("@"))]
            if name in seen:
                continue
            seen.add(name)
        lines.append(line)
    return "\n".join(lines)
