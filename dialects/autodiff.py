"""Differentiation as ops: gradients asked for inside a program, the user's own rules, checkpoint regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Attribute, Block, Dialect, Operation, Region
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from isthmus import ir
from isthmus.ir import Literal, LiteralOp, Operand

RECOMPUTE = "autodiff.recompute"
"""Attribute of ops inside a checkpoint region, one of RECOMPUTE_TAGS: what the partition must or should do."""

RECOMPUTE_TAGS = ("must_save", "must_recompute", "prefer_save", "prefer_recompute")


@irdl_op_definition
class YieldOp(LiteralOp):
    """The end of a region: its results."""

    name = "autodiff.yield"
    operands_ = var_operand_def()
    traits = traits_def(IsTerminator())


@irdl_op_definition
class StopGradientOp(LiteralOp):
    """`%y = autodiff.stop_gradient %x`: y = x, dy/dx = 0."""

    name = "autodiff.stop_gradient"
    x = operand_def()
    result = result_def()

    def verify_(self) -> None:
        _same([self.x.type], [self.result.type], "the result")


@irdl_op_definition
class VjpOp(LiteralOp):
    """`%g.. = autodiff.vjp %outs.., %ins.., %seeds.. {outs = n, ins = m, seeds = [arg2, none], create_graph = true}`.

    The gradients of sum(outs · seeds) by ins; a seed that is none is 1 (outs is then 0-d). The operands are any values
    of the enclosing function: what lies between ins and outs is differentiated. Without `create_graph` the results are
    constants to any outer differentiation. `present` lists the ins that get a result; the others do not reach outs.
    """

    name = "autodiff.vjp"
    operands_ = var_operand_def()
    results_ = var_result_def()
    outs_ = prop_def(Literal, prop_name="outs")
    ins_ = prop_def(Literal, prop_name="ins")
    seeds_ = prop_def(Literal, prop_name="seeds")
    create_graph_ = prop_def(Literal, prop_name="create_graph")
    present_ = prop_def(Literal, prop_name="present")

    @property
    def outs(self) -> Sequence[ir.SSAValue]:
        """What is differentiated."""
        return ir.operands_of(self)[: _number(self, "outs")]

    @property
    def ins(self) -> Sequence[ir.SSAValue]:
        """What it is differentiated by."""
        outs = _number(self, "outs")
        return ir.operands_of(self)[outs : outs + _number(self, "ins")]

    @property
    def seeds(self) -> Sequence[ir.SSAValue | None]:
        """The cotangent of each of outs; None is 1."""
        operands = ir.operands_of(self)
        entries = cast(tuple[Operand | None, ...], ir.literal(self, "seeds"))
        return [None if e is None else operands[e.index] for e in entries]

    @property
    def present(self) -> tuple[int, ...]:
        """Per result the position in ins that it is the gradient of."""
        return cast(tuple[int, ...], ir.literal(self, "present"))

    @property
    def create_graph(self) -> bool:
        """Whether the results can be differentiated again."""
        return ir.literal(self, "create_graph") is True

    def verify_(self) -> None:
        if len(self.seeds) != len(self.outs):
            raise VerifyException("each of outs needs a seed or none")
        for out, seed in zip(self.outs, self.seeds, strict=True):
            if seed is None and ir.numel(out) != 1:
                raise VerifyException(f"a seed can be left out only for one number, not for {out.type}")
            if seed is not None:
                _same([seed.type], [out.type], "a seed")
        if len(self.present) != len(self.results) or any(not 0 <= i < len(self.ins) for i in self.present):
            raise VerifyException(f"present = {list(self.present)} needs a position in ins for each result")
        _same([r.type for r in self.results], [self.ins[i].type for i in self.present], "the gradients")


@irdl_op_definition
class CustomOp(LiteralOp):
    """`%y.. = autodiff.custom %x.. {saved = n, gradients = [0, -1], non_differentiable = []} ({forward}, {backward})`.

    forward takes x.. and yields y.., then `saved` values; backward takes one cotangent per y (zeros where absent), then
    the saved values, and yields gradients. `gradients` has per operand the position of its gradient among what backward
    yields, or -1. Both regions are isolated: they see their arguments and sizes only. `aliases` has per result the
    operand whose storage it shares, or -1; `mutates` the operands that forward writes.
    """

    name = "autodiff.custom"
    operands_ = var_operand_def()
    results_ = var_result_def()
    saved_ = prop_def(Literal, prop_name="saved")
    gradients_ = prop_def(Literal, prop_name="gradients")
    non_differentiable_ = opt_prop_def(Literal, prop_name="non_differentiable")
    mutates_ = opt_prop_def(Literal, prop_name="mutates")
    aliases_ = opt_prop_def(Literal, prop_name="aliases")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    forward = region_def("single_block")
    backward = region_def("single_block")

    @property
    def saved(self) -> int:
        """How many values forward hands to backward."""
        return _number(self, "saved")

    @property
    def gradients(self) -> tuple[int, ...]:
        """Per operand the position of its gradient among what backward yields, or -1."""
        return cast(tuple[int, ...], ir.literal(self, "gradients"))

    @property
    def non_differentiable(self) -> tuple[int, ...]:
        """Results without a derivative by the user's word."""
        return cast(tuple[int, ...], ir.literal(self, "non_differentiable") or ())

    def verify_(self) -> None:
        forward, backward = _yielded(self.forward.block.last_op), _yielded(self.backward.block.last_op)
        if len(forward) != len(self.results) + self.saved:
            raise VerifyException(f"forward yields {len(forward)} values, not {len(self.results)} + {self.saved}")
        _same([a.type for a in self.forward.block.args], [v.type for v in self.operands], "forward's arguments")
        _same(forward[: len(self.results)], [r.type for r in self.results], "what forward yields")
        takes = [a.type for a in self.backward.block.args]
        _same(takes, [*(r.type for r in self.results), *forward[len(self.results) :]], "backward's arguments")
        if len(self.gradients) != len(self.operands) or any(not -1 <= g < len(backward) for g in self.gradients):
            raise VerifyException("each operand needs the position of its gradient, or -1")
        wanted = [(v.type, backward[g]) for v, g in zip(self.operands, self.gradients, strict=True) if g >= 0]
        _same([g for _, g in wanted], [t for t, _ in wanted], "the gradients")


