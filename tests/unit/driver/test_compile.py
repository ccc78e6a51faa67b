"""`isthmus.compile` from the outside: torch.compile's meaning, eager's results."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isthmus
from isthmus.diagnostics import CompileError
from isthmus.driver.api import compile_in
from isthmus.driver.options import Options
from isthmus.driver.session import Session

BACKENDS = ("eager", "interpret", "native")


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


def session(function, **options):
    """The compiled function, its session and the log of its capture."""
    own = Session(Options(**options))
    compiled, notes = compile_in(own, function, "dynamo")
    return compiled, own, notes


def toy(a, b):
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.row("D1")
def test_nothing_compiles_before_the_first_call():
    compiled, own, _ = session(Net())
    assert not own.programs
    compiled(torch.randn(2, 8))
    assert len(own.programs) == 1


@pytest.mark.row("D1")
def test_decorator_with_and_without_arguments():
    @isthmus.compile
    def f(x):
        return x.sin()

    @isthmus.compile(fullgraph=True, backend="interpret")
    def g(x):
        return x.cos()

    x = torch.randn(3)
    torch.testing.assert_close(f(x), x.sin())
    torch.testing.assert_close(g(x), x.cos())


@pytest.mark.row("D2")
def test_arguments_are_torch_compiles():
    x = torch.randn(3)
    for settings in (
        {"fullgraph": True},
        {"dynamic": True},
        {"dynamic": False},
        {"mode": "reduce-overhead"},
        {"options": {"strategy": "default"}},
        {"backend": "eager"},
    ):
        torch.testing.assert_close(isthmus.compile(lambda x: x * 2, **settings)(x), x * 2)
    function = lambda x: x + 1  # noqa: E731
    assert isthmus.compile(function, disable=True) is function


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"mode": "fast"}, "max-autotune"),
        ({"options": {"speed": 3}}, "strategy"),
        ({"backend": "inductor"}, "interpret"),
        ({"capture": "jit"}, "trace"),
    ],
)
def test_unknown_settings_name_those_that_exist(settings, names):
    with pytest.raises(ValueError, match=names):
        isthmus.compile(lambda x: x, **settings)


@pytest.mark.row("D3", "T28")
def test_a_second_call_compiles_nothing():
    compiled, own, _ = session(Net())
    for _ in range(3):
        compiled(torch.randn(2, 8)).sum().backward()
    assert len(own.programs) == 1
    node = own.programs[0].node
    assert node is not None and node.counters.forward_calls == 3


@pytest.mark.row("D4")
def test_grad_mode_and_strides_are_guarded():
    compiled, own, _ = session(Net())
    x = torch.randn(2, 8)
    compiled(x)
    with torch.no_grad():
        compiled(x)
    assert len(own.programs) == 2
    compiled(torch.randn(8, 2).t())
    assert len(own.programs) == 3


@pytest.mark.row("D6")
def test_loops_unroll_and_their_bound_is_guarded():
    def f(x, n):
        for i in range(1, n):
            x = x * i
        return x

    compiled, own, _ = session(f, fullgraph=True, dynamic=False)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x, 5), f(x, 5))
    torch.testing.assert_close(compiled(x, 4), f(x, 4))
    assert len(own.programs) == 2


@pytest.mark.row("D8", "T18", "G3")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_branch_on_data_breaks_the_graph_and_trains(backend):
    compiled, own, notes = session(toy, backend=backend)
    for sign in (1.0, -1.0):
        a, b = torch.randn(6, requires_grad=True), (sign * torch.rand(6)).requires_grad_()
        c, d = (t.detach().clone().requires_grad_() for t in (a, b))
        compiled(a, b).sum().backward()
        toy(c, d).sum().backward()
        torch.testing.assert_close(a.grad, c.grad)
        torch.testing.assert_close(b.grad, d.grad)
    assert len(own.programs) == 3
    assert notes.breaks[0].location is not None and notes.breaks[0].location.file.endswith("test_compile.py")


@pytest.mark.row("D9")
def test_fullgraph_makes_a_break_an_error_with_the_line():
    with pytest.raises(Exception, match=r"test_compile\.py") as info:
        isthmus.compile(toy, fullgraph=True)(torch.randn(3), torch.randn(3))
    assert "b.sum() < 0" in str(info.value)


@pytest.mark.row("D10")
def test_a_break_in_a_callee_breaks_the_caller():
    def outer(a, b):
        return toy(a, b) + 1

    compiled, own, notes = session(outer)
    a, b = torch.randn(3), torch.rand(3)
    torch.testing.assert_close(compiled(a, b), outer(a, b))
    assert notes.breaks and len(own.programs) >= 2


@pytest.mark.row("D15")
def test_item_and_print_break_and_are_right():
    def f(x):
        print("here")
        return x * x.sum().item()

    x = torch.randn(4)
    torch.testing.assert_close(isthmus.compile(f)(x), x * x.sum().item())


@pytest.mark.row("T1", "T13", "R9")
def test_without_grad_there_is_one_forward_and_nothing_is_saved():
    compiled, own, _ = session(Net())
    net_input = torch.randn(2, 8)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = compiled(net_input)
        assert not out.requires_grad
    for program in own.programs:
        assert "backward" not in program.stages
        assert program.node is not None and not program.node.convention.saved


@pytest.mark.row("T3", "T17", "T19")
@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_outside_and_accumulation(backend):
    net = Net()
    other = copy.deepcopy(net)
    compiled = isthmus.compile(net, backend=backend)
    x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))
    for _ in range(2):
        F.cross_entropy(compiled(x.sin()), y).backward()
        F.cross_entropy(other(x.sin()), y).backward()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.row("T15")
def test_the_backward_is_lowered_at_the_first_backward():
    compiled, own, _ = session(Net())
    loss = compiled(torch.randn(2, 8)).sum()
    node = own.programs[0].node
    assert node is not None and node.counters.backward_compiles == 0
    loss.backward()
    assert node.counters.backward_compiles == 1
    compiled(torch.randn(2, 8)).sum().backward()
    assert node.counters.backward_compiles == 1


@pytest.mark.row("A15")
def test_freezing_a_layer_removes_its_gradient_work():
    def dots(net):
        compiled, own, _ = session(net)
        compiled(torch.randn(2, 8)).sum().backward()
        return str(own.programs[0].stages["backward"]).count("prim.dot")

    frozen = Net()
    frozen.first.requires_grad_(False)
    assert dots(frozen) < dots(Net())


@pytest.mark.row("R4", "R5")
def test_sizes_become_symbolic_after_a_change():
    def f(x, w):
        h = torch.relu(x @ w)
        return (h - h.mean(0, keepdim=True)) * h.shape[0]

    compiled, own, _ = session(f)
    w = torch.randn(3, 4)
    for n in (2, 3, 4, 5):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, w), f(x, w))
    assert len(own.programs) == 2
    for n in (1, 0, 7):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, w), f(x, w))
    assert len(own.programs) <= 4


@pytest.mark.row("R6")
def test_recompiles_say_which_guard_failed():
    compiled, _, notes = session(lambda x: x * 2, dynamic=False)
    compiled(torch.randn(5))
    compiled(torch.randn(7))
    assert any(
        "size mismatch" in r and "expected 5" in r.replace("expected: 5", "expected 5") for r in notes.recompiles
    )


@pytest.mark.row("G1")
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_ladder_of_backends_agrees(backend):
    def f(x, w, b):
        return F.layer_norm(F.gelu(x @ w), (16,), weight=b).square().mean()

    x, w, b = torch.randn(6, 8), torch.randn(8, 16, requires_grad=True), torch.rand(16, requires_grad=True)
    loss = isthmus.compile(f, backend=backend, fullgraph=True)(x, w, b)
    got = torch.autograd.grad(loss, (w, b))
    wd, bd = w.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    expected = torch.autograd.grad(f(x.double(), wd, bd), (wd, bd))
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g.double(), e, rtol=1e-4, atol=1e-6)


@pytest.mark.row("D3")
def test_an_operator_without_a_rule_is_a_named_fallback():
    def f(x):
        return torch.linalg.slogdet(x @ x.T + torch.eye(4))[1]

    x = torch.randn(4, 4, requires_grad=True)
    report = isthmus.explain(f)(x)
    assert any("slogdet" in name for graph in report.graphs for name in graph.fallbacks)
    y = x.detach().clone().requires_grad_()
    f(y).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_shapes_that_eager_refuses_are_refused_by_its_exception_with_the_line():
    def f(x, w):
        return x @ w

    with pytest.raises(RuntimeError) as info:
        isthmus.compile(f, fullgraph=True)(torch.randn(2, 3), torch.randn(4, 5))
    assert "test_compile.py" in str(info.value)


def test_torch_compile_knows_the_backend():
    f = torch.compile(lambda x: x.sin() * 2, backend="isthmus")
    x = torch.randn(4, requires_grad=True)
    f(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_compile_errors_are_one_family():
    assert issubclass(isthmus.UnsupportedError, CompileError)


def test_values_kept_for_a_later_walk_may_need_values_kept_by_an_earlier_one():
    def f(x, c):
        s = x.sum()
        left = c * s * -x.sin() + (c * x.cos()).sum() + c.sum() * x.cos()
        return left * (x.sin() * s).sum()

    x, c = torch.tensor([0.3, -1.2, 0.7, 1.9], requires_grad=True), torch.arange(4.0)
    tangent = torch.tensor([1.0, 2.0, 3.0, 4.0])
    (got,) = torch.autograd.grad(isthmus.compile(f)(x, c), x, tangent)
    (want,) = torch.autograd.grad(f(x, c), x, tangent)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["interpret", "native"])
def test_the_old_value_of_an_overwritten_argument_is_saved_through_a_reshape(backend):
    def f(x):
        y = x.view(1)
        y.mul_(y)
        return x * 1

    x = torch.tensor(3.0, requires_grad=True)
    isthmus.compile(f, backend=backend)(x * 1).backward()
    assert x.grad is not None and float(x.grad) == 6.0


@pytest.mark.row("B1")
def test_a_physics_informed_net_is_one_native_program():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, x, t):
            x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
            u = self.net(torch.cat([x, t], 1))
            u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
            (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
            return (u_t + u * u_x - 0.003 * u_xx).square().mean()

    net = Residual()
    other = copy.deepcopy(net)
    x, t = torch.rand(64, 1), torch.rand(64, 1)
    got, want = isthmus.compile(net)(x, t), other(x, t)
    got.backward()
    assert isthmus.last_call_native()
    want.backward()
    torch.testing.assert_close(got, want)
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("backend", ["interpret", "native"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x.sum(), 0),
        lambda x: torch.max(x, 1, True)[0],
        lambda x: torch.var_mean(x, 1, keepdim=True)[0],
    ],
    ids=["result in one shape, saved in another", "result that is saved", "two results"],
)
def test_results_that_are_saved_too(function, backend):
    x = torch.randn(5, 5, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    got, want = isthmus.compile(function, backend=backend)(x), function(y)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
