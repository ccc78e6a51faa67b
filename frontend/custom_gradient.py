"""User-defined gradients: both bodies, once recorded, become one `autodiff.custom`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from torch import Tensor
from xdsl.ir import Region

from isthmus import ir
from isthmus.dialects import aten, autodiff
from isthmus.frontend.program import Scope
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.torch_private import storage_of
from isthmus.ir import Literal, LiteralValue


def emit_custom(
    recorder: Recorder,
    args: Sequence[object],
    results: Sequence[Tensor],
    grads: Sequence[object],
    *,
    saved: int,
    forward: Scope,
    backward: Scope,
    non_differentiable: Sequence[int],
) -> list[Tensor]:
    """Write the op; gives new fake tensors for its results.

    `grads` has an entry for each of `args`: a tensor that backward yields, or None.
    """
    operands = [a for a in args if isinstance(a, Tensor)]
    mutates = aten.written_arguments(forward.block)
    properties: dict[str, LiteralValue] = {
        "saved": saved,
        "gradients": (*_positions(args, grads), *(-1 for _ in forward.captured)),
        "non_differentiable": tuple(non_differentiable),
    }
    aliases = [next((i for i, t in enumerate(operands) if storage_of(t) == storage_of(r)), -1) for r in results]
    if any(a >= 0 for a in aliases):
        properties["aliases"] = tuple(aliases)
    if mutates:
        properties["mutates"] = tuple(mutates)
    silent = set(non_differentiable)
    reached = [t for t, g in zip(args, grads, strict=False) if isinstance(t, Tensor) and isinstance(g, Tensor)]
    fresh = [recorder.like(r, requires_grad=i not in silent, derived_from=reached) for i, r in enumerate(results)]
    op = ir.create_op(
        autodiff.CustomOp,
        [recorder.value_of(t) for t in (*operands, *forward.captured)],
        [recorder.type_of(t) for t in fresh],
        {k: Literal.of(v) for k, v in properties.items()},
        regions=[Region(forward.block), Region(backward.block)],
        location=ir.location_attr(recorder.location),
    )
    if not recorder.grad_mode():
        op.properties["grad"] = aten.FALSE
    recorder.emit(op)
    for tensor, value in zip(fresh, op.results, strict=True):
        recorder.define(tensor, value)
    return fresh


def _positions(args: Sequence[object], grads: Sequence[object]) -> tuple[int, ...]:
    """Give per operand the position of its gradient among those given, or -1."""
    positions: list[int] = []
    given = 0
    for index, argument in enumerate(args):
        has = index < len(grads) and isinstance(grads[index], Tensor)
        if isinstance(argument, Tensor):
            positions.append(given if has else -1)
        given += has
    return tuple(positions)


@contextmanager
def without_grad_marks(recorder: Recorder) -> Generator[None]:
    """Both bodies run under no_grad; the rule itself is differentiable again all the same."""
    before = recorder.grad_override
    recorder.grad_override = True
    try:
        yield
    finally:
        recorder.grad_override = before
