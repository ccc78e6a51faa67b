"""Where fewer digits than float32 has are enough: on the way to half precision a GPU takes its own exponential.

A sum over points shows no more digits than its terms have that are computed from half precision.

Before:
    %e = prim.exp %d : f32
    %q = prim.div %e, %s : f32
    %h = prim.convert %q : bf16
After: `prim.exp` and `prim.div` say {accuracy = "half"}. An error of |x| units of float32's last place is far below the
rounding that follows.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.ir import Literal

HALF = ("bf16", "f16")
GATED = (prim.SiluOp, prim.GeluOp, prim.GeluTanhOp, prim.NdtrOp, prim.NormalDensityOp, prim.TanhGateOp)
CHEAPER = (prim.ExpOp, prim.DivOp, prim.LogisticOp, prim.TanhOp, prim.ErfOp, *GATED)
"""Classes that have a form of fewer digits."""
THROUGH = (
    prim.AddOp,
    prim.SubOp,
    prim.MulOp,
    prim.FmaOp,
    prim.DivOp,
    prim.NegOp,
    prim.SelectOp,
    prim.MaxOp,
    prim.MinOp,
)
"""Classes whose result has about the digits of their operands."""


def mark_accuracy(op: kernel.LoopNest) -> None:
    """Write on each op that has a cheaper form where that is exact enough."""
    enough: dict[SSAValue, bool] = {}
    coarse = _coarse(op)
    for inner in reversed(list(op.block.ops)):
        for result in inner.results:
            dtype = ir.dtype_of(result)
            suffices = all(_suffices(use.operation, result, enough, coarse) for use in result.uses)
            enough[result] = dtype in HALF or (dtype == "f32" and suffices)
        if isinstance(inner, CHEAPER) and enough[inner.results[0]]:
            inner.attributes["accuracy"] = Literal.of("half")


def _suffices(user: Operation, value: SSAValue, enough: dict[SSAValue, bool], coarse: set[SSAValue]) -> bool:
    """Whether few digits of a value are enough for what one op makes of it."""
    if isinstance(user, prim.ConvertOp):
        return ir.dtype_of(user.results[0]) in HALF
    if isinstance(user, prim.LogOp):  # of a sum: what its terms lack, of numbers of few digits, it does not show
        return isinstance(value.owner, kernel.ReduceOp) and value in coarse
    if isinstance(user, kernel.AccumulateOp):
        return user.kind.data == "add" and value in coarse
    if isinstance(user, kernel.ReduceOp):
        return user.kind.data in ("add", "max", "min") and enough[user.results[0]]
    return isinstance(user, THROUGH) and enough[user.results[0]]


def _coarse(op: kernel.LoopNest) -> set[SSAValue]:
    """The values that are computed from numbers of half precision alone, constants aside."""
    found: set[SSAValue] = set()
    for inner in op.block.ops:
        if isinstance(inner, kernel.LoadOp):
            is_coarse = ir.dtype_of(inner.y) in HALF
        else:
            is_coarse = all(v in found for v in ir.operands_of(inner))
        if is_coarse:
            found.update(inner.results)
    return found
