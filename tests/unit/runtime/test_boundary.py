"""The edge of a compiled function: keys, mutations copied back, aliases replayed, as eager does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.boundary import CompiledFunction, draw_keys
from isthmus.runtime.convention import (
    Convention,
    Geometry,
    Mutation,
    Saved,
    SizeSource,
    Source,
    UserOutput,
    Value,
    View,
)
from isthmus.runtime.fresh import shared_storage
from isthmus.sizes import Size

Run = Callable[[list[Value]], list[Tensor]]


def tensors(arguments: list[Value]) -> list[Tensor]:
    return [a for a in arguments if isinstance(a, Tensor)]


def compiled(convention: Convention, forward: Run, backward: Run | None = None) -> CompiledFunction:
    make = None if backward is None else (lambda: backward)
    return CompiledFunction(convention, TapeNode(convention, forward, make))


def doubled(hidden: bool = False) -> CompiledFunction:
    """f(a, b): a.mul_(2); return a.new * b."""
    convention = Convention(
        arguments=2,
        results=2,
        outputs=(UserOutput("value", 0),),
        mutations=(Mutation(1, 0, hidden=hidden),),
        differentiable=(0,) if hidden else (0, 1),
        saved=(Saved("argument", 0), Saved("argument", 1)),
        backward=(Source("saved", 0), Source("saved", 1), Source("tangent", 0))
        + (() if hidden else (Source("tangent", 1),)),
        gradients=(1,) if hidden else (0, 1),
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        a, b = tensors(arguments)
        return [2 * a * b, 2 * a, a, b]

    def backward(arguments: list[Value]) -> list[Tensor]:
        a, b, t, *rest = tensors(arguments)
        return [2 * a * t] if hidden else [2 * b * t + 2 * rest[0], 2 * a * t]

    return compiled(convention, forward, backward)


@pytest.mark.row("T21")
def test_mutation_is_visible_to_the_caller() -> None:
    a, b = torch.ones(3), torch.full((3,), 5.0)
    version = a._version
    (y,) = doubled()([a, b])
    assert torch.equal(y, torch.full((3,), 10.0)) and torch.equal(a, torch.full((3,), 2.0))
    assert a._version > version


@pytest.mark.row("T21")
def test_mutated_argument_gets_the_nodes_history() -> None:
    leaf, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    def run(f: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        a = leaf.sin()
        y = f(a, b)
        return torch.autograd.grad((y + a.cos()).sum(), [leaf, b])

    def eager(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return a * b

    torch.testing.assert_close(run(lambda a, b: doubled()([a, b])[0]), run(eager))  # type: ignore[arg-type]


def test_hidden_mutation_keeps_the_arguments_history() -> None:
    leaf, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    a = leaf * 3
    before = a.grad_fn
    old = a.detach().clone()
    (y,) = doubled(hidden=True)([a, b])
    assert a.grad_fn is before
    torch.testing.assert_close(a.detach(), 2 * old)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), [b])[0], 2 * old)  # type: ignore[attr-defined]


def test_mutation_under_no_grad_of_a_leaf_that_wants_a_gradient() -> None:
    """The buffer and parameter updates of a training step."""
    p, b = torch.ones(3, requires_grad=True), torch.ones(3)
    with torch.no_grad():
        doubled()([p, b])
    assert p.is_leaf and torch.equal(p.detach(), torch.full((3,), 2.0))


def test_leaf_that_wants_a_gradient_is_refused_like_in_eager() -> None:
    p, b = torch.ones(3, requires_grad=True), torch.ones(3)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        doubled()([p, b])


def test_expanded_argument_is_refused_like_in_eager() -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        doubled()([torch.ones(1).expand(3), torch.ones(3)])


def test_mutated_view_writes_through_to_its_base() -> None:
    base = torch.ones(2, 3)
    doubled()([base[1], torch.ones(3)])
    assert torch.equal(base, torch.tensor([[1.0, 1, 1], [2, 2, 2]]))


def test_result_written_in_place_only_bumps_the_version() -> None:
    class InPlace:
        native = fresh = True

        def __call__(self, arguments: list[Value], /) -> list[Tensor]:
            (a,) = tensors(arguments)
            a.data.mul_(2)
            return [a]

    convention = Convention(1, 1, (), mutations=(Mutation(0, 0, hidden=True),))
    a = torch.ones(3)
    version = a._version
    assert CompiledFunction(convention, TapeNode(convention, InPlace()))([a]) == []
    assert torch.equal(a, torch.full((3,), 2.0)) and a._version == version + 1


@pytest.mark.row("T25")
def test_metadata_mutation_is_reproduced() -> None:
    geometry = Geometry((3, 2), (1, 3))
    convention = Convention(1, 0, (), mutations=(Mutation(None, 0, geometry=geometry),))
    x = torch.arange(6.0).view(2, 3)
    want = x.clone().t()
    compiled(convention, lambda a: [])([x])
    assert x.shape == (3, 2) and torch.equal(x, want)


@pytest.mark.row("T22", "T23")
def test_aliases_of_arguments_and_of_intermediates() -> None:
    """f(x) = (x.t(), x.mul(2).view(-1))."""
    convention = Convention(
        arguments=1,
        results=1,
        outputs=(
            UserOutput("argument", 0, (View("t.default", (), Geometry((3, 2), (1, 3))),)),
            UserOutput("alias", 0, (View("view.default", ((-1,),), Geometry((6,), (1,))),)),
        ),
        differentiable=(0,),
        backward=(Source("tangent", 0),),
        gradients=(0,),
    )
    f = compiled(convention, lambda a: [tensors(a)[0] * 2], lambda a: [2 * tensors(a)[0]])
    x = torch.randn(2, 3, requires_grad=True)
    out1, out2 = f([x])
    assert isinstance(out1, Tensor) and isinstance(out2, Tensor)
    assert out1._base is x and out2._base is not None and out2._is_view()
    assert torch.equal(out1, x.t()) and torch.equal(out2, (x * 2).view(-1))
    (g,) = torch.autograd.grad(out1.sum() + (out2 * out2).sum(), [x])
    torch.testing.assert_close(g, 1 + 8 * x.detach())
    out2.mul_(3)  # an alias may be written by the caller: autograd follows
    (g,) = torch.autograd.grad(out2.sum(), [x])
    torch.testing.assert_close(g, torch.full((2, 3), 6.0))


def test_argument_returned_is_the_argument() -> None:
    convention = Convention(2, 0, (UserOutput("argument", 1), UserOutput("constant", value=7)))
    x, y = torch.ones(2), torch.ones(3, requires_grad=True)
    out = compiled(convention, lambda a: [])([x, y])
    assert out[0] is y and out[1] == 7


def test_view_of_a_mutated_argument_sees_the_new_value_and_history() -> None:
    convention = Convention(
        arguments=1,
        results=1,
        outputs=(UserOutput("argument", 0, (View("select.int", (0, 1), Geometry((), (), 1)),)),),
        mutations=(Mutation(0, 0),),
        differentiable=(0,),
        backward=(Source("tangent", 0),),
        gradients=(0,),
    )
    f = compiled(convention, lambda a: [tensors(a)[0] * 2], lambda a: [2 * tensors(a)[0]])
    leaf = torch.ones(3, requires_grad=True)
    a = leaf * 1
    (out,) = f([a])
    assert isinstance(out, Tensor)
    assert out.item() == 2
    assert torch.equal(torch.autograd.grad(out, [leaf])[0], torch.tensor([0.0, 2.0, 0.0]))


def test_unknown_view_is_replayed_by_its_geometry() -> None:
    step = View("no_such_view.default", (), Geometry((2,), (2,), 1))
    convention = Convention(1, 1, (UserOutput("alias", 0, (step,)),))
    (out,) = compiled(convention, lambda a: [tensors(a)[0] + 1])([torch.arange(6.0)])
    assert isinstance(out, Tensor) and out.tolist() == [2, 4]


def test_view_with_several_results() -> None:
    step = View("unbind.int", (0,), Geometry((2,), (1,), 2), result=1)
    convention = Convention(1, 1, (UserOutput("alias", 0, (step,)),))
    (out,) = compiled(convention, lambda a: [tensors(a)[0] + 1])([torch.arange(6.0).view(3, 2)])
    assert isinstance(out, Tensor) and out.tolist() == [3, 4]


def test_view_sizes_follow_the_call() -> None:
    s = Size.symbol("s0")
    step = View("view.default", ((s * 2,),), Geometry((s * 2,), (1,)))
    convention = Convention(1, 1, (UserOutput("alias", 0, (step,)),), symbols=(SizeSource("s0", 0, 0),))
    f = compiled(convention, lambda a: [tensors(a)[0] + 1])
    for n in (3, 5):
        (out,) = f([torch.zeros(n, 2)])
        assert isinstance(out, Tensor) and out.shape == (2 * n,)


@pytest.mark.row("N4")
def test_keys_are_drawn_once_per_call_and_reproducibly() -> None:
    seen: list[int] = []

    def forward(arguments: list[Value]) -> list[Tensor]:
        x, first, second = tensors(arguments)
        seen.extend([int(first), int(second)])
        return [x + 0]

    f = compiled(Convention(3, 1, (UserOutput("value", 0),), keys=(1, 2)), forward)
    x = torch.zeros(1)
    torch.manual_seed(3)
    f([x])
    f([x])
    torch.manual_seed(3)
    f([x])
    assert seen[:2] == seen[4:] and len(set(seen)) == 4
    torch.manual_seed(3)
    (single,) = draw_keys(1)
    assert single.dtype == torch.int64 and single.shape == ()


def test_shared_storage_is_found() -> None:
    x = torch.arange(6.0)
    assert shared_storage([x, torch.ones(2), x[2:], 3, x.view(2, 3)]) == ((0, 2, 4),)
    assert shared_storage([torch.zeros(0), torch.zeros(0)]) == ()


@pytest.mark.parametrize("hidden", [False, True])
def test_an_argument_overwritten_in_place_by_a_constant(hidden: bool):
    """x.fill_(0.5) computed into x itself: its history ends there, unless autograd does not see the write."""
    convention = Convention(
        arguments=1, results=1, outputs=(UserOutput("argument", 0),), mutations=(Mutation(0, 0, hidden=hidden),)
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        (x,) = tensors(arguments)
        with torch.no_grad():
            x.detach().fill_(0.5)
        return [x]

    forward.native = True  # type: ignore[attr-defined]
    leaf = torch.randn(3, requires_grad=True)
    x = leaf * 2
    (out,) = compiled(convention, forward)([x])
    assert out is x and x.tolist() == [0.5, 0.5, 0.5]
    (gradient,) = torch.autograd.grad(x.sum(), leaf, allow_unused=True, materialize_grads=True)
    assert gradient.tolist() == ([2.0, 2.0, 2.0] if hidden else [0.0, 0.0, 0.0])


def test_geometries_count_from_the_first_element():
    convention = Convention(
        arguments=1,
        results=0,
        outputs=(
            UserOutput("argument", 0, (View("as_strided.default", ((2,), (2,), 1), Geometry((2,), (2,), 1)),)),
            UserOutput("argument", 0, (View("view.dtype", ("i32",), Geometry((8,), (1,))),)),
        ),
    )
    x = torch.arange(10.0, dtype=torch.float64)[3:7]
    odd, bits = compiled(convention, lambda arguments: [])([x])
    assert isinstance(odd, Tensor) and odd.tolist() == [4.0, 6.0]
    assert isinstance(bits, Tensor) and torch.equal(bits, x.view(torch.int32))
