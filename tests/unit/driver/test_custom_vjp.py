"""`isthmus.custom_vjp`: the user's own reverse rule, eager and compiled, at every order."""

import pytest
import torch

import isthmus
from isthmus.driver.api import compile_in
from isthmus.driver.options import Options
from isthmus.driver.session import Session

WAYS = [("eager", None), *((b, c) for b in ("eager", "interpret", "native") for c in ("dynamo", "trace"))]


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def run(request):
    """Runs a function as it is, or compiled in one graph."""
    backend, capture = request.param
    if capture is None:
        return lambda f: f

    def compiled(f):
        options = Options(backend=backend, fullgraph=True, higher_order=True)
        return compile_in(Session(options), f, capture)[0]

    return compiled


def derivative(function, x, order):
    y = function(x)
    for _ in range(order):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y


def with_rule(fun, fwd, bwd, nondiff_argnums=()):
    f = isthmus.custom_vjp(fun, nondiff_argnums)
    f.defvjp(fwd, bwd)
    return f


cube = with_rule(lambda x: x**3, lambda x: (x**3, 3 * x**2), lambda slope, g: (g * slope,))
doubled = with_rule(torch.sin, lambda x: (x.sin(), x), lambda x, g: (2 * g * x.cos(),))


@pytest.mark.row("C2")
def test_higher_derivatives_come_from_the_rule(run):
    x = torch.tensor([2.0], requires_grad=True, dtype=torch.float64)
    f = run(lambda x: cube(x) + 0.0)
    assert [derivative(f, x, n).item() for n in range(4)] == pytest.approx([8, 12, 12, 6])


@pytest.mark.row("C3")
def test_a_rule_overrides_the_derivative(run):
    x = torch.randn(5, requires_grad=True, dtype=torch.float64)
    f = run(lambda x: doubled(x) * 3)
    torch.testing.assert_close(derivative(f, x, 1), 6 * x.cos())
    torch.testing.assert_close(derivative(f, x, 2), -6 * x.sin())  # of the rule, not twice the rule


@pytest.mark.row("C3")
def test_clipping_of_gradients(run):
    clip = with_rule(
        lambda lo, hi, x: x,
        lambda lo, hi, x: (x, None),
        lambda lo, hi, _, g: (g.clamp(lo, hi),),
        nondiff_argnums=(0, 1),
    )
    x = torch.tensor([0.1, 2.0, -3.0], requires_grad=True)
    f = run(lambda x: (clip(-1.0, 1.0, x) * x.detach() * 2).sum())
    torch.testing.assert_close(derivative(f, x, 1), torch.tensor([0.2, 1.0, -1.0]))


@pytest.mark.row("C4")
def test_several_outputs_and_absent_gradients(run):
    def rule(residuals, cotangents):
        _, y = residuals
        first, second = cotangents
        return first * y + second, None, first * 10

    f = with_rule(lambda x, n, y: (x * y * n, x + 1), lambda x, n, y: ((x * y * n, x + 1), (x, y)), rule)
    x, y = (torch.randn(4, requires_grad=True, dtype=torch.float64) for _ in range(2))
    g = run(lambda x, y: f(x, 3, y))
    a, b = g(x, y)
    torch.testing.assert_close((a, b), (x * y * 3, x + 1))
    gx, gy = torch.autograd.grad((a * 2).sum() + (b * 5).sum(), (x, y))
    torch.testing.assert_close((gx, gy), ((2 * y + 5).detach(), torch.full_like(x, 20)))
    a, _ = g(x, y)
    torch.testing.assert_close(torch.autograd.grad(a.sum(), x)[0], y.detach())


@pytest.mark.row("C4")
def test_none_for_a_tensor_argument(run):
    f = with_rule(lambda x, y: x * y, lambda x, y: (x * y, y), lambda y, g: (g * y, None))
    x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
    gx, gy = torch.autograd.grad(run(lambda x, y: f(x, y))(x, y).sum(), (x, y), allow_unused=True)
    torch.testing.assert_close(gx, y.detach())
    assert gy is None or not gy.any()


@pytest.mark.row("C4")
def test_pytrees_of_arguments_outputs_and_residuals(run):
    def fun(p, x):
        return {"y": x * p["w"] + p["b"][0], "n": 3}

    def fwd(p, x):
        return fun(p, x), {"x": x, "w": p["w"], "name": "saved"}

    def bwd(kept, cotangent):
        assert kept["name"] == "saved"
        g = cotangent["y"]
        return {"w": g * kept["x"], "b": [g.sum().expand(1)]}, g * kept["w"] * 7

    f = with_rule(fun, fwd, bwd)
    w, x = (torch.randn(4, requires_grad=True, dtype=torch.float64) for _ in range(2))
    b = torch.randn(1, requires_grad=True, dtype=torch.float64)
    out = run(lambda w, b, x: f({"w": w, "b": [b]}, x)["y"])(w, b, x)
    torch.testing.assert_close(out, x * w + b)
    gw, gb, gx = torch.autograd.grad(out.sum(), (w, b, x))
    torch.testing.assert_close((gw, gb, gx), (x.detach(), torch.full_like(b, 4), 7 * w.detach()))


