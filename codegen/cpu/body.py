"""The ops of a kernel body, one emitter per class; arithmetic goes to `codegen.elementwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.codegen import elementwise
from isthmus.codegen.cpu import random, reductions, scans
from isthmus.codegen.cpu.memory import Place
from isthmus.codegen.cpu.reductions import Accumulator, Combiner
from isthmus.codegen.cpu.state import State
from isthmus.codegen.dtypes import REGISTER, Operand, constant, convert, from_parts, parts_of
from isthmus.codegen.llvm_text import Number, Type, Value
from isthmus.dialects import kernel as k
from isthmus.dialects import prim
from isthmus.dialects.kernel.ops import lit
from isthmus.sizes import Dim


class Body(elementwise.Context):
    """Emits body ops at the place that the state describes."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.math = state.math
        self.accumulators: dict[Operation, Accumulator] = {}
        self.carries: dict[k.CumulativeOp, tuple[Value, ...]] = {}
        self.strips: dict[SSAValue, Value] = {}
        self.draws = random.Draws(state)
        self._checks = {op: n + 1 for n, op in enumerate(k.checks(state.plan.kernel))}

    def emit(self, op: Operation) -> None:
        """Emit one op; its operands have been emitted."""
        function = EMITTERS.get(type(op))
        if function is not None:
            function(self, op)
            return
        operands = [self.state.get(v) for v in ir.operands_of(op)]
        lanes = max(v.type.lanes for v in operands)
        if lanes > 1:
            operands = [self.state.splat(v) for v in operands]
        self.state.set(op.results[0], elementwise.emit(self, op, tuple(operands)))

    def division_by_zero(self, zero: Value) -> None:
        """Write the error word."""
        self.state.division_by_zero(zero)

    def place(self, op: Operation) -> Place:
        """Give the memory that a load or a sink touches here."""
        return Place(self.state, self.state.plan.accesses[cast(k.LoadOp, op)])

    # ---- sources

    def const(self, op: Operation) -> None:
        """prim.const"""
        value = cast(Number | complex, lit(cast(prim.ConstOp, op), "value"))
        self.state.set(op.results[0], constant(self.math, value, ir.dtype_of(op.results[0])))

    def size(self, op: Operation) -> None:
        """prim.size"""
        self.state.set(op.results[0], self.state.size(cast(Dim, lit(cast(prim.SizeOp, op), "expr"))))

    def index(self, op: Operation) -> None:
        """kernel.index"""
        (expr,) = cast(k.IndexOp, op).map.data
        self.state.set(op.results[0], self.state.evaluate(expr, ir.operands_of(op)))

    def load(self, op: Operation) -> None:
        """kernel.load"""
        load = cast(k.LoadOp, op)
        predicate, default = load.predicate, None
        if load.default is not None:
            literal = cast(Number | complex, load.default.data)
            default = constant(self.math, literal, ir.dtype_of(load.y))
        condition = None if predicate is None else cast(Value, self.state.get(predicate))
        self.state.set(load.y, self.place(op).load(condition, default))
        if any(isinstance(use.operation, k.RngOp) and use.index == 0 for use in load.y.uses):
            random.prepare(self.state, load.y)

    def check(self, op: Operation) -> None:
        """kernel.check: 0 where the index is out of bounds, and the error word."""
        check, state = cast(k.CheckOp, op), self.state
        values = [cast(Value, state.get(v)) for v in ir.operands_of(op)]
        lanes = max(v.type.lanes for v in values)
        if lanes > 1:
            values = [state.splat_value(v) for v in values]
        f = state.f
        bound = f.splat(state.size(cast(Dim, check.bound.data)), lanes)
        inside = f.compare("ult", values[0], bound)
        bad = ~inside if len(values) == 1 else values[1] & ~inside
        good = inside if len(values) == 1 else values[1] & inside
        state.index_error(self._checks[check], bad, values[0])
        state.set(op.results[0], f.select(good, values[0], 0))

    def rng(self, op: Operation) -> None:
        """kernel.rng"""
        rng, dtype = cast(k.RngOp, op), ir.dtype_of(op.results[0])
        if lit(rng, "kind") == "bits":
            result: Operand = convert(self.math, self.draws.bits(rng), "i64", dtype)
        elif ir.is_float(dtype):
            result = self.draws.uniform(rng)
        else:
            raise elementwise.unsupported(op, dtype)
        self.state.set(op.results[0], result)

    # ---- along the row

    def reduce(self, op: Operation) -> None:
        """kernel.reduce: one step of it."""
        self.accumulators[op].step([self.state.get(v) for v in ir.operands_of(op)])

    def begin_cumulative(self, op: k.CumulativeOp) -> None:
        """Set the carry of a cumulative op to its identity."""
        wide = _carry_dtype(op)
        start = self.state.splat(constant(self.math, reductions.identity(k_kind(op), wide), wide))
        if op not in self.carries:
            self.carries[op] = tuple(self.state.f.slot(part.type) for part in parts_of(start))
        self._put_carry(op, start)

    def _put_carry(self, op: k.CumulativeOp, value: Operand) -> None:
        for slot, part in zip(self.carries[op], parts_of(value), strict=True):
            self.state.f.store(part, slot, 64)

    def cumulative(self, op: Operation) -> None:
        """kernel.cumulative: sums and products run in f64, as eager's do."""
        scan, state = cast(k.CumulativeOp, op), self.state
        dtype, wide = ir.dtype_of(scan.y), _carry_dtype(scan)
        x = convert(self.math, state.splat(state.get(ir.operands_of(op)[0])), dtype, wide)
        in_lanes = state.lanes > 1 and not state.plan.vector_is_parallel
        parts = [
            state.f.load(s, part.type.with_lanes(1) if in_lanes else part.type, 64)
            for s, part in zip(self.carries[scan], parts_of(x), strict=True)
        ]
        carry = from_parts(parts)
        if in_lanes:
            x, carry = cast(Value, x), cast(Value, carry)
            y, carry = scans.along_lanes(state, k_kind(scan), wide, x, carry, reverse=lit(scan, "reverse") is True)
        else:
            y = carry = Combiner(state, k_kind(scan), wide)(x, carry)  # of equal zeros the last, as eager
        self._put_carry(scan, carry)
        state.set(scan.y, convert(self.math, y, wide, dtype))

    def keep(self, value: SSAValue) -> None:
        """Put a row value into its strip."""
        operand = self.state.get(value)
        if self.state.lanes > 1:
            operand = self.state.splat(operand)
        assert isinstance(operand, Value)
        self.state.f.store(operand, self._strip(value, operand.type))

    def restore(self, value: SSAValue) -> None:
        """Read a row value back from its strip, or from the result that holds it."""
        state, plan = self.state, self.state.plan
        if plan.residence(value) == "reload":
            store = plan.reload_from(value)
            assert store is not None
            state.set(value, self.place(store).load(None, None))
            return
        type_ = Type.of(REGISTER[ir.dtype_of(value)], state.lanes)
        state.set(value, state.f.load(self._strip(value, type_), type_))

    def _strip(self, value: SSAValue, type_: Type) -> Value:
        """Give the address of this position of the row in the value's strip."""
        state, plan = self.state, self.state.plan
        length = plan.strip_length(value)
        assert length is not None
        per_position = plan.lanes if plan.vector_is_parallel else 1
        slot = self.strips.get(value)
        if slot is None:
            slot = self.strips[value] = state.f.slot(Type.of(type_.scalar), length * per_position + plan.lanes)
        position = state.f.index(0)
        for d in plan.kernel.rows:
            position = position * state.size(plan.sizes[d]) + state.indices[d]
        return state.f.address(slot, position * per_position, type_.scalar)

    # ---- sinks

    def store(self, op: Operation) -> None:
        """kernel.store"""
        store, state = cast(k.StoreOp, op), self.state
        kind = lit(store, "kind")
        combine = None
        if kind is not None and kind != "set":
            combine = Combiner(state, str(kind), ir.dtype_of(store.x)).rounded
        self.place(op).store(state.get(store.x), combine)

    def accumulate(self, op: Operation) -> None:
        """kernel.accumulate: into registers, or into the result of this partition."""
        sink, state = cast(k.AccumulateOp, op), self.state
        x = state.get(sink.x)
        if sink in self.accumulators:
            self.accumulators[sink].step([x])
            return
        access = state.plan.accesses[sink]
        dtype = ir.dtype_of(sink.x)
        combine = Combiner(state, k_kind(sink), dtype)
        if state.lanes > 1 and access.stride == 0 and not access.late.terms:
            x = self._across_lanes(sink, x, dtype)
            with state.vector(1):
                Place(state, access).store(x, combine.rounded)
            return
        Place(state, access).store(x, combine.rounded)

    def _across_lanes(self, op: k.AccumulateOp, x: Operand, dtype: str) -> Operand:
        state = self.state
        whole = reductions.make(state, k_kind(op), dtype, 1, state.lanes)
        whole.start()
        whole.step([x])
        return whole.finish(across_lanes=True)[0]


def _carry_dtype(op: k.CumulativeOp) -> str:
    dtype = ir.dtype_of(op.y)
    if ir.is_complex(dtype):
        return "c128"
    return "f64" if ir.is_float(dtype) and k_kind(op) in ("add", "mul") else dtype


def k_kind(op: k.CumulativeOp | k.AccumulateOp | k.ReduceOp) -> str:
    """Give the combiner's name."""
    return cast(str, op.kind.data)


EMITTERS: dict[type[Operation], Callable[[Body, Operation], None]] = {
    prim.ConstOp: Body.const,
    prim.SizeOp: Body.size,
    k.IndexOp: Body.index,
    k.LoadOp: Body.load,
    k.CheckOp: Body.check,
    k.RngOp: Body.rng,
    k.ReduceOp: Body.reduce,
    k.CumulativeOp: Body.cumulative,
    k.StoreOp: Body.store,
    k.AccumulateOp: Body.accumulate,
}
"""Emitters of the ops that are not arithmetic."""