def following(value: ir.SSAValue, sources: Sequence[ir.SSAValue], location: LocationAttr = ir.UNKNOWN) -> CustomOp:
    """Make the op of y = value, dy/dsource = 0: the value as one that autograd sees follow from the sources."""
    backward = Block(arg_types=[value.type])
    backward.add_op(ir.create_op(YieldOp, [backward.args[0]], ()))
    return _with_rule(value, sources, (0, *(-1 for _ in sources)), backward, location)


def with_derivative(
    value: ir.SSAValue, sources: Sequence[ir.SSAValue], backward: Block, location: LocationAttr = ir.UNKNOWN
) -> CustomOp:
    """Make the op of y = value whose backward takes y's cotangent and yields one gradient per source."""
    return _with_rule(value, sources, (-1, *range(len(sources))), backward, location)


def _with_rule(
    value: ir.SSAValue,
    sources: Sequence[ir.SSAValue],
    gradients: tuple[int, ...],
    backward: Block,
    location: LocationAttr,
) -> CustomOp:
    types: list[Attribute] = [v.type for v in (value, *sources)]
    forward = Block(arg_types=types)
    forward.add_op(ir.create_op(YieldOp, [forward.args[0]], ()))
    return ir.create_op(
        CustomOp,
        [value, *sources],
        types[:1],
        {"saved": Literal.of(0), "gradients": Literal.of(gradients)},
        location=location,
        regions=[Region(forward), Region(backward)],
    )


