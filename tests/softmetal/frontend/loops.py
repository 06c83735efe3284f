"""Loops round collectives and barriers, announced to the runtime: lanes meet there in the same iteration only.

A loop that holds such a call, itself or in a function that it calls, becomes

    { msl::target::loop msl_loop_N(LINE); for (...) { msl_loop_N.next(); BODY } }

on the same lines. All other loops stay as they are and cost nothing.
"""

import re
from dataclasses import dataclass, field

from .lexer import Token, closing

_BARRIERS = {"threadgroup_barrier", "simdgroup_barrier"}
# Where a call follows: the words are common as variables too.
_COLLECTIVE = re.compile(r"(?:simd|quad)_\w+|simdgroup_multiply\w*")
_MATRIX = re.compile(r"simdgroup_(?:matrix|\w+8x8)")  # whose operator * is a collective
_LOOPS = {"for", "while", "do"}


@dataclass
class Function:
    """A function of the source: the word that shows a call of it, and the tokens of its braces."""

    called_by: str
    start: int
    stop: int
    constexpr: list[Token] = field(default_factory=list)  # the word, if it is there


def called_by(signature: list[Token]) -> str:
    """The word that a call of this function shows: its name, without template arguments, or the operator."""
    words = [token.text for token in signature]
    if "operator" in words:
        return words[words.index("operator") + 1]
    end = len(words) - 1
    depth = 0
    while words[end] == ">" or depth:
        depth += (words[end] == ">") - (words[end] == "<")
        end -= 1
    return words[end]


def announce_loops(tokens: list[Token], functions: list[Function]) -> None:
    """Edit the text of the tokens round every loop in which lanes meet."""
    meeting = _meeting_words(tokens, functions)
    if not meeting:
        return
    edits = _Edits(tokens)
    for function in functions:
        if _announce(tokens, function.start + 1, function.stop, meeting, edits):
            for token in function.constexpr:  # no constant expression has lanes that meet
                token.erase()
    edits.apply()


def _meeting_words(tokens: list[Token], functions: list[Function]) -> set[str]:
    """Words (names, operators) that may stand for a call in which lanes meet. Names only, no types: a word too many
    costs a little time in the loops that use it, no more."""
    words = {
        token.text
        for token, following in zip(tokens, tokens[1:], strict=False)
        if token.text in _BARRIERS or (following.text in ("(", "<") and _COLLECTIVE.fullmatch(token.text))
    }
    if any(_MATRIX.fullmatch(token.text) for token in tokens):
        words |= {"*", "simdgroup_multiply", "simdgroup_multiply_accumulate"}
    bodies = [(function.called_by, {t.text for t in tokens[function.start : function.stop]}) for function in functions]
    while words:
        more = {name for name, body in bodies if name not in words and body & words}
        if not more:
            break
        words |= more
    return words


def _announce(tokens: list[Token], start: int, stop: int, meeting: set[str], edits: "_Edits") -> bool:
    """The loops between two tokens, outer ones before those inside. Whether there were any."""
    found = False
    tails = set()  # the `while` that ends a do
    for index in range(start, stop):
        if tokens[index].text not in _LOOPS or index in tails:
            continue
        is_do = tokens[index].text == "do"
        body = _significant(tokens, index + 1 if is_do else closing(tokens, index + 1) + 1)
        body_end = _statement_end(tokens, body)
        end = body_end
        if is_do:
            tail = _significant(tokens, body_end + 1)
            tails.add(tail)
            end = _significant(tokens, closing(tokens, tail + 1) + 1)
        if any(token.text in meeting for token in tokens[index:end]):
            name = f"msl_loop_{index}"
            edits.before(index, f"{{ msl::target::loop {name}({tokens[index].line});")
            edits.before(body, f"{{ {name}.next();")
            edits.after(body_end, "}")
            edits.after(end, "}")
            found = True
    return found


def _significant(tokens: list[Token], index: int) -> int:
    """The first token from index on that is no directive and no attribute."""
    while tokens[index].kind == "directive" or tokens[index].text == "[[":
        index = index + 1 if tokens[index].kind == "directive" else closing(tokens, index) + 1
    return index


def _statement_end(tokens: list[Token], index: int) -> int:
    """The last token of the statement that starts at index."""
    index = _significant(tokens, index)
    text = tokens[index].text
    if text == "{":
        return closing(tokens, index)
    if text in ("if", "for", "while", "switch"):
        condition = index + 2 if tokens[index + 1].text == "constexpr" else index + 1
        end = _statement_end(tokens, closing(tokens, condition) + 1)
        following = _significant(tokens, end + 1)
        return _statement_end(tokens, following + 1) if text == "if" and tokens[following].text == "else" else end
    if text == "do":
        tail = _significant(tokens, _statement_end(tokens, index + 1) + 1)
        index = closing(tokens, tail + 1)
    while tokens[index].text != ";":
        index = closing(tokens, index) + 1 if tokens[index].text in ("(", "[", "{", "[[") else index + 1
    return index


class _Edits:
    """Text to add between tokens. What stands before a loop goes before the directives (#pragma unroll) and attributes
    that belong to it, so behind the last token that is neither."""

    def __init__(self, tokens: list[Token]):
        self._tokens = tokens
        self._text: dict[int, list[str]] = {}

    def before(self, index: int, text: str) -> None:
        index -= 1
        while self._tokens[index].kind == "directive" or self._tokens[index].text == "]":
            if self._tokens[index].text == "]":
                while self._tokens[index].text != "[[":
                    index -= 1
            index -= 1
        self.after(index, text)

    def after(self, index: int, text: str) -> None:
        self._text.setdefault(index, []).append(text)

    def apply(self) -> None:
        for index, text in self._text.items():
            self._tokens[index].out += " " + " ".join(text) + " "
