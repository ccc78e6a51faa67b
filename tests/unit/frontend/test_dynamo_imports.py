"""Dynamo's imports are put off, and what it is told meanwhile is what it would have found."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys

import pytest
import sympy
import torch
from torch._dynamo import convert_frame, output_graph
from torch._dynamo.variables import higher_order_ops
from torch.fx.experimental import symbolic_shapes

import isthmus
from isthmus.frontend import dynamo_imports
from isthmus.frontend.capture_dynamo import DynamoBackend

SEVERAL = """
import sys, torch, isthmus
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
run = isthmus.compile(lambda x: (model(x), [x + 1], {"a": x.sin()}))
run(torch.ones(2, 4, requires_grad=True))[0].sum().backward()
torch._dynamo.mark_dynamic(x := torch.ones(3, 4), 0)
isthmus.compile(model)(x)
late = ("networkx", "torch._inductor.codecache", "torch.export._trace", "torch._dynamo.repro.after_dynamo",
        "torch.distributed.tensor.experimental", "sympy.tensor.tensor", "sympy.combinatorics")
print(*(name for name in late if name in sys.modules))
"""


def test_a_first_step_leaves_out_what_dynamo_seldom_needs():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SEVERAL], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_files_that_say_nothing_are_those_that_torch_names():
    import torch._inductor.sizevars
    import torch.export._trace

    late = {inspect.getfile(torch.export._trace), inspect.getfile(torch._inductor.sizevars)}
    assert dynamo_imports._files_of_symbolic_sizes() | late == symbolic_shapes.uninteresting_files()
    assert output_graph.uninteresting_files() == symbolic_shapes.uninteresting_files()


def test_our_backend_is_registered_as_torch_finds_it():
    from torch._dynamo.backends import registry

    backend = DynamoBackend(lambda captured: lambda arguments: [])
    assert convert_frame._is_registered_backend(backend)
    assert registry._is_registered_backend(backend)
    assert not convert_frame._is_registered_backend(lambda graph, inputs: graph.forward)


def test_the_minifier_gets_its_wrapper_where_it_is_on():
    from torch._dynamo import eval_frame

    backend = DynamoBackend(lambda captured: lambda arguments: [])
    assert eval_frame.get_compiler_fn(backend) is backend
    with torch._dynamo.config.patch(repro_after="dynamo"):
        assert type(eval_frame.get_compiler_fn(backend)).__name__ == "WrapBackendDebug"


def test_a_compiled_function_inside_of_a_transform_is_still_refused():
    compiled = torch.compile(lambda x: x.sin(), backend=lambda graph, inputs: graph.forward, fullgraph=True)
    with pytest.raises(Exception, match=r"(?s)torch.func.grad\(compiled_fn\)"):
        torch.func.grad(lambda x: compiled(x).sum())(torch.ones(3))


def test_deduplication_still_hashes_nodes():
    with torch._dynamo.config.patch(track_nodes_for_deduplication=True):
        run = torch.compile(lambda x: (x + 1, x + 1), backend="eager")
        assert torch.equal(run(torch.ones(2))[1], torch.full((2,), 2.0))


def test_a_local_map_is_asked_for_only_where_it_is_enabled():
    asked = higher_order_ops.LocalMapWrappedHigherOrderVariable
    assert not asked.should_wrap_in_hop(len)
    with asked.enable():
        assert not asked.should_wrap_in_hop(len)


def test_written_attributes_are_still_reported():
    class Counter(torch.nn.Module):
        count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x + self.count

    model = Counter()
    run = isthmus.compile(model)
    told = pytest.warns(UserWarning, match="side effects.*self")
    with torch._dynamo.config.patch(side_effect_replay_policy="warn"), told:
        assert run(torch.zeros(1)).item() == 1
    assert model.count == 1


def _sums() -> list[sympy.Expr]:
    x, y = sympy.symbols("x y")
    n = sympy.Symbol("n", commutative=False)
    order, bounds = sympy.Order(x), sympy.AccumBounds(0, 1)
    terms = [x, y, -x, 2 * x, sympy.Integer(3), sympy.oo, sympy.nan, x * n, order, bounds, sympy.Identity(2)]
    return [sympy.Add(a, b, c) for a in terms[:6] for b in terms[:-1] for c in (x, terms[4])] + [terms[-1] + terms[-1]]


def test_sums_are_sympys_before_and_after_its_tensors_are_loaded():
    own = sympy.Add.__dict__["flatten"].__func__
    assert own.__globals__["__builtins__"]["__import__"] is not __import__
    sympy.core.cache.clear_cache()
    ours = _sums()
    __import__(dynamo_imports.TENSORS)
    sympy.core.cache.clear_cache()
    assert [sympy.srepr(s) for s in _sums()] == [sympy.srepr(s) for s in ours]


def test_sums_of_tensors_are_still_tensors():
    from sympy.tensor.tensor import TensAdd, TensorIndexType, tensor_heads, tensor_indices

    kind = TensorIndexType("L")
    (i,) = (tensor_indices("i", kind),)
    a, b = tensor_heads("A B", [kind])
    assert isinstance(sympy.Add(a(i), b(i)), TensAdd)


def test_guards_are_timed_and_lines_named_where_a_log_shows_it(caplog: pytest.LogCaptureFixture):
    from torch._dynamo import funcname_cache

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    funcname_cache.clearcache()
    torch.compile(program, backend="eager")(torch.ones(2))
    assert __file__ not in funcname_cache.cache
    torch._dynamo.reset()
    try:
        torch._logging.set_logs(guards=True, trace_call=True, dynamo=logging.DEBUG)
        torch.compile(program, backend="eager")(torch.ones(2))
    finally:
        torch._logging.set_logs()
    assert program.__qualname__.split(".")[0] in funcname_cache.cache[__file__].values()
