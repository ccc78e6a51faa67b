"""Pullbacks of calls: library functions, and functions with a rule by the user."""

from __future__ import annotations

from typing import cast

from xdsl.ir import Block, Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects import autodiff, prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.autodiff.expand import inline
from isthmus.passes.autodiff.table import (
    Cotangents,
    Fallbacks,
    Needs,
    call_pullback,
    is_differentiable,
    nested_pullback,
    one,
)


@nested_pullback(prim.OpaqueOp)
def opaque(e: Emitter, op: prim.OpaqueOp, cts: Cotangents, needs: Needs, fallbacks: Fallbacks) -> Cotangents:
    """The derivative that is traced for this one call, inlined."""
    func = fallbacks.derivative_of(op, needs)
    if func is None:
        raise CompileError(
            "has no derivative",
            location=ir.source_location(op),
            op=str(op.callee.data),
            cure="register one with isthmus.register_derivative, or detach its operands",
        )
    given = [
        e.zeros_like(result) if ct is None else ct
        for result, ct in zip(op.results, cts, strict=True)
        if is_differentiable(result)
    ]
    for inner in func.walk():
        inner.location = op.location
    gradients = iter(inline(e, func.body.block, [*ir.operands_of(op), *op.results, *given], fallbacks))
    return tuple(next(gradients) if need else None for need in needs)


@call_pullback("polygamma")
def polygamma(e: Emitter, op: prim.OpaqueOp, cts: Cotangents, needs: Needs) -> Cotangents:
    """y = ψₙ(x): x̄ = ȳ·ψₙ₊₁(x)."""
    (x,) = ir.operands_of(op)
    order = cast(tuple[int, ir.Operand], op.args.data)[0]
    (slope,) = e.opaque("polygamma", (x,), (order + 1, ir.Operand(0)), (x.type,))
    return (e.mul(one(cts), slope),)


@nested_pullback(autodiff.CustomOp)
def custom(e: Emitter, op: autodiff.CustomOp, cts: Cotangents, needs: Needs, fallbacks: Fallbacks) -> Cotangents:
    """The user's backward, on a cotangent for every result and the saved values."""
    given = [e.zeros_like(r) if ct is None else ct for r, ct in zip(op.results, cts, strict=True)]
    gradients = inline(e, op.backward.block, [*given, *_saved_values(op)], fallbacks)
    return tuple(gradients[at] if need and at >= 0 else None for at, need in zip(op.gradients, needs, strict=True))


def _saved_values(op: autodiff.CustomOp) -> list[SSAValue]:
    """Give the saved values as the outside sees them, so that differentiating again goes on through them.

    A saved input is the operand, a saved output the result; any other is a constant, as in eager, where forward runs
    without gradients. Forward has no ops here, see `expand.py`: it hands on its arguments.
    """
    block = op.forward.block
    yielded = _yielded(block)
    results, saved = yielded[: len(op.results)], yielded[len(op.results) :]
    values: list[SSAValue] = []
    for value in saved:
        index = block.args.index(value)  # pyright: ignore[reportArgumentType]
        if value in results and op.gradients[index] < 0:
            values.append(op.results[results.index(value)])
        else:
            values.append(ir.operands_of(op)[index])
    return values


def _yielded(block: Block) -> list[SSAValue]:
    last = block.last_op
    assert isinstance(last, Operation)
    return list(ir.operands_of(last))
