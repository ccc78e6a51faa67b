"""What a newcomer gets wrong first is said in a sentence, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import isthmus


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_what_cannot_be_called_cannot_be_compiled(capture: str):
    with pytest.raises(TypeError, match="a function or a module, not int"):
        isthmus.compile(3, capture=capture)  # type: ignore[type-var]


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(4))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_no_program_in_python(capture: str, make):
    with pytest.raises(TypeError, match="not TorchScript; give it the module or function before jit"):
        isthmus.compile(make(nn.Linear(4, 2)), capture=capture)


def test_what_is_explained_can_be_called():
    with pytest.raises(TypeError, match="a function or a module, not int"):
        isthmus.explain(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"strateg": "min-cut"}, ValueError, r"unknown options \['strateg'\].*did you mean 'strategy'\?"),
        ({"strategy": "min-cutt"}, ValueError, "did you mean 'min-cut'"),
        ({"reuse_results": "yes"}, ValueError, "reuse_results='yes' is neither True nor False"),
        ({"memory_budget": "1GB"}, ValueError, "memory_budget='1GB' is neither a number of bytes nor a fraction"),
        ({"recompile_limit": 1.5}, ValueError, "recompile_limit=1.5 is no number"),
        (["strategy"], TypeError, "options is a dictionary from names to values, not list"),
    ],
)
def test_an_option_that_has_no_meaning_is_told_at_once(options, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        isthmus.compile(torch.sin, options=options)


def test_flags_are_flags():
    with pytest.raises(ValueError, match="fullgraph='yes' is neither True nor False"):
        isthmus.compile(torch.sin, fullgraph="yes")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="dynamic='yes' is none of None, False, True"):
        isthmus.compile(torch.sin, dynamic="yes")  # type: ignore[call-overload]


def test_the_arguments_of_train_step_have_an_order():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match=r"a module, a loss function and an optimizer, not \(Linear, SGD, function\)"):
        isthmus.train_step(model, optimizer, lambda m, x: m(x).sum())  # type: ignore[arg-type]


def rows(x: Tensor) -> Iterator[Tensor]:
    for row in x:
        yield row * 2


@pytest.mark.parametrize("lazy", [rows, lambda x: map(torch.sin, x)])
def test_what_runs_after_the_trace_is_refused(lazy):
    with pytest.raises(isthmus.UnsupportedError, match="computed later"):
        isthmus.compile(lazy, capture="trace")(torch.ones(2, 3))


class Pair:
    def __init__(self, x: Tensor) -> None:
        self.parts = [x.sin(), {"twice": x * 2}]


@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.distributions.Categorical(logits=x, validate_args=False),
        lambda x: (x, torch.distributions.Normal(x, x, validate_args=False)),
        Pair,
    ],
)
def test_an_object_that_keeps_tensors_is_no_result_of_a_trace(made):
    with pytest.raises(isthmus.UnsupportedError, match="which keeps tensors"):
        isthmus.compile(made, capture="trace")(torch.ones(2, 3))


def test_a_module_of_the_program_is_a_result():
    held = nn.Linear(3, 3)
    given, module = isthmus.compile(lambda x: (held(x), held), capture="trace")(torch.ones(2, 3))
    torch.testing.assert_close(given, module(torch.ones(2, 3)))
