"""Reference implementations of differentiation as ops, by torch's own autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from xdsl.ir import Operation

from isthmus import ir
from isthmus.dialects import autodiff
from isthmus.runtime.interpret_table import Frame, Value, evaluates, tensors


@evaluates(autodiff.StopGradientOp)
def stop_gradient(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y = x, dy/dx = 0"""
    (x,) = tensors(operands)
    return (x.detach(),)


@evaluates(autodiff.VjpOp)
def vjp(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """Gradients of Σ outs · seeds by ins; zeros where an input does not reach the outs."""
    assert isinstance(op, autodiff.VjpOp)
    value_of = dict(zip(ir.operands_of(op), tensors(operands), strict=True))
    outs, ins = [value_of[v] for v in op.outs], [value_of[v] for v in op.ins]
    seeds = [None if s is None else value_of[s] for s in op.seeds]
    reached = [(out, seed) for out, seed in zip(outs, seeds, strict=True) if out.requires_grad]
    wanted = [ins[k] for k in op.present]
    if not reached:
        return [torch.zeros_like(x) for x in wanted]
    found = torch.autograd.grad(
        [out for out, _ in reached],
        wanted,
        [torch.ones_like(out) if seed is None else seed for out, seed in reached],
        create_graph=op.create_graph,
        retain_graph=True,
        materialize_grads=True,
    )
    return list(found)


class _Rule(torch.autograd.Function):
    """Forward and backward by the two regions."""

    @staticmethod
    def forward(ctx: FunctionCtx, op: autodiff.CustomOp, frame: Frame, *operands: Tensor) -> tuple[Tensor, ...]:
        values = cast(list[Tensor], frame.run_region(op.forward, operands))
        results: tuple[Tensor, ...] = ()
        for v in values[: len(op.results)]:  # autograd knows a tensor that is given twice by its last place alone
            results += (v.clone() if any(v is x for x in (*operands, *results)) else v,)
        saved = values[len(op.results) :]
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*(results[k] for k in op.non_differentiable))
        holder = cast(Any, ctx)
        holder.rule = op, frame
        return results

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        holder = cast(Any, ctx)
        op, frame = cast("tuple[autodiff.CustomOp, Frame]", holder.rule)
        given = cast(list[Tensor], frame.run_region(op.backward, [*cotangents, *holder.saved_tensors]))
        return (None, None, *(given[g] if g >= 0 else None for g in op.gradients))


@evaluates(autodiff.CustomOp)
def custom(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y.. = forward(x..), differentiated by backward."""
    assert isinstance(op, autodiff.CustomOp)
    if not torch.is_grad_enabled() or ir.literal(op, "grad") is False:
        return frame.run_region(op.forward, operands)[: len(op.results)]
    results = _Rule.apply(op, frame, *tensors(operands))
    return cast(tuple[Tensor, ...], results)


@evaluates(autodiff.CheckpointOp)
def checkpoint(op: Operation, operands: Sequence[Value], frame: Frame) -> Sequence[Value]:
    """y.. = body(x..)"""
    return frame.run_region(op.regions[0], operands)
