"""Second order through the tape node, with derivatives written by hand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tape_nodes import (
    add_derivative,
    exp_node,
    in_place_derivative,
    in_place_node,
    multiply_derivative,
    multiply_node,
    pair,
    two_results_node,
)
from torch import Tensor

from isthmus.diagnostics import UnsupportedError


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
