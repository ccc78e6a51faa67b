"""Whole captured programs: text, custom operators, training steps."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from same_as_eager import check, square
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from isthmus.dialects import aten, autodiff
from isthmus.frontend.capture_dynamo import CaptureLog, compile_with_dynamo

PRINT = """
import torch, sys
from xdsl.printer import Printer
from isthmus.frontend.capture_dynamo import compile_with_dynamo
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU())
def show(captured):
    Printer(stream=sys.stdout, print_debuginfo=True).print_op(captured.module)
    return lambda arguments: [torch.zeros(3, 8), torch.zeros(3)]
compile_with_dynamo(lambda x, k: (net(x * k).flip(0), x.sum(1)), show, dynamic=True)(torch.ones(3, 4), 5)
"""


@pytest.mark.row("T29")
def test_the_text_is_the_same_in_every_process():
    texts = [
        subprocess.run(
            [sys.executable, "-c", PRINT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert "batch_norm" in texts[0] and texts[0] == texts[1]


def test_lstm_is_one_call(captures):
    net = nn.LSTM(4, 3, batch_first=True)
    x = torch.randn(2, 5, 4)
    out, _ = compile_with_dynamo(net, captures, fullgraph=True)(x)
    torch.testing.assert_close(out, net(x)[0])
    assert [c.overload for c in captures.calls if "lstm" in c.overload] == ["lstm.input"]


def test_custom_operators(captures):
    @torch.library.custom_op("isthmus_test::scale_add", mutates_args=("out",))
    def scale_add(x: Tensor, k: float, out: Tensor) -> Tensor:
        out.add_(x)
        return x * k

    @scale_add.register_fake
    def _(x, k, out):
        return torch.empty_like(x)

    check(captures, lambda x, o: torch.ops.isthmus_test.scale_add(x, 2.0, o) + o, square(), square())
    call = captures.calls[0]
    assert (call.overload, call.mutates) == ("isthmus_test::scale_add.default", (1,))
    assert any("isthmus_test::scale_add" in s for s in captures.all[0].module.attributes[aten.SCHEMAS].data)


def test_a_whole_step_is_one_graph(captures):
    net = nn.Linear(4, 2)

    def step(x):
        loss = (net(x) ** 2).mean()
        grads = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads, strict=True):
                p.sub_(g, alpha=0.1)
        return loss

    before = [p.detach().clone() for p in net.parameters()]
    x = torch.randn(3, 4)
    first = compile_with_dynamo(step, captures, fullgraph=True)(x)
    mine = [p.detach().clone() for p in net.parameters()]
    with torch.no_grad():
        for p, b in zip(net.parameters(), before, strict=True):
            p.copy_(b)
    torch.testing.assert_close(first, step(x))
    for p, m in zip(net.parameters(), mine, strict=True):
        torch.testing.assert_close(p.detach(), m)
    assert len(captures.all) == 1 and len(captures.ops(autodiff.VjpOp)) == 1


def test_backward_and_update_in_one_graph(captures):
    net, reference = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(2))
    reference.load_state_dict(net.state_dict())

    def step(net, x):
        loss = (net(x) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    x = torch.randn(3, 4)
    got = compile_with_dynamo(lambda x: step(net, x), captures, fullgraph=True)(x)
    torch.testing.assert_close(got, step(reference, x))
    for mine, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert len(captures.ops(autodiff.VjpOp)) == 1


@pytest.mark.row("D13")
def test_no_memory_is_needed_to_call(captures):
    with FakeTensorMode():
        huge = torch.empty(160_000, 160_000)
        result = compile_with_dynamo(lambda x: x @ x + 1, captures, fullgraph=True)(huge)
    assert isinstance(result, FakeTensor)
    assert result.shape == huge.shape
    assert not captures.all  # runs as written: a program of ours has nothing to run on


def test_writes_through_data_are_writes(captures):
    check(captures, lambda x: (y := x * 1, y.data.mul_(2), y + 1)[-1], square(True))
    assert "mul_.Tensor" in captures.overloads


def test_forward_mode_is_reverse_mode_twice(captures):
    x = torch.rand(3)
    f = lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1]  # noqa: E731
    torch.testing.assert_close(compile_with_dynamo(f, captures, fullgraph=True)(x), x.cos() * x)
    first, second = captures.ops(autodiff.VjpOp)
    assert [*second.outs, *second.ins] == [*first.results, *first.seeds]


def test_a_log_can_be_kept(captures):
    log = CaptureLog()
    compile_with_dynamo(lambda x: x * 2, captures, log=log)(square())
    assert len(log.graphs) == 1 and log.graphs[0].captured is captures.all[0] and log.guards
