"""Tokens of preprocessed MSL text. Each keeps the white space before it, so that text is written back line by line."""

import re
from dataclasses import dataclass

from .diagnostics import CompileError, message

SOURCE_NAME = "program_source"

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+)
      | (?P<directive>^\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<char>'(?:\\.|[^'\\\n])+')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
      | (?P<op>\[\[|::|->|\+\+|--|<<=|>=|<=|==|!=|&&|\|\||[-+*/%&|^]=|\.\.\.|<<|.)""",
    re.M | re.S | re.X,
)
_MARKER = re.compile(r'#\s*(?:line\s+)?(\d+)\s+"([^"]*)"')
_CLOSING = {"(": ")", "[": "]", "[[": "]]", "{": "}"}


@dataclass
class Token:
    """`text` is what the source says; `out` is what is handed to the compiler in its place."""

    space: str
    text: str
    kind: str
    line: int
    file: str
    out: str = ""

    def __post_init__(self):
        self.out = self.text

    def erase(self):
        self.out = ""


def tokenize(text: str) -> list[Token]:
    """The tokens of preprocessor output; line markers set `line` and `file`. The last token has the kind "end"."""
    tokens, space, line, file = [], "", 1, SOURCE_NAME
    for match in _TOKEN.finditer(text):
        kind, value = match.lastgroup, match.group()
        if kind == "space":
            space += value
            line += value.count("\n")
            continue
        tokens.append(Token(space, value, kind, line, file))
        space = ""
        marker = _MARKER.match(value) if kind == "directive" else None
        if marker:
            line, file = int(marker[1]) - 1, marker[2]
    tokens.append(Token(space, "", "end", line, file))
    return tokens


def render(tokens: list[Token]) -> str:
    return "".join(token.space + token.out for token in tokens)


def plain(tokens: list[Token]) -> str:
    """One line of source text, white space folded."""
    return "".join((" " if token.space and index else "") + token.text for index, token in enumerate(tokens))


def rewritten(tokens: list[Token]) -> str:
    """The text for the compiler on one line; directives are left out."""
    parts = [t for t in tokens if t.kind != "directive"]
    return "".join((" " if t.space and index else "") + t.out for index, t in enumerate(parts))


def closing(tokens: list[Token], start: int) -> int:
    """Index of the bracket that closes tokens[start]; of `[[` that is the second `]`."""
    stack = []
    for index in range(start, len(tokens)):
        token = tokens[index]
        if token.kind != "op":
            continue
        if token.text in ("(", "{", "["):
            stack.append(_CLOSING[token.text])
        elif token.text == "[[":
            stack += ["]", "]"]
        elif token.text in (")", "}", "]"):
            if not stack or stack.pop() != token.text:
                break
            if not stack:
                return index
    bad = tokens[start]
    raise CompileError(message(bad.line, f"'{bad.text}' is not closed"))


def closing_angle(tokens: list[Token], start: int) -> int:
    """Index of the `>` that closes the `<` at start when that opens a template argument list, else -1."""
    depth, index = 0, start
    while index < len(tokens):
        text = tokens[index].text
        if text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return index
        elif text in ("(", "[", "[[", "{"):
            index = closing(tokens, index)
        elif text in (";", "}", ")", "]") or tokens[index].kind == "end":
            return -1
        index += 1
    return -1


def parameter_list(tokens: list[Token]) -> int:
    """Index of the `(` that opens a function's parameters in its declaration, -1 if there is none."""
    index = 0
    while index < len(tokens):
        text = tokens[index].text
        if text == "(":
            return index
        if text == "operator":
            index += 1
            if tokens[index].text == "(":
                index += 1
            while index + 1 < len(tokens) and tokens[index + 1].text != "(":
                index += 1
        elif text in ("[[", "[") or (
            text in ("__attribute__", "decltype", "alignas") and tokens[index + 1].text == "("
        ):
            index = closing(tokens, index if text[0] == "[" else index + 1)
        elif text == "<":
            index = max(closing_angle(tokens, index), index)
        index += 1
    return -1


def split(tokens: list[Token], separator: str = ",") -> list[list[Token]]:
    """Pieces between the separators that stand outside all brackets; none for no tokens."""
    pieces, piece, index = [], [], 0
    while index < len(tokens):
        text = tokens[index].text
        end = index
        if text in ("(", "[", "[[", "{"):
            end = closing(tokens, index)
        elif text == "<":
            end = max(closing_angle(tokens, index), index)
        if text == separator and end == index:
            pieces.append(piece)
            piece = []
        else:
            piece += tokens[index : end + 1]
        index = end + 1
    return pieces + [piece] if piece or pieces else []
