"""What Dynamo captures, imported to aten, is the program: values, types, and what the IR must say."""

from __future__ import annotations

import linecache
import math

import pytest
import torch
from same_as_eager import check, square
from torch import nn

from isthmus import ir
from isthmus.dialects import aten
from isthmus.dialects.signature import Signature
from isthmus.frontend.capture_dynamo import compile_with_dynamo

# ---- Ordinary calls


@pytest.mark.row("D5", "D12")
def test_calls_carry_types_defaults_and_the_users_line(captures):
    def f(x, y):
        return (x + y) * x

    check(captures, f, square(), square(True))
    assert captures.overloads == ["add.Tensor", "mul.Tensor"]
    add, mul = captures.calls
    assert add.args == (ir.Operand(0), ir.Operand(1), 1)
    assert mul.results[0].type is aten.ref((4, 4), "f32")
    place = ir.source_location(add)
    assert place is not None and place.file.endswith("test_import.py")
    code = linecache.getline(place.file, place.line)
    assert "return (x + y) * x" in code
    signature = Signature.of(ir.function(captures.all[0].module, "main"))
    assert [(a.source, a.primal, a.wants_gradient) for a in signature.arguments] == [
        ("x", True, False),
        ("y", True, True),
    ]


@pytest.mark.row("D6")
def test_python_loops_unroll(captures):
    def f(x):
        for i in range(1, 5):
            x = x * i
        return x

    check(captures, f, square(True))
    assert captures.overloads == ["mul.Tensor"] * 4


@pytest.mark.row("D7")
def test_user_functions_inline_recursion_included(captures):
    def scale(x, n):
        return x if n == 0 else scale(x * n, n - 1)

    check(captures, lambda x: scale(x, 4), square(True))
    assert captures.overloads == ["mul.Tensor"] * 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 8)
        self.n = nn.BatchNorm1d(8)
        self.scale = 0.5

    def forward(self, x):
        return self.n(self.l(x)).relu() * self.scale


def test_parameters_and_buffers_are_static_arguments(captures):
    net = Net()
    compile_with_dynamo(net, captures, fullgraph=True)(torch.randn(3, 4)).sum().backward()
    described = {i.name: (i.kind, i.requires_grad) for i in captures.all[0].inputs}
    assert described["self.l.weight"] == ("parameter", True)
    assert described["self.n.running_mean"] == ("buffer", False)
    assert described["x"] == ("tensor", False)
    static = [a.static for a in Signature.of(ir.function(captures.all[0].module, "main")).arguments]
    assert sum(static) == len(static) - 1
    (norm,) = [c for c in captures.calls if c.overload == "batch_norm.default"]
    written = [
        ir.block_arguments(ir.function(captures.all[0].module, "main")).index(norm.operands[i]) for i in norm.mutates
    ]
    assert {captures.all[0].inputs[i].name for i in written} == {"self.n.running_mean", "self.n.running_var"}
    assert captures.all[0].training


def test_evaluation_mode_writes_no_statistics(captures):
    net = Net().eval()
    compile_with_dynamo(net, captures, fullgraph=True)(torch.randn(3, 4))
    assert [c.mutates for c in captures.calls if c.overload == "batch_norm.default"] == [()]


def test_tensor_literals(captures):
    def f(x):
        return x * torch.tensor(2.0) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4)

    check(captures, f, square(True))
    assert "full.default" in captures.overloads and "clone.default" in captures.overloads
    assert len(captures.all[0].constants) == 1
    assert captures.all[0].inputs[-1].kind == "constant"


def test_identity_calls_leave_no_trace(captures):
    check(captures, lambda x: torch.dropout(x.contiguous(), 0.5, False).to(torch.float32) + 1, square(True))
    assert captures.overloads == ["add.Tensor"]


def test_lists_of_tensors_in_and_out(captures):
    check(captures, lambda x: torch.cat([t * 2 for t in x.split(2, 1)][::-1], 1), square(True))
    split, *_, cat = captures.calls
    assert (split.aliases, len(split.results)) == ((0, 0), 2)
    assert cat.args == ((ir.Operand(0), ir.Operand(1)), 1)


def test_outputs_that_are_no_tensors(captures):
    check(captures, lambda x: (x * 2, None, 3, {"a": x.shape[0], "b": [x, x]}), square(True))


# ---- Autocast


@pytest.mark.row("T26")
def test_autocast_arrives_as_casts(captures):
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (x @ w).relu()
            z = nn.functional.mse_loss(y, y * 2)
        return y, z, x * w

    check(captures, f, square(), square(True))
    assert captures.overloads.count("_to_copy.default") == 4
    matmul = next(c for c in captures.calls if c.overload == "matmul.default")
    assert [ir.dtype_of(v) for v in (*matmul.operands, *matmul.results)] == ["bf16"] * 3


