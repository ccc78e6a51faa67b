"""Writes to inputs: which, how, through what, under which mode; seen by the caller as eager shows them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import isthmus
from tests.boundary.harness import CAPTURES, agree, compiled_by, f64, same_error

N = False
"""Plain inputs in the tables below: without gradients."""


def under_no_grad(x, y):
    with torch.no_grad():
        x.mul_(y)
    return x * 2


def fill_slice(x, y):
    x[1:] = y[:-1] * 2
    return x.sum()


def rows_swapped(x, y):
    x[0], x[1] = y[1] * 1.0, y[0] * 1.0
    return x * y


def write_then_read_then_write(x, y):
    x.add_(1)
    z = x * y
    x.mul_(z)
    return z, x.sum()


def through_two_views(x, y):
    a, b = x[0], x.t()
    a.mul_(2)
    b[0].add_(y[0, 0])
    return a + 1, b * 2


def through_a_view_of_a_view(x, y):
    x.view(-1)[2:].view(2, -1)[:, 1].mul_(3)
    return x * y


def detached_is_written(x, y):
    x.detach().mul_(2)
    return (x * y).sum()


def swap_by_copy(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x - y


def masked(x, y):
    x[x > 0] = 0.5
    return x * y


def by_index(x, y):
    x[torch.tensor([1, 0])] = y * 2
    return x.sum()


def index_put_accumulates(x, y):
    x.index_put_((torch.tensor([0, 0]),), y, accumulate=True)
    return x * 1


def with_out(x, y):
    torch.mul(y, 2.0, out=x)
    return x + 1


def foreach(x, y):
    torch._foreach_mul_([x, y], 2.0)
    return x + y


WRITES = {
    "mul": lambda x, y: x.mul_(y).sum(),
    "add returns self": lambda x, y: x.add_(y),
    "nothing returned": lambda x, y: (x.mul_(y), None)[1],
    "fill": lambda x, y: (x.fill_(2.0), y * x)[1],
    "zero": lambda x, y: (x.zero_(), y * x + x)[1],
    "copy": lambda x, y: (x.copy_(y), x * y)[1],
    "copy from a row": lambda x, y: (x.copy_(y[0]), x * y)[1],
    "sub mul chain": lambda x, y: x.sub_(y).mul_(y).sin_(),
    "slice": fill_slice,
    "select": lambda x, y: (x[0].add_(y[1]), x * y)[1],
    "column": lambda x, y: (x[:, 1].mul_(3), x * y)[1],
    "step": lambda x, y: (x[::2].mul_(y[::2]), x.sum())[1],
    "negative": lambda x, y: (x[-1].copy_(y[0]), x * 1)[1],
    "diagonal": lambda x, y: (x.diagonal().add_(y.diagonal()), x * y)[1],
    "transposed": lambda x, y: (x.t().mul_(y.t()), x * 2)[1],
    "flattened": lambda x, y: (x.view(-1)[1:3].mul_(5), x * y)[1],
    "unflatten": lambda x, y: (x.unflatten(0, (1, 2))[0, 1].mul_(5), x * y)[1],
    "unsqueeze": lambda x, y: (x.unsqueeze(0).mul_(2), x * y)[1],
    "both": lambda x, y: (x.add_(1), y.mul_(x), x * y)[2],
    "swap": swap_by_copy,
    "rows swapped": rows_swapped,
    "two views": through_two_views,
    "view of a view": through_a_view_of_a_view,
    "masked": masked,
    "index": by_index,
    "index_put": index_put_accumulates,
    "masked_fill": lambda x, y: (x.masked_fill_(y > 0, 1.5), x * y)[1],
    "scatter": lambda x, y: (x.scatter_(0, torch.zeros(1, 3, dtype=torch.long), y[:1]), x * y)[1],
    "scatter_add": lambda x, y: (x.scatter_add_(0, torch.zeros(2, 3, dtype=torch.long), y), x * 1)[1],
    "index_add": lambda x, y: (x.index_add_(0, torch.tensor([1, 1]), y), x * 1)[1],
    "index_copy": lambda x, y: (x.index_copy_(0, torch.tensor([1, 0]), y), x * y)[1],
    "addmm": lambda x, y: (x.addmm_(y[:, :2], y), x * 1)[1],
    "addcmul": lambda x, y: (x.addcmul_(y, y, value=0.5), x * 1)[1],
    "lerp": lambda x, y: (x.lerp_(y, 0.3), x * 1)[1],
    "clamp": lambda x, y: (x.clamp_(-0.2, 0.2), x * y)[1],
    "relu": lambda x, y: (torch.relu_(x), x * y)[1],
    "pow": lambda x, y: (x.pow_(2), x * y)[1],
    "no_grad": under_no_grad,
    "detach": detached_is_written,
    "to itself transposed": lambda x, y: (x[:, :2].copy_(x[:, :2].t().clone()), x * y)[1],
    "iadd": lambda x, y: (x.__iadd__(y), x.sin())[1],
}

QUIET = {  # eager's tape refuses some of these
    "unbind": lambda x, y: (x.unbind(1)[0].mul_(y.unbind(1)[1]), x * y)[1],
    "split": lambda x, y: (x.split(1)[1].mul_(2), x * y)[1],
    "chunk": lambda x, y: (x.chunk(2, 1)[0].mul_(2), x * y)[1],
    "read between": write_then_read_then_write,
    "itself": lambda x, y: (x.add_(x).mul_(x), x * y)[1],
    "out=": with_out,
    "foreach": foreach,
    "as_strided": lambda x, y: (x.as_strided((2, 2), (3, 1), 1).mul_(2), x * y)[1],
    "gapped unfold": lambda x, y: (x.unfold(1, 1, 2).mul_(2), x * y)[1],
    "tri": lambda x, y: (x.tril_(), x * y)[1],
    "random is seeded": lambda x, y: (x.bernoulli_(1.0), x * y)[1],
    "logical": lambda x, y: (x.gt_(0), x * y)[1],
    "fmod": lambda x, y: (x.fmod_(0.3), x * y)[1],
    "cumsum": lambda x, y: (x.cumsum_(0), x * y)[1],
    "neg": lambda x, y: (x.neg_(), x * y)[1],
}


@pytest.mark.row("T21", "T4")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", WRITES)
def test_a_written_input(name: str, capture: str):
    backend = "native" if capture == "dynamo" else "interpret"
    agree(WRITES[name], f64(2, 3), f64(2, 3) + 1, capture=capture, backend=backend)


@pytest.mark.row("T21")
@pytest.mark.parametrize("name", [*WRITES, *QUIET])
def test_a_written_input_off_the_tape(name: str):
    agree((WRITES | QUIET)[name], f64(2, 3, grad=N), f64(2, 3, grad=N) + 1, gradients=False)


WINDOWS = {
    "rows": lambda b: b[1:3],
    "turned": lambda b: b.t()[:2, :3],
    "steps": lambda b: b[::2],
    "columns": lambda b: b[:2, 1:],
    "flat": lambda b: b.view(-1)[3:9].view(2, 3),
    "strided": lambda b: b.as_strided((2, 3), (1, 4), 2),
}


@pytest.mark.row("T21")
@pytest.mark.parametrize("of", WINDOWS)
@pytest.mark.parametrize("name", ["mul", "slice", "no_grad", "select", "fill", "transposed"])
def test_a_written_view_of_something_larger(of: str, name: str):
    base = f64(4, 3, grad=N)
    x = WINDOWS[of](base)
    y = f64(*x.shape, grad=N)
    agree(lambda x, y, b: WRITES[name](x, y), x, y, base, gradients=False)


@pytest.mark.row("T21")
def test_the_tape_of_the_base_sees_a_write_to_a_view_of_it():
    def f(x, y):
        x.mul_(y)
        return x.sum()

    results = []
    compiled = compiled_by(f, "dynamo", "native")
    for function in (f, compiled, compiled):
        leaf, y = f64(4, 3), f64(2, 3)
        base = leaf * 2
        function(base[1:3], y)
        base.pow(2).sum().backward()
        results.append((base.detach(), leaf.grad, y.grad))
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])


@pytest.mark.row("T20")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: a.mul_(2) + b,
        lambda a, b: (b.mul_(2), a * b)[1],
        lambda a, b: (a.add_(1), b.add_(1), a * b)[2],
        lambda a, b: (a, b),
        lambda a, b: (a[0].mul_(2), b.t().add_(1), a)[2],
        lambda a, b: a * b,
    ],
    ids=["first", "second", "both", "returned", "views", "none"],
)
@pytest.mark.parametrize("grad", [True, False])
def test_the_same_tensor_twice(f, capture: str, grad: bool):
    x = f64(2, 3, grad=grad)
    agree(f, x, x, capture=capture, gradients=grad)


@pytest.mark.row("T24")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: (a.mul_(2), a.sum() + b.sum())[1],
        lambda a, b: (b.mul_(2), a * 1, b * 1)[1:],
        lambda a, b: (a.mul_(2), b.add_(1), a * 1, b)[2:],
        lambda a, b: (a.mul_(2), a.view(-1), b)[1:],
    ],
    ids=["first", "second", "both", "views"],
)
@pytest.mark.parametrize(
    "pair",
    [
        lambda x: (x, x.view(-1)),
        lambda x: (x[0], x[1]),
        lambda x: (x[:, :2], x[:, 1:]),
        lambda x: (x, x[1]),
        lambda x: (x[0], x),
        lambda x: (x.view(-1)[::2], x.view(-1)[1::2]),
    ],
    ids=["whole", "apart", "overlap", "base and row", "row and base", "interleaved"],
)
def test_inputs_that_share_memory(f, pair, capture: str):
    a, b = pair(f64(2, 4, grad=N))
    if f is not None and not a.is_contiguous():
        f = _without_view(f)
    agree(f, a, b, capture=capture, gradients=False, calls=1)


def _without_view(f):
    return f if "view" not in f.__code__.co_names else lambda a, b: (a.mul_(2), a[0], b)[1:]


@pytest.mark.row("T24")
@pytest.mark.parametrize("capture", CAPTURES)
def test_inputs_that_share_memory_on_a_later_call_only(capture: str):
    def f(a, b):
        a.mul_(2)
        return (a * b).sum(), b + 1

    compiled = compiled_by(f, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    for pair in (
        lambda x: (x[0], x[1].clone()),
        lambda x: (x[0], x[0]),
        lambda x: (x[0], x[1]),
        lambda x: (x[0], x[0, :]),
    ):
        mine, theirs = (f64(2, 3, grad=N) for _ in range(2))
        torch.testing.assert_close(compiled(*pair(mine)), f(*pair(theirs)))
        torch.testing.assert_close(mine, theirs)


@pytest.mark.row("T24")
def test_the_example_of_a_synthetic_base():
    def f(x, y):
        x.mul_(2)
        return x * y.view(-1).view(2, 2)

    x = torch.ones(2, 2)
    out = compiled_by(f, "dynamo", "native")(x, x.view(2, 2))
    assert torch.equal(out, torch.full((2, 2), 4.0)) and torch.equal(x, torch.full((2, 2), 2.0))


REFUSED = {
    "expanded": (lambda x, y: x.expand(4, 2, 3).add_(1), True),
    "expanded input": (lambda x, y: x[:1].expand(4, 3).mul_(2), True),
    "shape": (lambda x, y: x.add_(torch.ones(5, dtype=x.dtype)), True),
    "dtype": (lambda x, y: torch.ones(2, 3, dtype=torch.long).add_(x), True),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", REFUSED)
def test_writes_that_eager_refuses(name: str, capture: str):
    same_error(REFUSED[name][0], f64(2, 3, grad=N), f64(2, 3, grad=N), capture=capture)


def test_a_leaf_that_wants_a_gradient_is_refused():
    for capture in CAPTURES:
        compiled = compiled_by(
            lambda x: x.mul_(2), capture, "native", **({"fullgraph": False} if capture == "dynamo" else {})
        )
        with pytest.raises(RuntimeError, match="leaf Variable"):
            compiled(f64(3))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(f64(3, grad=N))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x * self.weight - self.mean


class Renormalising(Counting):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.div_(self.weight.norm())
        return x * self.weight


class DataWriting(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(-0.5, 0.5)
        return (x * self.weight).sin()


class BatchNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * 2


class Replacing(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.5 + x.detach().mean(0)
        return x - self.mean


@pytest.mark.row("T21")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("module", [Counting, Renormalising, DataWriting, BatchNormed, Replacing])
def test_parameters_and_buffers_are_written(module, capture: str):
    torch.manual_seed(0)
    mine, theirs = module(), module()
    theirs.load_state_dict(mine.state_dict())
    compiled = compiled_by(mine, capture, "native")
    try:
        compiled(f64(4, 3))
    except isthmus.CompileError:
        assert module is Replacing and capture == "trace"
        return
    theirs(f64(4, 3))
    for _ in range(3):
        x, y = f64(4, 3), f64(4, 3)
        compiled(x).pow(2).sum().backward()
        theirs(y).pow(2).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