@pytest.mark.row("C4")
def test_integer_outputs_have_no_gradient(run):
    def fun(x):
        return x * 2, (x > 0).to(torch.int64)

    f = with_rule(fun, lambda x: (fun(x), None), lambda _, g: (g[0] * 5,))
    x = torch.randn(4, requires_grad=True)
    y, sign = run(lambda x: f(x))(x)
    assert not sign.requires_grad and sign.dtype == torch.int64
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 5))


@pytest.mark.row("C1")
def test_without_gradients_the_function_itself_runs(run):
    f = with_rule(lambda x: x + 1, lambda x: (x + 100, None), lambda _, g: (g,))
    torch.testing.assert_close(run(lambda x: f(x))(torch.zeros(2)), torch.ones(2))


@pytest.mark.row("C1")
def test_in_a_larger_program(run):
    w, x = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)

    def program(act, w, x):
        return act(act(x @ w) @ w).square().mean()

    found = torch.autograd.grad(run(lambda w, x: program(doubled, w, x))(w, x), w)
    torch.testing.assert_close(found, torch.autograd.grad(program(doubled, w, x), w))
    plain = torch.autograd.grad(program(torch.sin, w, x), w)
    assert not torch.allclose(found[0], plain[0])


def test_the_result_may_be_written_to(run):
    def program(x):
        y = doubled(x)
        y.mul_(3)
        return y.sum()

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(derivative(run(program), x, 1), 6 * x.detach().cos())


@pytest.mark.row("C2")
def test_functional_transforms():
    x = torch.tensor(2.0)
    assert torch.func.grad(torch.func.grad(torch.func.grad(cube)))(x) == 6
    torch.testing.assert_close(torch.vmap(torch.func.grad(cube))(torch.arange(3.0)), torch.tensor([0.0, 3, 12]))
    compiled = isthmus.compile(lambda x: torch.func.grad(torch.func.grad(cube))(x), fullgraph=True)
    assert compiled(x) == 12


def test_a_rule_that_is_missing_or_wrong_is_named():
    f = isthmus.custom_vjp(torch.sin)
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"sin has no rule yet: call sin.defvjp"):
        f(x)
    f.defvjp(lambda x: (x.sin(), None), lambda _, g: (g, g))
    with pytest.raises(TypeError, match="bwd of sin must give a tuple of 1 gradients, one per argument, not 2 values"):
        f(x).sum().backward()
    f.defvjp(lambda x: (x.sin(), None), lambda _, g: g)
    with pytest.raises(TypeError, match="not Tensor"):
        f(x).sum().backward()
    f.defvjp(lambda x: x.sin(), lambda _, g: (g,))
    with pytest.raises(TypeError, match=r"fwd of sin must give \(output, residuals\), not Tensor"):
        f(x)


def test_keyword_arguments():
    def fun(x, scale=2.0):
        return x * scale

    f = with_rule(fun, lambda x, scale: (x * scale, scale), lambda scale, g: (g * scale * 10, None))
    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(f(x, scale=3.0).sum(), x)[0], torch.full_like(x, 30))
    torch.testing.assert_close(torch.autograd.grad(f(x).sum(), x)[0], torch.full_like(x, 20))


def test_fwd_may_call_the_function_itself(run):
    @isthmus.custom_vjp
    def log1pexp(x):
        return torch.log(1 + torch.exp(x))

    log1pexp.defvjp(lambda x: (log1pexp(x), x), lambda x, g: (g * (1 - 1 / (1 + torch.exp(x))),))
    x = torch.tensor([0.5, 100.0], dtype=torch.float64, requires_grad=True)
    f = run(lambda x: log1pexp(x) * 1)
    torch.testing.assert_close(derivative(f, x, 1), x.sigmoid())
    torch.testing.assert_close(derivative(f, x, 2), x.sigmoid() * (1 - x.sigmoid()))
    big = torch.tensor([800.0], dtype=torch.float64, requires_grad=True)
    assert derivative(f, big, 1).item() == 1
    assert derivative(f, big, 1).item() == 1  # and again: nothing is left behind
