"""One node on the tape: which gradients, when, how often, under which hooks; as eager shows them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.boundary.harness import CAPTURES, agree, compiled_by, f64

SUBSETS = [(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)]


def three(a, b, c):
    return (a * b).sin() @ c, a.exp(), (b * c.t()).sum()


def same(function, compiled, run, make) -> None:
    """`run(function, *make())` gives the same for both, twice."""
    for _ in range(2):
        got, want = run(compiled, *make()), run(function, *make())
        torch.testing.assert_close(got, want)


@pytest.mark.row("T12")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("wants", SUBSETS)
def test_any_subset_of_the_inputs_wants_gradients(wants, capture: str):
    shapes = ((2, 3), (2, 3), (3, 2))
    agree(three, *(f64(*s, grad=w) for s, w in zip(shapes, wants, strict=True)), capture=capture)


@pytest.mark.row("T3")
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_outputs_that_nobody_uses_send_no_tangent(used):
    def run(f, *leaves):
        outputs = f(*leaves)
        return torch.autograd.grad(
            sum(outputs[k].sum() for k in used), leaves, allow_unused=True, materialize_grads=True
        )

    same(three, compiled_by(three, "dynamo", "native"), run, lambda: (f64(2, 3), f64(2, 3), f64(3, 2)))


TANGENTS = {
    "contiguous": lambda y: torch.ones_like(y),
    "expanded": lambda y: torch.ones((), dtype=y.dtype).expand(y.shape),
    "transposed": lambda y: f64(*y.shape[::-1], grad=False).t(),
    "gaps": lambda y: f64(y.shape[0], y.shape[1] * 2, grad=False)[:, ::2],
    "offset": lambda y: f64(y.shape[0] + 1, y.shape[1], grad=False)[1:],
    "negative": lambda y: torch.imag(torch.complex(f64(*y.shape, grad=False), f64(*y.shape, grad=False)).conj()),
    "zeros": lambda y: torch.zeros_like(y),
    "infinite": lambda y: torch.full_like(y, float("inf")),
}


@pytest.mark.parametrize("name", TANGENTS)
@pytest.mark.parametrize("turned", [False, True])
def test_tangents_in_any_layout(name: str, turned: bool):
    def f(x, w):
        y = torch.tanh(x @ w)
        return y.t() * 2 if turned else y

    def run(f, x, w):
        y = f(x, w)
        y.backward(TANGENTS[name](y))
        return x.grad, w.grad

    same(f, compiled_by(f, "dynamo", "native"), run, lambda: (f64(2, 3), f64(3, 4)))


INTEGERS = {
    "argmax": lambda x: (x * 2, x.argmax(1)),
    "mask": lambda x: (x > 0, x.sin()),
    "size": lambda x: (x.shape[0], x * 3),
    "sort": lambda x: x.sort(1),
    "max": lambda x: x.max(1),
    "topk": lambda x: x.topk(2, 1),
    "only integers": lambda x: (x > 0).long().sum(),
    "cast": lambda x: (x.int(), x.float(), x.double()),
    "constant": lambda x: (torch.arange(3), x + torch.arange(3)),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", INTEGERS)
def test_outputs_without_gradients(name: str, capture: str):
    agree(INTEGERS[name], f64(2, 3), capture=capture)


def normalized(x):
    y, mean, rstd = torch.native_layer_norm(x, (3,), None, None, 1e-5)
    return y, mean * 2, rstd, (y * mean).sin()


def copied_over(x):
    y = x.sin()
    y.copy_(torch.ones_like(x))
    return y


def assigned(x):
    y = x.sin()
    y[:] = 2.0
    return y, x.cos()


def overwritten(x):
    x.zero_()
    return x + 1


def logical(x):
    y = torch.ones_like(x)
    return y.logical_and_(x), y * x


def checkpointed(x):
    return checkpoint(lambda x: torch.fill(x, 2.0), x, use_reentrant=False)


def kept_as_it_is(x):
    """A write behind autograd's back that changes nothing."""
    running = torch.ones(3, dtype=x.dtype)
    with torch.no_grad():
        running.add_(-0.0)
        x.add_(-0.0)
    return torch._native_batch_norm_legit(x, None, None, running, running.clone(), False, 0.1, 1e-5)[0]


def strided(x):
    return torch.as_strided_scatter(x, x[0, :2].reshape(2, 1) * 3, (2, 1), (1, 1), 1)


def written_through_strides(x):
    y = x.sin()
    y.as_strided((2, 1), (1, 1), 1).copy_(x[0, :2].reshape(2, 1) * 3)
    return y


HISTORIES = {
    "no change": kept_as_it_is,
    "as_strided_scatter": strided,
    "through strides": written_through_strides,
    "statistics": normalized,
    "filled": lambda x: torch.fill(x, 2.0),
    "zeroed": lambda x: (x * 2).zero_(),
    "copied over": copied_over,
    "assigned": assigned,
    "overwritten": overwritten,
    "to the power of 0": lambda x: x**0,
    "none of it": lambda x: x[:, :0].sum(1),
    "like": lambda x: (torch.zeros_like(x), torch.ones_like(x) * x),
    "steps": lambda x: (x.floor(), x.sign()),
    "logical": logical,
    "checkpointed": checkpointed,
    "a library call": lambda x: (torch.nextafter(x, x + 1), x.cos()),
}


