"""Google Pub/Sub's filter language, parsed into a small tree. Pure.

    attributes:key                       has the key
    attributes.key = "value"             has the key with this value
    attributes.key != "value"            lacks the key, or has another value
    hasPrefix(attributes.key, "prefix")
    NOT term    -term    a AND b    a OR b    (a OR b) AND c

Operators are upper case, and AND and OR mix only with parentheses. A key is quoted when it has
characters other than letters, digits, hyphens and underscores. A filter has at most 256 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, NoReturn, TypeAlias

from msgspec import Struct

from penstock.errors import FilterError, InvalidArgumentError

MAX_FILTER_BYTES = 256
MAX_DEPTH = 50

Attributes: TypeAlias = Mapping[str, str]


class Has(Struct, frozen=True):
    key: str

    def matches(self, attributes: Attributes) -> bool:
        return self.key in attributes


class Equals(Struct, frozen=True):
    key: str
    value: str

    def matches(self, attributes: Attributes) -> bool:
        return attributes.get(self.key) == self.value


class HasPrefix(Struct, frozen=True):
    key: str
    prefix: str

    def matches(self, attributes: Attributes) -> bool:
        value = attributes.get(self.key)
        return value is not None and value.startswith(self.prefix)


class Not(Struct, frozen=True):
    term: Filter

    def matches(self, attributes: Attributes) -> bool:
        return not self.term.matches(attributes)


class AllOf(Struct, frozen=True):
    terms: tuple[Filter, ...]

    def matches(self, attributes: Attributes) -> bool:
        return all(term.matches(attributes) for term in self.terms)


class AnyOf(Struct, frozen=True):
    terms: tuple[Filter, ...]

    def matches(self, attributes: Attributes) -> bool:
        return any(term.matches(attributes) for term in self.terms)


Filter: TypeAlias = Has | Equals | HasPrefix | Not | AllOf | AnyOf


def parse_filter(text: str) -> Filter:
    """The tree of a filter, or `FilterError` that points at the column."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"A filter must be text, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError("half of a pair of surrogates", text, error.start + 1) from None
    if size > MAX_FILTER_BYTES:
        raise FilterError(f"longer than {MAX_FILTER_BYTES} bytes", text, MAX_FILTER_BYTES + 1)
    return _Parser(text).parse()


class _Token(NamedTuple):
    kind: str
    text: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<symbol>!=|[=.:,()\-])""",
    re.VERBOSE | re.DOTALL,
)
_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPE = re.compile(
    r"""\\(?:(?P<plain>["\\'?`])
          | (?P<control>[abfnrtv])
          | (?P<octal>[0-3][0-7]{2})
          | [xX](?P<byte>[0-9A-Fa-f]{2})
          | u(?P<pair>[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2})
          | u(?P<short>(?![dD][89a-fA-F])[0-9A-Fa-f]{4})
          | U(?P<long>(?!0000[dD][89a-fA-F])(?:000[0-9A-Fa-f]{5}|0010[0-9A-Fa-f]{4})))""",
    re.VERBOSE,
)
_CONTROL = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


def _unescaped(escape: re.Match[str]) -> str:
    if escape["plain"] or escape["control"]:
        return escape["plain"] or _CONTROL[escape["control"]]
    if escape["octal"]:
        return chr(int(escape["octal"], 8))
    if escape["pair"]:
        high, _, low = escape["pair"].partition("\\u")
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10 | int(low, 16) & 0x3FF))
    return chr(int(escape["byte"] or escape["short"] or escape["long"], 16))


class _Parser:
    """Recursive descent over the tokens; one method a rule."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._tokens()
        self.at = 0
        self.depth = 0

    def parse(self) -> Filter:
        found = self.expression()
        if self.now.kind != "end":
            if self.now.text.upper() in ("AND", "OR"):
                self.fail(f"write {self.now.text.upper()} in upper case")
            self.fail(f"expected AND, OR or the end, found {self.now}")
        return found

    def expression(self) -> Filter:
        terms = [self.term()]
        operator = ""
        while self.now.text in ("AND", "OR") and self.now.kind == "word":
            if operator and self.now.text != operator:
                self.fail("AND and OR need parentheses when they are mixed")
            operator = self.take().text
            terms.append(self.term())
        if not operator:
            return terms[0]
        return AllOf(tuple(terms)) if operator == "AND" else AnyOf(tuple(terms))

    def term(self) -> Filter:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH}")
        try:
            if self.now.text == "NOT" or self.now.text == "-":
                self.take()
                return Not(self.term())
            if self.now.text == "(":
                self.take()
                found = self.expression()
                self.expect(")")
                return found
            return self.comparison()
        finally:
            self.depth -= 1

    def comparison(self) -> Filter:
        if self.now.text == "hasPrefix":
            self.take()
            self.expect("(")
            self.expect("attributes")
            self.expect(".")
            key = self.key()
            self.expect(",")
            prefix = self.string()
            self.expect(")")
            return HasPrefix(key, prefix)
        if self.now.text != "attributes":
            self.fail(f"expected attributes, hasPrefix, NOT or a parenthesis, found {self.now}")
        self.take()
        if self.now.text == ":":
            self.take()
            return Has(self.key())
        if self.now.text != ".":
            self.fail(f"expected . or : after attributes, found {self.now}")
        self.take()
        key = self.key()
        if self.now.text not in ("=", "!="):
            self.fail(f"expected = or !=, found {self.now}")
        equal = self.take().text == "="
        test = Equals(key, self.string())
        return test if equal else Not(test)

    def key(self) -> str:
        if self.now.kind == "string":
            return self.string()
        found = _KEY.match(self.text, self.now.column - 1)
        if found is None:
            self.fail(f"expected an attribute key, found {self.now}")
        # What is a word, a minus and another word elsewhere is one key here.
        while self.now.kind != "end" and self.now.column <= found.end():
            self.take()
        return found[0]

    def string(self) -> str:
        if self.now.kind != "string":
            self.fail(f"expected a value in double quotes, found {self.now}")
        token = self.take()
        inner = token.text[1:-1]
        parts, at = [], 0
        while (slash := inner.find("\\", at)) >= 0:
            escape = _ESCAPE.match(inner, slash)
            if escape is None:
                column = token.column + 1 + slash
                raise FilterError(
                    'unknown escape; use \\", \\\\, \\n, \\x41, \\101 or \\u and four digits '
                    "(two of them for what is beyond)",
                    self.text,
                    column,
                )
            parts += [inner[at:slash], _unescaped(escape)]
            at = escape.end()
        return "".join([*parts, inner[at:]])

    @property
    def now(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.now
        self.at += 1
        return token

    def expect(self, text: str) -> None:
        if self.now.text != text or self.now.kind == "string":
            self.fail(f"expected {text!r}, found {self.now}")
        self.take()

    def fail(self, reason: str) -> NoReturn:
        if self.now.kind == "unknown":
            quote = self.now.text.startswith('"')
            reason = "a quote that is never closed" if quote else f"unexpected character {self.now}"
        raise FilterError(reason, self.text, self.now.column)

    def _tokens(self) -> list[_Token]:
        tokens, at = [], 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None:
                tokens.append(_Token("unknown", self.text[at], at + 1))
                at += 1
                continue
            kind = match.lastgroup or ""
            if kind != "space":
                tokens.append(_Token(kind, match[0], at + 1))
            at = match.end()
        return [*tokens, _Token("end", "", len(self.text) + 1)]
