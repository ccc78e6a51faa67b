"""Direct tracing: programs, guards, and clear errors for what reads data."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten, autodiff
from isthmus.frontend.capture_dynamo import CaptureLog
from isthmus.frontend.capture_trace import compile_with_trace
from isthmus.frontend.trace import trace
from tests.cube import Cube


def square(requires_grad=False):
    return torch.randn(4, 4, requires_grad=requires_grad)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 8)
        self.n = nn.BatchNorm1d(8)
        self.scale = 0.5
        self.drop = nn.Dropout(0.5)

    def forward(self, x, *, twice=False):
        h = self.drop(self.n(self.l(x)).relu()) * self.scale
        return {"h": h, "more": [h * 2, "text"] if twice else None}


def test_modules_structures_and_gradients(captures):
    net, reference = Net(), Net()
    reference.load_state_dict(net.state_dict())
    compiled = compile_with_trace(net, captures)
    x = torch.randn(3, 4)
    torch.manual_seed(1)
    got = compiled(x, twice=True)
    torch.manual_seed(1)
    want = reference(x, twice=True)
    assert got["more"][1] == "text"
    torch.testing.assert_close(got["more"][0], want["more"][0])
    got["h"].sum().backward()
    want["h"].sum().backward()
    for (name, mine), theirs in zip(net.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name)
    torch.testing.assert_close(net.n.running_mean, reference.n.running_mean)
    assert net.n.num_batches_tracked.item() == 1
    kinds = {i.name: i.kind for i in captures.all[0].inputs}
    assert kinds["x"] == "tensor" and kinds["self.l.weight"] == "parameter" and kinds["self.n.running_var"] == "buffer"
    assert {n for n, _ in compiled.named_parameters()} == {f"_orig_mod.{n}" for n, _ in net.named_parameters()}
    assert compiled.scale == 0.5


@pytest.mark.row("D1", "D3")
def test_nothing_happens_before_the_first_call_and_once_after(captures):
    compiled = compile_with_trace(lambda x: x * 2, captures)
    assert captures.all == []
    for _ in range(3):
        compiled(square())
    assert len(captures.all) == 1


@pytest.mark.row("D4", "R7")
def test_each_kind_of_change_is_seen(captures):
    net = Net()
    factor = [2.0]
    hidden = 3.0

    def f(x, k, pair):
        return net(x)["h"] * k * pair[0] * factor[0] * hidden

    compiled = compile_with_trace(f, captures)
    x = torch.randn(3, 4)
    expected = 0

    def traced_again(*arguments):
        nonlocal expected
        expected += 1
        compiled(*arguments)
        assert len(captures.all) == expected, f"change {expected} was not seen"
        compiled(*arguments)
        assert len(captures.all) == expected, f"change {expected} is seen twice"

    pair = (torch.ones(8), None)
    traced_again(x, 2.0, pair)
    traced_again(x, 3.0, pair)  # a number
    traced_again(x, 3, pair)  # its type
    traced_again(x.double().float().requires_grad_(), 3, pair)
    traced_again(torch.randn(4, 3).t(), 3, pair)  # strides
    traced_again(x, 3, (torch.ones(8), None, None))  # structure
    net.eval()
    traced_again(x, 3, pair)
    net.scale = 0.25
    traced_again(x, 3, pair)
    net.l.weight = nn.Parameter(torch.randn(8, 4))
    traced_again(x, 3, pair)
    hidden = 4.0
    traced_again(x, 3, pair)
    net.l.register_forward_hook(lambda m, i, o: o * 2)
    traced_again(x, 3, pair)
    with torch.no_grad():
        traced_again(x, 3, pair)
    with torch.autocast("cpu"):
        traced_again(x, 3, pair)


@pytest.mark.row("R4")
def test_sizes_become_symbols_when_they_change(captures):
    log = CaptureLog()
    compiled = compile_with_trace(lambda x: x.reshape(-1) * x.shape[0], captures, log=log)
    for n in (2, 3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(n, 3)), torch.full((3 * n,), float(n)))
    assert len(captures.all) == 2
    assert log.recompiles == ["size mismatch of argument 0 at dimension 0: expected 2, got 3"]
    (argument,) = ir.block_arguments(ir.function(captures.all[1].module, "main"))
    assert isinstance(ir.shape_of(argument)[0], ir.Size) and ir.shape_of(argument)[1] == 3


def test_symbols_from_the_first_call_and_their_conditions(captures):
    compiled = compile_with_trace(lambda x, y, n: (x + y) * n, captures, dynamic=True)
    for n in (3, 5):
        torch.testing.assert_close(compiled(torch.ones(n), torch.ones(n), 7 + n), torch.full((n,), 2.0 * (7 + n)))
    assert len(captures.all) == 1
    torch.testing.assert_close(compiled(torch.ones(3), torch.ones(1), 4), torch.full((3,), 8.0))
    assert len(captures.all) == 2
    with pytest.raises(RuntimeError, match="size"):
        compiled(torch.ones(3), torch.ones(4), 4)


@pytest.mark.row("D13")
def test_no_memory_is_needed_to_trace():
    with FakeTensorMode():
        huge = torch.empty(160_000, 160_000)  # 102 GB
    traced = trace(lambda x: (x @ x).relu().sum(), [huge])
    calls = [op.overload for op in traced.captured.module.walk() if isinstance(op, aten.CallOp)]
    assert calls == ["matmul.default", "relu.default", "sum.default"]


@pytest.mark.row("D9", "D15")
@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (lambda x: x * x.sum().item(), "item"),
        (lambda x: x if x.sum() > 0 else -x, "branch on data"),
        (lambda x: (print(x), x)[1], "print outside"),
        (lambda x: x + len(f"{x}"), "print outside"),
        (lambda x: x * float(x.sum()), "outside"),
        (lambda x: x + sum(x.tolist()[0]), "outside"),
        (lambda x: torch.from_numpy(x.numpy() * 2), "outside"),
        (lambda x: x[x > 0], "depends on data"),
        (lambda x: x.set_(x * 2), "storage in place"),
        (lambda x: (x * 2).sum().backward(), "torch.autograd.grad inside"),
    ],
)
def test_programs_that_read_data_name_the_line_and_the_cure(program, fault, captures):
    with pytest.raises(UnsupportedError, match=fault) as caught:
        compile_with_trace(program, captures)(square(True) * 1)
    place = caught.value.location
    assert place is not None and place.file.endswith("test_trace.py")
    assert place.line == program.__code__.co_firstlineno
    assert caught.value.cure


@pytest.mark.row("D15")
def test_assignments_to_modules_are_refused_and_undone(captures):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0

        def forward(self, x):
            self.count += 1
            self.last = x * 2
            return self.last

    net = Counter()
    with pytest.raises(UnsupportedError, match=r"assigns self\.(count|last)"):
        compile_with_trace(net, captures)(square())
    assert net.count == 0 and not hasattr(net, "last")


class ScaledCube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x**3 * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g * ctx.k, None


@pytest.mark.row("C1")
def test_custom_gradients_keep_their_rule(captures):
    x, y = square(True), square(True)
    y.data.copy_(x.data)
    compiled = compile_with_trace(lambda x: (ScaledCube.apply(x, 2.0) + Cube.apply(x)[0]).sin().sum(), captures)
    compiled(x).backward()
    (ScaledCube.apply(y, 2.0) + Cube.apply(y)[0]).sin().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    first, second = captures.ops(autodiff.CustomOp)
    assert (first.saved, first.gradients) == (1, (0,))
    assert second.saved == 2


def test_gradients_inside(captures):
    def f(x, w, v):
        d, none = torch.autograd.grad((x * w).sin().sum(), (w, v), create_graph=True, allow_unused=True)
        assert none is None
        return d.pow(2).sum()

    x, w, v = square(), square(True), square(True)
    got = compile_with_trace(f, captures)(x, w, v)
    got.backward()
    mine, w.grad = w.grad, None
    want = f(x, w, v)
    want.backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(mine, w.grad)
    (vjp,) = captures.ops(autodiff.VjpOp)
    assert vjp.present == (0,)


def test_checkpoints_become_tags(captures):
    def f(x, w):
        return checkpoint(lambda a: (a @ w).relu(), x, use_reentrant=False) * 2

    x, w = square(), square(True)
    torch.testing.assert_close(compile_with_trace(f, captures)(x, w), f(x, w))
    assert [ir.literal(c, autodiff.RECOMPUTE) for c in captures.calls] == ["must_recompute", "must_recompute", None]


@pytest.mark.row("D16")
def test_control_flow_with_free_variables(captures):
    def f(x, w):
        y = torch.cond(x.sum() > 0, lambda a: a * w, lambda a: a.cos(), (x,))
        return torch.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * w), (torch.tensor(0), y))

    for sign in (1.0, -1.0):
        x, w = torch.full((2,), sign), torch.tensor([2.0, 3.0])
        for got, want in zip(compile_with_trace(f, captures)(x, w), f(x, w), strict=True):
            torch.testing.assert_close(got, want)
    (cond,) = captures.ops(aten.CondOp)
    assert len(cond.operands) == 3


def test_tensors_of_the_closure_are_arguments_with_gradients(captures):
    w = square(True)
    scale = torch.tensor(2.0)
    compiled = compile_with_trace(lambda x: (x * w * scale).sum(), captures)
    x = square()
    compiled(x).backward()
    torch.testing.assert_close(w.grad, x * 2)
    assert [i.kind for i in captures.all[0].inputs] == ["tensor", "constant", "constant"]
    assert [i.requires_grad for i in captures.all[0].inputs] == [False, True, False]


def test_inputs_written_in_place_and_metadata(captures):
    def f(x, y):
        x.mul_(2)
        y.t_()
        return x + 1, y

    x, y = square(), torch.randn(2, 3)
    kept = x.clone()
    out, same = compile_with_trace(f, captures)(x, y)
    torch.testing.assert_close(x, kept * 2)
    torch.testing.assert_close(out, kept * 2 + 1)
    assert y.shape == (3, 2) and same is y
    results = ir.function(captures.all[0].module, "main").res_attrs
    assert results is not None and aten.REBOUND in results.data[-1].data


def test_functorch_transforms_of_the_caller(captures):
    f = functools.partial(torch.func.vmap(lambda a, w: (a * w).sum(), in_dims=(0, None)))
    x, w = square(), square()
    torch.testing.assert_close(compile_with_trace(lambda x, w: f(x, w), captures)(x, w), f(x, w))


def test_arguments_are_not_kept_alive(captures):
    compiled = compile_with_trace(lambda x: x * 2, captures)
    x = torch.ones(3)
    compiled(x)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_the_limit_of_traces(captures):
    compiled = compile_with_trace(lambda x, k: x * k, captures, recompile_limit=2)
    with pytest.warns(RuntimeWarning, match=r"compiled 2 times.*argument 1 is 2.0, was 1.0") as warned:
        for k in range(5):
            assert compiled(torch.ones(2), float(k)).tolist() == [float(k)] * 2
    assert len(captures.all) == 2 and len(warned) == 1


def test_autocast_and_grad_mode_are_put_back(captures):
    def f(x):
        torch.set_grad_enabled(False)
        return x * x.sum().item()

    with pytest.raises(UnsupportedError, match="reads a tensor's value"):
        compile_with_trace(f, captures)(square())
    assert torch.is_grad_enabled()
    assert "__getattribute__" not in nn.Module.__dict__
