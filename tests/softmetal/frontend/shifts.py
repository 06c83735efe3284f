"""Shifts by the width and more. Metal takes the amount modulo the width; in C++ and LLVM the result is anything.

A literal amount out of range is refused by clang (-Werror=shift-count-overflow and -negative): Metal warns.
"""

import re

_OPERAND = r"<[^>\n]*>|splat \([^)\n]*\)|[^\s,]+"
_SHIFT = re.compile(
    r"^(?P<start> +%[\w.]+ = (?:shl|lshr|ashr)(?: nuw| nsw| exact)* "
    rf"(?P<type>i(?P<scalar>\d+)|<\d+ x i(?P<element>\d+)>) (?:{_OPERAND}), )(?P<amount>{_OPERAND})(?P<rest>.*)$",
    re.MULTILINE,
)


def wrap_shifts(ir: str) -> str:
    """LLVM IR in which the amount of every shift is cut to the bits that its width has use for."""
    made = 0

    def wrap(match: re.Match) -> str:
        nonlocal made
        width = int(match["scalar"] or match["element"])
        amount = match["amount"]
        if amount.isdecimal() and int(amount) < width:
            return match[0]
        made += 1
        mask = f"splat (i{width} {width - 1})" if match["element"] else str(width - 1)
        debug = re.search(r", !dbg !\d+", match["rest"])
        cut = f"  %shift.amount.{made} = and {match['type']} {amount}, {mask}{debug[0] if debug else ''}\n"
        return f"{cut}{match['start']}%shift.amount.{made}{match['rest']}"

    return _SHIFT.sub(wrap, ir)
