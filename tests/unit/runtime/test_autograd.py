"""The tape node, with forward and backward written by hand: what it saves, frees, compiles, refuses."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from isthmus.diagnostics import UnsupportedError
from isthmus.runtime.arena import ArenaPool, Lease
from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.call import last_call_native
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


@pytest.mark.row("T17", "A2")
def test_gradients_equal_eager_inside_a_larger_graph() -> None:
    x, w = pair(3, 4)
    (y,) = multiply_node()([x.sin(), w])
    assert y.grad_fn is not None and "Compiled" in type(y.grad_fn).__name__
    got = torch.autograd.grad(y.exp().sum(), [x, w])
    want = torch.autograd.grad((x.sin() * w).exp().sum(), [x, w])
    for g, e in zip(got, want, strict=True):
        torch.testing.assert_close(g, e)


@pytest.mark.row("T15")
def test_backward_is_compiled_once_at_the_first_backward() -> None:
    node = multiply_node()
    x, w = pair(3)
    y = node([x, w])[0]
    assert node.counters.backward_compiles == 0
    y.sum().backward()
    node([x, w])[0].sum().backward()
    assert (node.counters.backward_compiles, node.counters.backward_calls) == (1, 2)


def test_backward_is_compiled_once_by_many_threads() -> None:
    node = multiply_node()

    def work() -> None:
        x, w = pair(3)
        for _ in range(10):
            node([x, w])[0].sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (node.counters.backward_compiles, node.counters.backward_calls) == (1, 40)


@pytest.mark.row("T19")
def test_gradients_accumulate() -> None:
    node = multiply_node()
    x, w = pair(3)
    for _ in range(2):
        node([x, w])[0].sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * w.detach())


@pytest.mark.row("T13", "A13", "R9")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_node_without_gradients(mode: Callable[[], object]) -> None:
    node = multiply_node()
    x, w = pair(3)
    with mode():  # type: ignore[attr-defined]
        (y,) = node([x, w])
    assert y.grad_fn is None and not y.requires_grad
    (z,) = node([x.detach(), w.detach()])
    assert z.grad_fn is None


def test_inference_function_is_used_off_the_tape() -> None:
    calls: list[str] = []

    def inference(arguments: list[Value]) -> list[Tensor]:
        calls.append("inference")
        x, w = tensors(arguments)
        return [x * w]

    node = multiply_node(inference=inference)
    x, w = pair(3)
    with torch.no_grad():
        assert len(node([x, w])) == 1
    node([x, w])
    assert calls == ["inference"]


def test_retain_graph_allows_a_second_backward_and_nothing_else_does() -> None:
    node = multiply_node()
    x, w = pair(3)
    y = node([x, w])[0].sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * w.detach())
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.row("A12")
def test_saved_argument_that_was_overwritten_is_an_error() -> None:
    x, w = pair(3)
    (y,) = multiply_node()([x, w])
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


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


def test_saved_result_is_version_checked_and_makes_no_cycle() -> None:
    x, _ = pair(3)
    (y,) = exp_node()([x])
    (g,) = torch.autograd.grad(y.sum(), [x], retain_graph=True)
    torch.testing.assert_close(g, x.exp())
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    gone = weakref.ref(y)
    gc.disable()
    try:
        del y
        assert gone() is None
    finally:
        gc.enable()


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


@pytest.mark.parametrize("arena", [False, True])
def test_intermediates_reach_the_backward(arena: bool) -> None:
    pool = ArenaPool() if arena else None
    node = square_of_sine_node(pool)
    x, _ = pair(3, 5)
    for _ in range(3):
        (g,) = torch.autograd.grad(node([x])[0].sum(), [x])
        torch.testing.assert_close(g, 2 * x.sin() * x.cos())


def test_arena_returns_after_backward_and_two_forwards_have_two() -> None:
    pool = ArenaPool()
    node = square_of_sine_node(pool)
    x, z = pair(5)
    first, second = node([x])[0], node([z])[0]
    assert pool.free_bytes == 0
    (gx,) = torch.autograd.grad(first.sum(), [x])
    (gz,) = torch.autograd.grad(second.sum(), [z])
    torch.testing.assert_close(gx, 2 * x.sin() * x.cos())
    torch.testing.assert_close(gz, 2 * z.sin() * z.cos())
    assert pool.free_bytes == 2 * 80


def test_arena_returns_when_the_tape_lets_go_and_not_before() -> None:
    pool = ArenaPool()
    node = square_of_sine_node(pool)
    x, _ = pair(5)
    y = node([x])[0]
    y.sum().backward(retain_graph=True)
    assert pool.free_bytes == 0
    del y
    assert pool.free_bytes == 80


def test_arena_counts_among_saved_tensors() -> None:
    x, _ = pair(5)
    y = square_of_sine_node(ArenaPool())([x])[0]
    assert y.grad_fn is not None
    saved = y.grad_fn.saved_tensors  # type: ignore[attr-defined]
    assert sum(t.numel() * t.itemsize for t in saved) == 3 * 5 * 8


def test_saved_tensor_hooks_see_typed_values() -> None:
    node = square_of_sine_node(ArenaPool())
    x, _ = pair(5)
    packed: list[tuple[torch.dtype, torch.Size]] = []

    def pack(t: Tensor) -> Tensor:
        packed.append((t.dtype, t.shape))
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = node([x])[0]
    (g,) = torch.autograd.grad(y.sum(), [x])
    torch.testing.assert_close(g, 2 * x.sin() * x.cos())
    assert packed == [(torch.float64, torch.Size([5]))] * 3


def test_hooks_keep_no_reference_behind_their_back() -> None:
    node = exp_node()
    x, _ = pair(5)
    h = x * 2
    gone = weakref.ref(h)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.shape, lambda s: torch.ones(s)):
        y = node([h])[0]
    del h
    gc.collect()
    assert gone() is None
    assert y.grad_fn is not None


def test_checkpoint_around_a_node() -> None:
    node = square_of_sine_node(ArenaPool())
    x, _ = pair(5)
    y = torch.utils.checkpoint.checkpoint(lambda t: node([t])[0], x, use_reentrant=False)
    (g,) = torch.autograd.grad(y.sum(), [x])
    torch.testing.assert_close(g, 2 * x.sin() * x.cos())
    assert node.counters.forward_calls == 2


def test_save_on_cpu_hook() -> None:
    node = multiply_node()
    x, w = pair(3)
    with torch.autograd.graph.save_on_cpu():
        y = node([x, w])[0]
    torch.testing.assert_close(torch.autograd.grad(y.sum(), [x])[0], w.detach())


def test_saved_tensors_are_freed_after_backward() -> None:
    """Also while the loss, and with it the graph, stays alive."""
    node = multiply_node()
    x, w = pair(3)
    h = x * 1.0
    y = node([h, w])[0].sum()
    gone = weakref.ref(h)
    del h
    assert gone() is not None
    gc.disable()
    try:
        y.backward()
        assert gone() is None
    finally:
        gc.enable()


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


@pytest.mark.row("A10", "T12")
def test_missing_tangents_are_zeros_and_none_at_all_runs_nothing() -> None:
    seen: list[list[Tensor]] = []
    node = two_results_node(seen)
    x, w = pair(2, 3)
    s, p, top = node([x, w])
    assert not top.requires_grad and s.requires_grad
    (gx,) = torch.autograd.grad(s.sum(), [x], retain_graph=True)
    torch.testing.assert_close(gx, torch.ones_like(x))
    assert torch.equal(seen[0][1], torch.zeros_like(p))
    assert node.counters.backward_calls == 1
    gx, gw = torch.autograd.grad(p.sum(), [x, w], allow_unused=True)
    torch.testing.assert_close(gx, w.detach())
    assert gw is None  # its gradient was not asked for at compile time


def test_absent_tangents_of_all_results_give_absent_gradients() -> None:
    class AbsentGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, g: Tensor) -> None:
            return None

    node = multiply_node()
    x, w = pair(3)
    y = AbsentGradient.apply(node([x, w])[0])
    gradients = torch.autograd.grad(y.sum(), [x, w], allow_unused=True)
    assert gradients == (None, None)
    assert node.counters.backward_calls == 0


@pytest.mark.row("A15")
def test_tape_of_an_unwanted_argument_is_not_walked() -> None:
    ran: list[int] = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, g: Tensor) -> Tensor:
            ran.append(1)
            return g

    x, w = pair(3)
    s, p, _ = two_results_node([])([x, Spy.apply(w)])
    (s + p).sum().backward()
    assert not ran and w.grad is None


def test_tangents_arrive_in_the_layout_that_was_compiled() -> None:
    seen: list[list[Tensor]] = []
    node = two_results_node(seen)
    x, w = pair(4, 3)
    s, p, _ = node([x, w])
    expanded = torch.ones(1, 3, dtype=torch.float64).expand(4, 3)
    torch.autograd.backward([s, p], [torch.ones(3, 4, dtype=torch.float64).t(), expanded])
    assert all(t.is_contiguous() for t in seen[0])


def test_tangent_strides_can_be_asked_for() -> None:
    node = exp_node()
    object.__setattr__(node.convention.backward[1], "strides", (1, 4))
    seen: list[tuple[int, ...]] = []

    def backward(arguments: list[Value]) -> list[Tensor]:
        y, t = tensors(arguments)
        seen.append(t.stride())
        return [y * t]

    node._make_backward = lambda: backward  # type: ignore[attr-defined]
    x, _ = pair(4, 3)
    node([x])[0].backward(torch.ones(4, 3, dtype=torch.float64))
    assert seen == [(1, 4)]


def test_results_that_alias_arguments_become_fresh() -> None:
    convention = Convention(1, 2, (UserOutput("value", 0), UserOutput("value", 1)))
    node = TapeNode(convention, lambda a: [tensors(a)[0].t(), tensors(a)[0]])
    x = torch.randn(2, 3)
    a, b = node([x])
    storages = {t.untyped_storage().data_ptr() for t in (x, a, b)}
    assert len(storages) == 3 and torch.equal(a, x.t()) and torch.equal(b, x)


@pytest.mark.row("T26")
def test_autocast_does_not_change_what_was_compiled() -> None:
    convention = Convention(2, 1, VALUE)
    node = TapeNode(convention, lambda a: [tensors(a)[0] @ tensors(a)[1]])
    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert node([x, x])[0].dtype == torch.float32


@pytest.mark.row("B1", "N1")
def test_create_graph_gives_gradients_with_a_history() -> None:
    node = multiply_node(multiply_derivative)
    x, w = pair(3)
    y = node([x.sin(), w])[0]
    assert node.counters.derivative_builds == 0
    (gx,) = torch.autograd.grad(y.exp().sum(), [x], create_graph=True)
    (hx, hw) = torch.autograd.grad(gx.sum(), [x, w])
    reference = (x.sin() * w).exp().sum()
    (ex,) = torch.autograd.grad(reference, [x], create_graph=True)
    want = torch.autograd.grad(ex.sum(), [x, w])
    torch.testing.assert_close((hx, hw), want)
    assert node.counters.derivative_builds == 1


def test_gradgradcheck() -> None:
    node = multiply_node(multiply_derivative)
    x, w = pair(2)
    assert torch.autograd.gradgradcheck(lambda a, b: node([a, b])[0], (x, w))


def test_second_order_without_a_derivative_is_refused() -> None:
    x, w = pair(3)
    y = multiply_node()([x, w])[0]
    with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
        torch.autograd.grad(y.sum(), [x], create_graph=True)


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


def test_primal_that_was_overwritten_matters_only_to_a_second_order() -> None:
    node = exp_node(make_derivative=lambda: multiply_derivative())
    x, _ = pair(3)
    for create_graph in (False, True):
        y = node([x])[0]
        with torch.no_grad():
            x.add_(1)
        if create_graph:
            with pytest.raises(RuntimeError, match="argument 0 is at version"):
                torch.autograd.grad(y.sum(), [x], create_graph=True)
        else:
            torch.testing.assert_close(torch.autograd.grad(y.sum(), [x])[0], y.detach())


def test_overwritten_primal_that_the_derivative_does_not_use_is_fine() -> None:
    node = two_results_node([])
    node._make_derivative = add_derivative  # type: ignore[attr-defined]
    x, w = pair(3)
    _, p, _ = node([x, w])
    with torch.no_grad():
        x.add_(1)
    (g,) = torch.autograd.grad(p.sum(), [x], create_graph=True)
    torch.testing.assert_close(g.detach(), w.detach())


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


def test_second_order_of_an_overwritten_argument_is_kept_from_the_second_time_on() -> None:
    node = in_place_node(make_derivative=in_place_derivative)
    x, w = pair(3)

    def second_order() -> tuple[Tensor, ...]:
        (y, _) = node([x, w])
        (g,) = torch.autograd.grad((y * y).sum(), [x], create_graph=True)
        return torch.autograd.grad(g.sum(), [x, w])

    with pytest.raises(UnsupportedError, match=r"self\.w .*it was not kept"):
        second_order()
    got = second_order()
    (e,) = torch.autograd.grad(((x * w) ** 2).sum(), [x], create_graph=True)
    torch.testing.assert_close(got, torch.autograd.grad(e.sum(), [x, w]))
    asked = in_place_node(make_derivative=in_place_derivative, higher_order=True)
    y, _ = asked([x, w])
    torch.autograd.grad(y.sum(), [x], create_graph=True)


def test_second_order_under_hooks() -> None:
    x, w = pair(3)
    node = multiply_node(multiply_derivative, higher_order=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = node([x, w])[0]
    (g,) = torch.autograd.grad((y * y).sum(), [x], create_graph=True)
    torch.testing.assert_close(g.detach(), (2 * x * w * w).detach())


def test_graph_that_takes_its_input_over_is_collected() -> None:
    """state.copy_(f(state)) must not keep itself alive through the primals that the node keeps."""
    node = multiply_node(multiply_derivative)
    _, w = pair(3)
    state = torch.ones(3, dtype=torch.float64)
    (y,) = node([state * 1, w])
    state.copy_(y)
    gone = weakref.ref(state)
    del y, state
    gc.collect()
    assert gone() is None


def test_last_call_native_follows_the_executable() -> None:
    class Native:
        native = True
        fresh = True

        def __call__(self, arguments: list[Value], /) -> list[Tensor]:
            return [tensors(arguments)[0] + 1]

    x = torch.ones(2)
    TapeNode(Convention(1, 1, VALUE), Native())([x])
    assert last_call_native()
    TapeNode(Convention(1, 1, VALUE), lambda a: [tensors(a)[0] + 1])([x])
    assert not last_call_native()


def test_torch_func_over_a_node_is_refused() -> None:
    node = multiply_node()
    x, w = pair(3)
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda a: node([a, w])[0].sum())(x)


def test_batched_cotangents_run_one_by_one() -> None:
    """Vectorised Jacobians and Hessians."""
    node = multiply_node(multiply_derivative)
    x, w = pair(3)
    y = node([x, w])[0]
    eye = torch.eye(3, dtype=torch.float64)
    (batch,) = torch.autograd.grad(y, [x], eye, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(batch, torch.diag(w.detach()))
    assert node.counters.backward_calls == 3
    by_func = torch.func.vmap(lambda v: torch.autograd.grad(y, [x], v, retain_graph=True)[0])(eye)
    torch.testing.assert_close(by_func, batch)

    def f(a: Tensor) -> Tensor:
        return node([a.sin(), a])[0]

    for strategy in (False, True):
        got = torch.autograd.functional.jacobian(f, x, vectorize=strategy)
        torch.testing.assert_close(got, torch.diag((x.cos() * x + x.sin()).detach()))
    got = torch.autograd.functional.hessian(lambda a: f(a).sum(), x, vectorize=True)
    torch.testing.assert_close(got, torch.diag((2 * x.cos() - x * x.sin()).detach()))
