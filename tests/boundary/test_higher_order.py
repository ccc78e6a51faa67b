"""Derivatives of any order through compiled code, inside and outside of it, with user-written rules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import isthmus
from tests.boundary.harness import CAPTURES, compiled_by, f64
from tests.cube import Cube

FUNCTIONS = {
    "t exp t": (lambda t: t * t.exp(), 327.5889),
    "t^2 + sqrt t": (lambda t: t**2 + t.sqrt(), 1.96875),
    "sin t tanh t": (lambda t: t.sin() * t.tanh(), 0.75657),
    "exp": (torch.exp, None),
    "sigmoid": (torch.sigmoid, None),
    "softmax": (lambda t: torch.softmax(torch.stack([t, t * 2]), 0)[0], None),
    "log": (torch.log, None),
    "cube": (lambda t: t**3, None),
    "gelu": (torch.nn.functional.gelu, None),
    "div": (lambda t: 1 / (1 + t * t), None),
}


def orders(function, t: Tensor, count: int) -> list[Tensor]:
    found, y = [], function(t)
    for _ in range(count):
        (y,) = torch.autograd.grad(y, t, create_graph=True)
        found.append(y.detach())
    return found


@pytest.mark.row("B1")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_three_orders(name: str, capture: str):
    function, second = FUNCTIONS[name]
    compiled = compiled_by(function, capture, "native")
    t = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    got, want = orders(compiled, t, 3), orders(function, t, 3)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
    if second is not None:
        assert abs(got[1].item() - second) < 1e-3


def net(x, w):
    return torch.tanh(x @ w).pow(2).sum(1) + torch.nn.functional.softplus(w).sum()


def penalty(f, x, w):
    (g,) = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
    ((g.norm(dim=1) - 1) ** 2).mean().backward()
    return x.grad, w.grad


def hessian_vector(f, x, w):
    (g,) = torch.autograd.grad(f(x, w).sum(), w, create_graph=True)
    return torch.autograd.grad((g * w.detach().cos()).sum(), (x, w))


def forward_over_reverse(f, x, w):
    v = f(x, w)
    u = torch.ones_like(v, requires_grad=True)
    g = torch.autograd.grad(v, w, u, create_graph=True)[0]
    return torch.autograd.grad(g, u, torch.ones_like(g))


def hessian(f, x, w):
    return torch.autograd.functional.hessian(lambda t: f(x, t).sum(), w.detach())


def third(f, x, w):
    (g,) = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.pow(2).sum(), x, create_graph=True)
    h.sum().backward()
    return x.grad, w.grad


def retained(f, x, w):
    (g,) = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
    first = torch.autograd.grad(g.sum(), w, retain_graph=True)
    return first, torch.autograd.grad(g.pow(2).sum(), w)


def gradgradcheck(f, x, w):
    assert torch.autograd.gradgradcheck(f, (x, w))
    return x


@pytest.mark.row("B1")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize(
    "use",
    [penalty, hessian_vector, forward_over_reverse, hessian, third, retained, gradgradcheck],
    ids=lambda f: f.__name__,
)
def test_uses_of_second_derivatives(use, capture: str):
    compiled = compiled_by(net, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    for _ in range(2):
        torch.testing.assert_close(use(compiled, f64(2, 3), f64(3, 2)), use(net, f64(2, 3), f64(3, 2)))


@pytest.mark.row("B1")
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_gradient_inside_is_differentiated_outside(capture: str):
    def f(x):
        (g,) = torch.autograd.grad((x * x.exp()).sum(), x, create_graph=True)
        return (g * g).sum()

    compiled = compiled_by(f, capture, "native")
    for function in (f, compiled):
        x = f64(3)
        y = function(x * 1)
        y.backward()
        if function is f:
            want = y.detach(), x.grad
    torch.testing.assert_close((y.detach(), x.grad), want)


def test_a_written_input_in_a_second_derivative_is_kept_or_refused():
    def f(x, y):
        x.mul_(y)
        return (x * x.exp()).sum()

    def run(function):
        leaf, y = f64(3), f64(3)
        (g,) = torch.autograd.grad(function(leaf * 1, y), y, create_graph=True)
        g.pow(2).sum().backward()
        return leaf.grad, y.grad

    compiled = compiled_by(f, "dynamo", "native", options={"higher_order": True})
    torch.testing.assert_close(run(compiled), run(f))
    plain = compiled_by(f, "dynamo", "native")
    with pytest.raises(isthmus.CompileError, match="higher_order"):
        run(plain)
    torch.testing.assert_close(run(plain), run(f))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, extra):
        ctx.factor = factor
        ctx.save_for_backward(x)
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        return x * factor, x.sin(), mask

    @staticmethod
    def backward(ctx, first, second, third):
        (x,) = ctx.saved_tensors
        return 2 * (first * ctx.factor + second * x.cos()), None, None


@pytest.mark.row("C1", "C2")
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_user_rule_with_an_extra_output_to_the_third_order(capture: str):
    compiled = compiled_by(lambda x: Cube.apply(x)[0], capture, "native")
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert [t.item() for t in orders(compiled, x, 3)] == [12.0, 12.0, 6.0]
    assert compiled(x).item() == 8.0


@pytest.mark.row("C3", "C4")
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_user_rule_that_is_not_the_derivative(capture: str):
    def f(x):
        a, b, mask = Doubled.apply(x, 3.0, None)
        return (a * b)[:2].sum() + mask.sum() * 0

    results = []
    for function in (f, compiled_by(f, capture, "native")):
        x = f64(4)
        y = function(x * 1)
        y.backward()
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.row("B1")
@pytest.mark.parametrize("known", [False, True])
def test_a_second_gradient_through_an_argument_whose_value_was_replaced(known: bool):
    def f(x):
        with torch.no_grad():
            x.fill_(0.5)
        return x * x * x

    results = []
    options = {"higher_order": known}
    for function in (f, isthmus.compile(f, capture="trace", options=options)):
        leaf = f64(3)
        y = function(leaf.view_as(leaf))
        (first,) = torch.autograd.grad((y * y.detach().cos()).sum(), leaf, create_graph=True)
        results.append(torch.autograd.grad((first * first.detach().cos()).sum(), leaf))
    torch.testing.assert_close(results[1], results[0])


EMPTY = {
    "cos": lambda x: (x[:0] * 1).cos(),
    "product of nothing": lambda x: x[:0].prod(),
    "matmul": lambda x: x[:, :0] @ x[:0],
    "gather": lambda x: x.gather(0, torch.zeros(0, 3, dtype=torch.int64)),
    "softmax": lambda x: x[:, :0].softmax(1),
    "pad": lambda x: torch.nn.functional.pad(x[:0], (1, 2), value=1.0),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", EMPTY)
def test_gradients_of_no_elements_have_a_history(name: str, capture: str):
    function = EMPTY[name]
    found = []
    for f in (compiled_by(function, capture, "native"), function):
        x = f64(2, 3)
        y = f(x)
        tangent = torch.ones_like(y, requires_grad=True)
        (gradient,) = torch.autograd.grad(y, x, tangent, create_graph=True)
        again = torch.autograd.grad(gradient.sum(), (x, tangent), allow_unused=True, materialize_grads=True)
        found.append((y.detach(), gradient.requires_grad, *again))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_product_with_one_zero_twice(capture: str):
    index = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]])

    def f(x, u):
        return torch.scatter_reduce(x, 1, index, u, "prod")

    def second(f):
        x, u = f64(3, 2), torch.tensor([[0.0, 1, 2, 3], [0, 4, 0, 1], [2, 3, 5, 6]], dtype=torch.float64)
        u.requires_grad_()
        first = torch.autograd.grad((f(x, u) * f64(3, 2).detach()).sum(), (x, u), create_graph=True)
        return torch.autograd.grad(sum((g.cos() * g).sum() for g in first), (x, u))

    torch.testing.assert_close(second(compiled_by(f, capture, "native")), second(f))


@pytest.mark.parametrize("capture", CAPTURES)
def test_statistics_that_stay_as_they_are_can_be_differentiated_through_twice(capture: str):
    def f(x, mean, var):
        return torch._native_batch_norm_legit(x, None, None, mean, var, False, 0.1, 1e-5)[0]

    def second(f):
        x, mean, var = f64(4, 3), torch.full((3,), 0.5, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        (g,) = torch.autograd.grad(f(x, mean, var).sin().sum(), x, create_graph=True)
        return [*torch.autograd.grad(g.cos().sum(), x), mean, var]

    torch.testing.assert_close(second(compiled_by(f, capture, "native")), second(f))
