"""Library calls on tensors of any device: matrix products straight into the program's memory, the rest delivered there.

The operators are torch's own, so they run on the current stream and follow torch's settings (TF32, determinism).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from isthmus.dialects.program import Buffer, LibraryCall, numbers
from isthmus.runtime.fresh import has_strides
from isthmus.runtime.interpret_table import DTYPES
from isthmus.runtime.library import evaluate

Results = Sequence[Tensor | None]
"""Where results go; None for tensors that the call itself makes."""


def library_call(call: LibraryCall) -> Callable[[Sequence[Tensor], Results, Mapping[str, int]], list[Tensor]]:
    """Give what makes a call: `run(operands, results, sizes)` gives all results, those of `results` written."""
    if call.symbol == "prim.dot" and _is_plain(call):
        dot = _Dot.of(call)
        return lambda operands, results, sizes: [dot.run(operands, cast(Tensor, results[0]))]
    return lambda operands, results, sizes: _evaluated(call, operands, results, sizes)


def _is_plain(call: LibraryCall) -> bool:
    """Whether torch's product takes the operands as they are: one float or complex dtype throughout."""
    dtypes = {b.dtype for b in (*call.operands, *call.results)}
    return len(dtypes) == 1 and dtypes.pop()[0] in "fbc" and call.results[0].place.kind != "handle"


@dataclass(frozen=True)
class _Dot:
    """C[batch, free a, free b] = Σ A·B over the contracted dims (+ bias)."""

    batch_a: tuple[int, ...]
    batch_b: tuple[int, ...]
    contract_a: tuple[int, ...]
    contract_b: tuple[int, ...]

    @staticmethod
    def of(call: LibraryCall) -> _Dot:
        literals = dict(cast("tuple[tuple[str, tuple[int, ...]], ...]", call.arguments))
        return _Dot(literals["batch_a"], literals["batch_b"], literals["contract_a"], literals["contract_b"])

    def run(self, operands: Sequence[Tensor], target: Tensor) -> Tensor:
        """Multiply into `target`."""
        a, b, *bias = operands
        batch = len(self.batch_a)
        free_a = [d for d in range(a.dim()) if d not in (*self.batch_a, *self.contract_a)]
        free_b = [d for d in range(b.dim()) if d not in (*self.batch_b, *self.contract_b)]
        groups = (batch, batch + len(free_a))
        left = _matrix(a, (self.batch_a, free_a, self.contract_a))
        right = _matrix(b, (self.batch_b, self.contract_b, free_b))
        order = range(target.dim())
        parts = (order[: groups[0]], order[groups[0] : groups[1]], order[groups[1] :])
        out = _matrix(target, parts)
        added = [_bias(x, target, parts) for x in bias]
        if not batch:
            left, right, out = left[0], right[0], out[0]
            added = [x if x.dim() == 1 else x[0] for x in added]
        _multiply(left, right, out, added)
        if out.data_ptr() != target.data_ptr():  # its dims do not group into a matrix
            target.copy_(out.reshape(target.shape))
        return target


def _matrix(x: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """View a tensor as [batch, rows, columns] from groups of its dims; copied where strides do not allow it."""
    sizes = [1, 1, 1]
    for k, dims in enumerate(groups):
        for d in dims:
            sizes[k] *= x.shape[d]
    return x.permute([d for dims in groups for d in dims]).reshape(sizes)


def _bias(x: Tensor, target: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    """The bias as the product's result is seen; a vector along the columns stays one."""
    if x.dim() == 1 and len(parts[2]) == 1 and not parts[0]:
        return x
    return _matrix(x.expand(target.shape), parts)


def _multiply(a: Tensor, b: Tensor, out: Tensor, bias: Sequence[Tensor]) -> None:
    if a.dim() == 2:
        if bias:
            torch.addmm(bias[0], a, b, out=out)
        else:
            torch.mm(a, b, out=out)
    elif bias:
        torch.baddbmm(bias[0], a, b, out=out)
    else:
        torch.bmm(a, b, out=out)


def _evaluated(
    call: LibraryCall, operands: Sequence[Tensor], results: Results, sizes: Mapping[str, int]
) -> list[Tensor]:
    with torch.device(operands[0].device) if operands else nullcontext():  # of helpers that the reference makes
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
