"""The front end's error, worded as Metal's compiler words it: program_source:LINE:COLUMN: error: ..."""
import re

SOURCE_NAME = "program_source"
_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): (?P<kind>fatal error|error|note|warning): (?P<text>.*)$")


class CompileError(Exception):
    """The source is not valid Metal. The text lists one diagnostic a line, errors first seen first."""


def message(line: int, text: str, column: int = 1) -> str:
    return f"{SOURCE_NAME}:{line}:{column}: error: {text}"


def _readable(text: str) -> str:
    """Clang's words for what this front end made of Metal's words, turned back."""
    for number, word in (("1", "device"), ("3", "threadgroup"), ("4", "constant")):
        text = text.replace(f"const __attribute__((address_space({number})))", f"const {word}" if number != "4" else word)
        text = text.replace(f"__attribute__((address_space({number})))", word)
        text = re.sub(rf"address space '{number}'", f"address space '{word}'", text)
    text = text.replace("generic address space", "address space 'thread'")
    text = text.replace("msl_user::", "").replace("_Float16", "half").replace("__bf16", "bfloat")
    return text


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
