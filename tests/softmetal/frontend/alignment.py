"""Accesses whose alignment the runtime's checks would not know: each is announced to the runtime.

A vector is aligned to its own size (Metal Shading Language specification, 2.2), a packed one as its elements, a
structure as its most aligned member. The call-outs of clang's instrumentation tell sizes only, and take 16 bytes
aligned to 8 for good. (Copies of structures announce themselves: include/msl/copies.h.)
"""

import re

CALL_OUT = "msl_rt_alignment"
_READ, _WRITE = 1, 2
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}
_ACCESS = re.compile(
    r"^ +(?:%[\w.]+ = load|(?P<store>store)) (?:volatile )?(?P<type><[^>]+>|[\w.]+)[^\n]*?, "
    r"(?P<pointer>ptr addrspace\([134]\) %[\w.]+), align (?P<alignment>\d+)[^\n]*$",
    re.M,
)
_DEBUG = re.compile(r", !dbg !\d+")
# It touches none of the memory that the program sees: accesses round it are optimised as if it were not there.
_DECLARATION = f"declare void @{CALL_OUT}(ptr, i64, i64, i32) memory(inaccessiblemem: readwrite) nounwind\n"


def announce_alignments(ir: str) -> str:
    """LLVM IR, fresh from clang and with its address spaces, with a call of the runtime's msl_rt_alignment before each
    access to device, constant or threadgroup memory that is to be aligned to more than its call-out tells."""
    announced = _ACCESS.sub(_before_access, ir)
    return announced if announced == ir else f"{announced}\n{_DECLARATION}"


def _before_access(match: re.Match) -> str:
    size, alignment = _size(match["type"]), int(match["alignment"])
    told = min(size, 8) if size in (1, 2, 4, 8, 16) and alignment >= size else 1
    if alignment <= told:
        return match[0]
    access = _WRITE if match["store"] else _READ
    line = _DEBUG.search(match[0])
    call = f"call void @{CALL_OUT}({match['pointer']}, i64 {size}, i64 {alignment}, i32 {access})"
    return f"  {call}{line[0] if line else ''}\n{match[0]}"


def _size(kind: str) -> int:
    """Bytes of a scalar or vector type of LLVM IR."""
    vector = re.fullmatch(r"<(\d+) x ([\w.]+)>", kind)
    count, scalar = (int(vector[1]), vector[2]) if vector else (1, kind)
    bits = _BITS.get(scalar) or int(scalar[1:])
    return max(1, count * bits // 8)
