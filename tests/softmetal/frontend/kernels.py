"""What the source says about its kernels, and the entry that the runtime calls for each of them."""

import re
from dataclasses import dataclass, field

from .diagnostics import CompileError, message
from .lexer import Token, closing, plain, split

# MSL attribute of a kernel parameter -> whether it may be a vector (a position of up to three dimensions).
POSITIONS = {
    "thread_position_in_grid": True,
    "thread_position_in_threadgroup": True,
    "threadgroup_position_in_grid": True,
    "threadgroups_per_grid": True,
    "threads_per_grid": True,
    "threads_per_threadgroup": True,
    "dispatch_threads_per_threadgroup": True,
    "thread_index_in_threadgroup": False,
    "thread_index_in_simdgroup": False,
    "simdgroup_index_in_threadgroup": False,
    "simdgroups_per_threadgroup": False,
    "dispatch_simdgroups_per_threadgroup": False,
    "threads_per_simdgroup": False,
    "thread_execution_width": False,
    "quadgroup_index_in_threadgroup": False,
    "thread_index_in_quadgroup": False,
}
PARAMETER_ATTRIBUTES = {"buffer", "threadgroup", *POSITIONS}
MAX_BUFFERS = 31
ADDRESS_SPACES = ("device", "constant", "thread", "threadgroup")
# Attributes that C++ or clang define and that mean the same in Metal.
HARMLESS_ATTRIBUTES = {"likely", "unlikely", "fallthrough", "nodiscard", "maybe_unused", "deprecated"}


@dataclass
class Parameter:
    name: str
    line: int
    text: str
    attributes: dict[str, list[Token]]
    space: str | None
    is_pointer: bool
    is_reference: bool
    buffer: int | None = None
    position: str | None = None

    @property
    def is_threadgroup(self) -> bool:
        """Memory of a length that the host gives with the launch, which compile_shader cannot."""
        return self.space == "threadgroup"


@dataclass
class KernelDefinition:
    name: str
    line: int
    parameters: list[Parameter]
    is_template: bool
    max_total_threads: list[Token] | None = None
    host_name: str | None = None

    @property
    def conditions(self) -> set[str]:
        """Function constants that say whether a parameter is there."""
        conditional = [p for p in self.parameters if "function_constant" in p.attributes]
        return {plain(p.attributes["function_constant"]) for p in conditional}


@dataclass
class Entry:
    """One kernel that a host can ask for by name."""

    host_name: str
    symbol: str
    definition: KernelDefinition
    line: int
    buffers: list[Parameter] = field(default_factory=list)


def read_attributes(tokens: list[Token]) -> tuple[list[Token], dict[str, list[Token]], dict[str, int]]:
    """Take the [[attributes]] out of a piece of source: (the other tokens, name -> argument tokens, name -> line).

    The attributes' tokens are erased from what the compiler sees, unless they are C++'s own.
    """
    rest, attributes, lines, index = [], {}, {}, 0
    while index < len(tokens):
        if tokens[index].text != "[[":
            rest.append(tokens[index])
            index += 1
            continue
        end = closing(tokens, index)
        harmless = True
        for part in split(tokens[index + 1 : end - 1]):
            scoped = len(part) > 2 and part[1].text == "::"
            name = part[2].text if scoped else part[0].text
            arguments = part[2:-1] if len(part) > 1 and part[1].text == "(" else []
            if scoped and part[0].text in ("clang", "gnu"):
                continue
            if name not in HARMLESS_ATTRIBUTES:
                harmless = False
                attributes[name] = arguments
                lines[name] = part[0].line
        if not harmless:
            for token in tokens[index : end + 1]:
                token.erase()
        index = end + 1
    return rest, attributes, lines


def reject_unknown(attributes: dict[str, list[Token]], lines: dict[str, int], known: set[str]) -> None:
    for name in attributes:
        if name not in known:
            raise CompileError(message(lines[name], f"unknown attribute '{name}'"))


