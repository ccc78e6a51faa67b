"""Library calls on tensors of any device: matrix products straight into the program's memory, the rest delivered there.

The operators are torch's own, so they run on the current stream and follow torch's settings (TF32, determinism).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.dialects.product_views import Groups, joined, product_views
from isthmus.dialects.program import Buffer, LibraryCall, numbers
from isthmus.runtime.fresh import has_strides
from isthmus.runtime.interpret_table import DTYPES
from isthmus.runtime.library import evaluate

ALIGNMENT = 16
"""What kernels of ours may count on where a library call gives the memory."""

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

    operands: tuple[tuple[Buffer, Groups | None], ...]
    """A, B, and the bias if there is one: the buffer, and the groups of dims that are still to be joined."""
    result: tuple[Buffer, Groups | None]

    def run(self, view: View) -> Tensor:
        """Multiply into the result's memory; gives that as a matrix."""
        a, b, *bias = (self._matrix(view(x), groups) for x, groups in self.operands)
        target = view(self.result[0])
        out = self._matrix(target, self.result[1])
        _multiply(a, b, out, bias)
        if out.data_ptr() != target.data_ptr():  # its dims do not join
            target.copy_(out.reshape(target.shape))
        return target

    def _matrix(self, x: Tensor, groups: Groups | None) -> Tensor:
        if groups is None:
            return x
        sizes = [math.prod(x.shape[d] for d in dims) for dims in groups]
        return x.permute([d for dims in groups for d in dims]).reshape(sizes)


def plan_product(call: LibraryCall) -> Product:
    """View the buffers of a `prim.dot` as matrices."""
    *operands, result = (_as_matrix(x, groups) for x, groups in product_views(call))
    return Product(tuple(operands), result)


def _as_matrix(x: Buffer, groups: Groups | None) -> tuple[Buffer, Groups | None]:
    """Join dims by strides alone; where they do not join, leave it for the call."""
    found = None if groups is None else joined(x, groups)
    return (x, groups) if found is None else (found, None)


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
    if place in taken or made.data_ptr() % ALIGNMENT or (made.numel() and not has_strides(made, strides)):
        made = torch.empty_strided(shape, strides, dtype=dtype, device=made.device).copy_(made)
        place = made.untyped_storage().data_ptr()
    if place:
        taken.add(place)
    return made
