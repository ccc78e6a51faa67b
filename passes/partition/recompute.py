"""What may be computed a second time in the backward half, and what that reads.

A kernel that computes pointwise operations does it while it reads their inputs, so a second time costs nothing but
these reads. The cone of a value is everything that such a kernel would compute and read for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.passes.partition.joint import Joint

POINTWISE = (
    prim.ElementwiseOp,
    prim.MovementOp,
    prim.SourceOp,
    prim.RngOp,
    prim.ConcatOp,
    prim.GatherOp,
)
"""Classes whose results a kernel can compute where it needs them, element by element."""

is_pointwise = ir.one_of(*POINTWISE)

NEVER = (prim.OpaqueOp, prim.ControlOp)
"""Classes that no tag makes recomputable: nobody promised that a second run gives the same, or what it costs."""

MOST_LEAVES = 24
"""A kernel that reads more tensors than this is not worth asking for; it bounds the time of this analysis too."""


@dataclass(frozen=True)
class Cone:
    """What recomputing a value reads: bytes per leaf, and the widest element in bytes.

    `whole`: the value is not worth recomputing, or must not be; those above it read it as it is.
    """

    leaves: Mapping[SSAValue, int]
    width: int
    whole: bool = False

    @property
    def reads(self) -> int:
        """All bytes together."""
        return sum(self.leaves.values())


NOTHING = Cone({}, 0)


def tag_of(op: Operation) -> str | None:
    """Give what a checkpoint policy says about an op: one of `RECOMPUTE_TAGS`, or None."""
    tag = ir.literal(op, RECOMPUTE)
    return tag if isinstance(tag, str) else None


def cones(joint: Joint) -> dict[SSAValue, Cone]:
    """Give the cone of each value that depends on no tangent."""
    found: dict[SSAValue, Cone] = {}
    for argument in joint.block.args:
        if argument not in joint.after_tangent:
            found[argument] = NOTHING if isinstance(argument.type, IndexType) else _leaf(joint, argument, whole=True)
    for op in joint.ops:
        for result in op.results:
            if result not in joint.after_tangent:
                found[result] = _cone(joint, op, result, found)
    return found


def _cone(joint: Joint, op: Operation, result: SSAValue, found: Mapping[SSAValue, Cone]) -> Cone:
    if not is_pointwise(op):
        return _leaf(joint, result, whole=True)
    if isinstance(op, prim.GatherOp):  # of the table it reads the rows that it gives
        inner = _union([_leaf(joint, result), *(found[v] for v in ir.operands_of(op)[1:])])
    else:
        inner = _union([found[v] for v in ir.operands_of(op)])
    own = joint.nbytes(result)
    if isinstance(op, prim.ViewOp):  # a part of a tensor; or a small tensor many times, which is read once
        return inner if inner.reads <= own else _leaf(joint, result)
    # Counted in elements of the widest type: a narrow result is not dear because its input is wide.
    widest = max(inner.width, ir.itemsize(ir.dtype_of(result)))
    allowed = own // ir.itemsize(ir.dtype_of(result)) * widest
    fits = inner.reads <= allowed * joint.prices.again_reads and len(inner.leaves) <= MOST_LEAVES
    return inner if fits else _leaf(joint, result, whole=True)


def _leaf(joint: Joint, value: SSAValue, whole: bool = False) -> Cone:
    return Cone({value: joint.nbytes(value)}, ir.itemsize(ir.dtype_of(value)), whole)


def _union(parts: list[Cone]) -> Cone:
    if not parts:
        return NOTHING
    if len(parts) == 1:
        return Cone(parts[0].leaves, parts[0].width)
    leaves = {leaf: size for part in parts for leaf, size in part.leaves.items()}
    return Cone(leaves, max(part.width for part in parts))


def why_once(op: Operation, cone: Cone) -> str | None:
    """Say why an op of the forward half must not run again; None where it may."""
    tag = tag_of(op)
    if isinstance(op, NEVER):
        return "a library call or a loop runs once"
    if tag in ("must_save", "prefer_save"):
        return f"the checkpoint policy says {tag}"
    if tag in ("must_recompute", "prefer_recompute"):
        return None
    if isinstance(op, prim.ContractionOp):
        return "a contraction is not computed twice"
    if not is_pointwise(op):
        return "it takes a pass of its own over its input"
    if cone.whole:
        return f"a second time would read {cone.reads} bytes or more than it gives"
    return None
