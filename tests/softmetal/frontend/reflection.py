"""Read back from the intermediate code what the compiler knows: argument types, threadgroup memory, calls."""

import re
from dataclasses import dataclass, field

from .constants import external_constants
from .diagnostics import metal_types

_DEFINE = re.compile(r"^define [^@\n]*@(\"[^\"]+\"|[\w.$]+)\(", re.M)
_CALL = re.compile(r"\b(?:call|invoke) [^@\n]*@(\"[^\"]+\"|[\w.$]+)\(")
_VARIABLE = re.compile(r"call void @msl_rt_threadgroup_variable\(.*, i64 noundef (\d+), ptr")
_TABLE = re.compile(
    r"^@msl_(meta|types|target|name)_(\d+) = [^\n]*? (?:constant|global) "
    r"(?:\[\d+ x )?(?:i64|ptr|i8)\]? ([^\n]*?), align",
    re.M,
)
_STRING = re.compile(r'^@([\w.$]+) = [^\n]*constant \[\d+ x i8\] c"((?:[^"\\]|\\[0-9A-F]{2})*)"', re.M)


_GLOBAL = re.compile(r"@(_ZN8msl_user[\w.$]+)")


@dataclass
class Function:
    calls: set[str] = field(default_factory=set)
    threadgroup_bytes: int = 0
    constants: set[str] = field(default_factory=set)


@dataclass
class Module:
    """Tables of each entry by number, and the call graph of the functions that are defined here."""

    meta: dict[int, list[int]] = field(default_factory=dict)
    types: dict[int, list[str]] = field(default_factory=dict)
    targets: dict[int, str] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    def reached(self, name: str) -> set[str]:
        """The functions that `name` calls, directly or not, with itself."""
        seen, todo = set(), [name]
        while todo:
            function = todo.pop()
            if function in seen or function not in self.functions:
                continue
            seen.add(function)
            todo += self.functions[function].calls
        return seen

    def function_constants(self, name: str) -> list[str]:
        """Those that `name` reaches."""
        return sorted(readable_symbol(c) for function in self.reached(name) for c in self.functions[function].constants)

    def undefined(self, name: str) -> str | None:
        """A function of the user's that is called in reach of `name` and has no body, or None."""
        for function in sorted(self.reached(name)):
            for callee in sorted(self.functions[function].calls):
                if callee not in self.functions and callee.strip('"').startswith("_ZN8msl_user"):
                    return readable_symbol(callee)
        return None

    def recursive(self, name: str, by_others: bool = False) -> str | None:
        """A function in reach of `name` that can call itself (by_others: by way of another function), or None."""
        state: dict[str, int] = {}
        stack = [(name, iter(self.functions[name].calls))]
        state[name] = 1
        while stack:
            function, calls = stack[-1]
            callee = next((c for c in calls if c in self.functions), None)
            if callee is None:
                state[function] = 2
                stack.pop()
            elif state.get(callee) == 1:
                if not by_others or callee != function:
                    return readable_symbol(callee)
            elif callee not in state:
                state[callee] = 1
                stack.append((callee, iter(self.functions[callee].calls)))
        return None


def read(ir: str) -> Module:
    """The Module that a text of LLVM IR describes."""
    module = Module()
    strings = {name: _unescape(value) for name, value in _STRING.findall(ir)}
    for kind, number, value in _TABLE.findall(ir):
        if kind == "meta":
            # A kernel without buffers and thread limit has a table of one zero, which LLVM spells in its own way.
            module.meta[int(number)] = [int(v) for v in re.findall(r"i64 (-?\d+)", value)] or [0]
        elif kind == "types":
            module.types[int(number)] = [_type_name(strings[name]) for name in re.findall(r"@([\w.$]+)", value)]
        elif kind == "target":
            module.targets[int(number)] = re.search(r"@(\"[^\"]+\"|[\w.$]+)", value)[1]
    constants = external_constants(ir)
    starts = [(m.start(), m[1]) for m in _DEFINE.finditer(ir)]
    for start, name in starts:
        body = ir[start : ir.find("\n}\n", start)]
        calls = set(_CALL.findall(body, body.find("\n")))
        used = constants.intersection(_GLOBAL.findall(body)) if constants else set()
        module.functions[name] = Function(calls, _threadgroup_bytes(body), used)
    return module


def _threadgroup_bytes(body: str) -> int:
    """Sizes of the variables that a kernel's body announces, each rounded up to 16 as Metal lays them out."""
    return sum((int(size) + 15) // 16 * 16 for size in _VARIABLE.findall(body))


def readable_symbol(mangled: str) -> str:
    """The qualified name in a mangled one, without the front end's namespace: _ZN8msl_user1gEf -> g."""
    names, rest = [], re.sub(r"^_ZN[KVO]*", "", mangled.strip('"'))
    while match := re.match(r"\d+", rest):
        length, start = int(match[0]), match.end()
        names.append(rest[start : start + length])
        rest = rest[start + length :]
    return "::".join(name for name in names if name != "msl_user") or mangled


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), text).rstrip("\0")


def _type_name(pretty: str) -> str:
    """The T in a __PRETTY_FUNCTION__: "const char *msl::type_name() [T = half *]" -> "half *"."""
    return metal_types(pretty[pretty.index("[T = ") + 5 : -1].replace("msl_user::", ""))
