"""Rebuild functions in primitives by the tables of decompositions.

Before:
    %y = aten.call %x, %w, %b {overload = "linear.default", args = [arg0, arg1, arg2]} : tensor<4x8xf32>
After:
    %0 = prim.dot %x, %w {batch_a = [], batch_b = [], contract_a = [1], contract_b = [1]} : tensor<4x8xf32>
    %1 = prim.broadcast %b {dims = [1]} : tensor<4x8xf32>
    %y = prim.add %0, %1 : tensor<4x8xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import aten, autodiff, prim
from isthmus.dialects.prim import Emitter, PrimOp
from isthmus.dialects.signature import Argument, Signature
from isthmus.ir import Literal, LiteralValue, Operand
from isthmus.passes.decompose.regions import LOOPS
from isthmus.passes.decompose.table import ELEMENTARY, TABLES, Call, RandomNumbers, Refusal, Table, Values, load_rules

REASON = "isthmus.reason"
"""Attribute of a prim.opaque: why the call is left to the library."""


@dataclass(frozen=True)
class DecomposePass(ModulePass):
    """Needs: functions on values (functionalized). Leaves: `to=prim`: primitives and autodiff ops, a library call
    (prim.opaque) where the table has no rule; `to=elementary`: no structured primitive that has an elementary form.

    `table` names the table of rules ("none": every call stays a library call); `random=library` leaves random numbers
    to torch's own kernels.
    """

    name = "decompose"
    to: str = "prim"
    table: str = "default"
    random: str = "philox"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rebuild every function. IRError when a rule breaks its promise, or the option has no meaning."""
        load_rules()
        if self.to not in ("prim", "elementary"):
            raise IRError(f"decompose{{to={self.to}}}: the levels are prim and elementary")
        if self.table not in TABLES:
            raise IRError(f"there is no table '{self.table}'", cure=f"the tables are {', '.join(TABLES)}")
        rebuild = Rebuild(TABLES[self.table], self.to == "elementary", self.random == "philox")
        for func in ir.functions(op).values():
            if not func.is_declaration:
                rebuild.function(func)


