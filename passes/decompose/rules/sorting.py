"""Sorting, order statistics and running extrema."""

from __future__ import annotations

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.ir import LiteralValue, Operand
from isthmus.passes.decompose.dims import at_least_1d, axis
from isthmus.passes.decompose.promotion import inside, like
from isthmus.passes.decompose.rules.reductions import take_along, taken
from isthmus.passes.decompose.table import Call, decomposition, library_call
from isthmus.sizes import Dim


def _sorted(e: Emitter, call: Call, x: SSAValue, dim: int, descending: bool) -> tuple[SSAValue, SSAValue]:
    y = at_least_1d(e, x)
    return tuple(e.reshape(v, ir.shape_of(x)) for v in e.sort(y, axis(y, dim), descending))  # pyright: ignore[reportReturnType]


@decomposition("sort.default")
def sort(e: Emitter, call: Call, x: SSAValue, dim: int, descending: bool) -> tuple[SSAValue, SSAValue]:
    return _sorted(e, call, x, dim, descending)


@decomposition("sort.stable")
def sort_stable(
    e: Emitter, call: Call, x: SSAValue, stable: bool | None, dim: int, descending: bool
) -> tuple[SSAValue, SSAValue]:
    return _sorted(e, call, x, dim, descending)


@decomposition("argsort.default")
def argsort(e: Emitter, call: Call, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    return _sorted(e, call, x, dim, descending)[1]


@decomposition("argsort.stable")
def argsort_stable(e: Emitter, call: Call, x: SSAValue, stable: bool, dim: int, descending: bool) -> SSAValue:
    return _sorted(e, call, x, dim, descending)[1]


@decomposition("msort.default")
def msort(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return _sorted(e, call, x, 0, False)[0]


# ---- selections


def _selected(e: Emitter, call: Call, x: SSAValue, dim: int, *rest: LiteralValue) -> tuple[SSAValue, SSAValue]:
    """The elements that torch's own selection finds, and where.

    Which of equal elements it takes follows from its algorithm (a partial sort), and it is faster than a whole sort.
    """
    why = "which of equal elements is taken follows from torch's own selection"
    _, index = library_call(e, call.overload, [e.stop_gradient(x)], (Operand(0), *rest), call.types, why)
    y, shape = at_least_1d(e, x), ir.shape_of(index)
    at = axis(y, dim)
    places = index if len(shape) == len(ir.shape_of(y)) else e.reshape(index, (*shape[:at], 1, *shape[at:]))
    return e.reshape(take_along(e, y, places, at), shape), index


@decomposition("topk.default")
def topk(e: Emitter, call: Call, x: SSAValue, k: Dim, dim: int, largest: bool, in_order: bool) -> tuple[SSAValue, ...]:
    """The k largest or smallest elements"""
    return _selected(e, call, x, dim, k, dim, largest, in_order)


@decomposition("kthvalue.default")
def kthvalue(e: Emitter, call: Call, x: SSAValue, k: Dim, dim: int, keepdim: bool) -> tuple[SSAValue, ...]:
    """The k-th smallest element, counted from 1"""
    return _selected(e, call, x, dim, k, dim, keepdim)


# ---- medians: the lower one of two


def _median(e: Emitter, x: SSAValue, dim: int, skip_nan: bool) -> tuple[SSAValue, SSAValue]:
    """The element in the middle and its index; NaN (the first one) where there is any, unless NaN are skipped."""
    _, order = e.sort(x, dim)
    n = ir.shape_of(x)[dim]
    shape = tuple(s for d, s in enumerate(ir.shape_of(x)) if d != dim)
    size = e.full(n, shape, "i64")
    nans = e.sum(e.convert(e.is_nan(x), "i64"), (dim,)) if ir.is_float(ir.dtype_of(x)) else e.const(0, shape, "i64")
    valid = e.sub(size, nans)
    two = e.const_like(2, size)
    if skip_nan:
        middle = e.max(e.div(e.shifted(valid, -1), two), e.zeros_like(size))
    else:
        any_nan = e.cmp("gt", nans, e.zeros_like(nans))
        middle = e.select(any_nan, valid, e.div(e.shifted(size, -1), two))
    index = taken(e, order, middle, dim)
    return taken(e, x, index, dim), index


def _enter_median(name: str, skip_nan: bool) -> None:
    @decomposition(f"{name}.default")
    def whole(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
        """Elements equal to the median share the derivative."""
        if ir.numel(x) == 0:
            return e.const(float("nan"), (), call.dtype())
        flat = e.reshape(x, (ir.numel(x),))
        value = e.broadcast(e.stop_gradient(_median(e, flat, 0, skip_nan)[0]), ir.shape_of(flat), ())
        if not ir.is_float(ir.dtype_of(x)):
            return e.reduce("max", e.select(e.cmp("eq", flat, value), flat, value), (0,))
        same = e.or_(e.cmp("eq", flat, value), e.and_(e.is_nan(flat), e.is_nan(value)))
        return e.reduce("max", e.select(same, flat, like(e, float("-inf"), flat)), (0,))

    @decomposition(f"{name}.dim")
    def along(e: Emitter, call: Call, x: SSAValue, dim: int, keepdim: bool) -> tuple[SSAValue, ...]:
        return _selected(e, call, x, dim, dim, keepdim)

    del whole, along


_enter_median("median", False)
_enter_median("nanmedian", True)


# ---- running combinations


def _running(kind: str, name: str) -> None:
    @decomposition(f"{name}.default")
    def rule(e: Emitter, call: Call, x: SSAValue, dim: int, dtype: str | None) -> SSAValue:
        y = at_least_1d(e, e.convert(e.convert(x, call.dtype()), inside(call.dtype())))
        return e.convert(e.reshape(e.cumulative(kind, y, axis(y, dim)), call.shape()), call.dtype())

    del rule


_running("add", "cumsum")
_running("mul", "cumprod")


def _running_extremum(kind: str, name: str) -> None:
    @decomposition(f"{name}.default")
    def rule(e: Emitter, call: Call, x: SSAValue, dim: int) -> tuple[SSAValue, ...]:
        """The last place so far that holds the extremum; the derivative goes there."""
        y = at_least_1d(e, x)
        at = axis(y, dim)
        best = e.cumulative(kind, e.stop_gradient(y), at)
        here = e.cmp("eq", y, best)
        if ir.is_float(ir.dtype_of(y)):
            here = e.or_(here, e.is_nan(y))
        places = e.iota(ir.shape_of(y), at)
        index = e.cumulative("max", e.select(here, places, e.zeros_like(places)), at)
        return tuple(e.reshape(v, call.shape(n)) for n, v in enumerate((take_along(e, y, index, at), index)))

    del rule


_running_extremum("max", "cummax")
_running_extremum("min", "cummin")


# ---- differences and integrals along a dimension


@decomposition("diff.default")
def diff(
    e: Emitter, call: Call, x: SSAValue, n: int, dim: int, prepend: SSAValue | None, append: SSAValue | None
) -> SSAValue:
    """x[k + 1] - x[k], n times"""
    at = axis(x, dim)
    parts = [v for v in (prepend, x, append) if v is not None and n > 0]
    y = e.concat([e.convert(v, call.dtype()) for v in parts], at) if parts else x
    for _ in range(n):
        size = ir.shape_of(y)[at]
        if size == 0:
            break
        after, before = e.slice(y, at, 1, size), e.slice(y, at, 0, size - 1)
        y = e.xor(after, before) if ir.dtype_of(y) == "i1" else e.sub(after, before)
    return y


def _trapezoids(e: Emitter, call: Call, y: SSAValue, x: SSAValue | None, dx: float, dim: int) -> tuple[SSAValue, int]:
    """(y[k] + y[k + 1])·(x[k + 1] - x[k])/2"""
    at, dtype = axis(y, dim), call.dtype()
    y = e.convert(y, dtype)
    size = ir.shape_of(y)[at]
    pairs = e.add(e.slice(y, at, 1, size), e.slice(y, at, 0, size - 1))
    if x is None:
        return e.scaled(pairs, dx / 2), at
    x = e.convert(x, dtype)
    if len(ir.shape_of(x)) == 1:
        x = e.reshape(x, [size if d == at else 1 for d in range(len(ir.shape_of(y)))])
    along = at - len(ir.shape_of(y)) + len(ir.shape_of(x))
    steps = e.sub(e.slice(x, along, 1, size), e.slice(x, along, 0, size - 1))
    return e.scaled(e.mul(pairs, e.broadcast_to(steps, ir.shape_of(pairs))), 0.5), at


@decomposition("trapezoid.x", "trapz.x")
def trapezoid(e: Emitter, call: Call, y: SSAValue, x: SSAValue, dim: int) -> SSAValue:
    areas, at = _trapezoids(e, call, y, x, 1, dim)
    return e.sum(areas, (at,))


@decomposition("trapezoid.dx", "trapz.dx")
def trapezoid_even(e: Emitter, call: Call, y: SSAValue, dx: float, dim: int) -> SSAValue:
    areas, at = _trapezoids(e, call, y, None, dx, dim)
    return e.sum(areas, (at,))


@decomposition("cumulative_trapezoid.x")
def cumulative_trapezoid(e: Emitter, call: Call, y: SSAValue, x: SSAValue, dim: int) -> SSAValue:
    areas, at = _trapezoids(e, call, y, x, 1, dim)
    return e.cumulative("add", areas, at)


@decomposition("cumulative_trapezoid.dx")
def cumulative_trapezoid_even(e: Emitter, call: Call, y: SSAValue, dx: float, dim: int) -> SSAValue:
    areas, at = _trapezoids(e, call, y, None, dx, dim)
    return e.cumulative("add", areas, at)
