"""Literals, types and op creation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import new_context
from isthmus.ir import Literal, Operand
from isthmus.sizes import Size

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"])),
    st.builds(Operand, st.integers(0, 99)),
    st.sampled_from([Size.symbol("s0") * 4, Size.symbol("s0") // 2 + 1]),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


def parse(text: str) -> ModuleOp:
    return Parser(new_context(), text).parse_module()


@given(VALUES)
def test_literals_round_trip_through_text(value):
    parsed = Parser(new_context(), ir.literal_text(value))
    assert Literal.of(ir.parse_literal(parsed)) is Literal.of(value)


def test_literals_keep_what_python_calls_equal_apart():
    kinds = [True, 1, 1.0, 1 + 0j, 0.0, -0.0, 0, False, "1", (1,), (1.0,), (True,)]
    assert len({Literal.of(v) for v in kinds}) == len(kinds)
    assert Literal.of(math.nan) is Literal.of(math.nan)


@pytest.mark.parametrize("text", ["[1, ", "<4>", "foo", "-", '<"s0 +">'])
def test_malformed_literals_name_their_place(text: str):
    with pytest.raises(Exception, match=r"1:\d"):
        ir.parse_literal(Parser(new_context(), text))


def test_types_are_interned_and_know_their_shape():
    s = Size.symbol("s0")
    t = ir.tensor((s, 4), "f32")
    assert t is ir.tensor((s, 4), "f32") and ir.shape_of(t) == (s, 4) and ir.dtype_of(t) == "f32"
    assert ir.nbytes(t) == 16 * s
    assert str(t) == 'tensor<?x4xf32, #isthmus.lit<[<"s0">, 4]>>'


def test_parsed_types_have_the_same_facts():
    text = 'func.func private @f(tensor<?x4xf32, #isthmus.lit<[<"s0">, 4]>>, tensor<2xui8>, tensor<complex<f64>>)'
    types = ir.function(parse(text), "f").function_type.inputs.data
    assert [ir.shape_of(t) for t in types] == [(Size.symbol("s0"), 4), (2,), ()]
    assert [ir.dtype_of(t) for t in types] == ["f32", "u8", "c128"]
    assert ir.intern_type(types[0]) is ir.tensor((Size.symbol("s0"), 4), "f32")


def test_a_dimension_without_a_symbol_is_an_error():
    (type_,) = ir.function(parse("func.func private @f(tensor<?xf32>)"), "f").function_type.inputs.data
    with pytest.raises(IRError, match="symbol"):
        ir.shape_of(type_)


def test_use_before_definition_is_found():
    text = """
    func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {
      %a = prim.exp %x : tensor<2xf32>
      %b = prim.neg %a : tensor<2xf32>
      func.return %b : tensor<2xf32>
    }"""
    module = parse(text)
    ir.verify(module)
    block = ir.function(module, "f").body.block
    first = block.first_op
    assert first is not None and first.next_op is not None
    second = first.next_op
    first.detach()
    block.insert_op_after(first, second)
    with pytest.raises(IRError, match="before it is defined"):
        ir.verify(module)


def test_undefined_operands_name_their_place_when_parsed():
    with pytest.raises(Exception, match=r"%z is used before it is defined"):
        parse("func.func @f() { %y = prim.exp %z : tensor<2xf32> }")


def test_copies_say_the_same_and_share_nothing() -> None:
    text = """
        func.func @f(%x: tensor<4xf32> {autodiff.primal}) -> tensor<4xf32> {
          %y = kernel.fused %x {sizes = [4], classes = ["parallel"]} ({
            %v = kernel.load {operand = 0, map = [d0]} : f32
            %e = prim.exp %v : f32
            kernel.store %e {result = 0, map = [d0]}
          }) : tensor<4xf32>
          func.return %y : tensor<4xf32>
        }
    """
    module = Parser(new_context(), text).parse_module()
    copy = ir.copied(module)
    ir.verify(copy)
    assert str(copy) == str(module) == str(module.clone())
    assert not {id(op) for op in copy.walk()} & {id(op) for op in module.walk()}
    (kernel,) = [op for op in copy.walk() if op.name == "kernel.fused"]
    alone = ir.copied(kernel)
    assert ir.operands_of(alone) == ir.operands_of(kernel)
    assert len(list(ir.operands_of(kernel)[0].uses)) == 2
