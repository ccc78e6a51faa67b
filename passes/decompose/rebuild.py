"""The walk of `decompose`: every block is built anew, op by op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from xdsl.dialects.builtin import FunctionType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import aten, autodiff, prim
from isthmus.dialects.autodiff import RECOMPUTE
from isthmus.dialects.prim import Emitter, PrimOp
from isthmus.dialects.signature import Argument, Signature
from isthmus.ir import Literal, LiteralValue, Operand
from isthmus.passes.decompose.history import History
from isthmus.passes.decompose.table import Call, RandomNumbers, Refusal, Table, Values, library_call

Handler = Callable[["Rebuild", "Scope", Operation], Sequence[SSAValue]]

REGIONS: dict[type[Operation], Handler] = {}
"""How ops with regions are rebuilt; filled by `regions.py`."""


class Scope:
    """One block being built: its emitter, its random numbers, and the new value of each old one.

    `active` are the positions of the arguments that gradients flow through, None where that is not known.
    """

    def __init__(self, source: Block, draws: bool, active: Iterable[int] | None = None) -> None:
        self.block = Block(arg_types=[aten.value_type(a.type) for a in source.args])
        self.e = Emitter(self.block)
        self.random = RandomNumbers(self.block) if draws else None
        args = self.block.args
        self.history = History(self.e, None if active is None else [args[i] for i in active])
        self.values: dict[SSAValue, SSAValue] = {}
        for new, old in zip(self.block.args, source.args, strict=True):
            new.name_hint = old.name_hint
            self.values[old] = new

    @property
    def key(self) -> SSAValue | None:
        """The extra argument that random numbers made necessary."""
        return None if self.random is None else self.random.key

    def of(self, values: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        """Give the new values of old ones."""
        return tuple(self.values[v] for v in values)

    def define(self, old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        """Say what old values are now."""
        for before, after in zip(old, new, strict=True):
            self.values[before] = after
            if after.name_hint is None:
                after.name_hint = before.name_hint


class Rebuild:
    """One linear walk over each function."""

    def __init__(self, table: Table, *, draws: bool) -> None:
        self.table = table
        self.draws = draws

    def function(self, func: FuncOp) -> None:
        """Replace the body by its decomposition; random numbers add a key to the arguments."""
        signature = Signature.of(func)
        old = func.body.block
        scope = self.block(old, signature.arguments_where(wants_gradient=True) or None)  # none said: unknown
        last = old.last_op
        assert isinstance(last, ReturnOp)
        values = scope.of(last.arguments)
        kept = [k for k, v in enumerate(values) if not _writes_nothing(scope, signature, k, v)]
        scope.block.add_op(ReturnOp(*(values[k] for k in kept)))
        ir.erase_unused(scope.block, _has_effects)
        func.body.detach_block(old)
        old.erase(safe_erase=False)
        func.body.add_block(scope.block)
        results = [func.function_type.outputs.data[k] for k in kept]
        func.properties["function_type"] = FunctionType.from_lists([a.type for a in scope.block.args], results)
        keys = () if scope.key is None else (Argument(key=True),)
        roles = tuple(signature.results[k] for k in kept)
        Signature((*signature.arguments, *keys), roles, signature.user_outputs).attach(func)

    def block(self, source: Block, active: Iterable[int] | None = None) -> Scope:
        """Give the decomposition of a block, without its terminator."""
        scope = Scope(source, self.draws, active)
        for op in source.ops:
            if op is source.last_op:
                break
            scope.e.location = op.location
            before = scope.block.last_op
            values = self.operation(scope, op)
            scope.history.note(before)
            if isinstance(op, aten.CallOp):
                values = scope.history.of_call(op, scope.of(op.operands), values)
            scope.define(op.results, values)
            if RECOMPUTE in op.attributes:
                _tag(scope.block, before, op.attributes[RECOMPUTE])
        return scope

    def operation(self, scope: Scope, op: Operation) -> Sequence[SSAValue]:
        """Give the new results of one op."""
        if isinstance(op, aten.CallOp):
            return self.call(scope, op)
        if isinstance(op, autodiff.StopGradientOp):
            return (scope.e.stop_gradient(scope.values[op.x]),)
        if op.regions:
            return REGIONS.get(type(op), Rebuild.kept)(self, scope, op)
        return scope.e.copy(op, scope.of(op.operands)) if isinstance(op, PrimOp) else self.kept(scope, op)

    def kept(self, scope: Scope, op: Operation) -> Sequence[SSAValue]:
        """Copy an op as it is, with its regions decomposed. IRError where one of them draws random numbers."""
        inner = [self.region(region) for region in op.regions]
        if any(s.key is not None for s in inner):
            raise IRError(
                "random numbers in a region of this kind have no compiled form",
                op=op.name,
                location=ir.source_location(op),
                cure="draw them outside and pass them in",
            )
        return self.emit(scope, op, type(op), scope.of(op.operands), [Region(s.block) for s in inner])

    def emit(
        self,
        scope: Scope,
        op: Operation,
        cls: type[Operation],
        operands: Sequence[SSAValue],
        regions: Sequence[Region],
        types: Sequence[Attribute] | None = None,
        **literals: LiteralValue,
    ) -> Sequence[SSAValue]:
        """Append an op like `op`, perhaps of another class and with other literals."""
        made = ir.create_op(
            cls,
            operands,
            [aten.value_type(r.type) for r in op.results] if types is None else types,
            {k: Literal.of(v) for k, v in literals.items()} or (op.properties if cls is type(op) else {}),
            location=op.location,
            regions=regions,
            attributes=op.attributes,
        )
        scope.block.add_op(made)
        return made.results

    def region(self, region: Region, end: type[Operation] | None = None, active: Iterable[int] | None = None) -> Scope:
        """Give the decomposition of a region with its terminator (of class `end`)."""
        scope = self.block(region.block, active)
        last = region.block.last_op
        assert last is not None
        cls = type(last) if end is None else end
        scope.block.add_op(ir.create_op(cls, scope.of(last.operands), [], location=last.location))
        ir.erase_unused(scope.block, _has_effects)
        return scope

    # ---- calls

    def call(self, scope: Scope, op: aten.CallOp) -> Sequence[SSAValue]:
        """Give the results of a call by its rule, or of a library call."""
        types = tuple(aten.value_type(r.type) for r in op.results)
        operands = scope.of(op.operands)
        values, reason = self.by_rule(scope, op, types, operands)
        if values is None:
            values = library_call(scope.e, op.overload, operands, op.args, types, reason)
        return values

    def by_rule(
        self, scope: Scope, op: aten.CallOp, types: tuple[Attribute, ...], operands: Sequence[SSAValue]
    ) -> tuple[Sequence[SSAValue] | None, str]:
        """Give the results by the table's rule, or None and why not."""
        rule = self.table.find(op.overload)
        if rule is None:
            return None, "has no decomposition"
        random = None if aten.TORCHS_NOISE in op.attributes else scope.random
        call = Call(scope.e, op.overload, types, random, aten.PUTS_BACK in op.attributes)
        try:
            values = rule(scope.e, call, *(_argument(a, operands) for a in op.args))
        except Refusal as refusal:
            return None, str(refusal)
        except IRError as error:
            raise IRError(
                f"its decomposition is wrong: {error}", op=op.overload, location=ir.source_location(op)
            ) from error
        if _is_in_place(op.overload) and isinstance(values, SSAValue):
            values = scope.e.convert(values, ir.dtype_of(types[0]))  # what is written takes the dtype of its place
        return _results(op, values, types), ""


