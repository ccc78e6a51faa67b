"""Calls that eager refuses for their dtypes: the same error, by type and by message."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import isthmus
from tests.boundary.harness import CAPTURES, compiled_by

FLOAT, HALF, LONG, BOOL, COMPLEX = torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64
CASES = {
    "and": (lambda x: torch.bitwise_and(x, x), FLOAT),
    "or of a number": (lambda x: x | 1, HALF),
    "xor": (lambda x: torch.bitwise_xor(x, x), COMPLEX),
    "not": (lambda x: torch.bitwise_not(x), FLOAT),
    "shift": (lambda x: torch.bitwise_left_shift(x, x), BOOL),
    "fmod": (lambda x: torch.fmod(x, x), BOOL),
    "remainder": (lambda x: x % 2, COMPLEX),
    "hypot": (lambda x: torch.hypot(x, x), LONG),
    "nextafter": (lambda x: torch.nextafter(x, x), LONG),
    "maximum": (lambda x: torch.maximum(x, x), COMPLEX),
    "less": (lambda x: x < x, COMPLEX),
    "floor": (lambda x: torch.floor(x), COMPLEX),
    "abs": (lambda x: torch.abs(x), BOOL),
    "minus a number": (lambda x: x - 1, BOOL),
    "negative power": (lambda x: x**-1, LONG),
    "softmax": (lambda x: F.softmax(x, 0), LONG),
    "gelu": (lambda x: F.gelu(x), LONG),
    "relu": (lambda x: torch.relu(x), BOOL),
    "lerp": (lambda x: torch.lerp(x, x, 0.5), LONG),
    "addcmul": (lambda x: torch.addcmul(x, x, x), BOOL),
    "in place": (lambda x: x.clone().mul_(torch.ones(4, 4)), LONG),
    "matmul": (lambda x: x @ torch.ones(4, 4), LONG),
    "amax": (lambda x: x.amax(), COMPLEX),
    "argmax": (lambda x: x.argmax(), BOOL),
    "pool": (lambda x: F.max_pool1d(x[None], 2), BOOL),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", CASES)
def test_errors_about_dtypes_are_eagers(name: str, capture: str):
    program, dtype = CASES[name]
    x = torch.ones(4, 4, dtype=dtype)
    with pytest.raises(RuntimeError) as wanted:
        program(x)
    function = compiled_by(program, capture, "native", fullgraph=False) if capture == "dynamo" else None
    function = function or compiled_by(program, capture, "native")
    for _ in range(2):
        with pytest.raises(wanted.type) as got:
            function(x)
        assert got.type is wanted.type and str(got.value) == str(wanted.value)


def test_large_tensors_are_refused_too():
    def f(x):
        return x.sin() & x

    with pytest.raises(NotImplementedError, match="not implemented for 'Float'"):
        isthmus.compile(f, capture="trace")(torch.ones(1000, 100))
    with pytest.raises(NotImplementedError, match="not implemented for 'Float'") as caught:
        isthmus.trace(f, torch.ones(1000, 100))
    assert any("test_refused.py" in note for note in caught.value.__notes__)


def test_trying_draws_no_numbers():
    x = torch.ones(4)
    torch.manual_seed(0)
    function = isthmus.compile(
        lambda x: x * torch.bernoulli(x * 0.5), capture="trace", options={"fallback_random": True}
    )
    first = function(x)
    torch.manual_seed(0)
    assert torch.equal(first, torch.bernoulli(x * 0.5))
