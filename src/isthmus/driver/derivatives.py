"""Derivatives of library calls: torch's own for the single operator, traced and brought to primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.func import FuncOp

from isthmus import ir
from isthmus.diagnostics import CompileError, UnsupportedError
from isthmus.dialects import new_context, prim
from isthmus.driver.options import Options
from isthmus.frontend.derivatives import trace_derivative
from isthmus.passes.pipelines import run_passes


def derivatives_of_calls(
    options: Options, hints: Mapping[str, int], device: str = "cpu"
) -> Callable[[prim.OpaqueOp, Sequence[bool]], FuncOp | None]:
    """Give what `differentiate` asks for the derivative of a library call; equal calls are traced once.

    `hints` are example values of the size symbols, `device` is where the program runs. UnsupportedError where torch
    has no derivative either.
    """
    known: dict[object, FuncOp] = {}
    random = "library" if options.fallback_random else "philox"

    def derivative_of(op: prim.OpaqueOp, needs: Sequence[bool]) -> FuncOp | None:
        types = tuple(v.type for v in ir.operands_of(op))
        key = (op.callee, op.args, tuple(map(id, types)), tuple(needs))
        if key not in known:
            known[key] = _traced(op, needs, hints, random, device)
        return known[key].clone()

    return derivative_of


def _traced(op: prim.OpaqueOp, needs: Sequence[bool], hints: Mapping[str, int], random: str, device: str) -> FuncOp:
    callee, args = op.callee.data, op.args.data
    assert isinstance(callee, str) and isinstance(args, tuple)
    try:
        module = trace_derivative(callee, args, [v.type for v in ir.operands_of(op)], needs, hints=hints, device=device)
        run_passes(new_context(), module, ("functionalize", f"decompose{{to=prim random={random}}}"))
    except CompileError as error:
        cure = error.cure or "detach its operands, or register a derivative"
        raise UnsupportedError(error.what, location=ir.source_location(op), op=callee, cure=cure) from error
    func = ir.function(module, "main")
    cotangents = sum(ir.is_differentiable(ir.dtype_of(r)) for r in op.results)
    if len(func.body.block.args) != len(op.operands) + len(op.results) + cotangents:
        raise UnsupportedError(
            "writes into its operands, and no rule says what its derivative is",
            location=ir.source_location(op),
            op=callee,
            cure="use the form of the operator that does not write",
        )
    return func
