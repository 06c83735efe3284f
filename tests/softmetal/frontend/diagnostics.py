"""The front end's error, worded as Metal's compiler words it: program_source:LINE:COLUMN: error: ..."""
import re

SOURCE_NAME = "program_source"
_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): (?P<kind>fatal error|error|note|warning): (?P<text>.*)$")


class CompileError(Exception):
    """The source is not valid Metal. The text lists one diagnostic a line, errors first seen first."""


def message(line: int, text: str, column: int = 1) -> str:
    return f"{SOURCE_NAME}:{line}:{column}: error: {text}"


_SPACES = (("1", "device"), ("3", "threadgroup"), ("4", "constant"))
_ELEMENTS = (("unsigned char", "uchar"), ("unsigned short", "ushort"), ("unsigned int", "uint"), ("unsigned long", "ulong"))


def metal_types(text: str) -> str:
    """Clang's names of types as Metal names them: vectors, address spaces, half, bfloat."""
    for number, word in _SPACES:
        text = text.replace(f"__attribute__((address_space({number})))", word)
    text = text.replace("_Float16", "half").replace("__bf16", "bfloat")
    for long, short in _ELEMENTS:
        text = text.replace(long, short)
    # "float device * __attribute__((ext_vector_type(4)))" is clang's way to say "device float4 *"
    text = re.sub(r"\b(\w+)((?: const)?(?: \w+)? [*&]) ?__attribute__\(\(ext_vector_type\((\d)\)\)\)", r"\1\3\2", text)
    text = re.sub(r"\b(\w+) __attribute__\(\(ext_vector_type\((\d)\)\)\)", r"\1\2", text)
    text = re.sub(r"\b(\w+)( const)? (device|threadgroup|constant) ([*&])", r"\2 \3 \1 \4", text).strip()
    return text.replace("const constant", "constant").replace("  ", " ")


def _readable(text: str) -> str:
    """Clang's words for what this front end made of Metal's words, turned back."""
    for number, word in _SPACES:
        text = re.sub(rf"address space '{number}'", f"address space '{word}'", text)
    text = text.replace("generic address space", "address space 'thread'")
    return metal_types(text.replace("msl_user::", ""))


def from_clang(output: str, source: str) -> str:
    """Clang's diagnostics without its excerpts of rewritten text: each with the user's own line below it."""
    lines, result, last_kept = source.split("\n"), [], False
    for line in output.split("\n"):
        match = _DIAGNOSTIC.match(line)
        if not match or match["kind"] == "warning":
            continue
        own = match["file"] == SOURCE_NAME
        if not own and match["kind"] == "note":
            continue
        if match["kind"] == "note" and not last_kept:
            continue
        last_kept = True
        where = f"{SOURCE_NAME}:{match['line']}:{match['column']}" if own else f"<metal_stdlib>:{match['line']}:{match['column']}"
        result.append(f"{where}: {match['kind']}: {_readable(match['text'])}")
        number = int(match["line"])
        if own and 0 < number <= len(lines):
            result.append("    " + lines[number - 1].strip())
    return "\n".join(result) if result else _readable(output.strip())
