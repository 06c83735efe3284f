"""What Metal refuses and C++ does not, as far as the words of the source show it. Types are the compiler's to judge."""

from .diagnostics import CompileError, message
from .kernels import ADDRESS_SPACES
from .lexer import SOURCE_NAME, Token, closing, closing_angle, plain

# MSL 3.1, section 1.4: C++17 features that Metal leaves out.
FORBIDDEN = {
    "double": "'double' is not supported in Metal",
    "goto": "'goto' is not supported in Metal",
    "virtual": "virtual functions are not supported in Metal",
    "throw": "exceptions are not supported in Metal",
    "try": "exceptions are not supported in Metal",
    "catch": "exceptions are not supported in Metal",
    "new": "operator 'new' is not supported in Metal",
    "delete": "operator 'delete' is not supported in Metal",
    "thread_local": "'thread_local' is not supported in Metal",
    "dynamic_cast": "'dynamic_cast' is not supported in Metal",
    "typeid": "'typeid' is not supported in Metal",
    "asm": "inline assembly is not supported in Metal",
    "__asm__": "inline assembly is not supported in Metal",
    "register": "'register' storage class is not supported in Metal",
    "co_await": "coroutines are not supported in Metal",
    "wchar_t": "'wchar_t' is not supported in Metal",
    "__int128": "'__int128' is not supported in Metal",
    "__bf16": "unknown type name '__bf16': Metal's name is bfloat",
    "_Float16": "unknown type name '_Float16': Metal's name is half",
}
# What NAN, INFINITY and the like are made of here (include/preprocess.h).
MACRO_BUILTINS = {"__builtin_nanf", "__builtin_huge_valf"}
# Metal's compiler is a clang: of its own functions those that need no other machine are there.
SHARED_BUILTINS = {
    *(f"__builtin_{name}{width}" for name in ("clz", "ctz", "ffs", "popcount", "parity") for width in ("", "l", "ll")),
    "__builtin_expect",
    "__builtin_assume",
    "__builtin_unreachable",
}
# Metal 3.2's, which macOS 14 does not have.
NEWER = {
    "atomic_thread_fence",
    *(f"thread_scope{scope}" for scope in ("", "_thread", "_simdgroup", "_threadgroup", "_device")),
    *(f"memory_order_{order}" for order in ("acquire", "release", "acq_rel", "seq_cst")),
}
_DECLARATION_WORDS = {
    "using",
    "typedef",
    "static_assert",
    "friend",
    "struct",
    "class",
    "union",
    "enum",
    "template",
    "extern",
    "namespace",
}


def check_source(source: str) -> None:
    """Metal source is ASCII in this project; a NUL or a stray byte is reported with its place."""
    for number, line in enumerate(source.split("\n"), 1):
        for column, character in enumerate(line, 1):
            if ord(character) > 126 or (ord(character) < 32 and character not in "\t\r\f\v"):
                raise CompileError(message(number, f"non-ASCII character U+{ord(character):04X} in the source", column))


def check_tokens(tokens: list[Token]) -> None:
    """Words that may stand nowhere in the user's source."""
    included = any(t.kind == "directive" and "/metal_" in t.text for t in tokens)
    types_only = _type_ranges(tokens)
    for index, token in enumerate(tokens):
        if token.file != SOURCE_NAME:
            continue
        following = tokens[index + 1].text if index + 1 < len(tokens) else ""
        before = tokens[index - 1].text if index else ""
        if token.kind == "word":
            text = token.text
            if text == "delete" and before == "=":
                continue
            if text in FORBIDDEN and before not in (".", "->"):
                raise CompileError(message(token.line, FORBIDDEN[text]))
            if text.startswith("__builtin_") and text not in MACRO_BUILTINS | SHARED_BUILTINS:
                raise CompileError(message(token.line, f"use of undeclared identifier '{text}': it is not Metal's"))
            if text == "std" and following == "::" and before != "::":
                raise CompileError(
                    message(token.line, "use of undeclared identifier 'std': Metal's library is metal::")
                )
            if text == "long" and following in ("long", "double"):
                raise CompileError(message(token.line, f"'long {following}' is not supported in Metal"))
            if text == "metal" and not included:
                raise CompileError(
                    message(token.line, "use of undeclared identifier 'metal': #include <metal_stdlib> is missing")
                )
        elif token.text in ("[", "[[") and _opens_lambda(tokens, index):
            raise CompileError(message(token.line, "lambda expressions are not supported in Metal"))
        elif (
            token.text == "(" and following == "*" and index not in types_only and _is_function_pointer(tokens, index)
        ):
            raise CompileError(message(token.line, "function pointers are not supported in Metal"))
        elif token.kind == "number" and token.text[-1] in "lL" and "." in token.text:
            raise CompileError(message(token.line, "'long double' is not supported in Metal"))


def check_version(tokens: list[Token]) -> None:
    """Kernels of this project are written in Metal 3.1."""
    for index, token in enumerate(tokens):
        if token.file == SOURCE_NAME and token.kind == "word":
            if token.text in NEWER or token.text == "coherent" and coherent_end(tokens, index) is not None:
                raise CompileError(message(token.line, f"'{token.text}' needs Metal 3.2"))


def coherent_end(tokens: list[Token], index: int) -> int | None:
    """The index after the qualifier `coherent` or `coherent(system)` at index, or None where the word is a name."""
    after = index + 1
    if [t.text for t in tokens[after : after + 3]] in (["(", scope, ")"] for scope in ("device", "system")):
        after += 3
    return after if tokens[after].text in ("device", "const", "volatile") else None


