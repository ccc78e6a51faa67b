"""One compiled object for many sizes: values and gradients as eager's, natively."""

import pytest
import torch
import torch.nn.functional as F

import isthmus


@pytest.fixture(autouse=True)
def fresh():
    isthmus.reset()
    torch.manual_seed(0)


PROGRAMS = {
    "concatenation": (lambda a, b: torch.cat([a, b], 0).sin(), [[(3, 4), (5, 4)], [(2, 4), (7, 4)]]),
    "view with a quotient": (lambda x: x.view(x.shape[0], 4, -1).sum(-1), [[(3, 8)], [(5, 16)]]),
    "pooling": (lambda x: F.max_pool2d(x, 2), [[(2, 3, 8, 8)], [(3, 3, 10, 12)]]),
    "matmul, gelu, softmax": (lambda x, w: F.gelu(x @ w).softmax(-1), [[(3, 8), (8, 4)], [(7, 8), (8, 4)]]),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [[(2, 2, 5, 8)], [(3, 2, 7, 8)]]),
    "layer norm": (lambda x, w: F.layer_norm(x, (16,), w), [[(3, 16), (16,)], [(9, 16), (16,)]]),
    "slices": (lambda x: x[1:, ::2].sin(), [[(5, 8)], [(7, 10)]]),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), [[(5, 8, 3)], [(7, 8, 4)]]),
    "mean": (lambda x: (x - x.mean(0)) * x.shape[0], [[(5, 8)], [(2, 3)], [(9, 4)]]),
}


@pytest.mark.row("R4")
@pytest.mark.parametrize("name", PROGRAMS)
def test_many_sizes(name: str):
    function, calls = PROGRAMS[name]
    compiled = isthmus.compile(function, dynamic=True)
    for shapes in calls:
        mine = [torch.randn(s, requires_grad=True) for s in shapes]
        theirs = [t.detach().clone().requires_grad_() for t in mine]
        got, want = compiled(*mine), function(*theirs)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        tangent = torch.randn_like(want)
        got.backward(tangent)
        assert isthmus.last_call_native()
        want.backward(tangent)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_a_convolution_with_a_symbolic_window_is_left_to_the_library():
    function = lambda x, w: F.conv2d(x, w, padding=1).relu()  # noqa: E731
    compiled = isthmus.compile(function, dynamic=True)
    for n, k in ((8, 3), (10, 5)):
        x, w = torch.randn(2, 3, n, n), torch.randn(4, 3, k, k)
        torch.testing.assert_close(compiled(x, w), function(x, w), rtol=1e-4, atol=1e-4)


def test_sizes_that_a_traced_program_needs_equal_are_one_symbol() -> None:
    weight = torch.randn(3, 6)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(x @ weight.t(), y)

    compiled = isthmus.compile(f, capture="trace")
    for n in (8, 5, 7):
        x, y = torch.randn(n, 6), torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, y), f(x, y))


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_whose_operands_have_symbols_of_their_own(capture: str, causal: bool) -> None:
    """Torch's fake kernel does not compare queries with keys, keys with values, or a mask with either."""

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        given = None if causal else mask
        return F.scaled_dot_product_attention(q, k, v, given, is_causal=causal)

    compiled = isthmus.compile(f, capture=capture, dynamic=True)
    for batch, heads, rows, keys, width, wide in ((3, 2, 17, 18, 8, 4), (2, 4, 5, 30, 8, 4), (4, 3, 6, 7, 5, 9)):
        lead = (batch, heads)
        q, k, v = (torch.randn(*lead, *s) for s in ((rows, width), (keys, width), (keys, wide)))
        mask = torch.rand(heads, rows, keys) > 0.3
        mine, theirs = ([t.clone().requires_grad_() for t in (q, k, v)] for _ in range(2))
        got, want = compiled(*mine, mask), f(*theirs, mask)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        got.sin().sum().backward()
        want.sin().sum().backward()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_an_instance_norm_whose_weights_have_symbols_of_their_own(capture: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.instance_norm(x, None, None, w, b)

    compiled = isthmus.compile(f, capture=capture, dynamic=True)
    for n, channels, length in ((6, 4, 3), (2, 5, 7)):
        args = [torch.randn(s, requires_grad=True) for s in ((n, channels, length), (channels,), (channels,))]
        got, want = compiled(*args), f(*args)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        tangent = torch.randn_like(want)
        for a, b in zip(torch.autograd.grad(got, args, tangent), torch.autograd.grad(want, args, tangent), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("capture", ["trace", "dynamo"])
def test_sizes_that_are_equal_by_chance_at_the_first_call(capture: str) -> None:
    """Torch learns that 6 rows are 10 // 2 + 1 frequencies, and a condition that is an `or` beside it."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft2(torch.fft.rfft2(x)).sin().sum()

    compiled = isthmus.compile(program, capture=capture, dynamic=True, fullgraph=True)
    for rows in (6, 8, 12):
        mine = torch.randn(rows, 10, requires_grad=True)
        theirs = mine.detach().clone().requires_grad_()
        compiled(mine).backward()
        program(theirs).backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
