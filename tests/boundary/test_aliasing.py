"""Outputs that are inputs, views of inputs, of intermediates, of each other: identity, base, storage, flags."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.boundary.harness import CAPTURES, agree, compiled_by, f64


def under_no_grad(x):
    with torch.no_grad():
        return x.t(), x[0]


def of_an_intermediate_under_no_grad(x):
    y = x * 2
    with torch.no_grad():
        return y, y.t()


def made_under_no_grad(x):
    with torch.no_grad():
        y = x * 2
    return y, y.t()


def view_of_a_view_under_no_grad(x):
    y = x.t()
    with torch.no_grad():
        z = y[0]
    return y, z, z.unsqueeze(0)


def written_through_a_returned_view(x):
    y = x * 2
    v = y.t()
    v.mul_(3)
    return y, v


OF_INPUTS = {
    "itself": lambda x: x,
    "itself twice": lambda x: (x, x),
    "itself and more": lambda x: (x, x * 2),
    "transpose": lambda x: x.t(),
    "transpose and result": lambda x: (x.t(), x.mul(2).view(-1)),
    "row": lambda x: x[0],
    "rows": lambda x: (x[0], x[1], x),
    "slice": lambda x: x[:, 1:],
    "steps": lambda x: x[:, ::2],
    "view": lambda x: x.view(-1),
    "view of view": lambda x: x.view(-1)[1:].unsqueeze(0),
    "reshape": lambda x: x.reshape(3, 2),
    "flatten": lambda x: x.flatten(),
    "expand": lambda x: x.unsqueeze(0).expand(4, 2, 3),
    "diagonal": lambda x: x.diagonal(),
    "permute": lambda x: x.unsqueeze(0).permute(2, 0, 1),
    "unbind": lambda x: x.unbind(0),
    "split": lambda x: x.split(2, 1),
    "chunk": lambda x: x.chunk(3, 1)[1],
    "unfold": lambda x: x.unfold(1, 2, 1),
    "narrow": lambda x: x.narrow(1, 0, 2),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "movedim": lambda x: x.movedim(0, 1),
    "swapaxes": lambda x: torch.swapaxes(x, 0, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 1),
    "detach": lambda x: x.detach(),
    "detached row": lambda x: x.detach()[0],
    "row detached": lambda x: x[0].detach(),
    "view_as": lambda x: x.view_as(x),
    "contiguous": lambda x: x.contiguous(),
    "to the same": lambda x: x.to(torch.float64),
    "double": lambda x: x.double(),
    "flip is none": lambda x: x.flip(0),
    "no_grad": under_no_grad,
    "view of a view, no_grad": view_of_a_view_under_no_grad,
    "mT": lambda x: x.mT,
    "empty slice": lambda x: x[2:],
    "nested": lambda x: {"a": x[0], "b": [x.t(), (x, None, 3)]},
}

OF_RESULTS = {
    "view of result": lambda x: (x * 2).view(-1),
    "result and its view": lambda x: (lambda y: (y, y.view(-1)))(x * 2),
    "two views": lambda x: (lambda y: (y.t(), y[0]))(x * 2),
    "view and view of it": lambda x: (lambda y: (y.t(), y.t()[0]))(x * 2),
    "same result twice": lambda x: (lambda y: (y, y))(x * 2),
    "unbind": lambda x: (x * 2).unbind(0),
    "split": lambda x: (x * 2).split(1, 1),
    "detached": lambda x: (lambda y: (y, y.detach()))(x * 2),
    "only detached": lambda x: (x * 2).detach(),
    "no_grad": of_an_intermediate_under_no_grad,
    "made under no_grad": made_under_no_grad,
    "written through": written_through_a_returned_view,
    "expanded": lambda x: (x.sum(0) * 2).expand(4, 3),
    "diagonal": lambda x: (x * 2).diagonal(),
    "reshape copies": lambda x: (x * 2).t().reshape(-1),
    "reshape views": lambda x: (x * 2).reshape(-1),
    "matmul": lambda x: (x @ x.t()).t(),
    "transposed sum": lambda x: x.t() + x.t(),
    "equal values": lambda x: (x * 2, x * 2),
    "folded identity": lambda x: (x * 1, x + 0),
    "identity of result": lambda x: (lambda y: (y, y * 1))(x * 2),
    "zeros": lambda x: (torch.zeros_like(x), x.sum()),
    "clone": lambda x: (x.clone(), x.t().clone()),
    "constants": lambda x: (x * 2, None, 3, "a", 1.5),
    "inplace on result": lambda x: (x * 2).add_(1),
    "inplace view": lambda x: (lambda y: (y[0].mul_(2), y))(x * 2),
    "complex": lambda x: torch.view_as_real(torch.complex(x, x)),
    "real part": lambda x: torch.complex(x, x * 2).real,
    "long": lambda x: (x > 0, x.argmax(), x.argmax(0).unsqueeze(0)),
}

WITH_WRITES = {
    "written itself": lambda x: x.mul_(2),
    "view before": lambda x: (x.t(), x.mul_(2))[0],
    "view after": lambda x: (x.mul_(2), x.t())[1],
    "view written": lambda x: x[0].mul_(2),
    "both": lambda x: (x.add_(1), x[0], x * 2),
    "detached after": lambda x: (x.mul_(2), x.detach())[1],
    "clone before": lambda x: (x.clone(), x.mul_(2)),
}


@pytest.mark.row("T22")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", OF_INPUTS)
def test_views_of_inputs(name: str, capture: str):
    agree(OF_INPUTS[name], f64(2, 3), capture=capture)


@pytest.mark.row("T22")
@pytest.mark.parametrize("name", OF_INPUTS)
def test_views_of_inputs_that_are_leaves_or_views(name: str):
    check = agree_as_given
    check(OF_INPUTS[name], lambda: f64(2, 3))
    check(OF_INPUTS[name], lambda: f64(2, 3, grad=False))
    if name != "as_strided":  # counts from the storage's start: outside of this view
        check(OF_INPUTS[name], lambda: (f64(3, 3) * 1)[1:])


@pytest.mark.row("T23")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", OF_RESULTS)
def test_views_of_results(name: str, capture: str):
    agree(OF_RESULTS[name], f64(2, 3), capture=capture)


@pytest.mark.row("T23")
@pytest.mark.parametrize("name", OF_RESULTS)
def test_views_of_results_off_the_tape(name: str):
    agree(OF_RESULTS[name], f64(2, 3, grad=False), gradients=False)
    with torch.no_grad():
        agree(OF_RESULTS[name], f64(2, 3, grad=False), gradients=False, calls=1)


@pytest.mark.row("T21", "T22")
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", WITH_WRITES)
def test_views_of_written_inputs(name: str, capture: str):
    agree(WITH_WRITES[name], f64(2, 3), capture=capture)


def test_the_outputs_can_be_written_afterwards_as_in_eager():
    """Writes to what a compiled function gave reach exactly the tensors that they reach in eager."""

    def f(x):
        y = x * 2
        return x.t(), y, y[0], x * 3

    results = []
    for function in (f, compiled_by(f, "dynamo", "native"), compiled_by(f, "trace", "native")):
        leaf = f64(2, 3)
        x = leaf * 1
        outputs = function(x)
        for k in (0, 2, 3):
            outputs[k].mul_(k + 2)
        sum((o * (k + 1)).sum() for k, o in enumerate(outputs)).backward()
        results.append([x.detach(), leaf.grad, *(o.detach() for o in outputs)])
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])


@pytest.mark.row("T22", "T23")
def test_the_example_of_output_aliases():
    def f(x):
        return x.t(), x.mul(2).view(-1)

    x = torch.ones(2, 3, requires_grad=True)
    first, second = compiled_by(f, "dynamo", "native")(x)
    assert first._base is x and second._is_view()


def agree_as_given(function, make) -> None:
    """Compare flags and bases of outputs on the input as it is."""
    mine, theirs = make(), make()
    got = torch.utils._pytree.tree_leaves(compiled_by(function, "dynamo", "native")(mine))
    want = torch.utils._pytree.tree_leaves(function(theirs))
    for g, w in zip(got, want, strict=True):
        if not isinstance(w, Tensor):
            assert g == w
            continue
        torch.testing.assert_close(g.detach(), w.detach())
        flags = [(t.requires_grad, t.is_leaf, t._is_view()) for t in (g, w)]
        assert flags[0] == flags[1]
        assert (g is mine) == (w is theirs)
        assert (g._base is mine) == (w._base is theirs)
        assert (g._base is not None and g._base is mine._base) == (w._base is not None and w._base is theirs._base)
        assert g._version == w._version
