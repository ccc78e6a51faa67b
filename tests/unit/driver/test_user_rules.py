"""Rules that users register: decompositions, derivatives, rewrites."""

import pytest
import torch

import isthmus
from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects import prim
from isthmus.driver.api import compile_in
from isthmus.driver.explain import explain
from isthmus.driver.options import Options
from isthmus.driver.rules import registered
from isthmus.driver.session import Session


@torch.library.custom_op("isthmus_rules::fma", mutates_args=())
def fma(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return x * y + z


@fma.register_fake
def _(x, y, z):
    torch._check(x.shape == y.shape, lambda: "x and y differ")
    return torch.empty_like(z)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])


fma.register_autograd(lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0], g), setup_context=_setup)


@torch.library.custom_op("isthmus_rules::bare", mutates_args=())
def bare(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale


@bare.register_fake
def _(x, scale):
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)
    yield
    assert not registered(), "a test left a rule behind"


@pytest.fixture(params=["dynamo", "trace"])
def capture(request):
    return request.param


def compiled(f, capture="dynamo", **settings):
    return isthmus.compile(f, fullgraph=True, capture=capture, **settings)


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


# ---- Rewrites


def pattern(x, y, z):
    return x * y + z


@pytest.mark.row("X5")
def test_a_pattern_becomes_a_custom_operator_wherever_it_stands(capture):
    def model(x, y, z):
        a = x * y + z
        b = z + a * x  # exchanged
        return torch.sin(b) * 2 + (y * 2)

    x, y, z = leaf(3, 4), leaf(3, 4), leaf(3, 4)
    expected = model(x, y, z)
    with isthmus.register_rewrite(pattern, lambda x, y, z: fma(x, y, z)):
        report = explain(model, capture=capture)(x, y, z)
        (graph,) = report.graphs
        assert list(graph.rules.values()) == [2]
        assert graph.fallbacks["isthmus_rules::fma.default"] == 2
        assert "rule used 2 times: rewrite of pattern" in str(report)
        found = compiled(model, capture)(x, y, z)
        torch.testing.assert_close(found, expected)
        grads = torch.autograd.grad(found.sum(), (x, y, z))
    torch.testing.assert_close(grads, torch.autograd.grad(expected.sum(), (x, y, z)))


@pytest.mark.row("X5")
def test_a_program_compiled_before_is_compiled_again(capture):
    f = compiled(pattern, capture)
    x = torch.randn(3, 4)
    torch.testing.assert_close(f(x, x, x), x * x + x)
    with isthmus.register_rewrite(pattern, lambda x, y, z: x * 0 + 7):
        torch.testing.assert_close(f(x, x, x), torch.full_like(x, 7))
    torch.testing.assert_close(f(x, x, x), x * x + x)


@pytest.mark.row("X5")
def test_what_does_not_match_stays():
    def model(x, y, z):
        shared = x * y
        return shared + z, torch.add(x * y, z, alpha=2), x * 2.0 + z, shared

    x = [torch.randn(3, 4) for _ in range(3)]
    with isthmus.register_rewrite(pattern, lambda x, y, z: x * y + z + 100) as rule:
        first, second, third, shared = compiled(model)(*x)
    assert rule not in registered()
    torch.testing.assert_close(first, model(*x)[0] + 100)
    torch.testing.assert_close((second, third, shared), model(*x)[1:])


@pytest.mark.row("X5")
def test_when_says_which_matches_are_wanted():
    def model(x, y, z):
        return x * y + z

    with isthmus.register_rewrite(pattern, lambda x, y, z: x * 0, when=lambda x, y, z: x.shape == y.shape == z.shape):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(model)(x, x, x), x * 0)
        z = torch.randn(4)
        torch.testing.assert_close(compiled(model)(x, x, z), x * x + z)


@pytest.mark.row("X5")
def test_numbers_and_dims_of_a_pattern_are_matched_as_they_are():
    def scaled(x):
        return torch.softmax(x * 0.5, dim=-1)

    with isthmus.register_rewrite(scaled, lambda x: x + 1):
        x = torch.randn(2, 3, 4)
        torch.testing.assert_close(compiled(lambda x: (x * 0.5).softmax(-1))(x), x + 1)
        torch.testing.assert_close(compiled(lambda x: (x * 0.25).softmax(-1))(x), (x * 0.25).softmax(-1))


@pytest.mark.row("X5")
def test_the_rewrites_artifact(monkeypatch, capsys):
    monkeypatch.setenv("ISTHMUS_LOGS", "rewrites")
    with isthmus.register_rewrite(pattern, fma):
        x = torch.randn(3, 4)
        compiled(pattern)(x, x, x)
    assert "1 x rewrite of pattern by" in capsys.readouterr().err


@pytest.mark.row("X5")
def test_a_replacement_with_other_arguments_is_refused_at_once():
    with pytest.raises(isthmus.CompileError, match="does not take the 1 arguments of the pattern") as caught:
        isthmus.register_rewrite(lambda a: a.sin(), lambda a, b: a)
    assert "test_user_rules.py" in str(caught.value)


