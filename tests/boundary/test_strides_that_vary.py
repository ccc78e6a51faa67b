"""An input that comes in another layout than before, which backward reads again."""

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
