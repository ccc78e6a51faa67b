"""How a symbolic size is read: `s0*s1 + 4`, `(s0 + 1)//2`, `max(0, s0)`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from isthmus.sizes import Dim, Size, size_max, size_min

_TOKEN = re.compile(r"\s*(//|[-+*%(),]|\d+|[A-Za-z_]\w*)")


def parse_size(text: str) -> Dim:
    """Read a size; ValueError on what none prints."""
    tokens = _tokens(text)
    dim, rest = _parse_sum(tokens, 0, text)
    if rest != len(tokens):
        raise ValueError(f"unexpected {tokens[rest]!r} in size {text!r}")
    return dim


def _tokens(text: str) -> list[str]:
    def scan() -> Iterator[str]:
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"unexpected {text[position:]!r} in size {text!r}")
            yield match.group(1)
            position = match.end()

    return list(scan())


def _parse_sum(tokens: list[str], at: int, text: str) -> tuple[Dim, int]:
    negative = at < len(tokens) and tokens[at] == "-"
    value, at = _parse_product(tokens, at + negative, text)
    value = -value if negative else value
    while at < len(tokens) and tokens[at] in "+-":
        right, after = _parse_product(tokens, at + 1, text)
        value, at = (value + right if tokens[at] == "+" else value - right), after
    return value, at


def _parse_product(tokens: list[str], at: int, text: str) -> tuple[Dim, int]:
    value, at = _parse_atom(tokens, at, text)
    while at < len(tokens) and tokens[at] in ("*", "//", "%"):
        operator = tokens[at]
        right, at = _parse_atom(tokens, at + 1, text)
        value = value * right if operator == "*" else value // right if operator == "//" else value % right
    return value, at


def _parse_atom(tokens: list[str], at: int, text: str) -> tuple[Dim, int]:
    if at >= len(tokens):
        raise ValueError(f"size {text!r} ends too early")
    token = tokens[at]
    if token.isdigit():
        return int(token), at + 1
    if token in ("max", "min"):
        left, at = _parse_sum(tokens, _expect("(", tokens, at + 1, text), text)
        right, at = _parse_sum(tokens, _expect(",", tokens, at, text), text)
        return (size_max if token == "max" else size_min)(left, right), _expect(")", tokens, at, text)
    if token == "(":
        value, at = _parse_sum(tokens, at + 1, text)
        return value, _expect(")", tokens, at, text)
    if token[0].isalpha() or token[0] == "_":
        return Size.symbol(token), at + 1
    raise ValueError(f"unexpected {token!r} in size {text!r}")


def _expect(token: str, tokens: list[str], at: int, text: str) -> int:
    if at >= len(tokens) or tokens[at] != token:
        raise ValueError(f"expected {token!r} in size {text!r}")
    return at + 1
