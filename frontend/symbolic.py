"""Torch's symbolic sizes as ours: expressions translated, those that guards make equal written one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy import functions as torch_functions

from isthmus.diagnostics import UnsupportedError
from isthmus.sizes import Dim, Monomial, Size, may_be_negative, size_max, size_min

FIXED_SIZE = "use a form of fixed size (torch.where, topk), or keep it outside of the compiled function"


class UntranslatableError(Exception):
    """A size expression that has no form here; the caller specialises instead."""


class SizeReader:
    """Reads sizes of one shape environment; equal ones (by its guards so far) come out as the same object."""

    def __init__(self, shape_env: ShapeEnv | None, names: Mapping[str, str] | None = None) -> None:
        self.shape_env = shape_env
        self.names = names or {}
        """Torch's symbol -> ours, where they differ."""
        self.equalities = Equalities(_guard_equalities(shape_env))
        self._cache: dict[object, Dim] = {}
        self.fixed: list[str] = []
        """Sizes that had to become numbers."""

    def dim(self, size: int | torch.SymInt) -> Dim:
        """Give the dimension; a size that cannot be expressed is fixed to its value (torch then guards on it)."""
        if type(size) is int:
            return size
        expression = cast(torch.SymInt, size).node.expr
        found = self._cache.get(expression)
        if found is None:
            if any(symbol.name.startswith("u") for symbol in expression.free_symbols):
                raise UnsupportedError("the size of the result depends on data", cure=FIXED_SIZE)
            try:
                found = self.equalities.canonical(to_dim(expression))
                found = found if isinstance(found, int) or not self.names else found.substitute(self._renaming)
            except UntranslatableError:
                found = int(size)
                self.fixed.append(f"the size {expression} is fixed to {found}")
            self._cache[expression] = found
        return found

    def dims(self, sizes: Iterable[int | torch.SymInt]) -> tuple[Dim, ...]:
        """Give all of them."""
        return tuple([self.dim(s) for s in sizes])

    @property
    def _renaming(self) -> dict[str, Dim]:
        return {torch_name: Size.symbol(name) for torch_name, name in self.names.items()}

    def is_current(self) -> bool:
        """Tell whether no guard came since that makes more sizes equal."""
        return Equalities(_guard_equalities(self.shape_env)).rules == self.equalities.rules

    def hints(self, symbols: Iterable[str]) -> dict[str, int]:
        """Give the example values of symbols, as far as torch knows them."""
        if self.shape_env is None:
            return {}
        name = "backed_var_to_val" if hasattr(self.shape_env, "backed_var_to_val") else "var_to_val"
        known = cast(dict[sympy.Symbol, int], getattr(self.shape_env, name))
        values = {str(symbol): value for symbol, value in known.items()}
        return {s: int(values[s]) for s in symbols if s in values}


class SizeWriter:
    """Makes torch's symbolic sizes for ours, in a shape environment of its own."""

    def __init__(self, hints: Mapping[str, int] | None = None) -> None:
        self.shape_env = ShapeEnv()
        self.names: dict[str, str] = {}
        """Torch's symbol -> ours."""
        self._hints = hints or {}
        self._symbols: dict[str, torch.SymInt] = {}

    def size(self, dim: Dim) -> int | torch.SymInt:
        """Give torch's form of a size."""
        if isinstance(dim, int):
            return dim
        total: int | torch.SymInt = 0
        for monomial, coefficient in dim.terms:
            product: int | torch.SymInt = coefficient
            for atom in monomial:
                product = product * (self._symbol(atom) if isinstance(atom, str) else self._compound(*atom))
            total = total + product
        return total

    def _compound(self, kind: str, left: Dim, right: Dim) -> int | torch.SymInt:
        return _WRITE[kind](self.size(left), self.size(right))

    def _symbol(self, name: str) -> torch.SymInt:
        found = self._symbols.get(name)
        if found is None:
            source = ConstantSource(name)
            hint = self._hints.get(name, _EXAMPLES[len(self._symbols) % len(_EXAMPLES)])
            symbol = self.shape_env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
            made = self.shape_env.create_symintnode(symbol, hint=hint, source=source)
            found = self._symbols[name] = cast(torch.SymInt, made)
            self.names[str(symbol)] = name
        return found

    def is_general(self) -> bool:
        """Tell whether nothing so far fixed a symbol or made two of them equal."""
        return not self.shape_env.replacements


_EXAMPLES = (7, 11, 13, 17, 19, 23, 29, 31)
"""Example values of symbols: no two equal, none a multiple of another."""

_WRITE: dict[str, Callable[..., int | torch.SymInt]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": cast("Callable[..., int | torch.SymInt]", torch.sym_max),
    "min": cast("Callable[..., int | torch.SymInt]", torch.sym_min),
}


def to_dim(expression: sympy.Basic) -> Dim:
    """Translate an integer expression; UntranslatableError where it is not one of sizes."""
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Symbol):
        name = expression.name
        if not name.startswith("s"):  # u..: read from data; z..: a float
            raise UntranslatableError(f"{name} is not a size of an input")
        return Size.symbol(name)
    for kinds, build in _FUNCTIONS:
        if isinstance(expression, kinds):
            return build(*[to_dim(a) for a in expression.args])
    raise UntranslatableError(str(expression))


