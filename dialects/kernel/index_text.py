"""How an index expression is written: `d0*4 + d1 - 3`, `(d0 + 1) floordiv 2`, `d0*<"s0">`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from isthmus.sizes import Dim

Atom = tuple[str, object, Dim]
"""What `index.Atom` is, less the type of what is inside."""


class Index(Protocol):
    """What is read of an `index.Expr`."""

    @property
    def terms(self) -> Sequence[tuple[Atom, Dim]]:
        """Atoms and their factors."""
        ...

    @property
    def constant(self) -> Dim:
        """What is added."""
        ...

    def is_affine(self) -> bool:
        """Whether there is neither quotient nor remainder."""
        ...


def index_text(expr: Index) -> str:
    """Give the terms in order, the constant last."""
    parts: list[str] = []
    for atom, coefficient in expr.terms:
        negative = isinstance(coefficient, int) and coefficient < 0
        magnitude = -coefficient if negative else coefficient
        factor = "" if magnitude == 1 else f"*{_dim_text(magnitude)}"
        body = _atom_text(atom, bool(factor)) + factor
        parts.append(f" - {body}" if negative and parts else f" + {body}" if parts else f"{'-' * negative}{body}")
    if expr.constant != 0 or not parts:
        negative = isinstance(expr.constant, int) and expr.constant < 0
        body = _dim_text(-expr.constant if negative else expr.constant)
        parts.append(f" - {body}" if negative and parts else f" + {body}" if parts else f"{'-' * negative}{body}")
    return "".join(parts)


def _dim_text(dim_: Dim) -> str:
    return str(dim_) if isinstance(dim_, int) else f'<"{dim_}">'


def _atom_text(atom: Atom, factor: bool) -> str:
    kind, index, by = atom
    if kind in ("d", "v"):
        return f"{kind}{index}"
    inner = cast(Index, index)
    single = len(inner.terms) == 1 and inner.constant == 0 and inner.terms[0][1] == 1 and inner.is_affine()
    text = f"{inner if single else f'({inner})'} {'floordiv' if kind == 'div' else 'mod'} {_dim_text(by)}"
    return f"({text})" if factor else text
