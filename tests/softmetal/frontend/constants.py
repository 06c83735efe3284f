"""Function constants: `constant bool causal [[function_constant(0)]];`, a value that the host gives with the pipeline.

compile_shader gives none, so that a kernel which reaches one compiles and cannot be made: Kernel.function_constants
tells, with those that are made of others. Until then they are variables defined elsewhere; in the code that is made of
them they are zero.
"""

import re

from .diagnostics import CompileError, message
from .lexer import Token, rewritten

_EXTERNAL = re.compile(r"^@(_ZN8msl_user[\w.$]+) = external (addrspace\(4\) constant )([^\n]+?)(?=, align)", re.M)


def declare_function_constant(declaration: list[Token]) -> str:
    """Rewrite a declaration (without its attributes) for the compiler; returns the constant's name."""
    words = [token.text for token in declaration]
    name = declaration[-1]
    if "constant" not in words or "*" in words or "&" in words or "[" in words:
        raise CompileError(message(name.line, "'function_constant' attribute: a scalar or vector in constant memory"))
    if "=" in words:
        raise CompileError(message(name.line, f"function constant '{words[words.index('=') - 1]}' has an initializer"))
    for token in declaration:
        if token.text in ("static", "constexpr", "extern"):
            token.erase()
    declaration[0].out = f"extern {declaration[0].out}"
    return name.text


def derive_function_constant(declaration: list[Token], known: set[str]) -> str | None:
    """`constant int span = tile * stride;`, of known ones, is one too: its name, or None for another declaration."""
    words = [token.text for token in declaration]
    if "constant" not in words or "=" not in words or not known & set(words[words.index("=") :]):
        return None
    equals = words.index("=")
    value = rewritten(declaration[equals + 1 :])
    for token in declaration[equals:]:
        token.erase()
    name = declare_function_constant(declaration[:equals])
    declaration[equals].out = f"; typedef decltype({value}) {name}__value"  # so that the compiler reads it
    return name


def external_constants(ir: str) -> set[str]:
    """The mangled names of the function constants in a text of LLVM IR."""
    return {match[1] for match in _EXTERNAL.finditer(ir)}


def define_external_constants(ir: str) -> str:
    """All of them zero."""
    return _EXTERNAL.sub(r"@\1 = internal \2\3 zeroinitializer", ir)
