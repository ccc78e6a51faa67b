"""The tape node, with forward and backward written by hand: gradients, tangents, what it compiles and when."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from tape_nodes import VALUE, exp_node, multiply_node, pair, tensors, two_results_node
from torch import Tensor

from isthmus.runtime.autograd import TapeNode
from isthmus.runtime.call import last_call_native
from isthmus.runtime.convention import Convention, UserOutput, Value


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
