"""Random programs through the whole compiler; long: `python -m tests.boundary.random_programs --count 2000`."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

import isthmus
from isthmus.diagnostics import UnsupportedError
from tests.unit.passes.functionalize.harness import check_program, copies, writable
from tests.unit.passes.functionalize.programs import RandomProgram, draw

TAPE_REFUSES = (
    "modified by an inplace operation",
    "modified inplace",
    "unsupported operation",
    "not be modified inplace",
)


class Branching:
    """A program whose end depends on a Python number: 0 as drawn, 1 with another ending, 2 with a loop."""

    def __init__(self, program: RandomProgram) -> None:
        self.program = program
        self.way = 0

    def run(self, way: int, *arguments: Tensor) -> list[Tensor]:
        outputs = self.program(*arguments)
        if way == 1:
            outputs = [o.tanh() * 2 if o.dtype.is_floating_point else o for o in outputs]  # well-conditioned
        for _ in range(way // 2 * 2):
            outputs[0] = outputs[0] * outputs[0]
        return outputs

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        return self.run(self.way, *arguments)


def check_seed(seed: int) -> str:
    """Compare one program with eager: values, arguments afterwards, sharing, gradients, second gradients."""
    choose = random.Random(seed).choice
    torch.manual_seed(seed)
    grad = bool(seed % 3)
    branching = Branching(draw(choose, grad=grad, length=4 + seed % 9))
    capture = ("trace", "dynamo")[seed % 16 == 0]
    isthmus.reset()
    compiled = isthmus.compile(
        branching.run,
        capture=capture,
        backend="interpret" if seed % 4 == 3 else "native",
        options={"higher_order": bool(seed // 4 % 2)},
    )
    found: list[str] = []
    try:
        for way in (0, 1, 0, 2):
            branching.way = way

            def made(function: object, arguments: Sequence[Tensor], way: int = way) -> object:
                return lambda *inner: compiled(way, *inner)

            found.append(check_program(branching, branching.program.arguments, made))
        if grad and found[-1] == "agrees":
            found.append(second_gradients(branching, lambda *a: compiled(2, *a)))
    except UnsupportedError:
        return "has no compiled form"
    except ValueError as error:
        if "Cannot view a tensor" not in str(error):
            raise
        return "refused"
    return found[-1]


def second_gradients(function: Branching, compiled: object) -> str:
    """Compare the gradient of the gradient's weighted sum; whatever eager's tape refuses is no case."""
    results: list[Sequence[Tensor]] = []
    for f in (function, compiled):
        leaves = copies(function.program.arguments)
        try:
            outputs = f(*writable(leaves))
            total = sum((o.double() * o.double().detach().tanh()).sum() for o in outputs if o.requires_grad)
            if not isinstance(total, Tensor):
                return "values agree"
            wanted = [x for x in leaves if x.requires_grad]
            first = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True, materialize_grads=True)
            again = sum((g * g.detach().tanh()).sum() for g in first)
            if not isinstance(again, Tensor) or not again.requires_grad:
                results.append([g.detach() for g in first])
                continue
            second = torch.autograd.grad(again, wanted, allow_unused=True, materialize_grads=True)
            results.append([*(g.detach() for g in first), *second])
        except (RuntimeError, AttributeError) as error:
            if f is function or "higher_order" in str(error):
                return "values agree"
            raise
    if len(results[0]) == len(results[1]):
        torch.testing.assert_close(results[1], results[0], rtol=1e-8, atol=1e-8, equal_nan=True)
        return "agrees twice"
    n = min(map(len, results))
    torch.testing.assert_close(results[1][:n], results[0][:n], rtol=1e-8, atol=1e-8, equal_nan=True)
    zeros = [t for r in results for t in r[n:]]
    assert all(bool((t == 0).all()) for t in zeros)
    return "agrees twice"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    chosen = parser.parse_args()
    seen: Counter[str] = Counter()
    begin = time.time()
    for seed in range(chosen.start, chosen.start + chosen.count):
        try:
            seen[check_seed(seed)] += 1
        except Exception as error:
            seen["FAILS"] += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error).strip()[:160]!r}", flush=True)
    print(f"{dict(seen)} in {time.time() - begin:.0f} s")
    return int(seen["FAILS"] > 0)


if __name__ == "__main__":
    sys.exit(main())