def _product(*factors: Dim) -> Dim:
    result: Dim = 1
    for factor in factors:
        result = result * factor
    return result


def _sum(*terms: Dim) -> Dim:
    total: Dim = 0
    for term in terms:
        total = total + term
    return total


def _power(base: Dim, exponent: Dim) -> Dim:
    if not isinstance(exponent, int) or not 0 <= exponent <= 8:
        raise UntranslatableError("a power that is no small number")
    return _product(*[base] * exponent)


def _divisor(dim: Dim) -> Dim:
    if may_be_negative(dim):
        raise UntranslatableError("a division by what may be negative")
    return dim


def _fold(combine: Callable[[Dim, Dim], Dim]) -> Callable[..., Dim]:
    def build(first: Dim, *rest: Dim) -> Dim:
        for other in rest:
            first = combine(first, other)
        return first

    return build


_FUNCTIONS: list[tuple[tuple[type, ...], Callable[..., Dim]]] = [
    ((sympy.Add,), _sum),
    ((sympy.Mul,), _product),
    ((sympy.Pow, torch_functions.PowByNatural), _power),
    ((torch_functions.FloorDiv, torch_functions.CleanDiv), lambda a, b: a // _divisor(b)),
    ((torch_functions.Mod, torch_functions.PythonMod), lambda a, b: a % _divisor(b)),
    ((torch_functions.ModularIndexing,), lambda a, b, c: (a // b) % c),
    ((torch_functions.Max, sympy.Max), _fold(size_max)),
    ((torch_functions.Min, sympy.Min), _fold(size_min)),
    ((torch_functions.Identity,), lambda a: a),
]


def _guard_equalities(shape_env: ShapeEnv | None) -> list[tuple[Dim, Dim]]:
    found: list[tuple[Dim, Dim]] = []
    for guard in shape_env.guards if shape_env is not None else ():
        expression = shape_env.replace(guard.expr) if shape_env is not None else guard.expr
        if expression is sympy.true:
            expression = guard.expr  # torch replaced one side by the other, values seen before still have the old name
        if isinstance(expression, sympy.Eq):
            try:
                found.append((to_dim(expression.lhs), to_dim(expression.rhs)))
            except UntranslatableError:
                continue
    return found


class Equalities:
    """Known equalities of sizes as rewrite rules: a monomial is replaced by what it equals, larger by smaller.

    Larger means more factors, then more quotients, then later in the alphabet, so rewriting ends. s13*s21 -> s48*s58
    also rewrites 4*s13*s21 and s13*s21*s2.
    """

    def __init__(self, pairs: Iterable[tuple[Dim, Dim]]) -> None:
        self.rules: dict[Monomial, Dim] = {}
        self.pairs = tuple(pairs)
        for left, right in self.pairs:
            self._learn(left, right)

    def _learn(self, left: Dim, right: Dim) -> None:
        difference = self.canonical(left) - self.canonical(right)
        if isinstance(difference, int):
            return
        leading, coefficient = max(difference.terms, key=lambda term: _weight(term[0]))
        if abs(coefficient) != 1:
            return
        rest = difference - _monomial(leading) * coefficient
        self.rules[leading] = rest * -coefficient  # coefficient * leading + rest = 0
        if self._step(rest) is not rest and not isinstance(rest, int):
            del self.rules[leading]  # s0 = 2*(s0//2) would never end

    def canonical(self, dim: Dim) -> Dim:
        """Give the form that all sizes known to be equal share."""
        if not self.rules:
            return dim
        for _ in range(32):
            rewritten = self._step(dim)
            if rewritten is dim or isinstance(rewritten, int):
                return rewritten
            dim = rewritten
        return dim

    def _step(self, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        total: Dim = 0
        for monomial, coefficient in dim.terms:
            total = total + self._replace(monomial) * coefficient
        return total

    def _replace(self, monomial: Monomial) -> Dim:
        for pattern, replacement in self.rules.items():
            rest = list(monomial)
            for factor in pattern:
                if factor not in rest:
                    break
                rest.remove(factor)
            else:
                return _monomial(tuple(rest)) * replacement
        return _product(*[self._atom(factor) for factor in monomial])

    def _atom(self, atom: str | tuple[str, Dim, Dim]) -> Dim:
        if isinstance(atom, str):
            return Size.symbol(atom)
        kind, left, right = atom
        return _BINARY[kind](self._step(left), self._step(right))


def _monomial(monomial: Monomial) -> Dim:
    return _product(*[Size.symbol(a) if isinstance(a, str) else _BINARY[a[0]](a[1], a[2]) for a in monomial])


_BINARY: dict[str, Callable[[Dim, Dim], Dim]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": size_max,
    "min": size_min,
}


def _weight(monomial: Monomial) -> tuple[int, int, tuple[str, ...]]:
    return len(monomial), sum(not isinstance(a, str) for a in monomial), tuple(str(a) for a in monomial)
