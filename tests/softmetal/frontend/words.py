"""Single words that mean something else to C++: literals, conversions written as calls, static_cast."""

from .lexer import SOURCE_NAME, Token, closing, closing_angle
from .rules import coherent_end

_SCALARS = ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "bfloat", "float")
_VECTORS = {f"{prefix}{scalar}{n}" for scalar in _SCALARS for n in (2, 3, 4) for prefix in ("", "packed_")}
_NEVER_A_CALL = {
    "operator",
    ".",
    "->",
    "~",
    "struct",
    "class",
    "typename",
    "using",
    "enum",
    "union",
    "namespace",
    "template",
}


def cast_words(tokens: list[Token]) -> tuple[set[str], set[str]]:
    """Names that, before a parenthesis, convert: half, bfloat, vectors, template type parameters and aliases; and those
    that do so with template arguments: vec and alias templates.

    float(x), int(x) and the like are C++'s own and mean what Metal means.
    """
    names, templates = {"half", "bfloat", *_VECTORS}, {"vec", "packed_vec"}
    for index, token in enumerate(tokens[:-3]):
        following = tokens[index + 1]
        if token.file != SOURCE_NAME or following.kind != "word":
            continue
        if (
            token.text in ("typename", "class")
            and tokens[index - 1].text in ("<", ",")
            and tokens[index + 2].text in (",", ">", "=")
        ):
            names.add(following.text)
        elif token.text == "using" and tokens[index + 2].text == "=":
            (templates if index and tokens[index - 1].text == ">" else names).add(following.text)
        elif token.text == "typedef":
            stop = index
            while tokens[stop].text not in (";", "(", "{", "["):
                stop += 1
            if tokens[stop].text == ";":
                names.add(tokens[stop - 1].text)
    return names, templates


def rewrite_words(tokens: list[Token], names: set[str], templates: set[str]) -> None:
    for index, token in enumerate(tokens):
        if token.kind == "number":
            token.out = _literal(token.text)
            continue
        if token.text == "::" and token.file == SOURCE_NAME and _is_global(tokens, index):
            token.out = "::msl_user::"  # where the source's own global names are
        if token.kind != "word" or token.file != SOURCE_NAME:
            continue
        if token.text == "vec" and [t.text for t in tokens[index + 1 : index + 4]] == ["<", "bool", ","]:
            token.out = "msl_bool_vec"
        if token.text == "coherent" and (end := coherent_end(tokens, index)) is not None:
            for part in tokens[index:end]:  # memory has no caches here: it is coherent
                part.erase()
        elif token.text == "static_cast" and tokens[index + 1].text == "<":
            end = closing_angle(tokens, index + 1)
            if end > 0 and not any(t.text in ("*", "&", "&&", "void") for t in tokens[index + 2 : end]):
                token.out = "msl::make"
        elif token.text in names and tokens[index + 1].text == "(" and not _declares(tokens, index):
            if index == 0 or tokens[index - 1].text not in _NEVER_A_CALL:
                _convert(tokens, index, index)
        elif token.text in templates and tokens[index + 1].text == "<":
            end = closing_angle(tokens, index + 1)
            if end > 0 and tokens[end + 1].text == "(":
                _convert(tokens, index, end)


def _is_global(tokens: list[Token], index: int) -> bool:
    """Whether this :: begins a name of the source's own (not ::metal::x or ::half)."""
    before, name = tokens[index - 1] if index else None, tokens[index + 1].text
    # Box<float>::type and decltype(x)::type, and not a > ::limit and (a) ::f()
    type_before = before and before.text in (">", ")") and not tokens[index].space
    qualified = type_before or (before and before.kind == "word" and before.text not in _KEYWORDS)
    return not qualified and name != "metal" and name not in _SCALARS and name not in _VECTORS


_KEYWORDS = {
    *"return const constexpr constant device thread threadgroup static inline volatile typename template".split(),
    *"using else case new sizeof alignof extern mutable typedef decltype namespace struct class".split(),
}
def choose_vectors(tokens: list[Token]) -> None:
    """vec<T, N> where no argument of a call tells T: the library's own vector if T turns out to be bool (bools.h)."""
    for token, following in zip(tokens, tokens[1:], strict=False):
        if token.text == "vec" and following.text == "<" and token.out.endswith("vec"):
            token.out = token.out.removesuffix("msl_bool_vec").removesuffix("vec") + "msl_vector"


_BEFORE_A_VALUE = {*"= + - * / % ? : < > return".split(), *"+= -= *= /= <= >= == !=".split()}


def _declares(tokens: list[Token], index: int) -> bool:
    """Whether `float4 (*name)...` declares a pointer or reference: float4(*p) where a value is wanted converts."""
    if tokens[index + 2].text not in ("*", "&"):
        return False
    return tokens[index + 3].text == ")" or not (index and tokens[index - 1].text in _BEFORE_A_VALUE)


def _convert(tokens: list[Token], first: int, last: int) -> None:
    start = first
    while start >= 2 and tokens[start - 1].text == "::" and tokens[start - 2].kind == "word":
        start -= 2
    if start and tokens[start - 1].text in _NEVER_A_CALL:
        return
    tokens[start].out = "msl::make<" + tokens[start].out
    tokens[last].out += " >"


def _literal(text: str) -> str:
    """Unsuffixed floating literals are float in Metal; h and bf are half and bfloat."""
    lower = text.lower()
    if lower.startswith(("0x", "0b")):
        return text + "f" if "p" in lower and not lower.endswith("f") else text
    if lower.endswith("bf"):
        return f"((bfloat){_as_float(text[:-2])})"
    if lower.endswith("h"):
        return f"((half){_as_float(text[:-1])})"
    if ("." in text or "e" in lower) and not lower.endswith("f"):
        return text + "f"
    return text


def _as_float(digits: str) -> str:
    return digits + "f" if "." in digits or "e" in digits.lower() else digits + ".0f"


def constant_texts(tokens: list[Token]) -> str:
    """Strings are constant memory in Metal: declarations of theirs, whose names then stand in the source."""
    declarations, skipped, last = [], -1, None
    for index, token in enumerate(tokens):
        if token.text in ("static_assert", "[[", "extern") and token.kind != "string":
            opening = index + (token.text == "static_assert")
            skipped = closing(tokens, opening) if token.text != "extern" else index + 1
        if token.kind != "string" or token.file != SOURCE_NAME or index <= skipped:
            continue
        if last == index - 1:  # "a" "b" is one
            declarations[-1] += token.text
            token.erase()
        else:
            token.out = f"msl_text_{len(declarations)}"
            declarations.append(token.text)
        last = index
    return " ".join(f"constant char msl_text_{number}[] = {text};" for number, text in enumerate(declarations))
