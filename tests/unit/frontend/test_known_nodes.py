"""A call that was imported before, on tensors that look the same, is written down as if it had run again."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from isthmus.driver.artifacts import module_text
from isthmus.frontend import import_fx, known_nodes
from isthmus.frontend.import_fx import import_graph

Program = Callable[[Tensor, Tensor], object]


def layers(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        a, b = F.linear(x, w).chunk(2, 1)
        x = x + torch.cat([torch.sigmoid(a), F.gelu(b)], 1)
    return x.sum()


def numbers(x: Tensor, w: Tensor) -> object:
    return [x * v for v in (0.0, -0.0, 1, True, 1.0, 0.0, float("nan"), float("nan"))]


def the_same_twice(x: Tensor, w: Tensor) -> object:
    return x * x, x * w, w * w, w * x


def shared_memory(x: Tensor, w: Tensor) -> object:
    found = []
    for t in (x, w, x):
        first, other = t[:2], t.clone()[:2]
        found += [torch.where(first > 0, first, t[:2]), torch.where(first > 0, other, t[:2]), t.view(-1)[2:5], t.t()]
    return found


def picks(x: Tensor, w: Tensor) -> object:
    return x[0, 1], x[[0, 1]], w[[1, 0]], w[1, 0], x[(0,)], x[[0]], w[[0]], w[(0,)]


def views_of_several(x: Tensor, w: Tensor) -> object:
    found = []
    for t in (x, w, x):  # where both lie in one memory, a result is said to lie in the first
        found += torch.meshgrid(x[0], t[1], indexing="ij") + torch.atleast_2d(x[0], t[1])
    return found


def itself(x: Tensor, w: Tensor) -> object:
    return x.contiguous() + 1, w.contiguous() + 1, x.t().contiguous(), w.t().contiguous(), x.reshape(4, 4)


def written_with_history(x: Tensor, w: Tensor) -> object:
    plain, late = torch.zeros(4, 4) * 1.0, torch.zeros(4, 4) * 1.0
    views = plain[0], late[0]
    views[0].mul_(2.0)
    views[1].add_(w[0])  # late has a history now, through its view
    late.detach_()
    return (x * w) * w, plain * late


def written_without_history(x: Tensor, w: Tensor) -> object:
    with torch.no_grad():
        a, b = x * 2, w * 2
        for t in (a, b):
            t[0].add_(1.0)
            t.t_()
        return a * 3, b * 3


def without_gradients(x: Tensor, w: Tensor) -> object:
    a = x * w
    with torch.no_grad():
        b = x * w
    return a, b, a.detach() * w, (a * w).detach(), x.detach() * w.detach()


def several(x: Tensor, w: Tensor) -> object:
    return x.max(1), w.max(1), x.split(1), w.split(1), x.unbind(), F.dropout(x), F.dropout(w), x.int() / 2, w.int() / 2


def statistics(x: Tensor, w: Tensor) -> object:
    mean, var = torch.zeros(4), torch.ones(4)
    return [F.batch_norm(t, mean, var, training=True) for t in (x, w, x)]


def casts(x: Tensor, w: Tensor) -> object:
    a = x @ w, x @ w
    with torch.autocast("cpu", torch.bfloat16):
        b = x @ w, x @ w
    return a, b, torch.complex(x, w).conj(), torch.complex(w, x).conj()


PROGRAMS: dict[str, Program] = {
    p.__name__: p
    for p in (
        layers,
        numbers,
        the_same_twice,
        shared_memory,
        picks,
        views_of_several,
        itself,
        written_with_history,
        written_without_history,
        without_gradients,
        several,
        statistics,
        casts,
    )
}


def imported(program: Program, args: Sequence[Tensor], dynamic: bool) -> list[str]:
    """The text of every graph of a program."""
    texts: list[str] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        texts.append(module_text(import_graph(graph, inputs).module))
        return graph.forward

    torch.compiler.reset()
    torch.compile(program, backend=backend, dynamic=dynamic)(*args)
    return texts


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_is_what_a_run_would_record(
    name: str, history: bool, dynamic: bool, monkeypatch: pytest.MonkeyPatch
):
    size = 6 if dynamic and name == "layers" else 4
    args = [torch.randn(size, 4, requires_grad=history), torch.randn(4, 4, requires_grad=history)]
    monkeypatch.setattr(import_fx, "seems_to_write", lambda node: False)  # what it misses is found all the same
    found = imported(PROGRAMS[name], args, dynamic)
    monkeypatch.setattr(known_nodes.KnownNodes, "run", lambda self, target, args, kwargs, run: run())
    assert found == imported(PROGRAMS[name], args, dynamic)


def test_equal_layers_run_once(monkeypatch: pytest.MonkeyPatch):
    ran: list[object] = []
    plain = known_nodes.KnownNodes.run

    def counting(self: known_nodes.KnownNodes, target: known_nodes.Target, args, kwargs, run):  # pyright: ignore
        return plain(self, target, args, kwargs, lambda: (ran.append(target), run())[1])

    monkeypatch.setattr(known_nodes.KnownNodes, "run", counting)
    imported(layers, [torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)], False)
    assert sum(t is torch.sigmoid for t in ran) == 1
    assert sum(t is F.linear for t in ran) <= 2  # the first x is an argument, a leaf like what is made again


@pytest.mark.parametrize(
    ("target", "kwargs", "writes"),
    [
        (operator.iadd, {}, True),
        (operator.iand, {}, True),
        (operator.and_, {}, False),
        (operator.index, {}, False),
        (operator.setitem, {}, True),
        ("add_", {}, True),
        ("__contains__", {}, False),
        (torch.relu_, {}, True),
        (F.relu, {"inplace": True}, True),
        (torch.add, {"out": None}, True),
        (torch.add, {}, False),
    ],
)
def test_what_seems_to_write(target: known_nodes.Target, kwargs: dict[str, object], writes: bool):
    graph = fx.Graph()
    kind = "call_method" if isinstance(target, str) else "call_function"
    node = graph.create_node(kind, target, (), kwargs)  # pyright: ignore[reportArgumentType]
    assert known_nodes.seems_to_write(node) == writes


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("add", True),
        (torch.add, True),
        (F.gelu, True),
        (F.cross_entropy, True),
        (operator.getitem, True),
        (getattr, True),
        (torch.ops.aten.add.Tensor, True),
        (torch.ops.prims.add.default, False),
        (zlib.crc32, False),  # compiled too, but somebody else's
        (imported, False),
    ],
)
def test_whose_functions_are_known(target: known_nodes.Target, expected: bool):
    assert known_nodes.is_torchs(target) == expected
