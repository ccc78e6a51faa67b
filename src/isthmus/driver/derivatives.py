"""Derivatives and batched forms of library calls: torch's own for the single operator, traced, in primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.func import FuncOp

from isthmus import ir
from isthmus.diagnostics import CompileError, UnsupportedError
from isthmus.dialects import new_context, prim
from isthmus.driver.options import Options
from isthmus.frontend.batched_calls import draws_random_numbers, trace_batched
from isthmus.frontend.derivatives import trace_derivative
from isthmus.passes.pipelines import run_passes


class LibraryCalls:
    """What `vectorize` and `differentiate` ask about library calls; equal calls are traced once.

    `hints` are example values of the size symbols, `device` is where the program runs.
    """

    def __init__(self, options: Options, hints: Mapping[str, int], device: str = "cpu") -> None:
        self._hints, self._device = hints, device
        random = "library" if options.fallback_random else "philox"
        self._passes = ("functionalize", f"decompose{{to=prim random={random}}}")
        self._known: dict[object, FuncOp | None] = {}

    def derivative_of(self, op: prim.OpaqueOp, needs: Sequence[bool]) -> FuncOp | None:
        """Give torch's derivative of a call. UnsupportedError where torch has none either."""
        return self._once(op, ("derivative", *needs), lambda: self._derivative(op, needs))

    def batched_of(self, op: prim.OpaqueOp, mapped: Sequence[bool], size: ir.Dim) -> FuncOp | None:
        """Give torch's form of a call on so many examples; None where it has no better one than a call for each."""
        return self._once(op, ("batched", size, *mapped), lambda: self._batched(op, mapped, size))

    def draws(self, op: prim.OpaqueOp) -> bool:
        """Tell whether a call draws random numbers."""
        return draws_random_numbers(str(op.callee.data))

    def _once(self, op: prim.OpaqueOp, what: tuple[object, ...], make: Callable[[], FuncOp | None]) -> FuncOp | None:
        types = tuple(v.type for v in ir.operands_of(op))
        key = (op.callee, op.args, tuple(map(id, types)), what)
        if key not in self._known:
            self._known[key] = make()
        found = self._known[key]
        return None if found is None else found.clone()

    def _derivative(self, op: prim.OpaqueOp, needs: Sequence[bool]) -> FuncOp:
        callee, args = _call_of(op)
        types = [v.type for v in ir.operands_of(op)]
        try:
            module = trace_derivative(callee, args, types, needs, hints=self._hints, device=self._device)
            run_passes(new_context(), module, self._passes)
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

    def _batched(self, op: prim.OpaqueOp, mapped: Sequence[bool], size: ir.Dim) -> FuncOp | None:
        callee, args = _call_of(op)
        operands = zip(ir.operands_of(op), mapped, strict=True)
        types = [ir.tensor((size, *ir.shape_of(v)) if m else ir.shape_of(v), ir.dtype_of(v)) for v, m in operands]
        try:
            module = trace_batched(callee, args, types, mapped, size, hints=self._hints, device=self._device)
            if module is None:
                return None
            run_passes(new_context(), module, self._passes)
        except CompileError:
            return None
        func = ir.function(module, "main")
        wanted = [((size, *ir.shape_of(r)), ir.dtype_of(r)) for r in op.results]
        last = func.body.block.last_op
        found = [] if last is None else [(ir.shape_of(v), ir.dtype_of(v)) for v in ir.operands_of(last)]
        return func if found == wanted and len(func.body.block.args) == len(op.operands) else None


def _call_of(op: prim.OpaqueOp) -> tuple[str, tuple[ir.LiteralValue, ...]]:
    callee, args = op.callee.data, op.args.data
    assert isinstance(callee, str) and isinstance(args, tuple)
    return callee, args
