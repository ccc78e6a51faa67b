"""Where the results of a native call lie: in arguments, in each other, in the arena."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch
from native_programs import FACTS, Native
from torch import Tensor

from isthmus.diagnostics import IRError
from isthmus.dialects.native_facts import NativeFacts
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.boundary import CompiledFunction
from isthmus.runtime.convention import Convention, Mutation, Source, UserOutput, Value


def test_results_that_are_arguments_or_equal_are_copied(native: Native) -> None:
    program = native("""
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32> {isthmus.strides = #isthmus.lit<[2]>})
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %z = kernel.fused %x {sizes = [4], classes = ["parallel"], places = [["output", 1]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = prim.neg %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %x, %z, %z, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
""")
    x, wide = torch.randn(4), torch.randn(8)
    results = program([x, wide[::2]])
    for got, want in zip(results, (x, -x, -x, wide[::2]), strict=True):
        assert torch.equal(got, want)
    assert len({t.data_ptr() for t in [x, wide, *results]}) == 6


@FACTS
def test_result_written_in_place(facts: NativeFacts, native: Native) -> None:
    program = native(
        """
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32> {isthmus.mutated = 0}) {
  %z = kernel.fused %x {sizes = [4], classes = ["parallel"], places = [["argument", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = prim.neg %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<4xf32>
  func.return %z : tensor<4xf32>
}
""",
        facts=facts,
    )
    x = torch.arange(4.0)
    (result,) = program([x])
    assert result is x and x.tolist() == [0, -1, -2, -3]
    with pytest.raises(IRError, match="written in place"):
        program([torch.arange(8.0)[::2]])


@FACTS
def test_scatter_starts_with_a_copy(facts: NativeFacts, native: Native) -> None:
    program = native(
        """
func.func @main(%x: tensor<5xf32>, %i: tensor<7xi64>, %u: tensor<7xf32>) -> tensor<5xf32> {
  %y = kernel.fused %x, %u, %i {sizes = [7], classes = ["row"], initial = [0], places = [["output", 0]]} ({
    %v = kernel.load {operand = 1, map = [d0]} : f32
    %n = kernel.load {operand = 2, map = [d0]} : i64
    %c = kernel.check %n {bound = 5, dim = 0} : i64
    kernel.store %v, %c {result = 0, map = [v0], kind = "add"}
  }) : tensor<5xf32>
  func.return %y : tensor<5xf32>
}
""",
        facts=facts,
    )
    x, u, i = torch.randn(5), torch.randn(7), torch.tensor([0, 1, 1, 4, 4, 4, 0])
    torch.testing.assert_close(program([x, i, u])[0], x.index_add(0, i, u))


def test_reshape_shares_memory(native: Native) -> None:
    program = native("""
func.func @main(%x: tensor<2x3xf32>) -> (tensor<6xf32>, tensor<3x2xf32>, tensor<2x3xf32>) {
  %a = kernel.extern %x {symbol = "aten.exp.default", args = [arg0], places = [["handle", 0]]} : tensor<2x3xf32>
  %b = kernel.reshape %a {places = [["handle", 0]]} : tensor<6xf32>
  %c = kernel.reshape %x {places = [["output", 1]]} : tensor<3x2xf32>
  func.return %b, %c, %a : tensor<6xf32>, tensor<3x2xf32>, tensor<2x3xf32>
}
""")
    x = torch.randn(2, 3)
    torch.testing.assert_close(program([x]), [x.exp().view(6), x.view(3, 2), x.exp()])


def test_result_written_in_place_on_the_tape(native: Native) -> None:
    """Running statistics, and an argument that gets a history."""
    text = """
func.func @main(%x: tensor<4xf32>, %m: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32> {isthmus.mutated = 1}) {
  %y, %z = kernel.fused %x, %m {sizes = [4], classes = ["parallel"], places = [["output", 0], ["argument", 1]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = kernel.load {operand = 1, map = [d0]} : f32
    %c = prim.add %a, %b : f32
    %d = prim.add %a, %a : f32
    kernel.store %d {result = 0, map = [d0]}
    kernel.store %c {result = 1, map = [d0]}
  }) : tensor<4xf32>, tensor<4xf32>
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}
"""
    forward = native(text)
    hidden = Convention(
        2,
        2,
        (UserOutput("value", 0),),
        mutations=(Mutation(1, 1, hidden=True),),
        differentiable=(0,),
        backward=(Source("tangent", 0),),
        gradients=(0,),
    )
    x, m = torch.randn(4, requires_grad=True), torch.zeros(4)
    version = m._version
    node = TapeNode(hidden, forward, lambda: lambda a: [2 * cast(Tensor, a[0])])
    (y,) = CompiledFunction(hidden, node)([x, m])
    assert torch.equal(m, x.detach()) and m._version > version and not m.requires_grad
    assert isinstance(y, Tensor)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full((4,), 2.0))
    visible = replace(
        hidden,
        mutations=(Mutation(1, 1),),
        differentiable=(0, 1),
        backward=(Source("tangent", 0), Source("tangent", 1)),
        gradients=(0, 1),
    )

    def backward(arguments: list[Value]) -> list[Tensor]:
        t, u = (cast(Tensor, a) for a in arguments)
        return [2 * t + u, u]

    leaf = torch.zeros(4, requires_grad=True)
    m = leaf * 1
    (y,) = CompiledFunction(visible, TapeNode(visible, forward, lambda: backward))([x, m])
    assert torch.equal(m.detach(), x.detach()) and isinstance(y, Tensor)
    gx, gl = torch.autograd.grad((y + 3 * m).sum(), [x, leaf])
    assert torch.equal(gx, torch.full((4,), 5.0)) and torch.equal(gl, torch.full((4,), 3.0))


# ---- Saved values

PAIR = """
func.func @forward(%x: tensor<?xf32, #isthmus.lit<[<"s0">]>>)
    -> (tensor<?xf32, #isthmus.lit<[<"s0">]>>,
        tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.saved = 0},
        tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.saved = 1})
    attributes {isthmus.saved_bytes = #isthmus.lit<<"4*s0 + 64">>} {
  %y, %c = kernel.fused %x {sizes = [<"s0">], classes = ["parallel"], symbols = ["s0"],
                            places = [["output", 0], ["saved", 64]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %s = prim.sin %a : f32
    %c = prim.cos %a : f32
    kernel.store %s {result = 0, map = [d0]}
    kernel.store %c {result = 1, map = [d0]}
  }) : tensor<?xf32, #isthmus.lit<[<"s0">]>>, tensor<?xf32, #isthmus.lit<[<"s0">]>>
  func.return %y, %x, %c : tensor<?xf32, #isthmus.lit<[<"s0">]>>, tensor<?xf32, #isthmus.lit<[<"s0">]>>,
                           tensor<?xf32, #isthmus.lit<[<"s0">]>>
}
func.func @backward(%c: tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.saved = 1})
    -> (tensor<?xf32, #isthmus.lit<[<"s0">]>> {autodiff.gradient = 0}) {
  %g = kernel.fused %c {sizes = [<"s0">], classes = ["parallel"], symbols = ["s0"], places = [["output", 0]]} ({
    %a = kernel.load {operand = 0, map = [d0]} : f32
    %b = prim.neg %a : f32
    kernel.store %b {result = 0, map = [d0]}
  }) : tensor<?xf32, #isthmus.lit<[<"s0">]>>
  func.return %g : tensor<?xf32, #isthmus.lit<[<"s0">]>>
}
"""


@FACTS
def test_saved_values_cross_in_the_arena_or_as_tensors(facts: NativeFacts, native: Native) -> None:
    """The backward's size is told by nothing but a saved value."""
    forward = native(PAIR, "forward", facts=facts)
    backward = native(PAIR, "backward", saved_at=dict(forward.program.saved_at), facts=facts)
    assert forward.saves_in_arena and backward.sizes_wanted == ("s0",)
    for n in (3, 50, 4):
        x = torch.randn(n)
        (y,), lease = forward.save_in_arena([x])
        assert lease is not None and lease.tensor is not None
        torch.testing.assert_close(y, x.sin())
        torch.testing.assert_close(backward.run_from_arena([n], lease.tensor)[0], -x.cos())
        lease.release()
        y, kept, cosine = forward([x])
        assert kept is x
        torch.testing.assert_close(cosine, x.cos())
        torch.testing.assert_close(backward([cosine])[0], -x.cos())
