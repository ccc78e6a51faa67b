"""Operations that only move elements: shapes, slices, joins and splits."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.dims import at_least_1d, axis, move, wrapped
from isthmus.passes.decompose.table import Call, Refusal, decomposition
from isthmus.sizes import Dim

# ---- the same elements in another shape

RESHAPES = (
    "view.default",
    "view_copy.default",
    "_unsafe_view.default",
    "_reshape_alias.default",
    "_reshape_copy.default",
    "reshape.default",
    "view_as.default",
    "reshape_as.default",
    "flatten.using_ints",
    "unflatten.int",
    "ravel.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze_copy.default",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
    "unsqueeze.default",
    "unsqueeze_copy.default",
    "atleast_1d.default",
    "atleast_2d.default",
    "atleast_3d.default",
)
"""What they differ in is only how they name the result's shape."""


@decomposition(*RESHAPES)
def reshape(e: Emitter, call: Call, x: SSAValue, *how: object) -> SSAValue:
    return e.reshape(x, call.shape())


@decomposition("atleast_1d.Sequence", "atleast_2d.Sequence", "atleast_3d.Sequence")
def reshape_each(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> list[SSAValue]:
    return [e.reshape(x, call.shape(k)) for k, x in enumerate(xs)]


# ---- the same element more than once


@decomposition("expand.default", "expand_copy.default", "broadcast_to.default", "expand_as.default")
def expand(e: Emitter, call: Call, x: SSAValue, *how: object) -> SSAValue:
    return e.broadcast_to(x, call.shape())


@decomposition("broadcast_tensors.default")
def broadcast_tensors(e: Emitter, call: Call, xs: Sequence[SSAValue]) -> list[SSAValue]:
    return [e.broadcast_to(x, call.shape(k)) for k, x in enumerate(xs)]


@decomposition("meshgrid.default", "meshgrid.indexing")
def meshgrid(e: Emitter, call: Call, xs: Sequence[SSAValue], indexing: str = "ij") -> list[SSAValue]:
    """Each vector along its own dimension; "xy" swaps the first two dimensions."""
    order = list(range(len(xs)))
    if indexing == "xy" and len(xs) > 1:
        order[:2] = [1, 0]
    return [e.broadcast(at_least_1d(e, x), call.shape(k), (order[k],)) for k, x in enumerate(xs)]


@decomposition("repeat.default", "tile.default")
def repeat(e: Emitter, call: Call, x: SSAValue, repeats: Sequence[Dim]) -> SSAValue:
    """x laid side by side: [r, n] for each dimension, then joined"""
    lead = len(call.shape()) - len(ir.shape_of(x))
    counts = [1] * (len(call.shape()) - len(repeats)) + list(repeats)
    own = [1] * lead + list(ir.shape_of(x))
    both = [s for pair in zip(counts, own, strict=True) for s in pair]
    dims = [2 * d + 1 for d in range(len(own))]
    return e.reshape(e.broadcast(e.reshape(x, own), both, dims), call.shape())


@decomposition("repeat_interleave.self_int")
def repeat_interleave(
    e: Emitter, call: Call, x: SSAValue, repeats: Dim, dim: int | None, output_size: Dim | None
) -> SSAValue:
    """Each element `repeats` times in a row"""
    y = e.reshape(x, (ir.numel(x),)) if dim is None else at_least_1d(e, x)
    at, shape = (0 if dim is None else axis(y, dim)), ir.shape_of(y)
    wider = (*shape[: at + 1], repeats, *shape[at + 1 :])
    return e.reshape(e.broadcast(y, wider, [d + (d > at) for d in range(len(shape))]), call.shape())


# ---- permutations


@decomposition("permute.default", "permute_copy.default")
def permute(e: Emitter, call: Call, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    return e.transpose(x, [axis(x, d) for d in dims])


@decomposition("transpose.int", "transpose_copy.int", "swapaxes.default", "swapdims.default")
def transpose(e: Emitter, call: Call, x: SSAValue, first: int, second: int) -> SSAValue:
    perm = list(range(len(ir.shape_of(x))))
    if not perm:
        return x
    a, b = axis(x, first), axis(x, second)
    perm[a], perm[b] = b, a
    return e.transpose(x, perm)


@decomposition("t.default", "t_copy.default", "numpy_T.default")
def reverse_dims(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.transpose(x, range(len(ir.shape_of(x)))[::-1])


@decomposition("mT.default", "mH.default", "matrix_H.default", "adjoint.default")
def transpose_matrices(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    y = transpose(e, call, x, -2, -1)
    return y if call.overload == "mT.default" else e.conj(y)


@decomposition("movedim.intlist", "moveaxis.intlist")
def movedim(e: Emitter, call: Call, x: SSAValue, source: Sequence[int], target: Sequence[int]) -> SSAValue:
    places = {axis(x, t): axis(x, s) for s, t in zip(source, target, strict=True)}
    rest = iter(d for d in range(len(ir.shape_of(x))) if d not in places.values())
    return e.transpose(x, [places[d] if d in places else next(rest) for d in range(len(ir.shape_of(x)))])


@decomposition("movedim.int", "moveaxis.int")
def movedim_one(e: Emitter, call: Call, x: SSAValue, source: int, target: int) -> SSAValue:
    return movedim(e, call, x, (source,), (target,))


@decomposition("flip.default")
def flip(e: Emitter, call: Call, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    return e.reverse(x, [axis(x, d) for d in dims]) if ir.shape_of(x) else x


@decomposition("fliplr.default")
def fliplr(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.reverse(x, (1,))


@decomposition("flipud.default")
def flipud(e: Emitter, call: Call, x: SSAValue) -> SSAValue:
    return e.reverse(x, (0,))


@decomposition("rot90.default")
def rot90(e: Emitter, call: Call, x: SSAValue, k: int, dims: Sequence[int]) -> SSAValue:
    """A quarter turn is a transposition after (before, for three quarters) a reversal."""
    a, b = (axis(x, d) for d in dims)
    if k % 4 == 0:
        return x
    if k % 4 == 2:
        return e.reverse(x, (a, b))
    perm = list(range(len(ir.shape_of(x))))
    perm[a], perm[b] = b, a
    return e.transpose(e.reverse(x, (b,)), perm) if k % 4 == 1 else e.reverse(e.transpose(x, perm), (b,))


@decomposition("roll.default")
def roll(e: Emitter, call: Call, x: SSAValue, shifts: Sequence[Dim], dims: Sequence[int]) -> SSAValue:
    """The last `shift` elements come first; without dims over the flat tensor."""
    if ir.numel(x) == 0:
        return x
    y = x if dims else e.reshape(x, (ir.numel(x),))
    for shift, dim in zip(shifts, dims or (0,), strict=True):
        at = axis(y, dim)
        size = ir.shape_of(y)[at]
        cut = (size - shift) % size
        y = e.concat([e.slice(y, at, cut, size), e.slice(y, at, 0, cut)], at) if cut != 0 else y
    return e.reshape(y, call.shape())


# ---- parts


@decomposition("select.int", "select_copy.int")
def select(e: Emitter, call: Call, x: SSAValue, dim: int, index: Dim) -> SSAValue:
    at = axis(x, dim)
    start = wrapped(index, ir.shape_of(x)[at])
    return e.reshape(e.slice(x, at, start, start + 1), call.shape())


def bounds(call: Call, x: SSAValue, at: int, length: Dim, start: Dim | None, step: int) -> tuple[Dim, Dim]:
    """Give start and limit of a Python slice of known length; the length says how torch resolved the sizes."""
    size = ir.shape_of(x)[at]
    if length == 0:
        return 0, 0
    first = 0 if start is None else wrapped(start, size)
    if isinstance(first, int):
        first = max(first, 0)
    limit = first + (length - 1) * step + 1
    return first, limit


@decomposition("slice.Tensor", "slice_copy.Tensor")
def slice_(e: Emitter, call: Call, x: SSAValue, dim: int, start: Dim | None, end: Dim | None, step: Dim) -> SSAValue:
    at = axis(x, dim)
    if not isinstance(step, int):
        raise Refusal("the step of a slice must be a number")
    low, high = bounds(call, x, at, call.shape()[at], start, step)
    return e.slice(x, at, low, high, step)


@decomposition("narrow.default", "narrow_copy.default")
def narrow(e: Emitter, call: Call, x: SSAValue, dim: int, start: Dim, length: Dim) -> SSAValue:
    at = axis(x, dim)
    first = wrapped(start, ir.shape_of(x)[at])
    return e.slice(x, at, first, first + length)


SPLITS = (
    "split.Tensor",
    "split.sizes",
    "split.default",
    "split_copy.Tensor",
    "split_with_sizes.default",
    "split_with_sizes_copy.default",
    "unsafe_split.Tensor",
    "unsafe_split_with_sizes.default",
    "chunk.default",
    "unsafe_chunk.default",
    "tensor_split.sections",
    "tensor_split.indices",
)


@decomposition(*SPLITS)
def split(e: Emitter, call: Call, x: SSAValue, how: object, dim: int = 0) -> list[SSAValue]:
    """Consecutive parts: the results' sizes say where they end."""
    at = axis(x, dim)
    parts: list[SSAValue] = []
    start: Dim = 0
    for k in range(len(call.types)):
        limit = start + call.shape(k)[at]
        parts.append(e.slice(x, at, start, limit))
        start = limit
    return parts


@decomposition("tensor_split.tensor_indices_or_sections")
def tensor_split_by_tensor(e: Emitter, call: Call, x: SSAValue, where: SSAValue, dim: int) -> list[SSAValue]:
    return split(e, call, x, where, dim)


def _named_split(dim_of: dict[str, int]) -> None:
    def enter(name: str, dim: int) -> None:
        @decomposition(f"{name}.int", f"{name}.array")
        def rule(e: Emitter, call: Call, x: SSAValue, how: object) -> list[SSAValue]:
            return split(e, call, x, how, 0 if name == "hsplit" and len(ir.shape_of(x)) == 1 else dim)

        del rule

    for name, dim in dim_of.items():
        enter(name, dim)


_named_split({"hsplit": 1, "vsplit": 0, "dsplit": 2})


@decomposition("unbind.int", "unbind_copy.int")
def unbind(e: Emitter, call: Call, x: SSAValue, dim: int) -> list[SSAValue]:
    at = axis(x, dim)
    return [e.reshape(e.slice(x, at, k, k + 1), call.shape(k)) for k in range(len(call.types))]


@decomposition("unfold.default", "unfold_copy.default")
def unfold(e: Emitter, call: Call, x: SSAValue, dim: int, size: int, step: int) -> SSAValue:
    """y[..., k, ..., j] = x[..., k·step + j, ...]: windows; side by side they are a reshape"""
    if not ir.shape_of(x):
        return e.reshape(x, call.shape())
    at = axis(x, dim)
    windows = call.shape()[at]
    last = len(ir.shape_of(x))
    if size == step:
        shape = ir.shape_of(x)
        tiles = e.reshape(e.slice(x, at, 0, windows * step), (*shape[:at], windows, size, *shape[at + 1 :]))
        return move(e, tiles, at + 1, last)
    columns = [e.slice(x, at, j, j + (windows - 1) * step + 1, step) for j in range(size)]
    return e.concat([e.expand_dims(c, (last,)) for c in columns], last)


@decomposition("sum_to_size.default")
def sum_to_size(e: Emitter, call: Call, x: SSAValue, size: Sequence[Dim]) -> SSAValue:
    """The transpose of `expand`"""
    return e.convert(e.sum_to(e.convert(x, call.dtype()), call.shape()), call.dtype())


@decomposition("fft_fftshift.default")
def fftshift(e: Emitter, call: Call, x: SSAValue, dims: Sequence[int] | None) -> SSAValue:
    """Rolled by half of each size, rounded down"""
    over = tuple(range(len(ir.shape_of(x)))) if dims is None else tuple(dims)
    return roll(e, call, x, [ir.shape_of(x)[axis(x, d)] // 2 for d in over], over) if over else x


@decomposition("fft_ifftshift.default")
def ifftshift(e: Emitter, call: Call, x: SSAValue, dims: Sequence[int] | None) -> SSAValue:
    """Rolled by half of each size, rounded up"""
    over = tuple(range(len(ir.shape_of(x)))) if dims is None else tuple(dims)
    return roll(e, call, x, [(ir.shape_of(x)[axis(x, d)] + 1) // 2 for d in over], over) if over else x
