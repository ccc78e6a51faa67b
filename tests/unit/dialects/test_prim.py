"""Every primitive: documented, sampled, round-trips; the emitter shares and folds without changing bits."""

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.parser import Parser

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import new_context, prim
from isthmus.dialects.prim import Emitter


def emitter(*types):
    func = FuncOp("f", (types, ()))
    return Emitter(func.body.block), func.body.block.args, func


def finish(func: FuncOp) -> ModuleOp:
    func.body.block.add_op(ReturnOp())
    return ModuleOp([func])


F = ir.tensor((4, 6), "f32")


@pytest.mark.parametrize("op", prim.PRIM_OPS, ids=lambda op: op.name)
def test_every_op_is_documented_by_its_formula(op):
    assert op.__doc__ and len(op.__doc__.split("\n")[0]) > 5
    assert op.COST >= 0


def test_equal_ops_are_made_once():
    e, (a, b), func = emitter(F, F)
    assert e.add(a, b) is e.add(a, b)
    assert e.add(a, b) is not e.add(b, a)
    assert e.const(1, (2,), "f32") is e.const(1.0, (2,), "f32")
    assert e.const(0.0, (2,), "f32") is not e.const(-0.0, (2,), "f32")
    ir.verify(finish(func))


def test_ops_whose_literals_come_in_another_order_are_told_apart_by_their_names() -> None:
    e, (a, _), _ = emitter(F, F)
    rest = {"interior": 0, "value": 0.0}
    first = e.op(prim.PadOp, (a,), {"dim": 0, "low": 1, "high": 2, **rest})
    second = e.op(prim.PadOp, (a,), {"dim": 0, "high": 1, "low": 2, **rest})
    assert first is not second


def test_folds_keep_signed_zeros():
    e, (a, _), _ = emitter(F, F)
    zero, minus_zero = e.const_like(0.0, a), e.const_like(-0.0, a)
    assert e.add(a, zero) is not a, "-0.0 + 0.0 is 0.0"
    assert e.mul(a, zero) is not zero, "NaN · 0 is NaN"
    assert e.mul(a, e.const_like(1, a)) is a
    assert e.neg(e.neg(a)) is a
    assert minus_zero is not zero


def test_views_fold():
    e, (a, _), _ = emitter(F, F)
    assert e.reshape(e.reshape(a, (24,)), (4, 6)) is a
    assert e.transpose(e.transpose(a, (1, 0)), (1, 0)) is a
    assert e.slice(a, 0, 0, 4) is a
    assert e.pad(a, 0, 0, 0) is a
    row = e.broadcast(e.const(2.0), (4, 6), ())
    assert isinstance(row.owner, prim.ConstOp)


def test_broadcasting_and_its_transpose_give_the_shapes():
    e, (a,), _ = emitter(ir.tensor((4, 1, 6), "f32"))
    wide = e.broadcast_to(a, (2, 4, 5, 6))
    assert ir.shape_of(wide) == (2, 4, 5, 6)
    assert ir.shape_of(e.sum_to(wide, (4, 1, 6))) == (4, 1, 6)
    with pytest.raises(IRError, match="cannot broadcast"):
        e.broadcast_to(a, (4, 2, 5))


REFUSED = {
    "shapes differ": lambda e, a, b: e.add(a, e.slice(b, 0, 0, 2)),
    "dtypes differ": lambda e, a, b: e.add(a, e.convert(b, "f64")),
    "not for booleans": lambda e, a, b: e.add(e.cmp("lt", a, b), e.cmp("lt", a, b)),
    "unknown predicate": lambda e, a, b: e.cmp("less", a, b),
    "reshape changes the count": lambda e, a, b: e.reshape(a, (5, 5)),
    "slice out of range": lambda e, a, b: e.slice(a, 1, 2, 9),
    "no permutation": lambda e, a, b: e.transpose(a, (0, 0)),
    "reduced dim out of range": lambda e, a, b: e.sum(a, (2,)),
    "contracted sizes differ": lambda e, a, b: e.dot(a, b, ((1,), (0,))),
    "channels differ": lambda e, a, b: e.conv(e.reshape(a, (1, 4, 6)), e.reshape(b, (4, 3, 2)), (1,), (0,), (1,)),
    "index dtype": lambda e, a, b: e.gather(a, (b,), (0,)),
    "negative padding": lambda e, a, b: e.pad(a, 0, -1, 0),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused_with_the_op(make):
    e, (a, b), _ = emitter(F, F)
    with pytest.raises(IRError) as info:
        make(e, a, b)
    assert "broadcast" in str(info.value) or info.value.op is not None


def test_conversions_fold_only_when_exact():
    e, (), _ = emitter()
    assert isinstance(e.convert(e.const(3, (), "i64"), "f32").owner, prim.ConstOp)
    assert isinstance(e.convert(e.const(0.1, (), "f64"), "f32").owner, prim.ConvertOp)
    assert isinstance(e.convert(e.const(2**30 + 1, (), "i64"), "f32").owner, prim.ConvertOp)
    assert isinstance(e.convert(e.const(-1, (), "i64"), "u8").owner, prim.ConvertOp)


def test_symbolic_shapes_round_trip():
    s = ir.Size.symbol("s0")
    e, (a,), func = emitter(ir.tensor((s, 4), "f32"))
    y = e.reshape(e.broadcast_to(e.sum(a, (0,)), (s, 4)), (s * 4,))
    e.mul(y, e.full(s * 4, (s * 4,), "f32"))
    module = finish(func)
    ir.verify(module)
    again = Parser(new_context(), str(module)).parse_module()
    ir.verify(again)
    assert str(again) == str(module)
