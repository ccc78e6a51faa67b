"""Library calls on tensors of any device: matrix products straight into the program's memory, the rest delivered there.

The operators are torch's own, so they run on the current stream and follow torch's settings (TF32, determinism).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from isthmus.dialects.program import Buffer, LibraryCall, numbers
from isthmus.runtime.fresh import has_strides
from isthmus.runtime.interpret_table import DTYPES
from isthmus.runtime.library import evaluate
from isthmus.sizes import Dim

View = Callable[[Buffer], Tensor]
"""Gives a buffer of the running call as a tensor."""


def library_call(call: LibraryCall) -> Callable[[View, Mapping[str, int]], list[Tensor]]:
    """Give what makes a call: `run(view, sizes)` gives all results, in their places but for those that it makes."""
    if call.symbol == "prim.dot" and _is_plain(call):
        product = plan_product(call)
        return lambda view, sizes: [product.run(view)]
    return lambda view, sizes: _evaluated(call, view, sizes)


def _is_plain(call: LibraryCall) -> bool:
    """Whether torch's product takes the operands as they are: one float or complex dtype throughout."""
    dtypes = {b.dtype for b in (*call.operands, *call.results)}
    return len(dtypes) == 1 and dtypes.pop()[0] in "fbc" and call.results[0].place.kind != "handle"


@dataclass(frozen=True)
class Product:
    """C = A B (+ bias) on matrices or batches of them.

    Each buffer is viewed as such beforehand where its strides allow it; else its dims are put in order and joined at
    each call, which copies it.
    """

    operands: tuple[tuple[Buffer, tuple[tuple[int, ...], ...] | None], ...]
    """A, B, and the bias if there is one: the buffer, and the groups of dims that are still to be joined."""
    result: tuple[Buffer, tuple[tuple[int, ...], ...] | None]

    def run(self, view: View) -> Tensor:
        """Multiply into the result's memory; gives that as a matrix."""
        a, b, *bias = (self._matrix(view(x), groups) for x, groups in self.operands)
        target = view(self.result[0])
        out = self._matrix(target, self.result[1])
        _multiply(a, b, out, bias)
        if out.data_ptr() != target.data_ptr():  # its dims do not join
            target.copy_(out.reshape(target.shape))
        return target

    def _matrix(self, x: Tensor, groups: tuple[tuple[int, ...], ...] | None) -> Tensor:
        if groups is None:
            return x
        sizes = [math.prod(x.shape[d] for d in dims) for dims in groups]
        return x.permute([d for dims in groups for d in dims]).reshape(sizes)


def plan_product(call: LibraryCall) -> Product:
    """View the buffers of a `prim.dot` as matrices."""
    literals = dict(cast("tuple[tuple[str, tuple[int, ...]], ...]", call.arguments))
    batch_a, batch_b = literals["batch_a"], literals["batch_b"]
    contract_a, contract_b = literals["contract_a"], literals["contract_b"]
    a, b, *bias = call.operands
    (c,) = call.results
    free_a = tuple(d for d in range(len(a.shape)) if d not in (*batch_a, *contract_a))
    free_b = tuple(d for d in range(len(b.shape)) if d not in (*batch_b, *contract_b))
    first, second = len(batch_a), len(batch_a) + len(free_a)
    order = tuple(range(len(c.shape)))
    of_c = (order[:first], order[first:second], order[second:])
    skip = 0 if batch_a else 1
    views = [_viewed(a, (batch_a, free_a, contract_a)[skip:]), _viewed(b, (batch_b, contract_b, free_b)[skip:])]
    for x in bias:
        plain = len(x.shape) == 1 and len(of_c[2]) == 1 and not batch_a
        views.append((x, None) if plain else _viewed(_broadcast(x, c), of_c[skip:]))
    return Product(tuple(views), _viewed(c, of_c[skip:]))


def _viewed(buffer: Buffer, groups: tuple[tuple[int, ...], ...]) -> tuple[Buffer, tuple[tuple[int, ...], ...] | None]:
    """Join each group of dims to one by strides alone; where they do not join, leave it for the call."""
    shape: list[Dim] = []
    strides: list[Dim] = []
    for dims in groups:
        size: Dim = 1
        stride: Dim = 1
        for d in dims:
            if buffer.shape[d] == 1:
                continue
            if size != 1 and stride != buffer.shape[d] * buffer.strides[d]:
                return buffer, groups
            size, stride = size * buffer.shape[d], buffer.strides[d]
        shape.append(size)
        strides.append(stride)
    for k in reversed(range(len(shape))):  # what has one element is stepped over as in a row-major matrix
        if shape[k] == 1:
            strides[k] = shape[k + 1] * strides[k + 1] if k + 1 < len(shape) else 1
    return replace(buffer, shape=tuple(shape), strides=tuple(strides)), None


def _broadcast(x: Buffer, like: Buffer) -> Buffer:
    """A buffer in the shape of another, broadcast from the right."""
    missing = len(like.shape) - len(x.shape)
    strides = [0] * missing + [0 if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)]
    return replace(x, shape=like.shape, strides=tuple(strides))


def _multiply(a: Tensor, b: Tensor, out: Tensor, bias: Sequence[Tensor]) -> None:
    if bias and bias[0].data_ptr() == out.data_ptr() and bias[0].shape == out.shape:  # it adds to what is there
        out.addmm_(a, b) if a.dim() == 2 else out.baddbmm_(a, b)
    elif a.dim() == 2:
        if bias:
            torch.addmm(bias[0], a, b, out=out)
        else:
            torch.mm(a, b, out=out)
    elif bias:
        torch.baddbmm(bias[0], a, b, out=out)
    else:
        torch.bmm(a, b, out=out)


def _evaluated(call: LibraryCall, view: View, sizes: Mapping[str, int]) -> list[Tensor]:
    operands = [view(b) for b in call.operands]
    results = [None if b.place.kind == "handle" else view(b) for b in call.results]
    helpers = call.symbol.startswith("prim.") and operands  # tensors that the reference makes on the way
    with torch.device(operands[0].device) if helpers else nullcontext():
        made = evaluate(call, operands, sizes)
    taken = {t.untyped_storage().data_ptr() for t in operands}
    found: list[Tensor] = []
    for value, target, buffer in zip(made, results, call.results, strict=True):
        result = value if isinstance(value, Tensor) else torch.tensor(value)
        found.append(_delivered(call, result, target, buffer, sizes, taken))
    return found


def _delivered(
    call: LibraryCall, made: Tensor, target: Tensor | None, buffer: Buffer, sizes: Mapping[str, int], taken: set[int]
) -> Tensor:
    """Put a result where the program wants it, or give a tensor of its own in the layout that the program counts on."""
    shape, dtype = numbers(buffer.shape, sizes), DTYPES[buffer.dtype]
    if made.dtype != dtype or tuple(made.shape) != shape:
        raise RuntimeError(f"'{call.symbol}' gave {made.dtype}{list(made.shape)}, compiled for {dtype}{list(shape)}")
    if target is not None:
        return target.copy_(made)
    if made.is_conj() or made.is_neg():
        made = made.resolve_conj().resolve_neg()
    strides = numbers(buffer.strides, sizes)
    place = made.untyped_storage().data_ptr()
    if place in taken or (made.numel() and not has_strides(made, strides)):
        made = torch.empty_strided(shape, strides, dtype=dtype, device=made.device).copy_(made)
        place = made.untyped_storage().data_ptr()
    if place:
        taken.add(place)
    return made
