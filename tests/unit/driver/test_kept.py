"""Programs that stay on disk: equal programs run without passes, in what follows from the key; others are compiled."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import isthmus
from isthmus.driver.api import compile_in
from isthmus.driver.fingerprint import fingerprint
from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.frontend.trace import trace
from isthmus.runtime import cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    isthmus.reset()
    torch.manual_seed(0)


def compiled(function, capture="trace", **options):
    """The function compiled anew, as another process would, and its session."""
    isthmus.reset()
    cache.current().forget_memory()
    own = Session(Options(**options), warm=True)
    return compile_in(own, function, capture)[0], own


def test_rules_that_torch_enters_at_its_first_vmap_change_no_key():
    def sine(a):
        return a.sin()

    x = torch.randn(3, 4)
    torch.func.vmap(sine)(x)
    compiled(sine)[0](x)
    again, warm = compiled(sine)
    torch.testing.assert_close(again(x), x.sin())
    assert not passes_ran(warm)


def passes_ran(session):
    (program,) = session.programs
    return "prim" in program.stages


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).square().sum()


def step(function, net, x):
    net.zero_grad()
    loss = function(x)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in net.parameters())]


@pytest.mark.row("R2")
@pytest.mark.parametrize("capture", ["trace", "dynamo"])
def test_an_equal_program_runs_without_passes_and_gives_the_same_bits(capture):
    net, x = Net(), torch.randn(3, 8)
    first, cold = compiled(net, capture)
    expected = step(first, net, x)
    assert passes_ran(cold)
    again, warm = compiled(net, capture)
    found = step(again, net, x)
    assert not passes_ran(warm)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    torch.testing.assert_close(found, step(net, net, x))
    assert isthmus.last_call_native()


def test_what_was_not_kept_is_lowered_when_it_is_asked_for():
    x = torch.randn(3, 5, requires_grad=True)
    f = lambda x: (x.sin() * x).sum()  # noqa: E731
    compiled(f)[0](x)  # the forward alone
    again, session = compiled(f)
    loss = again(x)
    assert not passes_ran(session)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    assert passes_ran(session)
    (expected,) = torch.autograd.grad(f(x), x, create_graph=True)
    torch.testing.assert_close(gradient, expected)
    second = torch.autograd.grad(gradient.square().sum(), x)
    torch.testing.assert_close(second, torch.autograd.grad(expected.square().sum(), x))


def test_a_backward_that_was_not_kept_reads_the_arena_of_the_kept_forward():
    net, x = Net(), torch.randn(3, 8)
    compiled(net)[0](x)
    again, session = compiled(net)
    torch.testing.assert_close(step(again, net, x), step(net, net, x))
    assert passes_ran(session)
    last, session = compiled(net)
    torch.testing.assert_close(step(last, net, x), step(net, net, x))
    assert not passes_ran(session)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (x.sin() * 3).sum(),
        lambda x: (x.cos() * 2).sum(),
        lambda x: (x.sin() * 2.0).sum(),
        lambda x: (x.sin() * 2).sum(0),
    ],
)
def test_another_program_is_another_entry(other):
    x = torch.randn(4, requires_grad=True)
    compiled(lambda x: (x.sin() * 2).sum())[0](x)
    call, session = compiled(other)
    torch.testing.assert_close(call(x), other(x))
    assert passes_ran(session)


def test_inputs_options_and_modes_are_in_the_key():
    f = lambda x: (x.exp() / x.exp().sum()).sum()  # noqa: E731
    x = torch.randn(4, 4, requires_grad=True)
    compiled(f)[0](x)
    assert not passes_ran(_called(f, x))
    assert passes_ran(_called(f, x.detach()))
    assert passes_ran(_called(f, x.double()))
    assert passes_ran(_called(f, x.t()))
    assert passes_ran(_called(f, torch.randn(4, 5, requires_grad=True)))
    assert passes_ran(_called(f, x, strategy="default"))
    assert passes_ran(_called(f, x, fallback_random=True))
    with torch.no_grad():
        assert passes_ran(_called(f, x))
    torch.set_default_dtype(torch.float64)
    try:
        assert passes_ran(_called(f, x))
    finally:
        torch.set_default_dtype(torch.float32)


def _called(function, x, **options):
    call, session = compiled(function, **options)
    torch.testing.assert_close(call(x), function(x))
    return session


def test_programs_that_python_decides_about_are_not_kept(monkeypatch):
    f = lambda x: torch.relu(x).sum()  # noqa: E731
    x = torch.randn(5, requires_grad=True)
    compiled(f)[0](x)
    relu = torch.ops.aten.relu.default
    with isthmus.register_decomposition(relu)(lambda x: torch.where(x > 0, x, 0.5 * x)):
        call, session = compiled(f)
        torch.testing.assert_close(call(x), torch.nn.functional.leaky_relu(x, 0.5).sum())
        assert passes_ran(session)
    assert not passes_ran(_called(f, x))
    monkeypatch.setenv("ISTHMUS_LOGS", "times")
    assert passes_ran(_called(f, x))
    monkeypatch.delenv("ISTHMUS_LOGS")
    assert passes_ran(_called(f, x, verify="once"))
    assert passes_ran(_called(f, x, cache=False))


def test_a_cut_that_a_time_limit_may_end_is_not_kept():
    """The next search may save other values of the same types."""
    f = lambda x: torch.relu(x).sum()  # noqa: E731
    x = torch.randn(5, requires_grad=True)
    for settings in ({"strategy": "optimal"}, {"memory_budget": 0.5}):
        assert passes_ran(_called(f, x, **settings))
        assert passes_ran(_called(f, x, **settings))


def test_a_custom_operator_is_not_kept():
    @torch.library.custom_op("kept_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))
    f = lambda x: twice(x).sum()  # noqa: E731
    x = torch.randn(5)
    assert passes_ran(_called(f, x))
    assert passes_ran(_called(f, x))


def test_random_numbers_mutation_and_symbolic_sizes_are_kept():
    def f(x, y):
        y.mul_(2)
        return torch.nn.functional.dropout(x, 0.5) + y, x.view(-1)

    for rows in (3, 7):  # the second is symbolic
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        results = []
        for _ in range(2):
            call, session = compiled(f, dynamic=True)
            torch.manual_seed(1)
            given = y.clone()
            results.append([*call(x, given), given])
        assert not passes_ran(session)
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        assert torch.equal(results[0][2], y * 2)
        assert results[1][1].data_ptr() == x.data_ptr()


def test_a_session_that_shows_passes_runs_them():
    x = torch.randn(5)
    for _ in range(2):
        own = Session(Options())
        compile_in(own, lambda x: x.sin(), "trace")[0](x)
        assert passes_ran(own)
    assert pickle.loads(pickle.dumps(Session(Options(), warm=True))).warm


def test_fingerprints_tell_literals_types_and_lines_apart():
    x = torch.randn(3)

    def print_of(function, *arguments):
        return fingerprint(trace(function, arguments, {}).captured.module)

    f = lambda x: x.sin() * 2  # noqa: E731
    assert print_of(f, x) == print_of(f, x)
    assert print_of(f, x) != print_of(f, x.double())
    assert print_of(f, x) != print_of(f, torch.randn(4))
    functions = [lambda x: x + 0.0, lambda x: x + -0.0, lambda x: x + 0]
    assert len({print_of(g, x) for g in functions}) == 3