def string_value(tokens: list[Token], line: int) -> str:
    if not tokens or any(token.kind != "string" for token in tokens):
        raise CompileError(message(line, "'host_name' attribute requires a string"))
    return "".join(token.text[1:-1] for token in tokens)


def _integer(tokens: list[Token], line: int, what: str) -> int:
    try:
        return int(plain(tokens).rstrip("uUlL"), 0)
    except ValueError:
        raise CompileError(message(line, f"{what} must be an integer literal, not '{plain(tokens)}'")) from None


def adjust_array(parameter: list[Token]) -> None:
    """`constant long sizes[4]` as a parameter is a pointer, which clang does not see beside an address space."""
    words = [token.text for token in parameter]
    first = words.index("[") if "[" in words else 0
    if first and parameter[first - 1].kind == "word" and {"device", "constant", "threadgroup"} & set(words[:first]):
        end = closing(parameter, first)
        name = parameter[first - 1]
        name.out = f"(*{name.out})" if end + 1 < len(words) and words[end + 1] == "[" else f"* {name.out}"
        for token in parameter[first : end + 1]:
            token.erase()


def _parameter(tokens: list[Token]) -> Parameter | None:
    rest, attributes, lines = read_attributes(tokens)
    if not rest or plain(rest) == "void":
        return None
    reject_unknown(attributes, lines, {*PARAMETER_ATTRIBUTES, "function_constant"})
    words = [token.text for token in rest]
    names = [token for token in rest if token.kind == "word"]
    space = next((word for word in words if word in ADDRESS_SPACES), None)
    adjust_array(rest)
    return Parameter(
        names[-1].text, rest[0].line, plain(rest), attributes, space, "*" in words or "[" in words, "&" in words
    )


def read_parameters(tokens: list[Token]) -> list[Parameter]:
    """The parameters of a kernel, each bound to a buffer index or a position; refuses what Metal refuses."""
    parameters = [p for p in map(_parameter, split(tokens)) if p]
    used: dict[int, Parameter] = {}
    for p in parameters:
        if "buffer" in p.attributes:
            index = _integer(p.attributes["buffer"], p.line, "buffer index")
            if not 0 <= index < MAX_BUFFERS:
                raise CompileError(
                    message(
                        p.line,
                        f"'buffer' attribute parameter is out of bounds: must be between 0 and {MAX_BUFFERS - 1}",
                    )
                )
            if index in used:
                raise CompileError(
                    message(
                        p.line,
                        f"cannot reserve 'buffer' resource location at index {index} for '{p.name}': "
                        f"'{used[index].name}' has it",
                    )
                )
            used[index] = p
            p.buffer = index
        positions = [name for name in p.attributes if name in POSITIONS]
        if len(p.attributes.keys() - {"function_constant"}) > 1:
            raise CompileError(
                message(p.line, f"parameter '{p.name}' has more than one attribute of those that say what it is")
            )
        if positions:
            p.position = positions[0]
    _check_positions([p for p in parameters if p.position])
    free = iter(index for index in range(len(parameters) + MAX_BUFFERS) if index not in used)
    for p in parameters:
        if "threadgroup" in p.attributes and not p.is_threadgroup:
            text = f"'threadgroup' attribute of '{p.name}', which is not threadgroup memory"
            raise CompileError(message(p.line, text))
        if p.is_threadgroup:
            if not (p.is_pointer or p.is_reference):
                text = f"invalid kernel parameter '{p.text}': threadgroup memory is a pointer or a reference"
                raise CompileError(message(p.line, text))
            continue
        if p.position:
            if p.is_pointer or p.is_reference:
                raise CompileError(message(p.line, f"invalid type for '{p.position}' attribute: '{p.text}'"))
            continue
        if p.space not in ("device", "constant") and (p.is_pointer or p.is_reference):
            raise CompileError(
                message(
                    p.line,
                    f"pointer or reference parameter '{p.name}' of a kernel must be in the device or constant "
                    "address space",
                )
            )
        if p.space not in ("device", "constant"):
            raise CompileError(
                message(
                    p.line,
                    f"invalid kernel parameter '{p.text}': it needs an attribute such as "
                    "[[thread_position_in_grid]], or to be a device or constant buffer",
                )
            )
        if not (p.is_pointer or p.is_reference):
            raise CompileError(
                message(p.line, f"invalid kernel parameter '{p.text}': a buffer is a pointer or a reference")
            )
        if p.buffer is None:
            p.buffer = next(free)
            if p.buffer >= MAX_BUFFERS:
                raise CompileError(
                    message(p.line, f"a kernel has at most {MAX_BUFFERS} buffers: '{p.name}' is one too many")
                )
    return parameters


