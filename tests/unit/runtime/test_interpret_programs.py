"""Whole programs in the interpreter: branches and loops, library calls, sizes, how long values live."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.prim import Emitter
from isthmus.runtime.interpret import interpreted, run
from isthmus.sizes import Size
from tests.unit.runtime.interpreted import build, compute, parse, same

CONTROL = """
builtin.module {
  func.func @main(%p: tensor<i1>, %x: tensor<4x2xf32>, %y: tensor<2xf32>)
      -> (tensor<2xf32>, tensor<f32>, tensor<2xf32>, tensor<4x2xf32>) {
    %c = prim.cond %p, %y {} ({
    ^bb0(%a: tensor<2xf32>):
      %s = prim.sin %a : tensor<2xf32>
      prim.yield %s
    }, {
    ^bb0(%a: tensor<2xf32>):
      %s = prim.cos %a : tensor<2xf32>
      prim.yield %s
    }) : tensor<2xf32>
    %one = prim.const {value = 1.0} : tensor<f32>
    %w = prim.while %one, %one {carried = 1} ({
    ^bb0(%n: tensor<f32>, %d: tensor<f32>):
      %limit = prim.const {value = 10.0} : tensor<f32>
      %more = prim.cmp %n, %limit {predicate = "lt"} : tensor<i1>
      prim.yield %more
    }, {
    ^bb0(%n: tensor<f32>, %d: tensor<f32>):
      %t = prim.add %n, %n : tensor<f32>
      %u = prim.add %t, %d : tensor<f32>
      prim.yield %u
    }) : tensor<f32>
    %last, %all = prim.scan %y, %x, %y {carried = 1, scanned = 1, reverse = true} ({
    ^bb0(%carry: tensor<2xf32>, %row: tensor<2xf32>, %rest: tensor<2xf32>):
      %t = prim.add %carry, %row : tensor<2xf32>
      %u = prim.mul %t, %rest : tensor<2xf32>
      prim.yield %u, %t
    }) : tensor<2xf32>, tensor<4x2xf32>
    func.return %c, %w, %last, %all : tensor<2xf32>, tensor<f32>, tensor<2xf32>, tensor<4x2xf32>
  }
}
"""


@pytest.mark.parametrize("predicate", [True, False])
def test_control_flow(predicate: bool):
    func = ir.function(parse(CONTROL), "main")
    x, y = torch.randn(4, 2), torch.randn(2)
    seen: list[str] = []
    c, w, last, stacked = run(func, [torch.tensor(predicate), x, y], listener=lambda op, results: seen.append(op.name))
    same(c, y.sin() if predicate else y.cos())
    assert w.item() == 15.0  # 1, 3, 7, 15
    carry, rows = y, [y] * 4
    for t in (3, 2, 1, 0):
        rows[t] = carry + x[t]
        carry = rows[t] * y
    same(last, carry)
    same(stacked, torch.stack(rows))
    assert seen.count("prim.cmp") == 4 and seen[-1] == "prim.scan"


def test_library_calls():
    x = torch.randn(3, 4)
    type_ = ir.tensor((3, 4), "f64")
    callee, args = "to.dtype", (ir.Operand(0), "f64", False, False, None)
    (y,) = compute(lambda e, x: e.opaque(callee, [x], args, [type_]), x)
    same(y, x.double())
    with pytest.raises(IRError, match=r"no operator 'nothing\.default'"):
        compute(lambda e, x: e.opaque("nothing.default", [x], (), [x.type]), x)


def test_symbols_are_bound_and_checked():
    s, t = Size.symbol("s"), Size.symbol("t")
    types = [ir.tensor((s, 4), "f32"), ir.tensor((s * 4, t), "f32"), ir.tensor((2 * t + 1,), "i64")]
    func = build(types, lambda e, x, y, z: (e.reshape(x, (s * 4,)), e.size(s * t)))
    arguments = [torch.randn(3, 4), torch.randn(12, 5), torch.zeros(11, dtype=torch.int64)]
    flat, product = run(func, arguments)
    assert flat.shape == (12,) and product.item() == 15
    with pytest.raises(IRError, match=r"dimension 0 of argument 1 must be 12 = 4\*s, not 13"):
        run(func, [arguments[0], torch.randn(13, 5), arguments[2]])
    with pytest.raises(IRError, match=r"argument 0 must be a tensor.*not a \[3, 4\] torch\.float64"):
        run(func, [arguments[0].double(), *arguments[1:]])
    alone = build([ir.tensor((s * t,), "f32")], lambda e, x: x)
    with pytest.raises(IRError, match="does not say what"):
        run(alone, [torch.randn(6)])


def test_a_wrong_result_type_is_found():
    """A listener sees ops; the interpreter itself refuses a result that its type denies."""
    func = build([ir.tensor((2,), "f32")], lambda e, x: e.exp(x))
    (op,) = list(func.body.block.ops)[:1]
    op.results[0]._type = ir.tensor((3,), "f32")
    with pytest.raises(IRError, match="its type says"):
        run(func, [torch.zeros(2)])


def test_values_are_freed_after_their_last_use():
    import weakref

    n = 3
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def listen(op: object, results: Sequence[Tensor]) -> None:
        nonlocal most
        alive.extend(weakref.ref(r) for r in results)
        most = max(most, sum(r() is not None for r in alive))

    def chain(e: Emitter, x: SSAValue) -> SSAValue:
        for _ in range(20):
            x = e.sin(x)
        return x

    run(build([ir.tensor((n,), "f32")], chain), [torch.randn(n)], listener=listen)
    assert most <= 2


def test_an_executable_can_run_twice():
    execute = interpreted(build([ir.tensor((2,), "f32")], lambda e, x: (e.exp(x), e.neg(x))))
    for x in (torch.randn(2), torch.randn(2)):
        y, z = execute([x])
        same(y, x.exp())
        same(z, -x)
