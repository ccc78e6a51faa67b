"""Symbolic sizes: polynomials of positive integer symbols, with floor division, remainder, max and min as atoms.

A dimension is an `int` or a `Size`. Arithmetic normalises: a constant result is an `int`, equal polynomials are
the same object, so `==` and `is` agree. Ordering of unknown sizes is never asked; see `evaluate` for known ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import ClassVar, Union, final

Dim = Union[int, "Size"]
"""One dimension of a shape."""

Atom = Union[str, tuple[str, Dim, Dim]]  # noqa: UP007
"""A symbol, or ("//" | "%" | "max" | "min", left, right)."""

Monomial = tuple[Atom, ...]
"""Atoms multiplied together, sorted by their text; () is the constant term."""


@final
class Size:
    """A polynomial that is not constant; made by arithmetic on `Size.symbol`, interned."""

    __slots__ = ("_hash", "_text", "terms")
    terms: tuple[tuple[Monomial, int], ...]
    _hash: int
    _text: str
    _interned: ClassVar[dict[tuple[tuple[Monomial, int], ...], Size]] = {}

    @staticmethod
    def symbol(name: str) -> Size:
        """Give the size that is the symbol `name` itself."""
        size = _from_terms({(name,): 1})
        assert isinstance(size, Size)
        return size

    @staticmethod
    def parse(text: str) -> Dim:
        """Read what `str` prints, e.g. `s0*s1 + 4` or `(s0 + 1)//2`; ValueError on anything else."""
        from isthmus.size_text import parse_size

        return parse_size(text)

    def symbols(self) -> frozenset[str]:
        """Give the names of the symbols in this size."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    found |= {s for d in atom[1:] if isinstance(d, Size) for s in d.symbols()}
        return frozenset(found)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Give the number for the given symbol values; KeyError when one is missing."""
        dim = self.substitute(values)
        if isinstance(dim, Size):
            raise KeyError(next(iter(dim.symbols())))
        return dim

    def substitute(self, values: Mapping[str, Dim]) -> Dim:
        """Replace symbols that `values` names."""
        total: Dim = 0
        for monomial, coefficient in self.terms:
            product: Dim = coefficient
            for atom in monomial:
                product = product * _substitute_atom(atom, values)
            total = total + product
        return total

    def __add__(self, other: Dim) -> Dim:
        terms = dict(self.terms)
        for monomial, coefficient in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _from_terms(terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _from_terms({m: -c for m, c in self.terms})

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: int) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        terms: dict[Monomial, int] = {}
        for left, c in self.terms:
            for right, d in _terms(other):
                monomial = tuple(sorted((*left, *right), key=_atom_text))
                terms[monomial] = terms.get(monomial, 0) + c * d
        return _from_terms(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return _floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return _floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return _mod(self, other)

    def __rmod__(self, other: int) -> Dim:
        return _mod(other, self)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Size({self._text!r})"

    def __reduce__(self) -> tuple[Callable[[str], Dim], tuple[str]]:
        return (Size.parse, (self._text,))


def size_max(left: Dim, right: Dim) -> Dim:
    """Give the larger of two sizes, as an atom where they are not both known."""
    return _extremum("max", left, right)


def size_min(left: Dim, right: Dim) -> Dim:
    """Give the smaller of two sizes, as an atom where they are not both known."""
    return _extremum("min", left, right)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """Give the number that `dim` is under `values`."""
    return dim if isinstance(dim, int) else dim.evaluate(values)


def may_be_negative(dim: Dim) -> bool:
    """Whether a term counts down, or holds what may be below 0: symbols themselves are no negative numbers."""
    return any(factor < 0 or any(map(_atom_may_be_negative, atoms)) for atoms, factor in _terms(dim))


def _atom_may_be_negative(atom: Atom) -> bool:
    if isinstance(atom, str):
        return False
    kind, left, right = atom
    if kind == "%":  # as its divisor
        return may_be_negative(right)
    found = may_be_negative(left), may_be_negative(right)
    return all(found) if kind == "max" else any(found)


def bounds(dim: Dim) -> tuple[float, float]:
    """Give numbers that a size is never below and never above, whatever integers its symbols are."""
    low: float = 0
    high: float = 0
    for monomial, coefficient in _terms(dim):
        ends = [(coefficient, coefficient)] + [_bounds_of(atom) for atom in monomial]
        if len(monomial) > 1 and not all(isfinite(end) for pair in ends for end in pair):
            return -inf, inf
        first, last = ends[0]
        for pair in ends[1:]:
            corners = [a * b for a in (first, last) for b in pair]
            first, last = min(corners), max(corners)
        low, high = low + first, high + last
    return low, high


def _bounds_of(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, str):
        return -inf, inf
    kind, left, right = atom
    if kind in ("max", "min"):
        choose = max if kind == "max" else min
        (a, b), (c, d) = bounds(left), bounds(right)
        return choose(a, c), choose(b, d)
    if not isinstance(right, int) or right <= 0:
        return -inf, inf
    if kind == "%":
        return 0, right - 1
    low, high = bounds(left)
    return _floor(low, right), _floor(high, right)


def _floor(bound: float, by: int) -> float:
    return bound // by if isfinite(bound) else bound


def exact_quotient(dim: Dim, by: Dim) -> Dim | None:
    """Give dim / by where every term divides, else None."""
    if isinstance(dim, int):
        return dim // by if isinstance(by, int) and by and dim % by == 0 else (0 if dim == 0 else None)
    if isinstance(by, int):
        if by == 0 or any(c % by for _, c in dim.terms):
            return None
        return _from_terms({m: c // by for m, c in dim.terms})
    if len(by.terms) != 1:
        return 1 if dim is by else None
    ((divisor, factor),) = by.terms
    terms: dict[Monomial, int] = {}
    for monomial, coefficient in dim.terms:
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % factor:
            return None
        terms[tuple(rest)] = coefficient // factor
    return _from_terms(terms)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    return dim.terms if isinstance(dim, Size) else ((((), dim),) if dim else ())


def _from_terms(terms: Mapping[Monomial, int]) -> Dim:
    kept = sorted(((m, c) for m, c in terms.items() if c), key=_term_order)
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    key = tuple(kept)
    size = Size._interned.get(key)  # pyright: ignore[reportPrivateUsage]
    if size is None:
        size = Size()
        size.terms = key
        size._hash = hash(key)  # pyright: ignore[reportPrivateUsage]
        size._text = _text(key)  # pyright: ignore[reportPrivateUsage]
        size = Size._interned.setdefault(key, size)  # pyright: ignore[reportPrivateUsage]
    return size


def _term_order(term: tuple[Monomial, int]) -> tuple[int, str]:
    return -len(term[0]), "*".join(map(_atom_text, term[0]))


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    kind, left, right = atom
    if kind in ("max", "min"):
        return f"{kind}({left}, {right})"
    return f"(({left}) {kind} ({right}))"


def _text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    parts: list[str] = []
    for monomial, coefficient in terms:
        body = "*".join(map(_atom_text, monomial))
        magnitude = abs(coefficient)
        text = str(magnitude) if not body else (body if magnitude == 1 else f"{magnitude}*{body}")
        sign = "-" if coefficient < 0 else "+"
        parts.append(f" {sign} {text}" if parts else (f"-{text}" if sign == "-" else text))
    return "".join(parts)


def _substitute_atom(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, str):
        return values.get(atom) or (values[atom] if atom in values else Size.symbol(atom))
    kind, left, right = atom
    return _APPLY[kind](
        left.substitute(values) if isinstance(left, Size) else left,
        right.substitute(values) if isinstance(right, Size) else right,
    )


def _atom(kind: str, left: Dim, right: Dim) -> Dim:
    return _from_terms({((kind, left, right),): 1})


def _floordiv(left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    quotient = exact_quotient(left, right)
    if quotient is not None:
        return quotient
    whole, rest = _split(left, right)
    known = _known_quotient(rest, right)
    if known is not None:
        return whole + known
    nested = _nested(rest, right)
    return whole + (_atom("//", rest, right) if nested is None else _floordiv(*nested))


def _mod(left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    if exact_quotient(left, right) is not None:
        return 0
    _, rest = _split(left, right)
    known = _known_quotient(rest, right)
    return _atom("%", rest, right) if known is None else rest - known * right


def _known_quotient(left: Dim, right: Dim) -> int | None:
    """Give ⌊left / right⌋ where it is the same at both bounds of left."""
    if not isinstance(right, int) or right <= 0:
        return None
    low, high = (_floor(bound, right) for bound in bounds(left))
    return int(low) if low == high and isfinite(low) else None


def _split(left: Dim, right: Dim) -> tuple[Dim, Dim]:
    """Give (q, r) with left = q·right + r, where r has what no multiple of a known divisor takes away.

    ⌊(q·c + r) / c⌋ = q + ⌊r / c⌋ for an integer c > 0, so equal quotients get one normal form.
    """
    if not isinstance(right, int) or right <= 0 or not isinstance(left, Size):
        return 0, left
    whole = _from_terms({m: c // right for m, c in left.terms})
    return whole, left - whole * right


def _nested(left: Dim, right: Dim) -> tuple[Dim, int] | None:
    """Give (a, b) with ⌊a / b⌋ = ⌊left / right⌋ where left holds one quotient by a known number, once.

    ⌊(⌊x / n⌋ + y) / m⌋ = ⌊(x + n·y) / (n·m)⌋ for integers n, m > 0: halving twice is a fourth, whoever computes it.
    """
    if not isinstance(left, Size) or not isinstance(right, int) or right <= 0:
        return None
    atoms = [m[0] for m, c in left.terms if c == 1 and len(m) == 1]
    quotients = [(x, n) for kind, x, n in (a for a in atoms if not isinstance(a, str)) if kind == "//"]
    if len(quotients) != 1:
        return None
    ((x, n),) = quotients
    if not isinstance(n, int) or n <= 0:
        return None
    return x + (left - _atom("//", x, n)) * n, n * right


def _extremum(kind: str, left: Dim, right: Dim) -> Dim:
    if left == right:
        return left
    low, high = bounds(left - right)  # known even when both are symbolic: s + 1 against s
    if low >= 0 or high <= 0:
        return left if (low >= 0) == (kind == "max") else right
    first, second = sorted((left, right), key=str)
    return _atom(kind, first, second)


_APPLY: dict[str, Callable[[Dim, Dim], Dim]] = {
    "//": _floordiv,
    "%": _mod,
    "max": size_max,
    "min": size_min,
}