def test_autocast_looks_inside_composites(captures):
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.einsum("ij,jk->ik", x, w), nn.functional.linear(x, w, w[0])

    check(captures, f, square(True), square(True))
    assert ir.dtype_of(captures.calls[-1].results[0]) == "bf16"


def test_autocast_around_the_region(captures):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = compile_with_dynamo(lambda x, w: x @ w, captures, fullgraph=True)(square(), square(True))
    assert got.dtype == torch.bfloat16
    assert captures.overloads == ["_to_copy.default"] * 2 + ["matmul.default"]


# ---- Control flow


@pytest.mark.row("D16")
def test_cond(captures):
    def f(x, w):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos() * w, (x,))

    for sign in (1.0, -1.0):
        check(captures, f, torch.tensor([2.0 * sign], requires_grad=True), torch.ones(1, requires_grad=True))
    assert len(captures.ops(aten.CondOp)) == 1
    x = torch.tensor([2.0], requires_grad=True)
    g = compile_with_dynamo(lambda x: torch.cond(x.sum() > 9, torch.cos, torch.sin, (x,)), captures, fullgraph=True)
    g(x).backward()
    assert x.grad is not None and round(x.grad.item(), 4) == -0.4161


@pytest.mark.row("D16")
def test_branches_that_disagree_are_an_error(captures):
    def f(x):
        return torch.cond(x.sum() > 0, lambda a: (a,), lambda a: (a, a + 1), (x * 1,))

    with pytest.raises(Exception, match=r"(?i)branch|same|output"):
        compile_with_dynamo(f, captures, fullgraph=True)(square())


def test_loops(captures):
    from torch._higher_order_ops import scan
    from torch._higher_order_ops.map import map as structured_map

    def loop(x, w):
        return torch.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * w), (torch.tensor(0), x))

    check(captures, loop, square(), square())
    check(captures, lambda x, w: scan(lambda c, a: (c + a, c * w[0]), x[0], x), square(True), square(True))
    check(captures, lambda x, w: structured_map(lambda a, w: a * w[0], x, w), square(True), square(True))
    assert len(captures.ops(aten.MapOp)) == 1


# ---- Sizes


def test_sizes_are_symbols(captures):
    def f(x, n):
        return x.reshape(-1) * x.shape[0] + n, x.shape[0] * 2

    check(captures, f, torch.randn(3, 4), 7, dynamic=True)
    assert len(captures.all) == 1
    (argument,) = [
        a
        for a in ir.block_arguments(ir.function(captures.all[0].module, "main"))
        if "ref" in str(a.type) and ir.shape_of(a)
    ]
    assert "s" in str(ir.shape_of(argument)[0])
    assert aten.HINTS in captures.all[0].module.attributes


@pytest.mark.row("R4")
def test_the_second_size_makes_it_dynamic(captures):
    compiled = compile_with_dynamo(lambda x: (x * 2).sum(0), captures, fullgraph=True)
    for n in (2, 3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(n, 3)), torch.full((3,), 2.0 * n))
    assert len(captures.all) == 2


def test_sizes_that_guards_make_equal_are_written_one_way(captures):
    def f(logits, targets):
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    logits, targets = torch.randn(3, 5, 7, requires_grad=True), torch.randint(0, 7, (3, 5))
    check(captures, f, logits, targets, dynamic=True)
    (loss,) = [c for c in captures.calls if c.overload.startswith("cross_entropy")]
    flat, target = (ir.shape_of(v) for v in loss.operands)
    assert flat[0] is target[0]


def test_floats_that_vary_are_arguments(captures):
    net = Net()
    compiled = compile_with_dynamo(net, captures, fullgraph=True, dynamic=True)
    x = torch.randn(3, 4)
    for scale in (0.5, 0.25, 0.75):
        net.scale = scale
        net.n.eval()
        torch.testing.assert_close(compiled(x), net(x))
    assert [i.kind for i in captures.all[0].inputs].count("number") >= 1
    assert not any(c.overload in ("item.default", "_local_scalar_dense.default") for c in captures.calls)
    assert len(captures.all) == 1


def test_numbers_that_had_to_be_fixed_are_noted(captures):
    compiled = compile_with_dynamo(lambda x, k: x * max(k, 0.1), captures, fullgraph=True, dynamic=True)
    for k in (0.5, 0.75):
        assert compiled(torch.ones(3), k).tolist() == [k] * 3
    assert len(captures.all) == 2
    assert any("is fixed to 0.5" in note for note in captures.all[0].notes)


def test_float_arithmetic_of_the_host(captures):
    def f(x, k):
        return x * (k * 2 + 1) / x.shape[0], x.long() * k, x * math.sqrt(k)

    compiled = compile_with_dynamo(f, captures, fullgraph=True, dynamic=True)
    x = torch.randn(3, 4)
    for k in (0.5, 0.3):
        for got, want in zip(compiled(x, k), f(x, k), strict=True):
            torch.testing.assert_close(got, want)
    assert len(captures.all) == 1
