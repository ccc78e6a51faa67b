"""Padding: with a constant, by reflection, by the edge, around the circle."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.promotion import rounded
from isthmus.passes.decompose.table import Call, Refusal, Scalar, decomposition
from isthmus.sizes import Dim


def _by_dim(x: SSAValue, pad: Sequence[Dim]) -> list[tuple[int, Dim, Dim]]:
    """(dimension, before, after): torch lists the last dimension first."""
    rank = len(ir.shape_of(x))
    return [(rank - 1 - k, pad[2 * k], pad[2 * k + 1]) for k in range(len(pad) // 2)]


def _cropped(e: Emitter, x: SSAValue, dim: int, low: Dim, high: Dim) -> tuple[SSAValue, Dim, Dim]:
    """Negative amounts cut off; what is left to add."""
    size = ir.shape_of(x)[dim]
    cut_low = -low if isinstance(low, int) and low < 0 else 0
    cut_high = -high if isinstance(high, int) and high < 0 else 0
    if cut_low or cut_high:
        x = e.slice(x, dim, cut_low, size - cut_high)
    return x, 0 if cut_low else low, 0 if cut_high else high


@decomposition("constant_pad_nd.default")
def constant_pad(e: Emitter, call: Call, x: SSAValue, pad: Sequence[Dim], value: Scalar) -> SSAValue:
    if isinstance(value, (SSAValue, ir.Size)):
        raise Refusal("padding with a value that is not a number is left to the library")
    for dim, low, high in _by_dim(x, pad):
        x, low, high = _cropped(e, x, dim, low, high)
        x = e.pad(x, dim, low, high, 0, rounded(value, ir.dtype_of(x)))  # pyright: ignore[reportArgumentType]
    return x


def reflected(e: Emitter, x: SSAValue, dim: int, low: Dim, high: Dim) -> SSAValue:
    """The elements after the edge, backwards: x[2] x[1] | x[0] x[1] x[2] ..."""
    n = ir.shape_of(x)[dim]
    pieces = [x]
    if low != 0:
        pieces.insert(0, e.reverse(e.slice(x, dim, 1, low + 1), (dim,)))
    if high != 0:
        pieces.append(e.reverse(e.slice(x, dim, n - high - 1, n - 1), (dim,)))
    return e.concat(pieces, dim)


def replicated(e: Emitter, x: SSAValue, dim: int, low: Dim, high: Dim) -> SSAValue:
    """The edge again and again; y[i] = x[i - low held in x], so a cut of all of x leaves the edge."""
    n = ir.shape_of(x)[dim]
    for cut, first in ((low, -1), (high, 0)):
        if isinstance(n, int) and isinstance(cut, int) and cut <= -n:
            return _repeated(e, e.slice(x, dim, first % n, first % n + 1), dim, n + low + high)
    x, low, high = _cropped(e, x, dim, low, high)
    n = ir.shape_of(x)[dim]
    pieces = [x]
    if low != 0:
        pieces.insert(0, _repeated(e, e.slice(x, dim, 0, 1), dim, low))
    if high != 0:
        pieces.append(_repeated(e, e.slice(x, dim, n - 1, n), dim, high))
    return e.concat(pieces, dim)


def _repeated(e: Emitter, x: SSAValue, dim: int, times: Dim) -> SSAValue:
    shape = ir.shape_of(x)
    return e.broadcast_to(x, (*shape[:dim], times, *shape[dim + 1 :]))


def circular(e: Emitter, x: SSAValue, dim: int, low: Dim, high: Dim) -> SSAValue:
    """The other end: ... x[n-1] | x[0] ... x[n-1] | x[0] ..."""
    x, low, high = _cropped(e, x, dim, low, high)
    n = ir.shape_of(x)[dim]
    pieces = [x]
    if low != 0:
        pieces.insert(0, e.slice(x, dim, n - low, n))
    if high != 0:
        pieces.append(e.slice(x, dim, 0, high))
    return e.concat(pieces, dim)


_MODES = {"reflect": reflected, "replicate": replicated, "circular": circular}


def _padded(e: Emitter, x: SSAValue, pad: Sequence[Dim], mode: str) -> SSAValue:
    for dim, low, high in _by_dim(x, pad):
        if mode == "reflect" and any(isinstance(v, int) and v < 0 for v in (low, high)):
            x, low, high = _cropped(e, x, dim, low, high)
        x = _MODES[mode](e, x, dim, low, high)
    return x


@decomposition("pad.default")
def pad(e: Emitter, call: Call, x: SSAValue, amounts: Sequence[Dim], mode: str, value: Scalar | None) -> SSAValue:
    if mode == "constant":
        return constant_pad(e, call, x, amounts, 0 if value is None else value)
    return _padded(e, x, amounts, mode)


@decomposition(*(f"reflection_pad{k}d.default" for k in (1, 2, 3)))
def reflection_pad(e: Emitter, call: Call, x: SSAValue, amounts: Sequence[Dim]) -> SSAValue:
    return _padded(e, x, amounts, "reflect")


@decomposition(*(f"replication_pad{k}d.default" for k in (1, 2, 3)))
def replication_pad(e: Emitter, call: Call, x: SSAValue, amounts: Sequence[Dim]) -> SSAValue:
    return _padded(e, x, amounts, "replicate")


@decomposition("_pad_circular.default")
def circular_pad(e: Emitter, call: Call, x: SSAValue, amounts: Sequence[Dim]) -> SSAValue:
    return _padded(e, x, amounts, "circular")
