"""Tape nodes whose forward, backward and derivative are written by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.runtime.arena import ArenaPool, Lease
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.convention import Convention, Mutation, Saved, Source, UserOutput, Value

VALUE = (UserOutput("value", 0),)


def tensors(arguments: list[Value]) -> list[Tensor]:
    return [a for a in arguments if isinstance(a, Tensor)]


def multiply_node(make_derivative: Callable[[], TapeNode] | None = None, **options: object) -> TapeNode:
    """y = x * w; saves both arguments."""
    convention = Convention(
        arguments=2,
        results=1,
        outputs=VALUE,
        differentiable=(0,),
        saved=(Saved("argument", 0), Saved("argument", 1)),
        backward=(Source("saved", 0), Source("saved", 1), Source("tangent", 0)),
        gradients=(0, 1),
        names=("x", "w"),
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        x, w = tensors(arguments)
        return [x * w, x, w]

    def backward(arguments: list[Value]) -> list[Tensor]:
        x, w, t = tensors(arguments)
        return [t * w, t * x]

    return TapeNode(convention, forward, lambda: backward, make_derivative=make_derivative, **options)


def multiply_derivative() -> TapeNode:
    """(x, w, t) -> (t * w, t * x), itself differentiable: three products."""
    convention = Convention(
        arguments=3,
        results=2,
        outputs=(UserOutput("value", 0), UserOutput("value", 1)),
        differentiable=(0, 1),
        saved=(Saved("argument", 0), Saved("argument", 1), Saved("argument", 2)),
        backward=(*(Source("saved", j) for j in range(3)), Source("tangent", 0), Source("tangent", 1)),
        gradients=(0, 1, 2),
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        x, w, t = tensors(arguments)
        return [t * w, t * x, x, w, t]

    def backward(arguments: list[Value]) -> list[Tensor]:
        x, w, t, a, b = tensors(arguments)
        return [b * t, a * t, a * w + b * x]

    return TapeNode(convention, forward, lambda: backward)


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    make = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    return make[0].requires_grad_(), make[1].requires_grad_()


def exp_node(**options: object) -> TapeNode:
    """y = exp(x); saves its result."""
    convention = Convention(
        arguments=1,
        results=1,
        outputs=VALUE,
        differentiable=(0,),
        saved=(Saved("result", 0),),
        backward=(Source("saved", 0), Source("tangent", 0)),
        gradients=(0,),
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        y = tensors(arguments)[0].exp()
        return [y, y]

    def backward(arguments: list[Value]) -> list[Tensor]:
        y, t = tensors(arguments)
        return [y * t]

    return TapeNode(convention, forward, lambda: backward, **options)


def square_of_sine_node(pool: ArenaPool | None = None, **options: object) -> TapeNode:
    """y = sin(x)^2; saves the intermediates sin(x) and cos(x), in an arena if there is a pool."""
    convention = Convention(
        arguments=1,
        results=1,
        outputs=VALUE,
        differentiable=(0,),
        saved=(Saved("intermediate"), Saved("argument", 0), Saved("intermediate")),
        backward=(Source("tangent", 0), Source("saved", 2), Source("saved", 1), Source("saved", 0)),
        gradients=(0,),
    )

    class Forward:
        def __call__(self, arguments: list[Value], /) -> list[Tensor]:
            (x,) = tensors(arguments)
            return [x.sin() ** 2, x.sin(), x, x.cos()]

    class InArena(Forward):
        saves_in_arena = True

        def save_in_arena(self, arguments: list[Value], /) -> tuple[list[Tensor], Lease | None]:
            assert pool is not None
            (x,) = tensors(arguments)
            lease = pool.lend(16 * x.numel())
            assert lease.tensor is not None
            whole = lease.tensor.view(torch.float64)
            whole[: x.numel()] = x.sin().flatten()
            whole[x.numel() : 2 * x.numel()] = x.cos().flatten()
            del whole
            return [x.sin() ** 2], lease

    class Backward:
        sizes_wanted = ()

        def __call__(self, arguments: list[Value], /) -> list[Tensor]:
            t, cosine, x, sine = tensors(arguments)
            assert torch.equal(x.sin(), sine)
            return [2 * t * cosine * sine]

        def run_from_arena(self, arguments: list[Value], arena: Tensor, /) -> list[Tensor]:
            t, x = tensors(arguments)
            whole = arena.view(torch.float64)
            sine = whole[: x.numel()].view(x.shape)
            cosine = whole[x.numel() : 2 * x.numel()].view(x.shape)
            return [2 * t * cosine * sine]

    return TapeNode(convention, InArena() if pool else Forward(), Backward, **options)


def two_results_node(seen: list[list[Tensor]]) -> TapeNode:
    """(x, w) -> x + w, x * w, argmax: two differentiable results and one that is not."""
    convention = Convention(
        arguments=2,
        results=3,
        outputs=tuple(UserOutput("value", k) for k in range(3)),
        differentiable=(0, 1),
        saved=(Saved("argument", 0), Saved("argument", 1)),
        backward=(Source("saved", 0), Source("saved", 1), Source("tangent", 0), Source("tangent", 1)),
        gradients=(0,),
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        x, w = tensors(arguments)
        return [x + w, x * w, (x + w).argmax(), x, w]

    def backward(arguments: list[Value]) -> list[Tensor]:
        _, w, a, b = tensors(arguments)
        seen.append([a, b])
        return [a + b * w]

    return TapeNode(convention, forward, lambda: backward)


def add_derivative() -> TapeNode:
    """The derivative of (s, p) = (x + w, x * w) by x: (x, w, a, b) -> a + b w."""
    convention = Convention(
        arguments=4,
        results=1,
        outputs=VALUE,
        differentiable=(0,),
        saved=(Saved("argument", 1), Saved("argument", 3)),
        backward=(Source("saved", 0), Source("saved", 1), Source("tangent", 0)),
        gradients=(1, 2, 3),
        unused=frozenset({0}),
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        _, w, a, b = tensors(arguments)
        return [a + b * w, w, b]

    def backward(arguments: list[Value]) -> list[Tensor]:
        w, b, t = tensors(arguments)
        return [t * b, t, t * w]

    return TapeNode(convention, forward, lambda: backward)


def in_place_node(**options: object) -> TapeNode:
    """y = x * w, and the program overwrites w with 2 w."""
    convention = Convention(
        arguments=2,
        results=2,
        outputs=VALUE,
        mutations=(Mutation(result=1, argument=1),),
        differentiable=(0, 1),
        saved=(Saved("argument", 0), Saved("argument", 1)),
        backward=(Source("saved", 0), Source("saved", 1), Source("tangent", 0), Source("tangent", 1)),
        gradients=(0, 1),
        names=("x", "self.w"),
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        x, w = tensors(arguments)
        return [x * w, 2 * w, x, w]

    def backward(arguments: list[Value]) -> list[Tensor]:
        x, w, t, u = tensors(arguments)
        return [t * w, t * x + 2 * u]

    return TapeNode(convention, forward, lambda: backward, **options)


def in_place_derivative() -> TapeNode:
    """(x, w, t, u) -> (t w, t x + 2 u)."""
    convention = Convention(
        arguments=4,
        results=2,
        outputs=(UserOutput("value", 0), UserOutput("value", 1)),
        differentiable=(0, 1),
        saved=tuple(Saved("argument", i) for i in range(3)),
        backward=(*(Source("saved", i) for i in range(3)), Source("tangent", 0), Source("tangent", 1)),
        gradients=(0, 1, 2, 3),
    )

    def forward(arguments: list[Value]) -> list[Tensor]:
        x, w, t, u = tensors(arguments)
        return [t * w, t * x + 2 * u, x, w, t]

    def backward(arguments: list[Value]) -> list[Tensor]:
        x, w, t, a, b = tensors(arguments)
        return [b * t, a * t, a * w + b * x, 2 * b]

    return TapeNode(convention, forward, lambda: backward)
