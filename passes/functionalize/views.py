"""A view as data: how it follows from what it views, how it is taken again, how a write through it is undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from xdsl.ir import Attribute, SSAValue

from isthmus import ir
from isthmus.dialects import aten
from isthmus.dialects.aten import RefFacts
from isthmus.ir import LiteralValue, Operand, Shape
from isthmus.passes.functionalize.emission import Emission
from isthmus.passes.functionalize.geometry import (
    Permuted,
    Relation,
    Reshaped,
    Same,
    Selected,
    Sliced,
    relation,
    repeats,
)
from isthmus.sizes import Dim


@dataclass(frozen=True)
class Diagonal:
    """A diagonal: `diagonal_scatter` takes the same arguments."""

    args: tuple[LiteralValue, ...]


@dataclass(frozen=True)
class Converted:
    """Other numbers in the same memory (conjugates, parts of complex numbers, reinterpreted bytes)."""

    inverse: Callable[[Emission, SSAValue, Callable[[], SSAValue]], SSAValue]
    """From the emission, the new view and the old base: the new base."""


Link: TypeAlias = Relation | Diagonal | Converted
"""How a view follows from what it views, where one step says it."""


@dataclass(eq=False)
class Call:
    """The call that made one or several views, kept to be taken again on a new value."""

    overload: str
    args: tuple[LiteralValue, ...]
    base: int
    """The operand that is viewed."""
    types: tuple[Attribute, ...]
    present: tuple[int, ...]
    other_operands: Callable[[], Sequence[SSAValue]]
    """The operands' current values, the viewed one's place free to be replaced."""
    taken: tuple[SSAValue, Sequence[SSAValue]] | None = field(default=None)

    def take(self, e: Emission, base: SSAValue) -> Sequence[SSAValue]:
        """Give all views of a value; taken once for each value."""
        if self.taken is None or self.taken[0] is not base:
            operands = list(self.other_operands())
            operands[self.base] = base
            self.taken = base, e.call(self.overload, operands, self.args, self.types, present=self.present, own=True)
        return self.taken[1]


def link(overload: str, args: Sequence[LiteralValue], base: RefFacts, view: RefFacts) -> Link | None:
    """Say how a view follows from its base; None where only the memory's geometry does."""
    converted = _CONVERSIONS.get(overload)
    if converted is not None and (ir.is_complex(base.dtype) or overload not in _ONLY_COMPLEX):
        return converted(base, args)
    if base.dtype != view.dtype:
        return None
    if base == view:
        return Same()
    if repeats(view) and not repeats(base):
        return None
    if overload in _RESHAPES:
        return Same() if base.shape == view.shape else Reshaped()
    by_name = _BY_NAME.get(overload)
    return by_name(base, args) if by_name is not None else relation(base, view)


def put_back(e: Emission, link_: Link, base: Attribute, old: Callable[[], SSAValue], new: SSAValue) -> SSAValue:
    """Give what the base is after its view became `new`; `base` is its type, `old` gives its value before."""
    if isinstance(link_, Same):
        return new
    if isinstance(link_, Reshaped):
        return reshaped(e, new, ir.shape_of(base))
    if isinstance(link_, Permuted):
        return _unpermuted(e, new, link_.order, ir.shape_of(base))
    if isinstance(link_, Sliced):
        return e.put("slice_scatter.default", old(), new, (link_.dim, link_.start, link_.end, link_.step))
    if isinstance(link_, Selected):
        return e.put("select_scatter.default", old(), new, (link_.dim, link_.index))
    if isinstance(link_, Diagonal):
        return e.put("diagonal_scatter.default", old(), new, link_.args)
    return link_.inverse(e, new, old)


def reshaped(e: Emission, value: SSAValue, shape: Shape) -> SSAValue:
    """Give a value in another shape, in row-major order."""
    if ir.shape_of(value) == shape:
        return value
    return e.view("reshape.default", value, (shape,), ir.tensor(shape, ir.dtype_of(value)))


def permuted(e: Emission, value: SSAValue, order: Sequence[int]) -> SSAValue:
    """Give a value with dimension order[k] as dimension k."""
    if list(order) == list(range(len(order))):
        return value
    shape = ir.shape_of(value)
    type_ = ir.tensor([shape[d] for d in order], ir.dtype_of(value))
    return e.view("permute.default", value, (tuple(order),), type_)


def inverse_order(order: Sequence[int]) -> list[int]:
    """Give the permutation that undoes one."""
    return sorted(range(len(order)), key=lambda k: order[k])


def _unpermuted(e: Emission, new: SSAValue, order: Sequence[int], shape: Shape) -> SSAValue:
    kept = [n for n in ir.shape_of(new) if n != 1]
    return reshaped(e, permuted(e, reshaped(e, new, tuple(kept)), inverse_order(order)), shape)


# ---- Views whose calls say it better than their geometry

