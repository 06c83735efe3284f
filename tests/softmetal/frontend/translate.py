"""From preprocessed MSL to the C++ that clang compiles: kernels, attributes, threadgroup variables, literals and casts.

Nothing here understands C++ types; the pass moves words about, keeps every line where it was, and leaves judging to the
compiler wherever the compiler can judge.
"""

import re
from collections.abc import Iterable

from . import toolchain
from .constants import declare_function_constant, derive_function_constant
from .diagnostics import CompileError, message
from .kernels import (
    ADDRESS_SPACES,
    PARAMETER_ATTRIBUTES,
    Entry,
    KernelDefinition,
    adjust_array,
    entry_text,
    read_attributes,
    read_parameters,
    reject_unknown,
    string_value,
)
from .lexer import SOURCE_NAME, Token, closing, closing_angle, parameter_list, plain, render, rewritten, split, tokenize
from .loops import Function, announce_loops, called_by
from .rules import (
    check_address_spaces,
    check_body,
    check_global,
    check_tokens,
    check_version,
)
from .words import cast_words, choose_vectors, constant_texts, rewrite_words

_MARK = " /*entry {}*/ "  # where an entry's text goes
_MARKED = re.compile(r" /\*entry (\d+)\*/ ")
_CLASS_KEYS = {"struct", "class", "union", "enum"}
_QUALIFIERS = {"inline", "static", "constexpr", "extern", "METAL_FUNC", "__attribute__", "friend", "explicit"}


