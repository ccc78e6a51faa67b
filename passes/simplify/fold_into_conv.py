"""Scales and shifts of channels after a convolution become part of its weight: batch norm by running statistics.

Before:
    %y = prim.conv %x, %w {...} : tensor<2x8x16x16xf32>
    %m = prim.broadcast %mean {dims = [1]} : tensor<2x8x16x16xf32>
    %r = prim.broadcast %rstd {dims = [1]} : tensor<2x8x16x16xf32>
    %c = prim.sub %y, %m : tensor<2x8x16x16xf32>
    %z = prim.mul %c, %r : tensor<2x8x16x16xf32>
After:
    %s = prim.broadcast %rstd {dims = [0]} : tensor<8x3x3x3xf32>
    %v = prim.mul %w, %s : tensor<8x3x3x3xf32>
    %y = prim.conv %x, %v {...} : tensor<2x8x16x16xf32>
    %n = prim.neg %mean : tensor<8xf32>
    %t = prim.mul %n, %rstd : tensor<8xf32>
    %b = prim.broadcast %t {dims = [1]} : tensor<2x8x16x16xf32>
    %z = prim.add %y, %b : tensor<2x8x16x16xf32>

(w * x) s + t = (s w) * x + t, rounded elsewhere; the weights are folded at every call, so they may change.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.dialects.prim.base import ints
from isthmus.passes.simplify.dce import erase_dead


@dataclass(frozen=True)
class FoldIntoConvPass(ModulePass):
    """Needs: functions in primitives, not to be differentiated again. Leaves: convolutions with scaled weights.

    Results differ from the unfolded ones by rounding, so it runs only where the user allows that.
    """

    name = "fold-into-conv"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fold in every block, control flow's included."""
        for conv in [found for found in op.walk() if isinstance(found, prim.ConvOp)]:
            fold_into(conv)
        for func in ir.functions(op).values():
            erase_dead(func.body.block)


@dataclass(frozen=True)
class _Channels:
    """y = x · scale + shift, a number per channel; `last` is the op that gives it."""

    scale: SSAValue | None = None
    shift: SSAValue | None = None
    last: Operation | None = None


def fold_into(conv: prim.ConvOp) -> bool:
    """Fold what follows one convolution into it; tells whether there was a scale to fold."""
    e = Emitter(Block())
    e.location = conv.location
    found = _Channels()
    value: SSAValue = conv.y
    while (step := _next(e, value, found)) is not None and step.last is not None:
        found, value = step, step.last.results[0]
    last = found.last
    if found.scale is None or last is None:
        return False
    weight = e.mul(conv.w, e.broadcast(found.scale, ir.shape_of(conv.w), (0,)))
    (y,) = e.copy(conv, (conv.x, weight))
    if found.shift is not None:
        y = e.add(y, e.broadcast(found.shift, ir.shape_of(y), (1,)))
    e.put_before(last)
    last.results[0].replace_all_uses_with(y)
    return True


def _next(e: Emitter, value: SSAValue, before: _Channels) -> _Channels | None:
    """What the only reader of a value makes of it; None where it is no scale or shift of channels."""
    if not value.has_one_use():
        return None
    (use,) = value.uses
    op = use.operation
    if not isinstance(op, prim.AddOp | prim.SubOp | prim.MulOp) or op.parent is not _block_of(value):
        return None
    channels = _per_channel(op.b if use.index == 0 else op.a)
    if channels is None or (isinstance(op, prim.SubOp) and use.index == 1):
        return None
    scale, shift = before.scale, before.shift
    if isinstance(op, prim.MulOp):
        scale = channels if scale is None else e.mul(scale, channels)
        shift = None if shift is None else e.mul(shift, channels)
    else:
        more = e.neg(channels) if isinstance(op, prim.SubOp) else channels
        shift = more if shift is None else e.add(shift, more)
    return _Channels(scale, shift, op)


def _block_of(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner.parent if isinstance(owner, Operation) else owner


def _per_channel(value: SSAValue) -> SSAValue | None:
    """The vector that is repeated along all dims but the channels'."""
    owner = value.owner
    if isinstance(owner, prim.BroadcastOp) and ints(owner.dims.data) == (1,):
        return owner.x
    return None
