"""Exceptions of the user's code and of eager keep their type."""

from __future__ import annotations

import pytest
import torch

from tests.boundary.harness import CAPTURES, compiled_by, f64


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
    "shapes": lambda x: x @ x,
    "index": lambda x: x[5],
    "dim": lambda x: x.sum(4),
    "view": lambda x: x.view(7),
    "gather": lambda x: x.gather(0, torch.full((1, 1), 9)),
    "cat": lambda x: torch.cat([x, x.t()]),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_by_its_exception(name: str, capture: str):
    f = REFUSED[name]
    with pytest.raises(Exception) as eager:
        f(f64(2, 3))
    compiled = compiled_by(f, capture, "native", **({"fullgraph": False} if capture == "dynamo" else {}))
    with pytest.raises(eager.type):
        compiled(f64(2, 3))