@pytest.mark.row("T3")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", HISTORIES)
def test_outputs_have_a_history_where_eagers_have(name: str, capture: str):
    """Constants by torch's word have none; what does not depend on its operands by value has one, and gradient 0."""
    function = HISTORIES[name]
    agree(function, f64(2, 3), capture=capture)
    want, got = f64(2, 3), f64(2, 3)
    for x, f in ((want, function), (got, compiled_by(function, capture, "native"))):
        outputs = f(x * 1)
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        sum(o.sum() for o in outputs if o.requires_grad).backward()
    torch.testing.assert_close(got.grad, want.grad)
    assert got.grad is not None


def branch(x, w):
    return (x @ w).relu().sum() + (w * w).sum()


def pair():
    return f64(2, 3), f64(3, 4)


def twice(f, x, w):
    loss = f(x, w)
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad, w.grad


def two_forwards(f, x, w):
    first, second = f(x, w), f(x * 2, w)
    second.backward()
    first.backward()
    return x.grad, w.grad


def nested(f, x, w):
    y = f(x.sin(), w)
    z = f(x * y, w.cos())
    z.backward()
    return x.grad, w.grad


def no_grad_then_grad(f, x, w):
    with torch.no_grad():
        a = f(x, w)
    b = f(x, w)
    b.backward()
    return a, x.grad


def inputs_argument(f, x, w):
    f(x, w).backward(inputs=[w])
    assert x.grad is None
    return w.grad


def accumulate(f, x, w):
    for _ in range(3):
        f(x, w).backward()
    return x.grad, w.grad


def tensor_hook(f, x, w):
    seen = []
    x.register_hook(lambda g: seen.append(g) or g * 2)
    y = f(x, w)
    y.register_hook(lambda g: g * 3)
    y.backward()
    return x.grad, w.grad, seen


def post_accumulate(f, x, w):
    seen = []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    f(x, w).backward()
    return x.grad, seen


def node_hook(f, x, w):
    y = f(x, w)
    y.grad_fn.register_hook(lambda ins, outs: None)
    y.grad_fn.register_prehook(lambda outs: tuple(o * 2 for o in outs))
    y.backward()
    return x.grad, w.grad


def retained_grad(f, x, w):
    y = x * 1
    y.retain_grad()
    f(y, w).backward()
    return y.grad, w.grad


def under_hooks(f, x, w):
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = f(x, w)
    y.backward()
    return x.grad, w.grad


def on_cpu(f, x, w):
    with save_on_cpu():
        y = f(x, w)
    y.backward()
    return x.grad, w.grad


def outside_checkpoint(f, x, w):
    torch.utils.checkpoint.checkpoint(f, x, w, use_reentrant=False).backward()
    return x.grad, w.grad


def outside_reentrant(f, x, w):
    torch.utils.checkpoint.checkpoint(f, x, w, use_reentrant=True).backward()
    return x.grad, w.grad


def hessian_outside(f, x, w):
    (g,) = torch.autograd.grad(f(x, w), w, create_graph=True)
    g.pow(2).sum().backward()
    return x.grad, w.grad


def batched(f, x, w):
    y = f(x, w)
    return torch.autograd.grad(y, (x, w), torch.eye(2, dtype=y.dtype)[0], is_grads_batched=True)


def enable_inside_no_grad(f, x, w):
    with torch.no_grad(), torch.enable_grad():
        y = f(x, w)
    y.backward()
    return x.grad


def inference_outside(f, x, w):
    with torch.inference_mode():
        y = f(x, w)
    assert y.is_inference()
    return y.clone()


def anomaly(f, x, w):
    with torch.autograd.detect_anomaly(check_nan=True):
        f(x, w).backward()
    return x.grad, w.grad


def multithreading_off(f, x, w):
    with torch.autograd.set_multithreading_enabled(False):
        f(x, w).backward()
    return x.grad, w.grad


def optimizer_steps(f, x, w):
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        f(x, w).backward()
        optimizer.step()
    return w.detach(), x.grad


USES = [
    twice, two_forwards, nested, no_grad_then_grad, inputs_argument, accumulate, tensor_hook, post_accumulate,
    node_hook, retained_grad, under_hooks, on_cpu, outside_checkpoint, outside_reentrant, hessian_outside, batched,
    enable_inside_no_grad, inference_outside, anomaly, multithreading_off, optimizer_steps,
]  # fmt: skip


@pytest.mark.row("T17", "T19")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("use", USES, ids=lambda f: f.__name__)
def test_uses_of_the_tape(use, capture: str):
    options = {"fullgraph": False} if capture == "dynamo" else {}
    same(branch, compiled_by(branch, capture, "native", **options), use, pair)


@pytest.mark.row("A12")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("which", [0, 1])
def test_saved_tensors_that_were_overwritten_are_an_error(which, capture: str):
    def f(x, w):
        return torch.exp(x * w)

    compiled = compiled_by(f, capture, "native")
    for function in (f, compiled):
        x, w = f64(3) * 1, f64(3) * 2
        y = function(x, w)
        with torch.no_grad():
            (x, w)[which].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("capture", CAPTURES)
def test_an_output_that_was_overwritten_is_an_error_or_right(capture: str):
    """Eager refuses, because it saved the output; the compiled function may have saved something else."""
    x = f64(3)
    y = compiled_by(torch.exp, capture, "native")(x * 1)
    with torch.no_grad():
        y.zero_()
    try:
        y.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        torch.testing.assert_close(x.grad, f64(3).detach().exp())


def test_a_second_backward_without_retain_graph_is_an_error():
    compiled = compiled_by(branch, "dynamo", "native")
    loss = compiled(*pair())
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
