"""Sizes that move: how often a function compiles, and that every size gets eager's values and gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import isthmus
from isthmus.driver.api import compile_in
from isthmus.driver.explain import report
from isthmus.driver.options import Options
from isthmus.driver.session import Session, compilations

CAPTURES = ("dynamo", "trace")
Shapes = Sequence[tuple[int, ...]]


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


def compare(compiled: Callable[..., Tensor], function: Callable[..., Tensor], shapes: Shapes) -> None:
    """Values and gradients of one call, in float64."""
    mine = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    theirs = [t.detach().clone().requires_grad_() for t in mine]
    got, want = compiled(*mine), function(*theirs)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10, equal_nan=True)
    if not want.requires_grad:
        return
    tangent = torch.randn_like(want)
    got.backward(tangent)
    want.backward(tangent)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-9, equal_nan=True)


def count(function: Callable[..., Tensor], sizes: Sequence[int], capture: str, **options: object) -> int:
    """Compilations for (n, 3) tensors of these sizes, each compared with eager."""
    compiled = isthmus.compile(function, capture=capture, **options)
    before = compilations()
    for n in sizes:
        compare(compiled, function, [(n, 3)])
    return compilations() - before


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: x.sin() * 2 + x,
    "column sum": lambda x: x.sum(0),
    "row softmax": lambda x: x.softmax(-1),
    "mean of a symbolic number": lambda x: x.pow(2).mean(0) + x.shape[0],
    "view with a product": lambda x: x.reshape(-1).cos() * x.shape[0],
    "flatten and back": lambda x: x.flatten().view(x.shape[0], 3).exp(),
    "concatenation": lambda x: torch.cat([x, x * 2], 0).sin(),
    "gram matrix": lambda x: x @ x.t(),
    "transpose": lambda x: x.t().contiguous() * 3,
    "padding": lambda x: F.pad(x, (1, 0)) * 2,
    "cumulative sum": lambda x: x.cumsum(0) * x,
    "new tensors": lambda x: x + torch.ones(x.shape[0], 1, dtype=x.dtype) * torch.arange(x.shape[0])[:, None],
}


@pytest.mark.row("R4")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_four_sizes_compile_twice(name: str, capture: str):
    assert count(PROGRAMS[name], [2, 3, 4, 5], capture) == 2


@pytest.mark.row("R5")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_0_and_1_are_right_and_compile_once_each_at_most(name: str, capture: str):
    assert count(PROGRAMS[name], [2, 3, 4, 5, 1, 0], capture) <= 4


@pytest.mark.row("R4")
@pytest.mark.parametrize("capture", CAPTURES)
def test_dynamic_from_the_first_call(capture: str):
    assert count(PROGRAMS["row softmax"], [4, 7, 9, 2, 33], capture, dynamic=True) == 1


@pytest.mark.row("R4")
@pytest.mark.parametrize("capture", CAPTURES)
def test_never_dynamic(capture: str):
    assert count(PROGRAMS["elementwise"], [4, 7, 9, 4], capture, dynamic=False) == 3


@pytest.mark.row("R4")
def test_a_marked_dimension_is_symbolic_at_once():
    compiled = isthmus.compile(lambda x: x.sin().sum(1))
    before = compilations()
    for n in (4, 6, 9):
        x = torch.randn(n, 3)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), x.sin().sum(1))
    assert compilations() - before == 1


@pytest.mark.row("W2")
def test_sizes_that_vary_wildly_do_not_crash():
    """One symbol serves two equal sizes; others compile again, and past the limit run as in eager."""
    function = lambda x: (x * 2).sum(-1)  # noqa: E731
    compiled = isthmus.compile(function)
    for k in range(12):
        x = torch.randn(*range(2, 3 + k % 4), 1 + k)
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.row("D4")
@pytest.mark.parametrize("capture", CAPTURES)
def test_what_is_guarded_compiles_again_and_is_right(capture: str):
    function = lambda x: (x + 1).sum(0)  # noqa: E731
    compiled = isthmus.compile(function, capture=capture)
    x = torch.randn(4, 4)
    variants = [x, x.double(), x.t(), x.clone().requires_grad_(), torch.randn(4, 4, 2)]
    for each in variants:
        got, want = compiled(each), function(each)
        assert got.dtype == want.dtype and got.requires_grad == want.requires_grad
        torch.testing.assert_close(got, want)


@pytest.mark.row("D6")
@pytest.mark.row("R7")
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_python_bound_is_guarded(capture: str):
    def function(x: Tensor, n: int) -> Tensor:
        for i in range(1, n):
            x = x * i
        return x

    compiled = isthmus.compile(function, capture=capture)
    for n in (5, 3, 5, 6):
        torch.testing.assert_close(compiled(torch.ones(3), n), function(torch.ones(3), n))


@pytest.mark.row("R7")
def test_recompiling_says_which_guard_failed():
    session = Session(Options())
    compiled, notes = compile_in(session, lambda xs: sum(x * 2 for x in xs), "dynamo")
    for n in (2, 3, 2):
        assert compiled([torch.ones(2)] * n).tolist() == [2.0 * n] * 2
    assert len(session.programs) == 2
    (reason,) = report(session, notes).recompiles
    assert "len(" in reason


@pytest.mark.row("R7")
def test_a_changed_attribute_of_a_module_compiles_again():
    class Scale(torch.nn.Module):
        factor = 2.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    module = Scale()
    compiled = isthmus.compile(module)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    module.factor = 3.0
    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]


def named(x: Tensor, name: str) -> Tensor:
    return x * len(name)


@pytest.mark.row("D11")
@pytest.mark.parametrize("capture", CAPTURES)
def test_past_the_limit_calls_run_as_in_eager_after_one_warning(capture: str, caplog, recwarn):
    """The warning names the guard; what was compiled before goes on being used. Dynamo logs its own."""
    compiled = isthmus.compile(named, capture=capture, options={"recompile_limit": 3})
    logging.getLogger("torch._dynamo").propagate = True
    before = compilations()
    for text in ("a", "bb", "ccc", "dddd", "eeeee", "bb", "dddd"):
        assert compiled(torch.ones(2), text).tolist() == [len(text)] * 2
        assert isthmus.last_call_native() or len(text) > 3
    assert compilations() - before == 3
    said = [r.getMessage() for r in caplog.records if "limit" in r.getMessage()]
    said += [str(w.message) for w in recwarn if "limit" in str(w.message)]
    assert len(set(said)) == 1 and "'ccc'" in said[0]  # two handlers may see one record


@pytest.mark.row("D11")
@pytest.mark.parametrize("capture", CAPTURES)
def test_past_the_limit_a_full_graph_is_an_error(capture: str):
    compiled = isthmus.compile(named, capture=capture, fullgraph=True, options={"recompile_limit": 2})
    for text in ("a", "bb"):
        compiled(torch.ones(2), text)
    for _ in range(2):
        with pytest.raises(Exception, match=r"limit|fullgraph"):
            compiled(torch.ones(2), "ccc")
    assert compiled(torch.ones(2), "bb").tolist() == [2.0, 2.0]


@pytest.mark.row("D11")
def test_a_limit_that_allows_nothing_is_refused():
    with pytest.raises(ValueError, match="recompile_limit"):
        isthmus.compile(named, options={"recompile_limit": 0})
