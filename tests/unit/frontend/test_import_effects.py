"""What a captured program writes, aliases and changes are facts on its calls."""

from __future__ import annotations

import pytest
import torch
from same_as_eager import check, square
from torch import nn

from isthmus import ir
from isthmus.dialects import aten
from isthmus.dialects.signature import Signature
from isthmus.frontend.capture_dynamo import compile_with_dynamo


@pytest.mark.row("T4")
def test_writes_are_facts_on_the_calls(captures):
    def f(x):
        y = x.clone()
        y.mul_(2)
        y[:, 0].add_(1)
        return y.sin()

    check(captures, f, square(True))
    mul, select, add = [c for c in captures.calls if c.overload in ("mul_.Tensor", "select.int", "add_.Tensor")]
    assert (mul.mutates, mul.aliases) == ((0,), (0,))
    assert (select.mutates, select.aliases) == ((), (0,))
    assert (add.mutates, add.aliases) == ((0,), (0,))
    assert add.results[0].type is aten.ref((4,), "f32", (4,))


@pytest.mark.row("T21", "T22")
def test_inputs_are_written_and_outputs_alias(captures):
    def f(a, b):
        a.mul_(2)
        return (a * b).sum(), a.t(), b.view(-1)

    check(captures, f, square(), square(True))


def test_an_input_that_comes_back_is_the_argument_itself(captures):
    def f(x):
        x.mul_(2)
        return x, nn.functional.dropout3d(x, p=0.0, training=True, inplace=True)

    x = torch.ones(2, 2, 2, 2)
    first, second = compile_with_dynamo(f, captures, fullgraph=True)(x)
    assert first is x and second is x
    func = ir.function(captures.all[0].module, "main")
    returned, rebound = func.body.block.last_op.operands  # dropout3d changes the shape and changes it back
    assert returned is rebound


@pytest.mark.row("T25")
def test_metadata_of_an_input_changes(captures):
    def f(x):
        x.t_()
        return x * 2

    check(captures, f, torch.randn(2, 3), fullgraph=False)


def test_set_data_through_another_alias(captures):
    def f(x):
        y = x * 1
        z = y.view(-1)
        z[2:4] = 0
        y.unsqueeze_(0)
        return y + 1, z

    check(captures, f, square(True))


def test_aliases_depend_on_strides_not_on_names(captures):
    def f(x):
        return x.t().reshape(-1), x.reshape(-1), x.contiguous().view(2, 8)

    check(captures, f, square(True))
    assert [c.aliases for c in captures.calls if c.overload == "reshape.default"] == [(-1,), (0,)]


@pytest.mark.row("T24")
def test_arguments_that_share_storage_say_so(captures):
    base = torch.ones(4)
    x, y = base[:], base.view(2, 2)

    def f(x, y):
        x.mul_(2)
        return x * y.view(-1)

    result = compile_with_dynamo(f, captures, fullgraph=True)(x, y)
    assert result.tolist() == [4.0] * 4 and base.tolist() == [2.0] * 4
    signature = Signature.of(ir.function(captures.all[0].module, "main"))
    assert [a.shares for a in signature.arguments] == [(), (0,)]
    apart = torch.ones(4), torch.ones(2, 2)
    assert compile_with_dynamo(f, captures, fullgraph=True)(*apart).tolist() == [2.0] * 4
    signature = Signature.of(ir.function(captures.all[-1].module, "main"))
    assert [a.shares for a in signature.arguments] == [(), ()]


def test_memory_shared_only_at_a_later_call_runs_as_in_eager(captures):
    def f(x, y):
        x.mul_(2)
        return x * y

    compiled = compile_with_dynamo(f, captures, fullgraph=True)
    compiled(torch.ones(4), torch.ones(4))
    base = torch.ones(5)
    assert compiled(base[:4], base[1:]).tolist() == f((other := torch.ones(5))[:4], other[1:]).tolist()


def test_duplicate_inputs_are_one_argument(captures):
    def f(a, b):
        a.mul_(2)
        return a * b

    a = torch.ones(3)
    assert compile_with_dynamo(f, captures, fullgraph=True)(a, a).tolist() == [4.0] * 3
    assert len(captures.all[0].inputs) == 1


def test_running_statistics_of_the_functional_form(captures):
    check(
        captures,
        lambda x, m, v: nn.functional.batch_norm(x, m, v, training=True),
        square(True),
        torch.zeros(4),
        torch.ones(4),
    )
    assert captures.calls[-1].mutates == (1, 2)
