"""Offer narrow forms of indices, so that the cut can keep them in a byte or two instead of eight.

Before:
    %y, %index = prim.max_pool %x {dims = [2, 3], ...} : tensor<8x4x4x4xf32>, tensor<8x4x4x4xi64>
    %g = prim.scatter %zero, %t, %index {...}
After, when x has at most 256 positions in dims:
    %narrow = prim.convert %index : tensor<8x4x4x4xui8>
    %wide = prim.convert %narrow : tensor<8x4x4x4xi64>
    %g = prim.scatter %zero, %t, %wide {...}

Both conversions are backward's own work; forward takes over the first where that makes the cut narrower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import integer, ints
from isthmus.passes.partition.joint import Joint

NARROW = (("u8", 1 << 8), ("i16", 1 << 15), ("i32", 1 << 31))
"""Integer types, narrowest first, and how many values from 0 they hold."""


def narrowed(func: FuncOp) -> Joint:
    """Give a joint function with narrow forms of the indices that backward reads; itself where there are none."""
    original = Joint.of(func)
    if not _narrowable(original):
        return original
    copy = func.clone()
    joint = Joint.of(copy)
    backward = joint.backward_ops - joint.forward_ops
    for value, dtype in _narrowable(joint):
        readers = [use for use in value.uses if use.operation in backward]
        narrow = ir.create_op(prim.ConvertOp, [value], [ir.like(value.type, dtype)], location=value.owner.location)
        wide = ir.create_op(prim.ConvertOp, [narrow.y], [value.type], location=value.owner.location)
        joint.block.insert_ops_after([narrow, wide], value.owner)
        for use in readers:
            use.operation.operands[use.index] = wide.y
    return Joint.of(copy, original.hints)


def _narrowable(joint: Joint) -> list[tuple[OpResult, str]]:
    """Give the indices that forward makes and only backward's own ops read besides, with a type that holds them."""
    found: list[tuple[OpResult, str]] = []
    backward = joint.backward_ops - joint.forward_ops
    for op in joint.ops:
        if op not in joint.forward_ops:
            continue
        for result, bound in _bounded(op):
            users = {use.operation for use in result.uses}
            dtype = next((d for d, values in NARROW if bound <= values), None)
            smaller = dtype is not None and ir.itemsize(dtype) < ir.itemsize(ir.dtype_of(result))
            if dtype is not None and smaller and users & backward:
                found.append((cast(OpResult, result), dtype))
    return found


def _bounded(op: Operation) -> Sequence[tuple[SSAValue, int]]:
    """Give results that are indices, each with a number that they stay below."""
    if isinstance(op, prim.MaxPoolOp):
        return _below(op.index, [ir.shape_of(op.x)[d] for d in ints(op.dims.data)])
    if isinstance(op, (prim.ArgReduceOp, prim.SortOp)):
        index = op.y if isinstance(op, prim.ArgReduceOp) else op.index
        return _below(index, [ir.shape_of(op.x)[integer(op.dim.data)]])
    return ()


def _below(index: SSAValue, sizes: Sequence[ir.Dim]) -> Sequence[tuple[SSAValue, int]]:
    known = [s for s in sizes if isinstance(s, int)]
    return [(index, math.prod(known))] if len(known) == len(sizes) else []