_RESHAPES = frozenset(
    f"{name}.{overload}"
    for name, overloads in {
        "view": ("default",),
        "_unsafe_view": ("default",),
        "_reshape_alias": ("default",),
        "reshape": ("default",),
        "reshape_as": ("default",),
        "view_as": ("default",),
        "flatten": ("using_ints",),
        "unflatten": ("int",),
        "ravel": ("default",),
        "squeeze": ("default", "dim", "dims"),
        "unsqueeze": ("default",),
        "atleast_1d": ("default",),
        "atleast_2d": ("default",),
        "atleast_3d": ("default",),
    }.items()
    for overload in overloads
)
"""Calls that keep the row-major order, whatever symbols their sizes hold."""


def _slice(base: RefFacts, args: Sequence[LiteralValue]) -> Link | None:
    _, dim, start, end, step = args
    at = _dim(dim, len(base.shape))
    size = base.shape[at]
    first = _index(0 if start is None else start, size)
    last = size if end is None or (type(end) is int and end >= 2**63 - 1) else _index(end, size)
    if not (isinstance(first, int) and isinstance(size, int) and isinstance(last, int)):
        return Sliced(at, first, last, cast(Dim, step))
    first = min(max(first, 0), size)
    return Sliced(at, first, min(max(last, first), size), cast(Dim, step))


def _select(base: RefFacts, args: Sequence[LiteralValue]) -> Link | None:
    _, dim, index = args
    at = _dim(dim, len(base.shape))
    return Selected(at, _index(index, base.shape[at]))


def _narrow(base: RefFacts, args: Sequence[LiteralValue]) -> Link | None:
    _, dim, start, length = args
    at = _dim(dim, len(base.shape))
    first = _index(start, base.shape[at])
    return Sliced(at, first, first + cast(Dim, length), 1)


def _diagonal(base: RefFacts, args: Sequence[LiteralValue]) -> Link | None:
    return Diagonal(tuple(args[1:]))


def _dim(dim: LiteralValue, rank: int) -> int:
    assert isinstance(dim, int)
    return dim % rank


def _index(index: LiteralValue, size: Dim) -> Dim:
    """Count an index from the front; a symbolic one is taken as it is."""
    number = cast(Dim, index)
    return number + size if isinstance(number, int) and number < 0 else number


_BY_NAME: dict[str, Callable[[RefFacts, Sequence[LiteralValue]], Link | None]] = {
    "slice.Tensor": _slice,
    "select.int": _select,
    "narrow.default": _narrow,
    "diagonal.default": _diagonal,
    "linalg_diagonal.default": _diagonal,
}


# ---- Other numbers in the same memory


def _undone_by(overload: str) -> Callable[[RefFacts, Sequence[LiteralValue]], Converted]:
    """One call of the new view is the new base; conjugation, negation and the adjoint undo themselves."""

    def make(base: RefFacts, args: Sequence[LiteralValue]) -> Converted:
        type_ = ir.tensor(base.shape, base.dtype)
        return Converted(lambda e, new, old: e.view(overload, new, (), type_))

    return make


def _reinterpreted(base: RefFacts, args: Sequence[LiteralValue]) -> Converted:
    type_ = ir.tensor(base.shape, base.dtype)
    return Converted(lambda e, new, old: e.view("view.dtype", new, (base.dtype,), type_))


def _part(which: str, other: str) -> Callable[[RefFacts, Sequence[LiteralValue]], Converted]:
    """The real or imaginary part: the other one stays."""

    def make(base: RefFacts, args: Sequence[LiteralValue]) -> Converted:
        complex_type = ir.tensor(base.shape, base.dtype)

        def inverse(e: Emission, new: SSAValue, old: Callable[[], SSAValue]) -> SSAValue:
            kept = e.view(f"{other}.default", old(), (), new.type)
            real, imaginary = (new, kept) if which == "real" else (kept, new)
            return e.put("complex.default", real, imaginary, (), complex_type)

        return Converted(inverse)

    return make


_CONVERSIONS: dict[str, Callable[[RefFacts, Sequence[LiteralValue]], Converted]] = {
    "_conj.default": _undone_by("_conj.default"),
    "conj.default": _undone_by("conj.default"),
    "_neg_view.default": _undone_by("_neg_view.default"),
    "adjoint.default": _undone_by("adjoint.default"),
    "mH.default": _undone_by("mH.default"),
    "matrix_H.default": _undone_by("matrix_H.default"),
    "view_as_real.default": _undone_by("view_as_complex.default"),
    "view_as_complex.default": _undone_by("view_as_real.default"),
    "real.default": _part("real", "imag"),
    "imag.default": _part("imag", "real"),
    "view.dtype": _reinterpreted,
}

_ONLY_COMPLEX = frozenset(
    ("_conj.default", "conj.default", "adjoint.default", "mH.default", "matrix_H.default", "real.default")
)
"""Plain views of real tensors."""


def operand_zero_first(args: Sequence[LiteralValue]) -> bool:
    """Tell whether a call can be replayed on another base alone: its base comes first, nothing else is a tensor."""
    return bool(args) and args[0] == Operand(0) and list(aten.operand_indices(tuple(args))) == [0]