def _writes_nothing(scope: Scope, signature: Signature, result: int, value: SSAValue) -> bool:
    """Tell whether a result is the value that an argument has anyway, behind autograd's back (statistics in eval)."""
    role = signature.results[result]
    if role.mutated is None or not role.hidden or signature.arguments[role.mutated].rebound is not None:
        return False
    return value is scope.block.args[role.mutated]


def _argument(value: LiteralValue, operands: Sequence[SSAValue]) -> object:
    """Give a literal argument as the rule sees it: operands in place of their numbers."""
    if isinstance(value, Operand):
        return operands[value.index]
    if isinstance(value, tuple):
        return tuple(_argument(v, operands) for v in cast(tuple[LiteralValue, ...], value))
    return value


def _is_in_place(overload: str) -> bool:
    """Tell whether an overload of `name_` writes its first argument; `__name__` does not."""
    base = overload.partition(".")[0]
    return base.endswith("_") and not base.endswith("__")


def _results(op: aten.CallOp, values: Values, types: Sequence[Attribute]) -> tuple[SSAValue, ...]:
    """Give a rule's values, one per result of the call, each of exactly its type."""
    listed = (values,) if isinstance(values, SSAValue) else tuple(values)
    if len(listed) != len(types) and max(op.present, default=-1) < len(listed):
        listed = tuple(listed[k] for k in op.present)
    found = tuple(v for v in listed if v is not None)
    check_results(op, f"the decomposition of '{op.overload}'", found, types)
    return found


def check_results(op: Operation, what: str, values: Sequence[SSAValue], types: Sequence[Attribute]) -> None:
    """Check that what stands for an op's results has their types; IRError says what was given."""
    if len(values) != len(types) or any(v.type != t for v, t in zip(values, types, strict=True)):
        given, wanted = ", ".join(str(v.type) for v in values), ", ".join(map(str, types))
        raise IRError(
            f"{what} gives {given or 'nothing'} where {wanted or 'nothing'} is expected",
            op=op.name,
            location=ir.source_location(op),
        )


def _tag(block: Block, before: Operation | None, tag: Attribute) -> None:
    """Put a recompute tag on the ops made since `before`."""
    op = block.first_op if before is None else before.next_op
    while op is not None:
        op.attributes[RECOMPUTE] = tag
        op = op.next_op


def _has_effects(op: Operation) -> bool:
    """Whether an op stays although nobody uses its results: terminators, and custom operators."""
    return not op.results or (isinstance(op, prim.OpaqueOp) and "::" in cast(str, op.callee.data))
