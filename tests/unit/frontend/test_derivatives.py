"""Torch's own derivative of one call as an aten function: right, again differentiable, refused where it must be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten
from isthmus.frontend.derivatives import overload_of, shape_of_call, trace_body, trace_derivative
from isthmus.ir import Operand as Arg
from isthmus.sizes import Size

S = Size.symbol("s0")


def types(*tensors):
    return [ir.tensor(tuple(t.shape), {torch.float64: "f64", torch.int64: "i64"}[t.dtype]) for t in tensors]


SAMPLES = {
    "exp.default": ((Arg(0),), [(3, 4)]),
    "tanh.default": ((Arg(0),), [(3, 4)]),
    "_cdist_forward.default": ((Arg(0), Arg(1), 2.0, None), [(3, 4), (5, 4)]),
    "linalg_inv_ex.default": ((Arg(0), False), [(3, 3)]),
    "cumprod.default": ((Arg(0), 0, None), [(4, 2)]),
    "norm.ScalarOpt_dim": ((Arg(0), 2, (1,), False), [(3, 4)]),
    "einsum.default": (("ij,kj->ik", (Arg(0), Arg(1)), None), [(3, 4), (2, 4)]),
    "_softmax.default": ((Arg(0), 1, False), [(3, 4)]),
    "hypot.default": ((Arg(0), Arg(1)), [(3,), (3,)]),
    "linalg_qr.default": ((Arg(0), "reduced"), [(4, 3)]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_first_and_second_derivatives_are_torchs(name, evaluate_module, call_overload):
    args, shapes = SAMPLES[name]
    torch.manual_seed(0)
    inputs = [torch.rand(s, dtype=torch.float64).add_(0.5).requires_grad_() for s in shapes]
    needs = [True] * len(inputs)
    module = trace_derivative(name, args, types(*inputs), needs)
    ir.verify(module)

    def flat(values):
        return [v for v in (values if isinstance(values, tuple | list) else [values]) if isinstance(v, Tensor)]

    results = flat(call_overload(name, args, inputs))
    floats = [r for r in results if r.is_floating_point()]
    cotangents = [torch.rand_like(r) for r in floats]
    wanted = torch.autograd.grad(floats, inputs, cotangents, create_graph=True)
    got = evaluate_module(module, [*inputs, *results, *cotangents])
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
    if name == "_cdist_forward.default":
        return  # torch has no second derivative of it
    again = torch.autograd.grad([g.sin().sum() for g in wanted], inputs, retain_graph=True)
    for mine, theirs in zip(torch.autograd.grad([g.sin().sum() for g in got], inputs), again, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_it_reads_the_result_that_it_is_given():
    module = trace_derivative("exp.default", (Arg(0),), [ir.tensor((S, 4), "f32")], [True])
    assert [op.overload for op in module.walk() if isinstance(op, aten.CallOp)] == ["mul.Tensor", "clone.default"]
    mul, _ = [op for op in module.walk() if isinstance(op, aten.CallOp)]
    arguments = ir.block_arguments(ir.function(module, "main"))
    assert set(mul.operands) == {arguments[1], arguments[2]}


def test_only_what_is_needed_is_derived(evaluate_module):
    module = trace_derivative(
        "mm.default", (Arg(0), Arg(1)), [ir.tensor((3, 4), "f64"), ir.tensor((4, 2), "f64")], [False, True]
    )
    x, y, g = torch.rand(3, 4).double(), torch.rand(4, 2).double(), torch.rand(3, 2).double()
    (dy,) = evaluate_module(module, [x, y, x @ y, g])
    torch.testing.assert_close(dy, x.T @ g)


@pytest.mark.parametrize(
    ("name", "args", "operands", "needs", "fault"),
    [
        ("no_such_op.default", (), [], [], "no such operator"),
        ("argmax.default", (Arg(0), None, False), [ir.tensor((3, 4), "f32")], [True], "no derivative"),
        ("mm.default", (Arg(0), Arg(0)), [ir.tensor((3, 4), "f32")], [True], "reduction dim"),
    ],
)
def test_what_has_no_derivative_is_refused(name, args, operands, needs, fault):
    with pytest.raises(UnsupportedError, match=fault):
        trace_derivative(name, args, operands, needs)


def test_result_types_with_symbols():
    values, indices = shape_of_call("topk.default", (Arg(0), 2, -1, True, True), [ir.tensor((S, 4), "f32")])
    assert values is aten.ref((S, 2), "f32") and indices is aten.ref((S, 2), "i64")
    (flipped,) = shape_of_call("t.default", (Arg(0),), [aten.ref((S + 1, 4), "f32")])
    assert flipped is aten.ref((4, S + 1), "f32", (1, 4))
    with pytest.raises(UnsupportedError):
        shape_of_call("nonzero.default", (Arg(0),), [ir.tensor((S, 4), "f32")])


def test_sizes_fixed_by_the_trace_are_refused():
    with pytest.raises(UnsupportedError, match="symbolic sizes"):
        shape_of_call("view.default", (Arg(0), (7,)), [ir.tensor((S,), "f32")], hints={"s0": 7})


def test_bodies_of_composites(evaluate_module):
    x, w = torch.rand(3, 4).double(), torch.rand(4, 2).double()
    module = trace_body("einsum.default", ("ij,jk->ik", (Arg(0), Arg(1)), None), types(x, w))
    assert module is not None
    ir.verify(module)
    (result,) = evaluate_module(module, [x, w])
    torch.testing.assert_close(result, x @ w)
    assert trace_body("exp.default", (Arg(0),), types(x)) is None
    assert overload_of("exp.default") is torch.ops.aten.exp.default


def test_gradients_are_values_of_their_own() -> None:
    """Where torch gives a view of what it computed, the base of it must not come out."""
    types = [ir.tensor((3, 3), "f32"), ir.tensor((3, 3), "f32")]
    args = (Arg(0), Arg(1), True, True, False)
    module = trace_derivative("linalg_solve_triangular.default", args, types, [True, True])
    returned = ir.function(module, "main").body.block.last_op
    assert returned is not None
    assert [v.owner.overload for v in returned.operands] == ["clone.default"] * 2  # pyright: ignore


def test_the_formulas_can_be_differentiated_again() -> None:
    """Eager's first-order backward of solve reads its factors, which have no derivative."""
    types = [ir.tensor((3, 3), "f32"), ir.tensor((3, 2), "f32")]
    module = trace_derivative("_linalg_solve_ex.default", (Arg(0), Arg(1), True, False), types, [True, True])
    overloads = [op.overload for op in module.walk() if isinstance(op, aten.CallOp)]
    assert "_linalg_solve_ex.default" in overloads and "linalg_lu_solve.default" not in overloads
