"""An input that comes in another layout than before, which backward reads again."""

import pytest
import torch
from torch.nn.functional import conv2d

import isthmus


def test_backward_is_told_the_strides_of_what_it_reads() -> None:
    weight = torch.linspace(-1.0, 1.0, 4 * 3 * 3 * 3, dtype=torch.float64).reshape(4, 3, 3, 3).requires_grad_()
    x = torch.linspace(-2.0, 1.0, 2 * 3 * 5 * 5, dtype=torch.float64).reshape(2, 3, 5, 5)
    torch._dynamo.reset()
    isthmus.reset()
    compiled = isthmus.compile(lambda x: conv2d(x, weight).sin())
    for given in (x.contiguous(memory_format=torch.channels_last), x, torch.cat([x, x], 1)[:, 1:4], x.mT):
        want, got = conv2d(given, weight).sin(), compiled(given)
        torch.testing.assert_close(got, want)
        firsts = [torch.autograd.grad(y.sum(), weight, create_graph=True)[0] for y in (got, want)]
        torch.testing.assert_close(*firsts)
        torch.testing.assert_close(*(torch.autograd.grad(g.sin().sum(), weight)[0] for g in firsts))


def sliced(rows: int, width: int, first: int, last: int) -> torch.Tensor:
    return torch.arange(rows * width, dtype=torch.float64).reshape(rows, width)[:, first:last].requires_grad_()


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_trace_is_told_strides_that_no_size_tells(dynamic: bool | None) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() @ y.mT + x.sum(1, keepdim=True)

    compiled = isthmus.compile(program, capture="trace", dynamic=dynamic)
    for sizes in ((4, 8, 1, 6), (6, 12, 1, 8), (7, 13, 2, 9), (5, 7, 0, 7)):
        x, y = sliced(*sizes), sliced(*sizes)
        want, got = program(x, y), compiled(x, y)
        torch.testing.assert_close(got, want)
        inputs = x, y
        for a, b in zip(torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(want.sum(), inputs), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_trace_of_moving_sizes_watches_strides_that_do_not_move(dynamic: bool | None) -> None:
    compiled = isthmus.compile(lambda x: x.t(), capture="trace", dynamic=dynamic)
    for x in (torch.arange(4.0), torch.arange(6.0), torch.arange(12.0)[::2], torch.arange(15.0)[::3]):
        got = compiled(x)
        assert got.stride() == x.stride()
        assert got.tolist() == x.tolist()


def test_a_program_that_turns_its_argument_in_place_is_traced_once() -> None:
    compiled = isthmus.compile(lambda x: x.t_().sin(), capture="trace")
    found = isthmus.measure(lambda: compiled(torch.ones(2, 3)), calls=3, warm_up=1)
    assert (found.compilations, found.late_compilations) == (1, 0)
