"""Dynamo in front of us: what it compiles when, where graphs break, and how our errors and fallbacks show."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo_config

from isthmus.diagnostics import SourceLocation, UnsupportedError
from isthmus.frontend.capture_dynamo import CaptureLog, DynamoBackend, compile_with_dynamo


def refuse(captured):
    raise UnsupportedError("has no compiled form", location=captured.location, op="test", cure="none")


@pytest.mark.row("D1")
@pytest.mark.parametrize("form", ["function", "module", "method"])
def test_nothing_is_compiled_before_the_first_call(form, captures):
    module = nn.Linear(4, 4)
    program = {"function": lambda x: x * 2, "module": module, "method": module.forward}[form]
    compiled = compile_with_dynamo(program, captures)
    assert captures.all == []
    x = torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), program(x))
    assert len(captures.all) == 1


@pytest.mark.row("D2")
def test_the_arguments_of_torch_compile(captures):
    def f(x):
        return x * 2

    x = torch.ones(3)
    assert compile_with_dynamo(f, captures, disable=True)(x).tolist() == [2.0] * 3
    assert captures.all == []
    compile_with_dynamo(f, captures, fullgraph=True, dynamic=False)(x)
    compile_with_dynamo(f, captures, dynamic=True)(torch.ones(7))
    assert len(captures.all) == 2


@pytest.mark.row("D3")
def test_what_has_no_compiled_form_runs_as_torchs_own():
    log = CaptureLog()
    compiled = compile_with_dynamo(lambda x: x * 2, refuse, log=log)
    assert compiled(torch.ones(3)).tolist() == [2.0] * 3
    (graph,) = log.graphs
    assert graph.fallback is not None and graph.fallback.what == "has no compiled form"
    assert graph.location is not None and graph.location.file.endswith("test_capture_dynamo.py")


def test_under_fullgraph_it_is_an_error_of_ours():
    def f(x):
        return x * 2

    with pytest.raises(UnsupportedError, match="has no compiled form") as caught:
        compile_with_dynamo(f, refuse, fullgraph=True)(torch.ones(3))
    assert caught.value.cure == "none" and caught.value.op == "test"
    found = caught.value.location
    assert found is not None and found.column in (16, 0)  # older torch tells no column
    assert replace(found, column=16) == SourceLocation(__file__, f.__code__.co_firstlineno + 1, 16)


def test_a_failing_import_is_a_named_fallback(captures, monkeypatch):
    def broken(*args, **kwargs):
        raise KeyError("lost")

    monkeypatch.setattr("isthmus.frontend.capture_dynamo.import_graph", broken)
    log = CaptureLog()
    assert compile_with_dynamo(lambda x: x * 2, captures, log=log)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert log.graphs[0].fallback is not None and "KeyError" in log.graphs[0].fallback.what


@pytest.mark.row("D4", "R6")
def test_guards(captures):
    log = CaptureLog()
    compiled = compile_with_dynamo(lambda x, k: x * k, captures, log=log, dynamic=False)
    x = torch.randn(4, 4)
    calls = [
        (x, 2),
        (x.double(), 2),
        (x[:2], 2),
        (x.t(), 2),
        (x.clone().requires_grad_(), 2),
        (x, 3),
    ]
    for expected, arguments in enumerate(calls, start=1):
        for _ in range(2):
            torch.testing.assert_close(compiled(*arguments), arguments[0] * arguments[1])
        assert len(captures.all) == expected, arguments
    with torch.no_grad():
        compiled(*calls[0])
    assert len(captures.all) == len(calls) + 1
    assert any("stride" in reason for reason in log.recompiles)
    assert any("size mismatch at index 0. expected 4, actual 2" in reason for reason in log.recompiles)
    assert any("GRAD_MODE" in guard for guard in log.guards)


def toy(a, b):
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


@pytest.mark.row("D8", "D10")
@pytest.mark.parametrize("nested", [False, True])
def test_a_branch_on_data_breaks_the_graph(nested, captures):
    log = CaptureLog()
    program = (lambda a, b: toy(a, b) + 1) if nested else toy
    compiled = compile_with_dynamo(program, captures, log=log)
    a, b = torch.randn(5), torch.ones(5)
    for sign in (1, -1):
        torch.testing.assert_close(compiled(a, b * sign), program(a, b * sign))
    assert len(log.breaks) >= 1
    assert log.breaks[0].location == SourceLocation(__file__, toy.__code__.co_firstlineno + 2)
    assert len(captures.all) >= 3


@pytest.mark.row("D8", "T18")
def test_gradients_through_several_graphs(captures):
    a, b = torch.randn(5, requires_grad=True), torch.ones(5, requires_grad=True)
    compile_with_dynamo(toy, captures)(a, b).sum().backward()
    mine = a.grad, b.grad
    a.grad = b.grad = None
    toy(a, b).sum().backward()
    torch.testing.assert_close(mine, (a.grad, b.grad))


@pytest.mark.row("D9")
def test_under_fullgraph_a_break_is_an_error_with_the_line(captures):
    with pytest.raises(Exception, match=r"test_capture_dynamo\.py.*, line \d+, in toy\s+if b\.sum\(\) < 0"):
        compile_with_dynamo(toy, captures, fullgraph=True)(torch.randn(5), torch.ones(5))


@pytest.mark.row("D11")
def test_the_limit_of_recompiles(captures):
    compiled = compile_with_dynamo(lambda x: x * 2, captures, dynamic=False, recompile_limit=3)
    for n in range(2, 9):
        assert compiled(torch.ones(n)).tolist() == [2.0] * n
    assert len(captures.all) == 3


@pytest.mark.row("D15")
@pytest.mark.parametrize("program", [lambda x: (x * 2, print("x"), x + 1), lambda x: (x * x.sum().item(), None, None)])
def test_reading_data_and_printing_break_the_graph(program, captures, capsys):
    log = CaptureLog()
    got, *_ = compile_with_dynamo(program, captures, log=log)(torch.ones(3))
    torch.testing.assert_close(got, program(torch.ones(3))[0])
    assert len(log.breaks) == 1
    assert len(captures.all) == 2


@pytest.mark.row("D14")
def test_the_backend_is_an_ordinary_one(captures):
    x = torch.randn(3, requires_grad=True)
    torch.compile(lambda x: x.sin(), backend=DynamoBackend(captures))(x).sum().backward()
    torch.testing.assert_close(x.grad, x.cos())
    assert captures.overloads == ["sin.default"]


def test_our_settings_are_on_only_while_dynamo_traces_for_us(captures):
    def f(x, w):
        (d,) = torch.autograd.grad((x * w).sin().sum(), w, create_graph=True)
        return d.sum()

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    seen = []

    def looking(captured):
        seen.append(dynamo_config.trace_autograd_ops)
        return captures(captured)

    compile_with_dynamo(f, looking, fullgraph=True)(x, w)
    assert seen == [True] and not dynamo_config.trace_autograd_ops
    torch._dynamo.reset()
    torch.compile(f, backend=DynamoBackend(captures))(x, w)  # breaks there, and is right through the tape
    assert len(captures.all) > 1


def test_two_threads_compile_at_once(captures):
    results = {}

    def work(n):
        compiled = compile_with_dynamo(lambda x: (x * n).sin(), captures, fullgraph=True)
        results[n] = [compiled(torch.full((k,), 0.5)) for k in (2, 3)]

    threads = [threading.Thread(target=work, args=(n,)) for n in (2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, values in results.items():
        for value in values:
            torch.testing.assert_close(value, torch.full_like(value, 0.5 * n).sin())
    assert len(results) == 2
