"""Fast creation of ops, and what one asks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard, TypeVar

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Attribute, Block, Operation, OpResult, Region, SSAValue, SSAValues, Use

from isthmus.ir.locations import UNKNOWN

OpT = TypeVar("OpT", bound=Operation)


def create_op(
    cls: type[OpT],
    operands: Sequence[SSAValue],
    result_types: Sequence[Attribute],
    properties: Mapping[str, Attribute] | None = None,
    *,
    location: LocationAttr = UNKNOWN,
    regions: Sequence[Region] = (),
    attributes: Mapping[str, Attribute] | None = None,
    into: Block | None = None,
) -> OpT:
    """Create an op without IRDL's normalisation of arguments (a third of `Operation.create`'s time).

    It is put at the end of `into`, which none of its regions holds: it is new.
    """
    op = cls.__new__(cls)
    uses: list[Use] = []
    for index, operand in enumerate(operands):
        use = Use(op, index)
        first = operand.first_use
        if first is not None:
            use._next_use = first  # pyright: ignore[reportPrivateUsage]
            first._prev_use = use  # pyright: ignore[reportPrivateUsage]
        operand.first_use = use
        uses.append(use)
    hint = getattr(cls, "HINT", None)
    results: list[OpResult[Attribute]] = []
    for index, type_ in enumerate(result_types):
        result = OpResult(type_, op, index)
        result._name = hint  # pyright: ignore[reportPrivateUsage]
        results.append(result)
    last = None if into is None else into.last_op
    op.__dict__ = {  # pyright: ignore[reportAttributeAccessIssue]
        "_operands": SSAValues(operands),
        "_operand_uses": tuple(uses),
        "results": SSAValues(results),
        "_successors": (),
        "_successor_uses": (),
        "properties": dict(properties) if properties else {},
        "attributes": dict(attributes) if attributes else {},
        "location": location,
        "regions": (),
        "parent": into,
        "_next_op": None,
        "_prev_op": last,
    }
    if into is not None:
        if last is None:
            into._first_op = op  # pyright: ignore[reportPrivateUsage]
        else:
            last._next_op = op  # pyright: ignore[reportPrivateUsage]
        into._last_op = op  # pyright: ignore[reportPrivateUsage]
    for region in regions:
        op.add_region(region)
    return op


def copied(op: OpT, known: dict[SSAValue, SSAValue] | None = None, into: Block | None = None) -> OpT:
    """Give a copy of an op with all its regions; what is defined outside stays, unless `known` has another for it.

    Definitions come before uses, and no op has successors; so it takes two fifths of the time of xDSL's `clone`.
    """
    values: dict[SSAValue, SSAValue] = {} if known is None else known
    regions = [Region([_copied_block(b, values) for b in region.blocks]) for region in op.regions]
    operands = [values.get(v, v) for v in operands_of(op)]
    types = [r.type for r in op.results]
    made = create_op(
        type(op),
        operands,
        types,
        op.properties,
        location=op.location,
        regions=regions,
        attributes=op.attributes,
        into=into,
    )
    for old, new in zip(op.results, made.results, strict=True):
        new._name = old._name  # pyright: ignore[reportPrivateUsage]
        values[old] = new
    return made


def _copied_block(block: Block, values: dict[SSAValue, SSAValue]) -> Block:
    made = Block(arg_types=[a.type for a in block.args])
    for old, new in zip(block.args, made.args, strict=True):
        new._name, new.location = old._name, old.location  # pyright: ignore[reportPrivateUsage]
        values[old] = new
    for op in block.ops:
        copied(op, values, made)
    return made


def one_of(*classes: type[OpT]) -> Callable[[Operation], TypeGuard[OpT]]:
    """Give a test: whether an op is of one of these classes.

    It is `isinstance`, asked once for each class of ops: xDSL's classes are abstract, which makes a no cost ten times a
    yes. For tests that every op of a body has to pass.
    """
    known: dict[type[Operation], bool] = {}

    def test(op: Operation) -> TypeGuard[OpT]:
        cls = type(op)
        found = known.get(cls)
        if found is None:
            found = known[cls] = issubclass(cls, classes)
        return found

    return test


def append_result(op: Operation, type_: Attribute) -> SSAValue:
    """Give an op one more result, after those it has, which stay the same values."""
    result = OpResult(type_, op, len(op.results))
    result._name = getattr(type(op), "HINT", None)  # pyright: ignore[reportPrivateUsage]
    op.results = SSAValues([*op.results, result])
    return result


def replace_terminator(block: Block, terminator: Operation) -> None:
    """Put another op in the place of the block's last one, whose results nobody uses."""
    last = block.last_op
    if last is not None:
        last.detach()
        last.erase()
    block.add_op(terminator)


def operands_of(op: Operation) -> tuple[SSAValue, ...]:
    """Give the operands as a tuple, without making a view."""
    return op._operands  # pyright: ignore[reportPrivateUsage]


def result_of(op: Operation) -> SSAValue:
    """Give the first result."""
    return op.results[0]
