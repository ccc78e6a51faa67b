"""Grad modes, inference mode and autocast, in and around a compiled function, as eager shows them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tests.boundary.harness import CAPTURES, agree, compiled_by, f64

# ---- modes inside


def no_grad_inside(x):
    with torch.no_grad():
        y = x * 2
    return y * x


def enable_inside(x):
    with torch.no_grad():
        y = x * 3
        with torch.enable_grad():
            z = x * y
    return z, y


def set_and_left(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y + x


def decorated(x):
    @torch.no_grad()
    def inner(t):
        return t.exp()

    return inner(x) * x


def detached(x):
    return (x.detach() * x).sum() + x.detach().exp().sum()


def requires_grad_inside(x):
    return x.requires_grad, x * 2 if x.requires_grad else x


def inference_inside(x):
    with torch.inference_mode():
        y = x.detach() * 2
    return y.clone(), x * 3


INSIDE = [no_grad_inside, enable_inside, set_and_left, decorated, detached, requires_grad_inside, inference_inside]


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("f", INSIDE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad], ids=["grad", "no_grad"])
def test_modes_inside_and_outside(f, capture: str, mode):
    with mode():
        agree(f, f64(2, 3), capture=capture, gradients=mode is nullcontext)


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_changed_grad_mode_is_there_after_the_call(capture: str):
    def f(x):
        torch.set_grad_enabled(False)
        return x * 2

    compiled = compiled_by(f, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    for _ in range(2):
        torch.set_grad_enabled(True)
        try:
            y = compiled(f64(3))
            after = torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)
        assert not after and not y.requires_grad


# ---- autocast


@pytest.mark.row("T26")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("where", ["outside", "inside", "backward too", "cached"])
def test_autocast_in_backward_is_that_of_the_forward(where: str, capture: str):
    inside = where == "inside"

    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16) if inside else nullcontext():
            return torch.relu(x @ w) @ w.t()

    compiled = compiled_by(f, capture, "native")
    results = []
    for function in (f, compiled, compiled):
        x, w = (t.detach().float().requires_grad_() for t in (f64(2, 3), f64(3, 4)))
        with nullcontext() if inside else torch.autocast("cpu", torch.bfloat16):
            y = function(x, w)
            if where == "backward too":
                y.sum().backward()
        if where != "backward too":
            y.sum().backward()
        assert y.dtype is torch.bfloat16 and w.grad.dtype is torch.float32
        results.append((y.detach(), x.grad, w.grad))
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", ["solve", "inverse", "cdist"])
def test_derivatives_that_are_traced_under_autocast_cast_nothing(name: str, capture: str):
    """A library call that autocast leaves alone has a derivative with products, which eager computes outside of it."""
    f = {
        "solve": lambda x: torch.linalg.solve(x, torch.eye(4)),
        "inverse": lambda x: torch.linalg.inv(x).sin(),
        "cdist": lambda x: torch.cdist(x, x * 2),
    }[name]
    compiled = compiled_by(f, capture, "native")
    gradients = []
    for function in (f, compiled):
        torch.manual_seed(0)
        x = (torch.randn(4, 4) + 3 * torch.eye(4)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x)
        y.sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