class Scope:
    """One block being rebuilt: its emitter, its random numbers, and the new value of each old one."""

    def __init__(self, block: Block, source: Block, draws: bool) -> None:
        self.block = block
        self.e = Emitter(block)
        self.random = RandomNumbers(block) if draws else None
        self.values: dict[SSAValue, SSAValue] = dict(zip(source.args, block.args, strict=False))

    def of(self, values: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        """Give the new values of old ones."""
        return tuple(self.values[v] for v in values)


class Rebuild:
    """One linear walk over each function, with a handler for each kind of op."""

    def __init__(self, table: Table, elementary: bool, draws: bool) -> None:
        self.table = table
        self.elementary = elementary
        self.draws = draws
        self._handlers: dict[type[Operation], Callable[[Scope, Operation], Sequence[SSAValue]]] = {}

    def function(self, func: FuncOp) -> None:
        """Replace the body by its decomposition; random numbers add a key to the arguments."""
        signature = Signature.of(func)
        old = func.body.block
        scope = self.block(old)
        last = old.last_op
        assert isinstance(last, ReturnOp)
        scope.block.add_op(ReturnOp(*scope.of(last.arguments)))
        ir.erase_unused(scope.block, _has_effects)
        func.body.detach_block(old)
        old.erase(safe_erase=False)
        func.body.add_block(scope.block)
        results = func.function_type.outputs.data
        func.properties["function_type"] = FunctionType.from_lists([a.type for a in scope.block.args], results)
        if len(scope.block.args) > len(signature.arguments):
            signature = Signature((*signature.arguments, Argument(key=True)), signature.results, signature.user_outputs)
        signature.attach(func)

    def block(self, source: Block) -> Scope:
        """Give the decomposition of a block, without its terminator."""
        block = Block(arg_types=[aten.value_type(a.type) for a in source.args])
        for new, old in zip(block.args, source.args, strict=True):
            new.name_hint = old.name_hint
        scope = Scope(block, source, self.draws)
        for op in source.ops:
            if op is source.last_op:
                break
            scope.e.location = op.location
            for old, new in zip(op.results, self.operation(scope, op), strict=True):
                scope.values[old] = new
                if new.name_hint is None:
                    new.name_hint = old.name_hint
        return scope

    def operation(self, scope: Scope, op: Operation) -> Sequence[SSAValue]:
        """Give the new results of one op."""
        if isinstance(op, aten.CallOp):
            return self.call(scope, op)
        if isinstance(op, autodiff.StopGradientOp):
            return (scope.e.stop_gradient(scope.values[op.x]),)
        loop = LOOPS.get(type(op))
        if loop is not None:
            return loop(self, scope, op)
        if isinstance(op, PrimOp):
            return self.primitive(scope, op)
        return self.kept(scope, op)

    def primitive(self, scope: Scope, op: PrimOp) -> Sequence[SSAValue]:
        """Copy a primitive, or expand a structured one."""
        rule = ELEMENTARY.get(type(op)) if self.elementary else None
        operands = scope.of(op.operands)
        if rule is None:
            if op.regions:
                return self.kept(scope, op)
            return scope.e.copy(op, operands)
        values = rule(scope.e, op, *operands)
        values = (values,) if isinstance(values, SSAValue) else tuple(values)
        _check(op, f"the elementary form of '{op.name}'", values, [r.type for r in op.results])
        return values

    def kept(self, scope: Scope, op: Operation) -> Sequence[SSAValue]:
        """Copy an op as it is, with its regions decomposed."""
        scopes = [self.region_scope(scope, region) for region in op.regions]
        regions = [Region(s.block) for s in scopes]
        copied = ir.create_op(
            type(op),
            scope.of(op.operands),
            [aten.value_type(r.type) for r in op.results],
            op.properties,
            location=op.location,
            regions=regions,
            attributes=op.attributes,
        )
        scope.block.add_op(copied)
        return copied.results

    def region_scope(self, scope: Scope, region: Region) -> Scope:
        """Give the decomposition of a region whose own terminator is kept. IRError where it draws random numbers."""
        inner = self.block(region.block)
        if inner.random is not None and inner.random.key is not None:
            raise IRError("random numbers inside this region are not supported yet", cure="draw them outside")
        last = region.block.last_op
        assert last is not None
        terminator = ir.create_op(type(last), inner.of(last.operands), [], last.properties, location=last.location)
        inner.block.add_op(terminator)
        return inner

    # ---- calls

    def call(self, scope: Scope, op: aten.CallOp) -> Sequence[SSAValue]:
        """Give the results of a call by its rule, or of a library call."""
        types = tuple(aten.value_type(r.type) for r in op.results)
        operands = scope.of(op.operands)
        call = Call(scope.e, op.overload, types, scope.random)
        rule = self.table.find(op.overload)
        reason = "has no decomposition"
        if rule is not None:
            try:
                values = rule(scope.e, call, *(_argument(a, operands) for a in op.args))
                return _guarded(scope.e, op, _results(op, values, types))
            except Refusal as refusal:
                reason = str(refusal)
        values = scope.e.opaque(op.overload, operands, op.args, types)
        if values:
            values[0].owner.attributes[REASON] = Literal.of(reason)  # pyright: ignore[reportAttributeAccessIssue]
        return _guarded(scope.e, op, values)


def _argument(value: LiteralValue, operands: Sequence[SSAValue]) -> object:
    """Give a literal argument as the rule sees it: operands in place of their numbers."""
    if isinstance(value, Operand):
        return operands[value.index]
    if isinstance(value, tuple):
        return tuple(_argument(v, operands) for v in cast(tuple[LiteralValue, ...], value))
    return value


def _results(op: aten.CallOp, values: Values, types: Sequence[Attribute]) -> tuple[SSAValue, ...]:
    """Give a rule's values, one per result of the call, each of exactly its type."""
    listed = (values,) if isinstance(values, SSAValue) else tuple(values)
    present = op.present
    if len(listed) != len(types) and max(present, default=-1) < len(listed):
        listed = tuple(listed[k] for k in present)
    found = tuple(v for v in listed if v is not None)
    _check(op, f"the decomposition of '{op.overload}'", found, types)
    return found


def _check(op: Operation, what: str, values: Sequence[SSAValue], types: Sequence[Attribute]) -> None:
    if len(values) != len(types) or any(v.type != t for v, t in zip(values, types, strict=True)):
        given, wanted = ", ".join(str(v.type) for v in values), ", ".join(map(str, types))
        raise IRError(
            f"{what} gives {given or 'nothing'} where {wanted or 'nothing'} is expected",
            op=op.name,
            location=ir.source_location(op),
        )


def _guarded(e: Emitter, op: aten.CallOp, values: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Make results constants to differentiation where autograd does not record the call."""
    return values if op.grad else [e.stop_gradient(v) for v in values]


def _has_effects(op: Operation) -> bool:
    """Whether an op stays although nobody uses its results: terminators, and library calls that may have effects."""
    return isinstance(op, ReturnOp | prim.OpaqueOp) or not op.results
