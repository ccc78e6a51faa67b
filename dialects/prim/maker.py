"""Making ops of a block: equal ones shared when they are made, folding at birth, constants."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar, cast

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.prim import shape, structured
from isthmus.dialects.prim.base import Literals, PrimOp, literals_of
from isthmus.ir import Literal, LiteralValue
from isthmus.sizes import Dim

OpT = TypeVar("OpT", bound=PrimOp)


class Maker:
    """Appends primitives to a block; an op equal to one already made gives that one's results.

    `location` is put on every op that is made. Folding and sharing keep every bit of a result. `outer` makes a block
    that sees another one's values.
    """

    def __init__(self, block: Block, outer: Self | None = None) -> None:
        self.block = block
        self.location: LocationAttr = ir.UNKNOWN
        self.outer = outer
        self._made: dict[object, PrimOp] = {}

    # ---- making ops

    def op(
        self,
        cls: type[OpT],
        operands: Sequence[SSAValue],
        literals: Literals | None = None,
        results: Sequence[Attribute] | None = None,
    ) -> OpT:
        """Give an op of the class with these operands and literals; result types inferred unless given."""
        operands = tuple(operands)
        properties = {k: Literal.of(v) for k, v in literals.items()} if literals else {}
        key = _key(cls, operands, properties, results)
        found = self._shared(key)
        if found is not None:
            return cast(OpT, found)
        types = tuple(v.type for v in operands)
        try:
            if results is None:
                made_types = cls.infer(types, literals or {})
            else:
                made_types = tuple(results)
                cls.check(types, literals or {}, made_types)
        except IRError as error:
            where = ir.source_location_of(self.location)
            raise IRError(error.what, op=cls.name, location=where, cure=error.cure) from error
        op = ir.create_op(cls, operands, made_types, properties, location=self.location, into=self.block)
        self._made[key] = op
        return op

    def _shared(self, key: object) -> PrimOp | None:
        """Give the equal op that was already made here or around, or None."""
        scope: Maker | None = self
        while scope is not None:
            found = scope._made.get(key)
            if found is not None:
                return found
            scope = scope.outer
        return None

    def copy(self, op: PrimOp, operands: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        """Make an op like `op` on other operands, folded and shared like any other; regions are moved as they are."""
        self.location = op.location
        if op.regions or isinstance(op, structured.OpaqueOp):  # a library call may not be pure
            made = ir.create_op(
                type(op),
                operands,
                [r.type for r in op.results],
                op.properties,
                location=op.location,
                regions=[r.clone() for r in op.regions],
                attributes=op.attributes,
            )
            self.block.add_op(made)
            return tuple(made.results)
        cls, operands = type(op), tuple(operands)
        results = [r.type for r in op.results] if op.EXPLICIT else None
        if self._may_fold(cls):
            literals = {k: cast(Literal, a).data for k, a in op.properties.items()}
            if results:
                literals["result"] = ir.shape_of(results[0])
            folded = self._fold(cls, operands, literals)
            if folded is not None:
                return (folded,)
        key = _key(cls, operands, op.properties, results)
        made = self._shared(key) or self._like(op, operands, results, key)
        if op.attributes:
            made.attributes.update(op.attributes)
        return tuple(made.results)

    def _like(
        self, op: PrimOp, operands: tuple[SSAValue, ...], results: Sequence[Attribute] | None, key: object
    ) -> PrimOp:
        """Make an op like `op`; of operands of the same types, the result types are the same."""
        if all([new.type is old.type for new, old in zip(operands, ir.operands_of(op), strict=True)]):
            types = [r.type for r in op.results]
            made = ir.create_op(type(op), operands, types, op.properties, location=self.location, into=self.block)
            self._made[key] = made
            return made
        return self.op(type(op), operands, literals_of(op), results)

    @contextmanager
    def at(self, location: LocationAttr) -> Generator[None]:
        """Give the ops made meanwhile this location."""
        before, self.location = self.location, location
        try:
            yield
        finally:
            self.location = before

    def put_before(self, op: Operation) -> list[Operation]:
        """Move all that was made to another block, in front of an op; gives what was moved."""
        block, moved = op.parent, list(self.block.ops)
        assert block is not None
        for made in moved:
            made.detach()
        block.insert_ops_before(moved, op)
        self._made.clear()
        return moved

    def region(self, types: Sequence[Attribute]) -> tuple[Region, Self, tuple[SSAValue, ...]]:
        """Give a new one-block region with arguments of these types and an emitter for its body.

        Regions see only their own arguments, so nothing is shared with the surrounding block.
        """
        block = Block(arg_types=types)
        return Region(block), type(self)(block), tuple(block.args)

    def _may_fold(self, cls: type[PrimOp]) -> bool:
        """Whether ops of the class are worth asking for folds."""
        return cls.fold.__func__ is not PrimOp.fold.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def _fold(self, cls: type[PrimOp], operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        return cls.fold(self, operands, literals)  # pyright: ignore[reportArgumentType] (one file under two names)

    def one(self, cls: type[PrimOp], *operands: SSAValue, **literals: LiteralValue) -> SSAValue:
        """Give the one result of an op, or what it folds to."""
        folded = self._fold(cls, operands, literals)
        return folded if folded is not None else self.op(cls, operands, literals).results[0]

    def shaped(self, cls: type[PrimOp], type_: Attribute, *operands: SSAValue, **literals: LiteralValue) -> SSAValue:
        """Give the one result, of a type that cannot be inferred, or what the op folds to."""
        folded = self._fold(cls, operands, {**literals, "result": ir.shape_of(type_)})
        return folded if folded is not None else self.op(cls, operands, literals, (type_,)).results[0]

    # ---- constants

    def const(self, value: LiteralValue, shape_: Sequence[Dim] = (), dtype: str = "f32") -> SSAValue:
        """y[i] = value, brought to the dtype's Python type."""
        return self.op(shape.ConstOp, (), {"value": python_number(value, dtype)}, (ir.tensor(shape_, dtype),)).y

    def const_like(self, value: LiteralValue, x: SSAValue) -> SSAValue:
        """A constant of the shape and dtype of x (a scalar inside kernel bodies)."""
        dtype = ir.dtype_of(x)
        return self.op(shape.ConstOp, (), {"value": python_number(value, dtype)}, (x.type,)).y

    def constant_of(self, x: SSAValue) -> LiteralValue:
        """Give the value that every element of x has, or None when it is not known."""
        owner = x.owner
        return owner.value.data if type(owner) is shape.ConstOp else None

    def size(self, expr: Dim) -> SSAValue:
        """The value of a size, 0-d i64."""
        if isinstance(expr, int):
            return self.const(expr, (), "i64")
        return self.op(shape.SizeOp, (), {"expr": expr}, (ir.tensor((), "i64"),)).y

    def iota(self, shape_: Sequence[Dim], dim: int, dtype: str = "i64") -> SSAValue:
        """y[i] = i[dim]"""
        return self.op(shape.IotaOp, (), {"dim": dim}, (ir.tensor(shape_, dtype),)).y

    def zeros_like(self, x: SSAValue) -> SSAValue:
        """Zeros of the shape and dtype of x."""
        return self.const_like(0, x)


def _key(
    cls: type[PrimOp],
    operands: tuple[SSAValue, ...],
    properties: Mapping[str, Attribute],
    results: Sequence[Attribute] | None,
) -> object:
    """What equal ops have in common; literals and types are interned, so identity is equality."""
    return (
        cls,
        tuple(map(id, operands)),
        tuple(properties),  # names too: they come in any order
        tuple(map(id, properties.values())),
        tuple(map(id, results)) if results else None,
    )


def python_number(value: LiteralValue, dtype: str) -> LiteralValue:
    """Bring a number to the Python type of the dtype: bool, int, float or complex."""
    if dtype == "i1":
        return bool(value)
    if ir.is_integer(dtype):
        return int(value)  # pyright: ignore[reportArgumentType]
    if ir.is_complex(dtype):
        return complex(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return float(value)  # pyright: ignore[reportArgumentType]
