"""Structured calls: branches and loops with regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from isthmus import ir
from isthmus.dialects.aten.calls import CallLike
from isthmus.ir import Literal, LiteralOp


@irdl_op_definition
class YieldOp(LiteralOp):
    """The end of a region: its results."""

    name = "aten.yield"
    operands_ = var_operand_def()
    traits = traits_def(IsTerminator())


class _RegionOp(CallLike):
    """Regions are isolated: they see their own arguments and sizes, nothing else. Operands are read, never written."""

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        """Give each region's name, the region, and the types its arguments must have (shape and dtype)."""
        raise NotImplementedError

    def verify_(self) -> None:
        for name, region, expected in self.regions_with_arguments():
            _verify_signature(f"region {name}", [a.type for a in region.block.args], expected)
            last = region.block.last_op
            if not isinstance(last, YieldOp):
                raise VerifyException(f"region {name} does not end with aten.yield")
            self.verify_yield(name, [v.type for v in last.operands])

    def verify_yield(self, name: str, types: Sequence[Attribute]) -> None:
        """Check what a region gives; by default one value per result."""
        _verify_signature(f"what region {name} yields", types, [r.type for r in self.results])


@irdl_op_definition
class CondOp(_RegionOp):
    """`%r.. = aten.cond %predicate, %x.. ({then}, {else})`: both regions take x.., the predicate is a 0-d i1."""

    name = "aten.cond"
    operands_ = var_operand_def()
    results_ = var_result_def()
    grad_ = opt_prop_def(Literal, prop_name="grad")
    then_region = region_def("single_block")
    else_region = region_def("single_block")

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        types = [v.type for v in self.operands[1:]]
        yield "then", self.then_region, types
        yield "else", self.else_region, types

    def verify_(self) -> None:
        if not self.operands or ir.shape_of(self.operands[0]) != () or ir.dtype_of(self.operands[0]) != "i1":
            raise VerifyException("the predicate must be a 0-d i1 tensor")
        super().verify_()


@irdl_op_definition
class WhileLoopOp(_RegionOp):
    """`%r.. = aten.while_loop %carried.., %x.. {carried = n} ({condition}, {body})`.

    Both regions take carried.. and x..; condition yields a 0-d i1, body the next carried... Results: the last ones.
    """

    name = "aten.while_loop"
    operands_ = var_operand_def()
    results_ = var_result_def()
    carried_ = prop_def(Literal, prop_name="carried")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    condition = region_def("single_block")
    body = region_def("single_block")

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        types = [v.type for v in self.operands]
        yield "condition", self.condition, types
        yield "body", self.body, types

    def verify_yield(self, name: str, types: Sequence[Attribute]) -> None:
        if name == "condition":
            _verify_signature("what region condition yields", types, [ir.tensor((), "i1")])
        else:
            super().verify_yield(name, types)


@irdl_op_definition
class ScanOp(_RegionOp):
    """`%r.. = aten.scan %inits.., %xs.., %x.. {inits = n, xs = m} ({combine})`: along dimension 0 of xs, forwards.

    combine takes inits.., one slice of each of xs.., x..; yields the next inits.. and one slice of each stacked result.
    Results: the last inits.., then the stacked slices.
    """

    name = "aten.scan"
    operands_ = var_operand_def()
    results_ = var_result_def()
    inits_ = prop_def(Literal, prop_name="inits")
    xs_ = prop_def(Literal, prop_name="xs")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    combine = region_def("single_block")

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        inits, xs = count(self, "inits"), count(self, "xs")
        types = [v.type for v in self.operands]
        yield "combine", self.combine, [*types[:inits], *map(_slice, types[inits : inits + xs]), *types[inits + xs :]]

    def verify_yield(self, name: str, types: Sequence[Attribute]) -> None:
        inits = count(self, "inits")
        results = [r.type for r in self.results]
        _verify_signature("what region combine yields", types, [*results[:inits], *map(_slice, results[inits:])])


@irdl_op_definition
class MapOp(_RegionOp):
    """`%r.. = aten.map %xs.., %x.. {xs = m} ({body})`: body on slices of xs.. along dimension 0, results stacked."""

    name = "aten.map"
    operands_ = var_operand_def()
    results_ = var_result_def()
    xs_ = prop_def(Literal, prop_name="xs")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    body = region_def("single_block")

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        xs = count(self, "xs")
        types = [v.type for v in self.operands]
        yield "body", self.body, [*map(_slice, types[:xs]), *types[xs:]]

    def verify_yield(self, name: str, types: Sequence[Attribute]) -> None:
        _verify_signature("what region body yields", types, [_slice(r.type) for r in self.results])


def count(op: Operation, key: str) -> int:
    """Give a count property of a region op."""
    number = ir.literal(op, key)
    if not isinstance(number, int):
        raise VerifyException(f"{key} must be a number")
    return number


def written_arguments(block: Block) -> list[int]:
    """Give the arguments of a block that its ops write, directly or through a view, in order."""
    root: dict[SSAValue, int] = {a: i for i, a in enumerate(block.args)}
    written: set[int] = set()
    for op in block.ops:
        operands = ir.operands_of(op)
        mutates = cast(tuple[int, ...], ir.literal(op, "mutates") or ())
        aliases = cast(tuple[int, ...], ir.literal(op, "aliases") or ())
        written |= {root[operands[i]] for i in mutates if operands[i] in root}
        for result, index in zip(op.results, aliases, strict=False):
            if index >= 0 and operands[index] in root:
                root[result] = root[operands[index]]
    return sorted(written)


def _slice(type_: Attribute) -> Attribute:
    shape = ir.shape_of(type_)
    if not shape:
        raise VerifyException("what is taken in slices needs a dimension")
    return ir.tensor(shape[1:], ir.dtype_of(type_))


def _verify_signature(what: str, types: Sequence[Attribute], expected: Sequence[Attribute]) -> None:
    """Compare shapes and dtypes; strides may differ."""
    if [_kind(t) for t in types] != [_kind(t) for t in expected]:
        raise VerifyException(f"{what}: {', '.join(map(str, types))} where {', '.join(map(str, expected))} is expected")


def _kind(type_: Attribute) -> object:
    return type_ if isinstance(type_, IndexType) else (ir.shape_of(type_), ir.dtype_of(type_))
