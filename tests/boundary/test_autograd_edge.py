"""One node on the tape: which gradients, when, how often; hooks, modes, modules, exceptions; as eager shows them."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
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


# ---- modes inside


def no_grad_inside(x):
    with torch.no_grad():
        y = x * 2
    return y * x


def enable_inside(x):
    with torch.no_grad():
        y = x * 3
        with torch.enable_grad():
            z = x * y
    return z, y


def set_and_left(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y + x


def decorated(x):
    @torch.no_grad()
    def inner(t):
        return t.exp()

    return inner(x) * x


def detached(x):
    return (x.detach() * x).sum() + x.detach().exp().sum()


def requires_grad_inside(x):
    return x.requires_grad, x * 2 if x.requires_grad else x


def inference_inside(x):
    with torch.inference_mode():
        y = x.detach() * 2
    return y.clone() if False else x * 3


INSIDE = [no_grad_inside, enable_inside, set_and_left, decorated, detached, requires_grad_inside, inference_inside]


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("f", INSIDE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad], ids=["grad", "no_grad"])
def test_modes_inside_and_outside(f, capture: str, mode):
    with mode():
        agree(f, f64(2, 3), capture=capture, gradients=mode is nullcontext)


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_changed_grad_mode_is_there_after_the_call(capture: str):
    def f(x):
        torch.set_grad_enabled(False)
        return x * 2

    compiled = compiled_by(f, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    for _ in range(2):
        torch.set_grad_enabled(True)
        try:
            y = compiled(f64(3))
            after = torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)
        assert not after and not y.requires_grad


# ---- autocast


@pytest.mark.row("T26")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("where", ["outside", "inside", "backward too", "cached"])
def test_autocast_in_backward_is_that_of_the_forward(where: str, capture: str):
    inside = where == "inside"

    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16) if inside else nullcontext():
            return torch.relu(x @ w) @ w.t()

    compiled = compiled_by(f, capture, "native")
    results = []
    for function in (f, compiled, compiled):
        x, w = (t.detach().float().requires_grad_() for t in pair())
        with nullcontext() if inside else torch.autocast("cpu", torch.bfloat16):
            y = function(x, w)
            if where == "backward too":
                y.sum().backward()
        if where != "backward too":
            y.sum().backward()
        assert y.dtype is torch.bfloat16 and w.grad.dtype is torch.float32
        results.append((y.detach(), x.grad, w.grad))
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", ["solve", "inverse", "cdist"])
def test_derivatives_that_are_traced_under_autocast_cast_nothing(name: str, capture: str):
    """A library call that autocast leaves alone has a derivative with products, which eager computes outside of it."""
    f = {
        "solve": lambda x: torch.linalg.solve(x, torch.eye(4)),
        "inverse": lambda x: torch.linalg.inv(x).sin(),
        "cdist": lambda x: torch.cdist(x, x * 2),
    }[name]
    compiled = compiled_by(f, capture, "native")
    gradients = []
    for function in (f, compiled):
        torch.manual_seed(0)
        x = (torch.randn(4, 4) + 3 * torch.eye(4)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x)
        y.sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


# ---- modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 4)
        self.norm, self.drop = nn.BatchNorm1d(5), nn.Dropout(0.5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(torch.tanh(self.norm(self.first(x)))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x.argmax(-1) % 6))


def step(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    y = model(x)
    if y.requires_grad:
        y.pow(2).sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


def trained_equally(mine: nn.Module, compiled: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    """Compare gradients and the state afterwards; both draw the same masks only where there are none."""
    got, want = step(compiled, x), step(theirs, x)
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            torch.testing.assert_close(g, w)
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())


@pytest.mark.row("A15", "T19")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("change", ["plain", "freeze", "unfreeze", "eval", "replace", "load", "tied", "apply"])
def test_modules_that_change_between_calls(change: str, capture: str):
    mine, theirs = (Tied() if change == "tied" else Net() for _ in range(2))
    for model in (mine, theirs):
        if change != "tied":
            model.drop.p = 0.0
    compiled = compiled_by(mine, capture, "native")
    x = f64(3, 4, grad=False)
    trained_equally(mine, compiled, theirs, x)
    for model in (mine, theirs):
        if change == "freeze":
            model.first.requires_grad_(False)
        elif change == "unfreeze":
            model.requires_grad_(False)
        elif change == "eval":
            model.eval()
        elif change == "replace":
            model.second.weight = nn.Parameter(f64(4, 5, grad=False))
        elif change == "load":
            model.load_state_dict({k: v * 2 for k, v in Net().double().state_dict().items()})
        elif change == "apply":
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.5)
    trained_equally(mine, compiled, theirs, x)
    for model in (mine, theirs):
        model.train()
        model.requires_grad_(True)
    trained_equally(mine, compiled, theirs, x)


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_compiled_module_is_still_a_module(capture: str):
    mine, theirs = Net().eval(), Net().eval()
    compiled = compiled_by(mine, capture, "native")
    x = f64(3, 4, grad=False)
    torch.testing.assert_close(compiled(x), theirs(x))
    assert isinstance(compiled, nn.Module)
    assert [p.shape for p in compiled.parameters()] == [p.shape for p in theirs.parameters()]
    compiled.load_state_dict(compiled.state_dict())
    clone = copy.deepcopy(compiled)
    with torch.no_grad():
        for p in clone.parameters():
            p.mul_(2)
    torch.testing.assert_close(compiled(x), theirs(x))
    doubled = Net().eval()
    with torch.no_grad():
        for p in doubled.parameters():
            p.mul_(2)
    torch.testing.assert_close(clone(x), doubled(x))


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_compiled_module_can_be_pickled(capture: str):
    mine = Net().eval()
    compiled = compiled_by(mine, capture, "native")
    x = f64(3, 4, grad=False)
    want = compiled(x)
    again = pickle.loads(pickle.dumps(compiled))
    torch.testing.assert_close(again(x), want)


@pytest.mark.parametrize("capture", CAPTURES)
def test_module_hooks_run(capture: str):
    mine, theirs = (Net().eval() for _ in range(2))
    for model in (mine, theirs):
        model.first.register_forward_hook(lambda m, a, y: y * 2)
        model.second.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    compiled = compiled_by(mine, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    outer = []
    for model in (compiled, theirs):
        model.register_forward_hook(lambda m, a, y: outer.append(y.sum().detach()))
        model.register_forward_pre_hook(lambda m, a: outer.append(a[0].sum()))
    x = f64(3, 4, grad=False)
    trained_equally(mine, compiled, theirs, x)
    torch.testing.assert_close(outer[: len(outer) // 2], outer[len(outer) // 2 :])


# ---- exceptions


class Own(Exception):
    pass


def raises(kind):
    def f(x):
        y = x * 2
        if x.shape[0] == 3:
            raise kind("from the user")
        return y

    return f


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("kind", [ValueError, KeyError, Own, AssertionError])
def test_exceptions_of_user_code_keep_their_type(kind, capture: str):
    compiled = compiled_by(raises(kind), capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    with pytest.raises(kind, match="from the user"):
        compiled(f64(3))
    torch.testing.assert_close(compiled(f64(2)), f64(2) * 2)
    with pytest.raises(kind, match="from the user"):
        compiled(f64(3))


REFUSED = {
    "shapes": (lambda x: x @ x, RuntimeError),
    "index": (lambda x: x[5], IndexError),
    "dim": (lambda x: x.sum(4), IndexError),
    "view": (lambda x: x.view(7), RuntimeError),
    "gather": (lambda x: x.gather(0, torch.full((1, 1), 9)), RuntimeError),
    "cat": (lambda x: torch.cat([x, x.t()]), RuntimeError),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_by_its_exception(name: str, capture: str):
    f, _ = REFUSED[name]
    with pytest.raises(Exception) as eager:
        f(f64(2, 3))
    compiled = compiled_by(f, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    with pytest.raises(eager.type):
        compiled(f64(2, 3))