def _check_positions(parameters: list[Parameter]) -> None:
    """Positions that may be vectors have one number of components; of the SIMD width's two names one is used."""
    widths = {}
    for p in parameters:
        declared = re.search(r"\b(?:uint|ushort)([23]?)\b", p.text)
        if POSITIONS[p.position] and declared:
            widths.setdefault(declared[1], p)
    if len(widths) > 1:
        last = max(widths.values(), key=lambda p: p.line)
        raise CompileError(
            message(
                last.line,
                f"parameter '{last.name}': expecting input declarations with either all scalar types or all vector "
                "types with the same number of elements",
            )
        )
    names = {p.position: p for p in parameters}
    if {"thread_execution_width", "threads_per_simdgroup"} <= names.keys():
        raise CompileError(
            message(
                names["threads_per_simdgroup"].line,
                "'thread_execution_width' and 'threads_per_simdgroup' are the same and cannot both be used",
            )
        )


def entry_text(entry: Entry, instance: str) -> str:
    """C++ on one line: the entry function, and tables from which reflection.py reads what the compiler knows."""
    number, arguments, checks, buffers, names = entry.symbol.rsplit("_", 1)[1], [], [], [], []
    parameters = []
    for index, p in enumerate(entry.definition.parameters):
        kind = f"msl::argument<msl_type_{number}, {index}>"
        if p.position:
            vector, vectors = ("true", ", or a vector of 2 or 3 of them") if POSITIONS[p.position] else ("false", "")
            checks.append(
                f"static_assert(msl::is_position<{kind}, {vector}>, \"invalid type of parameter '{p.name}' for "
                f"attribute '{p.position}': must be uint or ushort{vectors}\");"
            )
            arguments.append(f"msl::position<{kind}>(MSL_POSITION({p.position}))")
        elif p.is_threadgroup:
            arguments.append(f"msl::bind<{kind}>(nullptr)")  # such a kernel is never launched
        else:
            arguments.append(f"msl::bind<{kind}>(MSL_BUFFER({p.buffer}))")
            parameters.append(f"MSL_PARAMETER({p.buffer}, {kind})")
            buffers.append(f"{p.buffer}, MSL_DESCRIBE({kind})")
            names.append(f"msl::type_name<{kind}>()")
            entry.buffers.append(p)
    threads = plain(entry.definition.max_total_threads or [])
    if not threads or (entry.definition.is_template and not threads.isdigit()):
        threads = "0"  # none, or one that only the template's own parameters tell
    return (
        f" using msl_type_{number} = decltype({instance}); {' '.join(checks)}"
        f" MSL_TABLE(unsigned long, meta, {number}) = {{{', '.join(['(unsigned long)(' + threads + ')', *buffers])}}};"
        f' MSL_TABLE(char, name, {number}) = "{entry.host_name}";'
        f" MSL_TABLE(char const* const, types, {number}) = {{{', '.join([*names, '0'])}}};"
        f" MSL_TABLE(msl_type_{number}, target, {number}) = {{{instance}}};"
        f" MSL_ENTRY({number}, {' '.join(parameters)}) {{ MSL_BEGIN ({instance})({', '.join(arguments)}); }} "
    )
