"""Control flow compiles natively in both directions: against loops and branches in Python, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as map_slices
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import isthmus

CAPTURES = ("dynamo", "trace")


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


def recurrent(x: Tensor, h: Tensor, w: Tensor, u: Tensor):
    def step(h: Tensor, x: Tensor):
        h = torch.tanh(x @ w + h @ u)
        return h, h.clone()

    return scan(step, h, x, dim=0)


def recurrent_eager(x: Tensor, h: Tensor, w: Tensor, u: Tensor):
    ys: list[Tensor] = []
    for row in x:
        h = torch.tanh(row @ w + h @ u)
        ys.append(h)
    return h, torch.stack(ys)


def branches(x: Tensor, h: Tensor):
    def step(h: Tensor, x: Tensor):
        h = torch.cond(x.sum() > 0, lambda h, x: h.sin() * x, lambda h, x: h + x.cos(), (h, x))
        return h, h * 2

    return scan(step, h, x, dim=0)


def branches_eager(x: Tensor, h: Tensor):
    ys: list[Tensor] = []
    for row in x:
        h = h.sin() * row if row.sum() > 0 else h + row.cos()
        ys.append(h * 2)
    return h, torch.stack(ys)


def several(x: Tensor, y: Tensor, h: Tensor, g: Tensor):
    def step(carry: tuple[Tensor, Tensor], xs: tuple[Tensor, Tensor]):
        h, g = carry
        x, y = xs
        return (h * x + g, g.sin() + y), (h + y, g * x)

    (h, g), (a, b) = scan(step, (h, g), (x, y), dim=0)
    return h, g, a, b


def several_eager(x: Tensor, y: Tensor, h: Tensor, g: Tensor):
    first: list[Tensor] = []
    second: list[Tensor] = []
    for a, b in zip(x, y, strict=True):
        first.append(h + b)
        second.append(g * a)
        h, g = h * a + g, g.sin() + b
    return h, g, torch.stack(first), torch.stack(second)


def mapped(x: Tensor, w: Tensor):
    return map_slices(lambda x: (torch.sin(x @ w), x.exp()), x)


def mapped_eager(x: Tensor, w: Tensor):
    return torch.stack([torch.sin(t @ w) for t in x]), x.exp()


def nested(x: Tensor, h: Tensor):
    def outer(h: Tensor, row: Tensor):
        def inner(c: Tensor, v: Tensor):
            c = c * v.cos() + v
            return c, c * 1.0

        return scan(inner, h, row, dim=0)

    return scan(outer, h, x, dim=0)


def nested_eager(x: Tensor, h: Tensor):
    rows: list[Tensor] = []
    for row in x:
        ys: list[Tensor] = []
        for v in row:
            h = h * v.cos() + v
            ys.append(h)
        rows.append(torch.stack(ys))
    return h, torch.stack(rows)


def backwards(x: Tensor, h: Tensor):
    def step(h: Tensor, x: Tensor):
        h = h.sin() * x
        return h, h + x

    return scan(step, h, x, dim=0, reverse=True)


def backwards_eager(x: Tensor, h: Tensor):
    ys: list[Tensor] = []
    for row in x.flip(0):
        h = h.sin() * row
        ys.append(h + row)
    return h, torch.stack(ys[::-1])


def counted(x: Tensor, w: Tensor):
    return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, (x * w).sin() * x), (torch.tensor(0), x))[1]


def counted_eager(x: Tensor, w: Tensor):
    for _ in range(4):
        x = (x * w).sin() * x
    return x


def down(x: Tensor, w: Tensor):
    return while_loop(lambda i, x: i >= 1, lambda i, x: (i - 2, (x * w).sin()), (torch.tensor(7), x))[1]


def down_eager(x: Tensor, w: Tensor):
    for _ in range(4):
        x = (x * w).sin()
    return x


def never(x: Tensor, w: Tensor):
    return while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * w), (torch.tensor(0), x))[1] * w


def never_eager(x: Tensor, w: Tensor):
    return x * w


def until(x: Tensor, w: Tensor):
    condition = lambda i, x: (i < 6) & (x.sum() < 40)  # noqa: E731
    return while_loop(condition, lambda i, x: (i + 1, x.abs().sqrt() + x + w), (torch.tensor(0), x))


def until_eager(x: Tensor, w: Tensor):
    i = 0
    while i < 6 and x.sum() < 40:
        x = x.abs().sqrt() + x + w
        i += 1
    return torch.tensor(i), x


def converged(x: Tensor, w: Tensor):
    return while_loop(lambda x: (x * x).sum() > 0.1, lambda x: ((x * w).sin() * 0.9,), (x,))[0]


def converged_eager(x: Tensor, w: Tensor):
    while (x * x).sum() > 0.1:
        x = (x * w).sin() * 0.9
    return x


def loop_in_scan(x: Tensor, h: Tensor):
    def step(h: Tensor, x: Tensor):
        h = while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h.cos() * x), (torch.tensor(0), h))[1]
        return h, h * 2

    return scan(step, h, x, dim=0)


def loop_in_scan_eager(x: Tensor, h: Tensor):
    ys: list[Tensor] = []
    for row in x:
        for _ in range(3):
            h = h.cos() * row
        ys.append(h * 2)
    return h, torch.stack(ys)


def two_way(x: Tensor):
    return torch.cond(x.sum() > 0, lambda x: (x.sin(), x * x), lambda x: (x.cos(), x + 1), (x,))


def two_way_eager(x: Tensor):
    return (x.sin(), x * x) if x.sum() > 0 else (x.cos(), x + 1)


CASES: dict[str, tuple[Callable[..., object], Callable[..., object], list[tuple[int, ...]]]] = {
    "tanh rnn": (recurrent, recurrent_eager, [(5, 2, 3), (2, 4), (3, 4), (4, 4)]),
    "cond in scan": (branches, branches_eager, [(6, 3), (3,)]),
    "several carries": (several, several_eager, [(6, 3), (6, 3), (3,), (3,)]),
    "map": (mapped, mapped_eager, [(6, 3), (3, 4)]),
    "scan in scan": (nested, nested_eager, [(3, 4, 2), (2,)]),
    "scan from the end": (backwards, backwards_eager, [(6, 3), (3,)]),
    "counted while": (counted, counted_eager, [(3,), (3,)]),
    "while counts down": (down, down_eager, [(3,), (3,)]),
    "while without a step": (never, never_eager, [(3,), (3,)]),
    "while that ends early": (until, until_eager, [(3,), (3,)]),
    "while until it converges": (converged, converged_eager, [(3,), ()]),
    "while in scan": (loop_in_scan, loop_in_scan_eager, [(4, 3), (3,)]),
    "cond": (two_way, two_way_eager, [(3,)]),
}


def tensors(value: object) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)  # pyright: ignore


def leaves(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


def loss(values: list[Tensor]) -> Tensor:
    floating = [v for v in values if v.is_floating_point()]
    return torch.stack([(v * v).sum() + v.sum() for v in floating]).sum()


@pytest.mark.row("D16")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, capture: str):
    if name == "while in scan" and capture == "dynamo":
        pytest.skip("Dynamo does not capture a while_loop inside a scan")
    function, eager, shapes = CASES[name]
    compiled = isthmus.compile(function, capture=capture)
    for sign in (1.0, -1.0):
        mine = [(t.detach() * sign).requires_grad_() for t in leaves(shapes)]
        theirs = [t.detach().clone().requires_grad_() for t in mine]
        got, want = tensors(compiled(*mine)), tensors(eager(*theirs))
        assert isthmus.last_call_native()
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        loss(got).backward()
        assert isthmus.last_call_native()
        loss(want).backward()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["tanh rnn", "cond in scan", "counted while", "while that ends early"])
def test_gradients_by_differences(name: str):
    function, _, shapes = CASES[name]
    compiled = isthmus.compile(lambda *a: loss(tensors(function(*a))))
    assert torch.autograd.gradcheck(compiled, tuple(leaves(shapes)))


@pytest.mark.parametrize("name", ["tanh rnn", "counted while", "while until it converges", "cond"])
def test_second_derivatives(name: str):
    function, eager, shapes = CASES[name]
    compiled = isthmus.compile(function, options={"higher_order": True})
    mine = leaves(shapes)
    theirs = [t.detach().clone().requires_grad_() for t in mine]
    for f, xs in ((compiled, mine), (eager, theirs)):
        first = torch.autograd.grad(loss(tensors(f(*xs))), xs, create_graph=True)
        sum((g * g).sum() for g in first).backward()  # pyright: ignore
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-9)


def test_training_a_recurrent_net_lowers_its_loss_as_eager_does():
    losses: list[list[float]] = []
    for f in (isthmus.compile(recurrent), recurrent_eager):
        torch.manual_seed(1)
        x, h, w, u = leaves([(6, 4, 3), (4, 5), (3, 5), (5, 5)])
        optimizer, history = torch.optim.SGD([w, u], lr=0.1), []
        for _ in range(8):
            optimizer.zero_grad()
            value = (f(x.detach(), h.detach(), w, u)[1] - 0.3).square().mean()
            value.backward()
            optimizer.step()
            history.append(value.item())
        losses.append(history)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.row("R4")
@pytest.mark.parametrize("capture", CAPTURES)
def test_one_program_serves_scans_of_many_lengths(capture: str):
    compiled = isthmus.compile(recurrent, capture=capture, dynamic=True)
    for length in (5, 7, 2):
        mine = leaves([(length, 2, 3), (2, 4), (3, 4), (4, 4)])
        theirs = [t.detach().clone().requires_grad_() for t in mine]
        got, want = tensors(compiled(*mine)), tensors(recurrent_eager(*theirs))
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        loss(got).backward()
        assert isthmus.last_call_native()
        loss(want).backward()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.row("D16")
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_while_whose_end_the_data_tell(capture: str):
    """Both ways, beyond the number of carries that are kept too."""

    def program(n: Tensor, x: Tensor, w: Tensor):
        return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, (x * w).sin()), (torch.tensor(0), x))[1]

    compiled = isthmus.compile(program, capture=capture)
    for n in (5, 0, 2, 64, 65, 300):
        mine = leaves([(3,), (3,)])
        theirs = [t.detach().clone().requires_grad_() for t in mine]
        got, want = compiled(torch.tensor(n), *mine), theirs[0]
        assert isthmus.last_call_native()
        for _ in range(n):
            want = (want * theirs[1]).sin()
        torch.testing.assert_close(got, want)
        got.exp().sum().backward()
        assert isthmus.last_call_native()
        want.exp().sum().backward()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(
                a.grad, torch.zeros_like(b) if b.grad is None else b.grad, rtol=1e-10, atol=1e-12
            )


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_bound_that_moves_with_the_loop_bounds_nothing(capture: str):
    def program(x: Tensor):
        carried = (torch.tensor(0), torch.tensor(2), x)
        grows = lambda i, n, x: (i + 1, torch.where(i < 2, n + 1, n), x.sin())  # noqa: E731
        return while_loop(lambda i, n, x: i < n, grows, carried)[2]

    (mine,) = leaves([(2,)])
    theirs = mine.detach().clone().requires_grad_()
    isthmus.compile(program, capture=capture)(mine).sum().backward()
    theirs.sin().sin().sin().sin().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


DIFFERENT: dict[str, tuple[Callable[[Tensor], object], Callable[[Tensor], object]]] = {
    "count": (lambda x: x.sin(), lambda x: (x.sin(), x.cos())),
    "shape": (lambda x: x.sum(), lambda x: x.sin()),
    "dtype": (lambda x: x.sin(), lambda x: x.double()),
}


@pytest.mark.row("D16")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", DIFFERENT)
def test_branches_that_give_different_things_are_refused(name: str, capture: str):
    then, otherwise = DIFFERENT[name]
    compiled = isthmus.compile(lambda x: torch.cond(x.sum() > 0, then, otherwise, (x,)), capture=capture)
    with pytest.raises(Exception, match=r"(?i)branch"):
        compiled(torch.ones(3))


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_carry_that_changes_its_shape_is_refused(capture: str):
    step = lambda h, x: (torch.cat([h, x]), h.sum())  # noqa: E731
    with pytest.raises(Exception, match=r"(?i)carr|init"):
        isthmus.compile(lambda x, h: scan(step, h, x), capture=capture)(torch.ones(3, 2), torch.ones(2))


def test_a_branch_that_writes_to_a_tensor_of_the_outside_is_refused_by_dynamo():
    def program(x: Tensor, y: Tensor):
        return torch.cond(x.sum() > 0, lambda x: x + y.add_(1), lambda x: x.cos(), (x,))

    x, y = torch.ones(3), torch.zeros(3)
    with pytest.raises(Exception, match=r"(?i)mutat|writ"):
        isthmus.compile(program)(x, y)
    assert y.tolist() == [0.0, 0.0, 0.0]
    assert isthmus.compile(program, capture="trace")(x, y).tolist() == [2.0, 2.0, 2.0] and y.tolist() == [1.0] * 3