@irdl_op_definition
class CheckpointOp(LiteralOp):
    """`%y.. = autodiff.checkpoint %x.. ({body})`: y.. = body(x..); values inside are recomputed for backward.

    Ops of the body may carry `autodiff.recompute` (one of RECOMPUTE_TAGS) from a selective policy; without it
    the tag is must_recompute. `aliases` and `mutates` speak of the operands as on a call.
    """

    name = "autodiff.checkpoint"
    operands_ = var_operand_def()
    results_ = var_result_def()
    mutates_ = opt_prop_def(Literal, prop_name="mutates")
    aliases_ = opt_prop_def(Literal, prop_name="aliases")
    body = region_def("single_block")

    def verify_(self) -> None:
        _same([a.type for a in self.body.block.args], [v.type for v in self.operands], "the body's arguments")
        _same(_yielded(self.body.block.last_op), [r.type for r in self.results], "what the body yields")


@irdl_op_definition
class BatchOp(LiteralOp):
    """`%y.. = autodiff.batch %x.. {mapped = [0, none], size = n, randomness = "error"} ({body})`: the body per example.

    `mapped` has per operand the dimension that counts the examples, or none where all see the whole. The body takes one
    example and yields results for it; in y.. dimension 0 counts the examples. It sees its arguments only. `randomness`
    says what draws in the body give: "error" (refused), "same" for all examples, or "different" ones. With `chunk` so
    many examples are computed at a time.
    """

    name = "autodiff.batch"
    operands_ = var_operand_def()
    results_ = var_result_def()
    mapped_ = prop_def(Literal, prop_name="mapped")
    size_ = prop_def(Literal, prop_name="size")
    randomness_ = prop_def(Literal, prop_name="randomness")
    chunk_ = opt_prop_def(Literal, prop_name="chunk")
    body = region_def("single_block")

    @property
    def mapped(self) -> tuple[int | None, ...]:
        """Per operand the dimension that counts the examples, or None."""
        return cast("tuple[int | None, ...]", ir.literal(self, "mapped"))

    @property
    def size(self) -> ir.Dim:
        """The number of examples."""
        return cast(ir.Dim, ir.literal(self, "size"))

    @property
    def chunk(self) -> int | None:
        """How many examples are computed at a time; None is all of them."""
        return cast("int | None", ir.literal(self, "chunk"))

    def verify_(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise VerifyException(f"chunk = {self.chunk} must be positive")
        if len(self.mapped) != len(self.operands):
            raise VerifyException("each operand needs its mapped dimension, or none")
        for operand, at, argument in zip(ir.operands_of(self), self.mapped, self.body.block.args, strict=True):
            shape = ir.shape_of(operand)
            if at is not None and (not 0 <= at < len(shape) or shape[at] != self.size):
                raise VerifyException(f"dimension {at} of {operand.type} does not count {self.size} examples")
            example = shape if at is None else (*shape[:at], *shape[at + 1 :])
            if ir.shape_of(argument) != example or ir.dtype_of(argument) != ir.dtype_of(operand):
                raise VerifyException(f"the body takes {argument.type} for one example of {operand.type}")
        shapes = [(ir.shape_of(t), ir.dtype_of(t)) for t in _yielded(self.body.block.last_op)]
        if [(ir.shape_of(r), ir.dtype_of(r)) for r in self.results] != [((self.size, *s), d) for s, d in shapes]:
            raise VerifyException("results must be what the body yields, with the examples in front")


def _yielded(op: Operation | None) -> list[Attribute]:
    if not isinstance(op, YieldOp):
        raise VerifyException("a region must end with autodiff.yield")
    return [v.type for v in op.operands]


def _number(op: Operation, key: str) -> int:
    number = ir.literal(op, key)
    if not isinstance(number, int):
        raise VerifyException(f"{key} must be a number")
    return number


def _same(types: Sequence[Attribute], expected: Sequence[Attribute], what: str) -> None:
    """Compare shapes and dtypes; strides may differ."""
    found, wanted = ([(ir.shape_of(t), ir.dtype_of(t)) for t in ts] for ts in (types, expected))
    if found != wanted:
        raise VerifyException(f"{what}: {', '.join(map(str, types))} where {', '.join(map(str, expected))} is expected")


AUTODIFF = Dialect("autodiff", [YieldOp, StopGradientOp, VjpOp, CustomOp, CheckpointOp, BatchOp], [])
