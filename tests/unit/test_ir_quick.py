"""What is asked of xDSL's objects on short ways has xDSL's own answers."""

from __future__ import annotations

from typing import ClassVar, Protocol

import pytest
from xdsl.dialects.builtin import i32
from xdsl.dialects.func import FuncOp
from xdsl.dialects.test import TestOp as AnyOp
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.irdl import IRDLOperation

from isthmus import ir
from isthmus.dialects import prim
from isthmus.ir.ops import create_op


def three() -> tuple[Block, list[AnyOp]]:
    ops = [AnyOp(result_types=[i32, i32]) for _ in range(3)]
    return Block(ops), ops


def test_values_and_ops_are_who_they_are_and_hash_without_python():
    block, (first, second, _) = three()
    assert first != second and first == first and first in {first} and second not in {first}
    assert first.results[0] != first.results[1] and len({*first.results, *first.results}) == 2
    for cls in (OpResult, AnyOp, FuncOp, prim.MulOp):
        assert cls.__hash__ is object.__hash__
    block.erase()


def test_a_walk_may_take_out_the_op_at_hand_and_begins_again_each_time():
    block, ops = three()
    walk = block.ops
    assert list(walk) == ops == list(walk) and len(walk) == 3
    for op in walk:
        op.detach()
        op.erase()
    assert list(block.ops) == [] and not block.ops


def test_a_walk_passes_over_what_is_put_behind_the_op_at_hand_and_meets_what_comes_later():
    block, ops = three()
    met, late = list[Operation](), AnyOp()
    for op in block.ops:
        met.append(op)
        if op is ops[0]:
            block.insert_op_after(AnyOp(), ops[0])
            block.insert_op_after(late, ops[2])
    assert met == [*ops, late]


def test_fields_are_operands_and_results_at_their_places():
    x = ir.tensor((4,), "f32")
    block = Block(arg_types=[x, x])
    op = create_op(prim.MulOp, block.args, [x])
    assert (op.a, op.b) == tuple(block.args) and op.operands[1] is op.b
    assert op.y is op.results[0]
    with pytest.raises(NotImplementedError):
        op.a = block.args[1]
    op.operands[0] = block.args[1]
    assert op.a is block.args[1]


def test_an_object_is_of_the_classes_that_its_class_names_as_bases() -> None:
    op = ir.create_op(prim.ConstOp, [], [ir.tensor((), "f32")], {"value": ir.Literal.of(1.0)})
    assert isinstance(op, prim.PrimOp) and isinstance(op, (prim.AddOp, prim.SourceOp))
    assert not isinstance(op, prim.AddOp) and not isinstance(op.y.type, prim.PrimOp)
    assert issubclass(prim.AddOp, Operation) and not issubclass(prim.AddOp, prim.ConstOp)
    assert type(prim.AddOp).__instancecheck__ is type.__instancecheck__
    with pytest.raises(TypeError, match="abstract"):
        SSAValue(ir.tensor((), "f32"))  # pyright: ignore[reportAbstractUsage]


def test_an_op_may_have_a_protocol_as_a_base() -> None:
    class Named(Protocol):
        name: ClassVar[str]

    class Own(IRDLOperation, Named):
        name = "test.own"

    assert issubclass(Own, Operation) and not isinstance(AnyOp(), Own)