def test_errors_name_the_rule_and_its_place():
    def wrong(x, y, z):
        return (x * y + z).sum()

    x = torch.randn(3, 4)
    with isthmus.register_rewrite(pattern, wrong):
        with pytest.raises(
            CompileError, match=r"rewrite of pattern by '.*wrong' \(.*test_user_rules.py:\d+\) fails"
        ) as e:
            compiled(pattern)(x, x, x)
    assert "tensor<f32>" in str(e.value) and "tensor<3x4xf32>" in str(e.value)
    with isthmus.register_rewrite(pattern, lambda x, y, z: x @ y):
        with pytest.raises(CompileError, match=r"test_user_rules.py:\d+\) fails"):
            compiled(pattern)(x, x, x)
    with pytest.raises(CompileError, match="does not use its argument 1"):
        isthmus.register_rewrite(lambda x, y: x + 1, lambda x, y: x)


# ---- Decompositions


@pytest.mark.row("X5")
def test_a_decomposition_is_differentiated(capture):
    x = leaf(5)

    def body(x, scale):
        return x * scale

    with isthmus.register_decomposition(bare)(body):
        report = explain(lambda x: bare(x, 3.0).sin(), capture=capture)(x)
        assert not report.graphs[0].fallbacks and list(report.graphs[0].rules.values()) == [1]
        y = compiled(lambda x: bare(x, 3.0).sin(), capture)(x)
        torch.testing.assert_close(y, (3 * x).sin())
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 3 * (3 * x).cos())


@pytest.mark.row("X5")
def test_a_decomposition_of_an_aten_overload(capture):
    with isthmus.register_decomposition(torch.ops.aten.relu.default)(lambda x: x.clamp(min=0) + 1):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(torch.relu, capture)(x), x.clamp(min=0) + 1)
        torch.testing.assert_close(compiled(lambda x: (x + 0).relu_(), capture)(x), x.clamp(min=0) + 1)


def test_a_decomposition_may_draw_random_numbers():
    with isthmus.register_decomposition(bare)(lambda x, scale: x + torch.rand_like(x) * scale):
        y = compiled(lambda x: bare(x, 2.0) - bare(x, 2.0))(torch.zeros(1000))
    assert 0.5 < y.std() < 1.2


def test_a_wrong_decomposition_is_named():
    with isthmus.register_decomposition(bare)(lambda x, scale: x.sum()):
        with pytest.raises(CompileError, match=r"decomposition of isthmus_rules::bare.default by .*test_user_rules.py"):
            compiled(lambda x: bare(x, 2.0))(torch.randn(3))


# ---- Derivatives


@pytest.mark.row("X5")
def test_a_derivative_for_an_operator_without_one(capture):
    x = leaf(5)
    f = compiled(lambda x: bare(x, 3.0).sin(), capture)
    with isthmus.register_derivative(bare)(lambda g, y, x, scale: (g * scale * 10, None)):
        torch.testing.assert_close(torch.autograd.grad(f(x).sum(), x)[0], 30 * (3 * x).cos())


@pytest.mark.row("C3")
def test_a_derivative_overrides_the_built_in_one_at_every_order(capture):
    x = leaf(5)
    with isthmus.register_derivative(torch.ops.aten.sin.default)(lambda g, y, x: g * x.cos() * 2):
        f = compiled(lambda x: torch.sin(x) * 3, capture, options={"higher_order": True})
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        torch.testing.assert_close(first, 6 * x.cos())
        torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], -6 * x.sin())


def test_a_derivative_may_read_the_result():
    x = leaf(5)
    with isthmus.register_derivative(torch.ops.aten.exp.default)(lambda g, y, x: g * y * 5):
        f = compiled(torch.exp)
        torch.testing.assert_close(torch.autograd.grad(f(x).sum(), x)[0], 5 * x.exp())


def test_a_derivative_with_too_few_gradients_is_named():
    with isthmus.register_derivative(bare)(lambda g, y, x, scale: (g,)):
        with pytest.raises(CompileError, match=r"derivative of isthmus_rules::bare.*gives 1 gradients where .* 2 arg"):
            compiled(lambda x: bare(x, 2.0))(leaf(3))


def test_only_overloads_have_rules():
    with pytest.raises(TypeError, match="name one of them"):
        isthmus.register_decomposition(torch.ops.aten.add)
    with pytest.raises(TypeError, match="no operator overload"):
        isthmus.register_derivative(torch.sin)


@pytest.mark.row("X5")
def test_a_compiled_training_step_takes_a_new_rule():
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    step = isthmus.train_step(net, lambda model, x: torch.relu(model(x)).sum(), optimizer)
    x = torch.randn(4, 3)
    plain = torch.relu(net(x)).sum()
    torch.testing.assert_close(step(x), plain)
    with isthmus.register_decomposition(torch.ops.aten.relu.default)(lambda x: x.clamp(min=0) + 1):
        torch.testing.assert_close(step(x), plain + 4)
    torch.testing.assert_close(step(x), plain)


def test_what_a_rule_makes_stands_where_the_call_stood():
    def program(x):
        first = bare(x, 3.0)
        return bare(first, 3.0)

    with isthmus.register_decomposition(bare)(lambda x, scale: x * scale):
        own = Session(Options(fullgraph=True))
        compile_in(own, program, "dynamo")[0](torch.randn(3))
    products = [op for op in own.programs[0].lowering.stages["prim"].walk() if isinstance(op, prim.MulOp)]
    start = program.__code__.co_firstlineno
    assert [ir.source_location(op).line - start for op in products] == [1, 2]