def _opens_lambda(tokens: list[Token], index: int) -> bool:
    if tokens[index].text == "[[":
        return False
    before = tokens[index - 1] if index else None
    if (
        before is None
        or before.text in (")", "]", "}", "operator")
        or (before.kind in ("word", "string") and before.text not in ("return",))
    ):
        return False
    return before.text in ("=", "(", ",", "return", "{", "&&", "||", "?", ":")


def _type_ranges(tokens: list[Token]) -> set[int]:
    """Where a pointer to a function is only a type, which Metal takes: parameters of templates, and aliases. A call
    through one is then known to the compiler."""
    found: set[int] = set()
    for index, token in enumerate(tokens[:-1]):
        end = -1
        if token.text == "template" and tokens[index + 1].text == "<":
            end = closing_angle(tokens, index + 1)
        elif token.text in ("using", "typedef"):
            end = index
            while tokens[end].text != ";" and tokens[end].kind != "end":
                end += 1
        found.update(range(index, end))
    return found


def _is_function_pointer(tokens: list[Token], index: int) -> bool:
    """( * name ) ( or ( * ) ("""
    index += 2
    index += tokens[index].kind == "word"
    return tokens[index].text == ")" and tokens[index + 1].text == "("


def check_address_spaces(tokens: list[Token], what: str) -> None:
    """A pointer or reference in a declaration must say the address space that it points to."""
    index, words = 0, [t.text for t in tokens]
    while index < len(tokens):
        text = words[index]
        if text == "=":
            break
        if text == "<":
            index = max(closing_angle(tokens, index), index) + 1
            continue
        if text == "[" or (text == "(" and words[index - 1] in ("alignas", "decltype", "sizeof")):
            index = closing(tokens, index) + 1  # a product, not a pointer
            continue
        if what == "alias" and text == "(" and words[index + 1 : index + 3] == ["*", ")"]:
            index += 3  # a pointer to a function
            continue
        if text in ("*", "&") and not set(words) & set(ADDRESS_SPACES):
            kind = "pointer" if text == "*" else "reference"
            raise CompileError(
                message(
                    tokens[index].line,
                    f"{kind} type must have explicit address space qualifier: {what} '{plain(tokens)}'",
                )
            )
        index += 1


def check_global(tokens: list[Token], is_template: bool, braced: bool = False) -> None:
    """A program-scope variable lives in the constant address space. braced: it is initialised by a list without `=`."""
    words = [t.text for t in tokens]
    if not words or words[0] in _DECLARATION_WORDS or is_template and "=" not in words:
        return
    head = words[: words.index("=")] if "=" in words else words
    if "(" in head or "operator" in head or len(head) < 2:
        return
    name = next((i for i, w in enumerate(head) if w in ("[", "{")), len(head)) - 1
    line = tokens[name].line
    if "threadgroup" in head and "*" not in head:
        raise CompileError(
            message(line, "variables in the threadgroup address space may only be declared in a kernel function")
        )
    if "constant" not in head:
        raise CompileError(
            message(line, f"program scope variable '{words[name]}' must reside in constant address space")
        )
    if "=" not in words and not braced and not _is_member(head, name):
        raise CompileError(
            message(line, f"program scope variable '{words[name]}' in the constant address space must be initialized")
        )


def _is_member(words: list[str], name: int) -> bool:
    """`constant const float S<6>::table[8];`: what C++ before 17 asked for, beside the initializer in the class."""
    return words[name - 1] == "::"


def check_body(tokens: list[Token], is_kernel: bool) -> None:
    """Statements of a function body: what is declared at their start."""
    tokens = [t for t in tokens if t.kind != "directive"]
    for index, token in enumerate(tokens[:-1]):
        before = [t.text for t in tokens[max(index - 2, 0) : index]]
        if before[-1:] not in (["{"], ["}"], [";"], [")"]) and before not in (["for", "("], ["if", "("]):
            continue
        statement = _statement(tokens, index)
        words = [t.text for t in statement]
        if not words:
            continue
        if words[0] == "static" and "constexpr" not in words:
            raise CompileError(
                message(token.line, f"static local variables are not supported in Metal: '{plain(statement)}'")
            )
        if words[0] == "threadgroup" and not is_kernel and not {"*", "&"} & set(words):
            raise CompileError(
                message(
                    token.line, "variables in the threadgroup address space may only be declared in a kernel function"
                )
            )
        if words[0] == "constant" and not {"*", "&"} & set(words) and len(words) > 2:
            raise CompileError(
                message(token.line, "variables in the constant address space must be declared at program scope")
            )
        _check_local_pointer(statement)


def _statement(tokens: list[Token], start: int) -> list[Token]:
    stop = start
    while stop < len(tokens) and tokens[stop].text not in (";", "{", "}"):
        stop += 1
    return [t for t in tokens[start:stop] if t.kind != "directive"]


def _check_local_pointer(statement: list[Token]) -> None:
    """`T* p = ...;` and `T& r = ...;` that start a statement declare; `auto` takes its space from the right side."""
    index, type_words = 0, 0
    while index < len(statement):
        token = statement[index]
        if token.text in ("const", "volatile"):
            index += 1
        elif token.text == "::":
            index, type_words = index + 1, 0
        elif token.text == "<" and type_words:
            index = closing_angle(statement, index) + 1
            if index == 0:
                return
        elif token.kind == "word" and token.text not in (
            "return",
            "case",
            "delete",
            "auto",
            "using",
            "typedef",
            *ADDRESS_SPACES,
        ):
            index, type_words = index + 1, type_words + 1
        else:
            break
    if type_words != 1 or index + 2 >= len(statement) or statement[index].text not in ("*", "&"):
        return
    after = index
    while after < len(statement) and statement[after].text in ("*", "&", "const"):
        after += 1
    if after + 1 < len(statement) and statement[after].kind == "word" and statement[after + 1].text in ("=", ",", "["):
        check_address_spaces(statement[: after + 1], "variable")
