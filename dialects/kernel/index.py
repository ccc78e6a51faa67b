"""Index expressions: where along one dimension of a tensor a point of an iteration space reads or writes.

An `Expr` is `constant + Σ coefficient · atom` with sizes as coefficients; its atoms are the dims of the space
(`d0`), values that the access names (`v0`), quotients and remainders. Equal expressions are the same object, so
legality tests are `is`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import ClassVar, Union, cast, final

from isthmus.dialects.kernel.index_text import index_text
from isthmus.sizes import Dim, Size, exact_quotient

Atom = tuple[str, Union[int, "Expr"], Dim]
"""("d", k, 0), ("v", k, 0), ("div", expr, divisor) or ("mod", expr, divisor)."""

Bounds = Callable[[Atom], "Dim | None"]
"""How many values an atom d or v takes, from 0 upwards; None where unknown."""


def unbounded(atom: Atom) -> None:
    """Bounds that know nothing."""
    return None


def sizes_as_bounds(sizes: Sequence[Dim], values: Sequence[Dim | None] = ()) -> Bounds:
    """Bounds of a space of these sizes, with values below `values` (None: unknown)."""

    def bound(atom: Atom) -> Dim | None:
        kind, index, _ = atom
        known = sizes if kind == "d" else values
        return known[cast(int, index)] if cast(int, index) < len(known) else None

    return bound


@final
class Expr:
    """One index: made by `dim`, `value`, `constant` and arithmetic; interned."""

    __slots__ = ("_dims", "_text", "_values", "constant", "terms")
    terms: tuple[tuple[Atom, Dim], ...]
    constant: Dim
    _text: str | None
    _dims: frozenset[int] | None
    _values: frozenset[int] | None
    _interned: ClassVar[dict[object, Expr]] = {}

    # ---- arithmetic

    def __add__(self, other: Expr | Dim) -> Expr:
        if not isinstance(other, Expr):
            return self if other == 0 else _interned(self.terms, self.constant + other)
        if not other.terms:
            return self if other.constant == 0 else _interned(self.terms, self.constant + other.constant)
        if not self.terms:
            return other if self.constant == 0 else _interned(other.terms, self.constant + other.constant)
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms[atom] + coefficient if atom in terms else coefficient
        return _make(terms, self.constant + other.constant)

    def __sub__(self, other: Expr | Dim) -> Expr:
        return self + (other * -1)

    def __mul__(self, factor: Dim) -> Expr:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return _interned(tuple([(a, c * factor) for a, c in self.terms]), self.constant * factor)

    def floordiv(self, by: Dim, bounds: Bounds = unbounded) -> Expr:
        """⌊self / by⌋; terms that divide leave the quotient, a rest known to be in [0, by) vanishes."""
        quotient, rest = self.split(by)
        return quotient + _quotient(rest, by, bounds)

    def mod(self, by: Dim, bounds: Bounds = unbounded) -> Expr:
        """self - by·⌊self / by⌋; terms that divide vanish, as does the operation where the rest is in [0, by)."""
        _, rest = self.split(by)
        return rest - _quotient(rest, by, bounds) * by if _vanishes(rest, by, bounds) else _atom("mod", rest, by)

    def split(self, by: Dim) -> tuple[Expr, Expr]:
        """Give (q, r) with self = by·q + r, where r has the terms that do not divide."""
        if by == 1:
            return self, ZERO
        quotient: dict[Atom, Dim] = {}
        rest: dict[Atom, Dim] = {}
        for atom, coefficient in self.terms:
            exact = exact_quotient(coefficient, by)
            if exact is None:
                rest[atom] = coefficient
            else:
                quotient[atom] = exact
        constant = self.constant
        if isinstance(constant, int) and isinstance(by, int):
            return _make(quotient, constant // by), _make(rest, constant % by)
        exact = exact_quotient(constant, by)
        return _make(quotient, exact or 0), _make(rest, constant if exact is None else 0)

    def substitute(
        self, dims: Sequence[Expr | None], bounds: Bounds = unbounded, values: Sequence[Expr | None] = ()
    ) -> Expr:
        """Replace d_k by dims[k] and v_k by values[k] (None and beyond the end: keep); bounds are of the new atoms."""
        terms: dict[Atom, Dim] = {}
        total = self.constant
        for atom, coefficient in self.terms:
            kind, index, by = atom
            if kind in ("d", "v"):
                table = dims if kind == "d" else values
                new = table[cast(int, index)] if cast(int, index) < len(table) else None
                if new is None:
                    terms[atom] = terms[atom] + coefficient if atom in terms else coefficient
                    continue
            else:
                inner = cast(Expr, index).substitute(dims, bounds, values)
                new = inner.floordiv(by, bounds) if kind == "div" else inner.mod(by, bounds)
            for a, c in new.terms:
                terms[a] = terms[a] + c * coefficient if a in terms else c * coefficient
            total = total + new.constant * coefficient
        return _make(terms, total)

    def resize(self, sizes: Mapping[str, Dim]) -> Expr:
        """Replace size symbols in the coefficients."""

        def new(dim: Dim) -> Dim:
            return dim.substitute(sizes) if isinstance(dim, Size) else dim

        total = constant(new(self.constant))
        for (kind, index, by), coefficient in self.terms:
            if kind in ("d", "v"):
                part = _make({(kind, index, by): 1}, 0)
            else:
                inner = cast(Expr, index).resize(sizes)
                part = inner.floordiv(new(by)) if kind == "div" else inner.mod(new(by))
            total = total + part * new(coefficient)
        return total

    def part(self, keep: Callable[[Atom], bool]) -> Expr:
        """Give the terms whose atoms `keep` holds, without the constant."""
        return _make({a: c for a, c in self.terms if keep(a)}, 0)

    # ---- questions

    def coefficient(self, dim: int) -> Dim:
        """Give the factor of d_dim outside quotients and remainders; 0 when it is not there."""
        return next((c for (kind, index, _), c in self.terms if kind == "d" and index == dim), 0)

    def separated(self, dims: frozenset[int], sizes: Sequence[Dim]) -> frozenset[int]:
        """Give those of `dims` whose positions, all together, always give different values, whatever the others are.

        From the innermost on: what is separated so far covers a stretch of `whole`; the next of these dims has that as
        its coefficient. All other coefficients must be multiples of the stretch in the end.
        """
        left = dict(self.terms)
        if not self.is_affine() or self.values():
            return frozenset()
        found: list[int] = []
        whole: Dim | None = None
        candidates = sorted((d for d in dims if self.coefficient(d) != 0), reverse=True)
        for d in candidates:
            own = self.coefficient(d)
            if whole is not None and exact_quotient(own, whole) is None:
                continue
            whole = own * sizes[d]
            found.append(d)
            del left[("d", d, 0)]
        fits = whole is not None and all(exact_quotient(c, whole) is not None for c in left.values())
        return frozenset(found) if fits and whole != 0 else frozenset()

    def dims(self) -> frozenset[int]:
        """Give the dims of the space that the expression depends on, quotients and remainders included."""
        if self._dims is None:
            found: set[int] = set()
            for (kind, index, _), _c in self.terms:
                if kind == "d":
                    found.add(cast(int, index))
                elif kind != "v":
                    found |= cast(Expr, index).dims()
            self._dims = frozenset(found)
        return self._dims

    def values(self) -> frozenset[int]:
        """Give the numbers k of the values v_k that the expression reads."""
        if self._values is None:
            found: set[int] = set()
            for (kind, index, _), _c in self.terms:
                if kind == "v":
                    found.add(cast(int, index))
                elif kind != "d":
                    found |= cast(Expr, index).values()
            self._values = frozenset(found)
        return self._values

    def symbols(self) -> frozenset[str]:
        """Give the names of the size symbols in it."""
        found: set[str] = set()
        for (_, index, by), coefficient in (*self.terms, (("d", 0, 0), self.constant)):
            found.update(s for d in (by, coefficient) if isinstance(d, Size) for s in d.symbols())
            if isinstance(index, Expr):
                found |= index.symbols()
        return frozenset(found)

    def is_affine(self) -> bool:
        """Tell whether there is no quotient and no remainder."""
        return all(kind in ("d", "v") for (kind, _, _), _ in self.terms)

    def range(self, bounds: Bounds) -> tuple[Dim, Dim] | None:
        """Give the smallest and the largest value, exact for affine expressions; None where unknown."""
        low, high = self.constant, self.constant
        for atom, coefficient in self.terms:
            reach = _atom_range(atom, bounds)
            if reach is None:
                return None
            if is_nonnegative(coefficient):
                low, high = low + coefficient * reach[0], high + coefficient * reach[1]
            elif is_nonnegative(-coefficient):
                low, high = low + coefficient * reach[1], high + coefficient * reach[0]
            else:
                return None
        return low, high

    def evaluate(self, dims: Sequence[int], sizes: Mapping[str, int] | None = None, values: Sequence[int] = ()) -> int:
        """Give the number at one point."""

        def number(dim: Dim) -> int:
            return dim if isinstance(dim, int) else dim.evaluate(sizes or {})

        total = number(self.constant)
        for (kind, index, by), coefficient in self.terms:
            if kind == "d":
                atom = dims[cast(int, index)]
            elif kind == "v":
                atom = values[cast(int, index)]
            else:
                inner = cast(Expr, index).evaluate(dims, sizes, values)
                atom = inner // number(by) if kind == "div" else inner % number(by)
            total += number(coefficient) * atom
        return total

    # ---- text

    def __str__(self) -> str:
        if self._text is None:
            self._text = index_text(self)
        return self._text

    def __repr__(self) -> str:
        return f"Expr({self})"


def is_nonnegative(dim: Dim) -> bool:
    """Tell whether the size is provably >= 0 when every symbol is >= 1."""
    if isinstance(dim, int):
        return dim >= 0
    total = 0
    for monomial, coefficient in dim.terms:
        positive = all(isinstance(a, str) for a in monomial)
        if coefficient < 0 and monomial:
            return False
        total += coefficient if positive or coefficient < 0 else 0
    return total >= 0


def _atom_range(atom: Atom, bounds: Bounds) -> tuple[Dim, Dim] | None:
    kind, index, by = atom
    if kind in ("d", "v"):
        size = bounds(atom)
        return None if size is None else (0, size - 1)
    inner = cast(Expr, index).range(bounds)
    if kind == "mod":
        return 0, by - 1
    if inner is None or not is_nonnegative(inner[0]):
        return None
    return inner[0] // by, inner[1] // by


def _vanishes(rest: Expr, by: Dim, bounds: Bounds) -> bool:
    """Whether ⌊rest / by⌋ is a constant."""
    if not rest.terms and rest.constant == 0:
        return True
    reach = rest.range(bounds)
    if reach is None:
        return False
    low, high = reach
    if is_nonnegative(low) and is_nonnegative(by - 1 - high):
        return True
    return isinstance(low, int) and isinstance(high, int) and isinstance(by, int) and low // by == high // by


def _quotient(rest: Expr, by: Dim, bounds: Bounds) -> Expr:
    """⌊rest / by⌋ of an expression without terms that divide."""
    if not _vanishes(rest, by, bounds):
        return _atom("div", rest, by)
    reach = rest.range(bounds)
    assert reach is not None or not rest.terms
    low = 0 if reach is None else reach[0]
    return constant(low // by) if isinstance(low, int) and isinstance(by, int) else ZERO


def _atom(kind: str, inner: Expr, by: Dim) -> Expr:
    if kind == "div" and len(inner.terms) == 1 and inner.constant == 0:
        ((inner_kind, deeper, divisor), coefficient) = inner.terms[0]
        if inner_kind == "div" and coefficient == 1:  # ⌊⌊e / a⌋ / b⌋ = ⌊e / ab⌋
            return _make({("div", deeper, divisor * by): 1}, 0)
    return _make({(kind, inner, by): 1}, 0)


def _make(terms: dict[Atom, Dim], constant_: Dim) -> Expr:
    if len(terms) == 1:
        (only,) = terms.items()
        key_terms = (only,) if only[1] != 0 else ()
    else:
        kept = {a: c for a, c in terms.items() if c != 0}
        for atom in kept:
            if atom[0] == "mod":
                rebuilt = _recombined(kept, constant_, atom)
                if rebuilt is not None:
                    return rebuilt
        key_terms = tuple(kept.items()) if len(kept) < 2 else tuple(sorted(kept.items(), key=_term_order))
    return _interned(key_terms, constant_)


def _interned(terms: tuple[tuple[Atom, Dim], ...], constant_: Dim) -> Expr:
    """Give the one expression of these terms, which are in order and combine no further."""
    key = (terms, constant_)
    found = Expr._interned.get(key)  # pyright: ignore[reportPrivateUsage]
    if found is None:
        found = object.__new__(Expr)
        found.terms, found.constant = terms, constant_
        found._text = found._dims = found._values = None  # pyright: ignore[reportPrivateUsage]
        found = Expr._interned.setdefault(key, found)  # pyright: ignore[reportPrivateUsage]
    return found


def _recombined(terms: dict[Atom, Dim], constant_: Dim, atom: Atom) -> Expr | None:
    """k·b·⌊e / b⌋ + k·(e mod b) = k·e."""
    _, index, by = atom
    inner, k = cast(Expr, index), terms[atom]
    (whole,) = _atom("div", inner, by).terms
    if terms.get(whole[0]) != k * by:
        return None
    rest = {a: c for a, c in terms.items() if a not in (atom, whole[0])}
    return _make(rest, constant_) + inner * k


_KIND_ORDER = {"d": 0, "v": 1, "div": 2, "mod": 3}


def _term_order(term: tuple[Atom, Dim]) -> tuple[int, int, str, str]:
    kind, index, by = term[0]
    if isinstance(index, int):
        return _KIND_ORDER[kind], index, "", ""
    return _KIND_ORDER[kind], 0, str(index), str(by)


def constant(value: Dim) -> Expr:
    """The same index at every point."""
    return _interned((), value)


@cache
def dim(k: int) -> Expr:
    """The position along dim k of the space."""
    return _make({("d", k, 0): 1}, 0)


def value(k: int) -> Expr:
    """The k-th index operand of the access."""
    return _make({("v", k, 0): 1}, 0)


ZERO = constant(0)