class Translation:
    """The result: text for the compiler, and the entries in the order of the source."""

    def __init__(self, preprocessed: str, house_rules: bool = True):
        self.tokens = tokenize(preprocessed)
        self.entries: list[Entry] = []
        self.function_constants: set[str] = set()
        self._entry_texts: list[str] = []
        self._host_names: set[str] = set()
        self._kernels: dict[str, list[KernelDefinition]] = {}
        self._after: dict[int, str] = {}
        self._functions: list[Function] = []
        self._own: set[str] = set()  # functions outside namespaces and classes
        self._using_metal: int | None = None
        self._metal_ends: list[int] = []
        self._members: list[dict] = []  # of each class that is open, by signature
        check_tokens(self.tokens)
        if house_rules:
            check_version(self.tokens)
        rewrite_words(self.tokens, *cast_words(self.tokens))
        texts = constant_texts(self.tokens)
        self._scope(0, len(self.tokens) - 1, "", in_class=False)
        announce_loops(self.tokens, self._functions)
        self._share_names()
        for index, text in sorted(self._after.items()):
            self.tokens[index].out += text
        self._text = f'namespace msl_user {{ {texts}\n# 1 "{SOURCE_NAME}"\n{render(self.tokens)}\n}}\n'

    def firsts(self) -> list[int]:
        """The number of each kernel's entry; of a template's, of its first instantiation's."""
        first: dict[int, int] = {}
        for number, entry in enumerate(self.entries):
            first.setdefault(id(entry.definition), number)
        return list(first.values())

    def text(self, numbers: Iterable[int], text: str | None = None) -> str:
        """The compiler's text with the entries of these numbers; `text`: one that lacks them, to go on from."""
        chosen = set(numbers)

        def put(match: re.Match) -> str:
            number = int(match[1])
            return self._entry_texts[number] if number in chosen else match[0]

        return _MARKED.sub(put, self._text if text is None else text)

    def _share_names(self) -> None:
        """A function of the source's own beside one of metal:: of the same name: both are candidates for a call.

        `using namespace metal;` alone would not do that here, where the source stands in a namespace of its own.
        """
        if self._using_metal is not None and self._own:
            shared = sorted(self._own & toolchain.library_names())
            text = "".join(f" using metal::{name};" for name in shared)
            for index in (self._using_metal, *self._metal_ends):  # the latter bring what the source adds to metal::
                self._after[index] = text + self._after.get(index, "")

    # ---- declarations ------------------------------------------------------------------------------------------------

    def _scope(self, index: int, end: int, namespace: str, in_class: bool) -> None:
        """Declarations of a namespace or class between index and end."""
        while index < end:
            token = self.tokens[index]
            if token.kind == "directive" or token.text in (";", "}"):
                index += 1
                continue
            if in_class and token.text in ("public", "private", "protected"):
                index += 2
                continue
            index = self._declaration(index, end, namespace, in_class)

    def _declaration(self, start: int, end: int, namespace: str, in_class: bool) -> int:
        """One declaration; returns the index after it."""
        stop, assigned = start, False
        if self.tokens[start].text == "template" and self.tokens[start + 1].text == "<":
            stop = max(closing_angle(self.tokens, start + 1), start)
        while stop < end and self.tokens[stop].text not in (";", "{"):
            text = self.tokens[stop].text
            if text == "=" and self.tokens[stop - 1].text != "operator":
                assigned = True
            stop = closing(self.tokens, stop) + 1 if text in ("(", "[", "[[") else stop + 1
            if assigned and stop < end and self.tokens[stop].text == "{":
                stop = closing(self.tokens, stop) + 1
        header = [t for t in self.tokens[start:stop] if t.kind != "directive"]
        is_template = header[0].text == "template" and len(header) > 1 and header[1].text == "<"
        body = header[closing_angle(header, 1) + 1 :] if is_template else header
        words = {t.text for t in body}
        if stop >= end or self.tokens[stop].text == ";":
            self._simple(header, body, is_template, namespace, in_class, stop)
            return stop + 1
        close = closing(self.tokens, stop)
        if body and body[0].text == "namespace":
            inner = "".join(t.text for t in body[1:])
            if inner == "metal" and not namespace:  # the library's own namespace, opened to add to it
                body[0].out = "} namespace"
                self.tokens[stop].out = "{ using namespace msl_user;"
                self.tokens[close].out = "} namespace msl_user {"
                self._metal_ends.append(close)
            self._scope(stop + 1, close, f"{namespace}{inner}::" if inner else namespace, in_class=False)
            return close + 1
        if words & _CLASS_KEYS and parameter_list(body) < 0:
            read_attributes(body)
            if "enum" not in words:
                self._members.append({})
                self._scope(stop + 1, close, namespace, in_class=True)
                self._choose_members(self._members.pop())
            after = close
            while after < end and self.tokens[after].text != ";":
                after += 1
            return after + 1
        if parameter_list(body) < 0:  # T name{initialiser};
            while close < end and self.tokens[close].text != ";":
                close += 1
            self._simple(header, body, is_template, namespace, in_class, close, braced=True)
            return close + 1
        self._function(header, body, is_template, namespace, in_class, stop, close)
        return close + 1

    def _simple(self, header, body, is_template, namespace, in_class, stop, braced=False) -> None:
        """A declaration without a body: an explicit instantiation, a variable, an alias, a function's declaration."""
        if header[0].text == "template" and not is_template:
            self._instantiation(header, namespace, stop)
            return
        rest, attributes, lines = read_attributes(body)
        known = {"kernel", "max_total_threads_per_threadgroup", "host_name"}
        reject_unknown(attributes, lines, known | ({"id"} if in_class else {"function_constant"}))
        if "function_constant" in attributes:
            self.function_constants.add(declare_function_constant(rest))
            return
        if any(t.text == "kernel" for t in rest) or "kernel" in attributes:
            for token in rest:
                if token.text == "kernel":
                    token.erase()
            return
        words = [t.text for t in rest]
        if words == ["using", "namespace", "metal"] and not namespace and self._using_metal is None:
            self._using_metal = stop
        if words[:1] in (["static_assert"], ["friend"]):
            return
        if in_class and not is_template and (words[0] in ("using", "typedef") or parameter_list(rest) < 0):
            choose_vectors(rest)
        if words[:1] in (["using"], ["typedef"]):
            check_address_spaces(rest[words.index("=") + 1 if "=" in words else 0 :], "alias")
        elif parameter_list(rest) >= 0 and "=" not in words:
            self._check_signature(rest)
        elif not in_class and (name := derive_function_constant(rest, self.function_constants)):
            self.function_constants.add(name)
        elif not in_class:
            check_global(rest, is_template, braced)
        else:
            check_address_spaces(rest, "member")

    @staticmethod
    def _check_signature(declaration: list[Token]) -> None:
        """Pointers and references in what a function takes and returns say their address space."""
        opening = parameter_list(declaration)
        result = [t.text for t in declaration[:opening]]
        check_address_spaces(declaration[: result.index("operator") if "operator" in result else opening], "result")
        for parameter in split(declaration[opening + 1 : closing(declaration, opening)]):
            kept, idle, lines = read_attributes(parameter)
            reject_unknown(idle, lines, PARAMETER_ATTRIBUTES)  # which say something on a kernel's parameters only
            check_address_spaces(kept, "parameter")
            adjust_array(kept)

    # ---- functions ---------------------------------------------------------------------------------------------------

    def _function(self, header, body, is_template, namespace, in_class, open_brace, close) -> None:
        opening = parameter_list(body)
        parameters_end = closing(body, opening)
        signature = body[:opening]
        constexpr = [t for t in signature if t.text == "constexpr"]
        self._functions.append(Function(called_by(signature), open_brace, close, constexpr))
        if not namespace and not in_class:
            self._own.add(called_by(signature))
        rest, attributes, lines = read_attributes(signature)
        after, more, more_lines = read_attributes(body[parameters_end + 1 :])
        for name in more:
            raise CompileError(message(more_lines[name], f"'{name}' attribute cannot be applied to types"))
        is_kernel = "kernel" in attributes or any(t.text == "kernel" for t in rest)
        known = {"kernel", "max_total_threads_per_threadgroup", "host_name"} if is_kernel else set()
        reject_unknown(attributes, lines, known)
        if in_class:
            self._note_space(header, body[parameters_end + 1 :], open_brace, close)
        parameters = body[opening + 1 : parameters_end]
        definition = None
        if is_kernel:
            definition = self._kernel(rest, parameters, attributes, lines, is_template, namespace, in_class)
        else:
            self._check_signature(body)
        tokens = self.tokens[open_brace : close + 1]
        choose_vectors(tokens)
        kept, wrong, wrong_lines = read_attributes(tokens)
        reject_unknown(wrong, wrong_lines, set())
        check_body(kept, is_kernel)
        if is_kernel:
            self._threadgroup_variables(open_brace, close)
        if definition and not is_template:
            name = definition.host_name or namespace + definition.name
            instance = f"&{definition.name}"
            if definition.name in toolchain.library_names():  # one of several of that name
                types = ", ".join(rewritten(parameter) for parameter in split(parameters))
                instance = f"static_cast<void (*)({types})>({instance})"
            self._entry(name, instance, definition, definition.line, close)

    def _note_space(self, header: list[Token], after: list[Token], open_brace: int, close: int) -> None:
        """Keep in mind for which objects a member function is: `T get() const device`, `S() threadgroup : a(0) {}`."""
        end = next((i for i, t in enumerate(after) if t.text in (":", "->")), len(after))
        space = next((t for t in after[:end] if t.text in ADDRESS_SPACES), None)
        rest = [t.text for t in after[:end] if t is not space]
        signature = [t.text for t in header[: header.index(after[0]) if after else len(header)]]
        self._members[-1].setdefault((*signature, *rest), []).append((space, header, open_brace, close))

    def _choose_members(self, members: dict[tuple[str, ...], list]) -> None:
        """Of functions that differ only in the address space of their object, clang can have one: that of `thread`, or
        the first. What needs another copies the object first (copies.py) or is refused."""
        for same in members.values():
            kept = next((m for m in same if m[0] is None or m[0].text == "thread"), same[0])
            if kept[0] is not None:
                kept[0].erase()
            for member in same:
                if member is not kept:
                    _, header, start, close = member
                    for token in [*header, *self.tokens[start : close + 1]]:
                        token.erase()
                    self._functions = [f for f in self._functions if f.start != start]

    def _kernel(self, signature, parameters, attributes, lines, is_template, namespace, in_class) -> KernelDefinition:
        for token in signature:
            if token.text == "kernel":
                token.erase()
        words = [t for t in signature if t.text != "kernel" and t.text not in _QUALIFIERS]
        name = words[-1]
        if in_class:
            raise CompileError(message(name.line, f"kernel '{name.text}' must not be a member of a class"))
        if [t.text for t in words[:-1]] != ["void"]:
            raise CompileError(message(name.line, f"kernel '{name.text}' must have void return type"))
        host = attributes.get("host_name")
        definition = KernelDefinition(
            name.text,
            name.line,
            read_parameters(parameters),
            is_template,
            attributes.get("max_total_threads_per_threadgroup"),
            string_value(host, lines["host_name"]) if host is not None else None,
        )
        self._kernels.setdefault(name.text, []).append(definition)
        return definition

    # ---- instantiations ----------------------------------------------------------------------------------------------

    def _instantiation(self, header: list[Token], namespace: str, stop: int) -> None:
        """template [[host_name("x")]] [[kernel]] decltype(f<T>) f<T>;  or the same with  kernel void f<T>(...);"""
        line, declaration = header[0].line, header[1:]
        opening = parameter_list(declaration)
        signature = declaration[:opening] if opening >= 0 else declaration
        rest, attributes, lines = read_attributes(signature)
        is_kernel = "kernel" in attributes or any(t.text == "kernel" for t in rest)
        if not is_kernel and "host_name" not in attributes:
            return
        reject_unknown(attributes, lines, {"kernel", "host_name", "max_total_threads_per_threadgroup"})
        words = [t for t in rest if t.text != "kernel" and t.text not in _QUALIFIERS]
        by_decltype = words[0].text == "decltype"
        if not by_decltype and words[0].text != "void":
            raise CompileError(message(line, "an instantiated kernel must have void return type"))
        name = words[closing(words, 1) + 1 :] if by_decltype else words[1:]
        base = next(
            (
                t.text
                for i, t in enumerate(name)
                if t.kind == "word" and (i + 1 == len(name) or name[i + 1].text != "::")
            ),
            "",
        )
        candidates = self._kernels.get(base, [])
        if not candidates:
            raise CompileError(message(line, f"explicit instantiation of '{base}': no kernel template has that name"))
        instance = f"&{rewritten(name)}"
        if not by_decltype:
            arguments = split(declaration[opening + 1 : closing(declaration, opening)])
            for argument in arguments:
                read_attributes(argument)
            candidates = [c for c in candidates if len(c.parameters) == len(arguments)] or candidates
            types = ", ".join(rewritten(a) for a in arguments)
            instance = f"static_cast<void (*)({types})>({instance})"
        host = attributes.get("host_name")
        title = string_value(host, lines["host_name"]) if host is not None else namespace + plain(name)
        for token in header:
            token.erase()
        self.tokens[stop].erase()
        self._entry(title, instance, candidates[-1], line, stop)

    def _entry(self, host_name: str, instance: str, definition: KernelDefinition, line: int, position: int) -> None:
        if host_name in self._host_names:
            raise CompileError(message(line, f"two kernels have the name '{host_name}'"))
        self._host_names.add(host_name)
        entry = Entry(host_name, f"msl_kernel_{len(self.entries)}", definition, line)
        self._after[position] = _MARK.format(len(self.entries))
        self._entry_texts.append(entry_text(entry, instance))
        self.entries.append(entry)

    # ---- threadgroup variables ---------------------------------------------------------------------------------------

    def _threadgroup_variables(self, start: int, end: int) -> None:
        """`threadgroup T name[N];` in a kernel body becomes guarded static storage that each thread announces."""
        for index in range(start + 1, end):
            before = index - 1
            while self.tokens[before].kind == "directive":  # a line marker
                before -= 1
            if self.tokens[before].text not in ("{", "}", ";"):
                continue
            first = index
            while self.tokens[first].text == "alignas":
                first = closing(self.tokens, first + 1) + 1
            if self.tokens[first].text != "threadgroup":
                continue
            stop = first
            while self.tokens[stop].text != ";":
                stop = closing(self.tokens, stop) + 1 if self.tokens[stop].text in ("(", "[", "{") else stop + 1
            if self._threadgroup_variable(self.tokens[first:stop]):
                for token in self.tokens[index:first]:
                    token.erase()  # every variable's storage is aligned to 256 bytes at least

    @staticmethod
    def _threadgroup_variable(tokens: list[Token]) -> bool:
        """Rewrite one declaration. False if it declares a pointer or reference, which needs no storage."""
        pieces = split(tokens[1:])
        name = next((i for i, t in enumerate(pieces[0]) if t.text in ("[", "=", "{")), len(pieces[0])) - 1
        kind, first = pieces[0][:name], pieces[0][name:]
        while kind and kind[0].text == "alignas":
            kind = kind[closing(kind, 1) + 1 :]
        if any(t.text in ("*", "&", "auto") for t in kind):
            return False
        if not kind:
            raise CompileError(message(tokens[0].line, "a threadgroup variable needs a type and a name"))
        text = []
        for declarator in [first, *pieces[1:]]:
            if [t.text for t in declarator[-4:]] == ["=", "{", "0", "}"]:
                # Metal's compiler lets this pass. The memory keeps what it held: no kernel may rely on the zeros.
                declarator = declarator[:-4]
            if any(t.text in ("=", "{") for t in declarator):
                raise CompileError(
                    message(
                        declarator[0].line,
                        f"variable '{declarator[0].text}' in the threadgroup address space cannot have an initializer",
                    )
                )
            variable = declarator[0].text
            text.append(
                f"typedef {rewritten(kind)} {variable}__t {rewritten(declarator[1:])}; "
                f"MSL_THREADGROUP({variable}__t, {variable})"
            )
        for token in tokens:
            token.erase()
        tokens[0].out = "; ".join(text)
        return True
