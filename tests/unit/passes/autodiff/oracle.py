"""Programs from builder functions, and torch autograd as the judge of their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from xdsl.dialects.builtin import FunctionType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Argument, Result, Signature
from isthmus.passes import elementary_form
from isthmus.passes.autodiff.differentiate import differentiate
from isthmus.passes.autodiff.table import Fallbacks
from isthmus.runtime.interpret import run
from isthmus.runtime.interpret_table import DTYPES

Build = Callable[..., SSAValue | Sequence[SSAValue]]
Function = Callable[..., Tensor | Sequence[Tensor]]

FALLBACKS = Fallbacks(elementary_form)
NAMES = {torch_dtype: name for name, torch_dtype in DTYPES.items()}


def program(build: Build, types: Sequence[ir.Attribute], wanted: Sequence[int] | None = None) -> FuncOp:
    """@main from a builder; gradients of all differentiable arguments unless `wanted` lists some."""
    block = Block(arg_types=types)
    e = Emitter(block)
    built = build(e, *block.args)
    results = [built] if isinstance(built, SSAValue) else list(built)
    block.add_op(ReturnOp(*results))
    func = FuncOp("main", FunctionType.from_lists(types, [v.type for v in results]), Region(block))
    if wanted is None:
        wanted = [i for i, t in enumerate(types) if ir.is_differentiable(ir.dtype_of(t))]
    arguments = tuple(Argument(primal=True, wants_gradient=i in wanted) for i in range(len(types)))
    Signature(arguments, tuple(Result(output=True) for _ in results)).attach(func)
    return func


def types_of(tensors: Sequence[Tensor]) -> list[ir.Attribute]:
    return [ir.tensor(tuple(t.shape), NAMES[t.dtype]) for t in tensors]


def verified(func: FuncOp) -> FuncOp:
    func.verify()
    ir.verify_order(func)
    return func


def joint_of(func: FuncOp) -> FuncOp:
    return verified(differentiate(func, FALLBACKS))


def cotangents(values: Sequence[Tensor], seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(v.shape, generator=g, dtype=v.dtype) for v in values]


def interpreted(func: FuncOp) -> Function:
    return lambda *tensors: run(func, tensors)


def check_orders(
    build: Build,
    inputs: Sequence[Tensor],
    function: Function | None = None,
    orders: int = 2,
    wanted: Sequence[int] | None = None,
    rtol: float = 1e-9,
    atol: float = 1e-9,
) -> FuncOp:
    """Compare value and gradients up to an order with torch; gives the joint function.

    Without `function`, torch differentiates the interpreted program: right for smooth primitives.
    """
    func = program(build, types_of(inputs), wanted)
    reference = function or interpreted(func)
    leaves = [t.detach().clone() for t in inputs]
    for i in Signature.of(func).arguments_where(wants_gradient=True):
        leaves[i].requires_grad_()

    def evaluated() -> list[Tensor]:
        values = reference(*leaves)
        return [values] if isinstance(values, Tensor) else list(values)

    expected = evaluated()
    first: FuncOp | None = None
    for order in range(1, orders + 1):
        joint = joint_of(func)
        first = first or joint
        signature = Signature.of(joint)
        outputs = [k for k, r in enumerate(signature.results) if r.output]
        if order == 1:
            assert set(signature.tangents) == {k for k in outputs if expected[k].requires_grad}
        seeds = cotangents([expected[k] for k in signature.tangents], order)
        given = [*(t.detach() for t in leaves), *seeds]
        results = run(joint, given)
        for k, value in zip(outputs, results, strict=False):
            torch.testing.assert_close(value, expected[k].detach(), rtol=rtol, atol=atol)
        tangent_leaves = [s.clone().requires_grad_() for s in seeds]
        wants = signature.arguments_where(wants_gradient=True)
        tracked = [(expected[k], t) for k, t in zip(signature.tangents, tangent_leaves, strict=True)]
        tracked = [(value, t) for value, t in tracked if value.requires_grad]  # beyond first order torch may know less
        if not tracked:
            assert order > 1 or not signature.gradients
            break
        exact = torch.autograd.grad(
            [value for value, _ in tracked],
            [leaves[i] for i in wants],
            [t for _, t in tracked],
            create_graph=True,
            allow_unused=True,
        )
        by_argument = dict(zip(wants, exact, strict=True))
        for i, gradient in by_argument.items():
            where = signature.gradients.get(i)
            if gradient is None:
                assert where is None or (order > 1 and not results[where].any()), f"argument {i} has no gradient"
                continue
            if where is None and order > 1 and not gradient.any():
                continue  # torch follows masks where nothing depends on them
            assert where is not None, f"argument {i} lacks a gradient at order {order}"
            torch.testing.assert_close(results[where], gradient.detach(), rtol=rtol, atol=atol)
        func = joint
        leaves = [*leaves, *tangent_leaves]
        expected = [by_argument[i] for i in signature.gradients]
        expected = [
            torch.zeros_like(leaves[i]) if v is None else v for i, v in zip(signature.gradients, expected, strict=True)
        ]
        if not any(v.requires_grad for v in expected):
            break
    assert first is not None
    return first
