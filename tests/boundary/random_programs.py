"""Random programs through the whole compiler; long: `python -m tests.boundary.random_programs --count 2000`.

Each is compared with eager in values, arguments afterwards, sharing, gradients and gradients of gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

import isthmus
from isthmus.diagnostics import UnsupportedError
from tests.unit.passes.functionalize.harness import compare, copies, writable
from tests.unit.passes.functionalize.programs import RandomProgram, draw

DRAWS = 8
"""So many programs are drawn until eager's tape accepts one that has a gradient."""

SECOND = "gradients twice"
FIRST = "gradients"
VALUES = "values"
OUTCOMES = (SECOND, FIRST, VALUES)
"""How far a program was compared; the next after a colon is why no further."""


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


@dataclass(frozen=True)
class Ran:
    """What one call left: its outputs, the arguments afterwards, gradients of a sum, gradients of a sum of these."""

    outputs: Sequence[object]
    arguments: Sequence[Tensor]
    first: Sequence[Tensor] = ()
    second: Sequence[Tensor] = ()


def ran(function: Callable[..., object], arguments: Sequence[Tensor], order: int) -> Ran:
    """Call on copies of the arguments and differentiate as often as `order` says."""
    leaves = copies(arguments if order else [a.detach() for a in arguments])
    wanted = [x for x in leaves if x.requires_grad]
    inner = writable(leaves)
    outputs = pytree.tree_leaves(function(*inner))
    if not order:
        return Ran(outputs, inner)
    first = gradients(weighted([*outputs, *inner]), wanted, again=order > 1)
    if order == 1:
        return Ran(outputs, inner, first)
    second = gradients(weighted(first), wanted)
    return Ran(outputs, inner, [g.detach() for g in first], second)


def weighted(tensors: Sequence[object]) -> Tensor:
    """A sum whose gradient depends on every element, so that it has a gradient again."""
    generator = torch.Generator().manual_seed(0)
    numbers = [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point()]
    terms = [(torch.atan(t) * torch.rand(t.shape, generator=generator, dtype=t.dtype)).sum() for t in numbers]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def gradients(total: Tensor, wanted: Sequence[Tensor], *, again: bool = False) -> Sequence[Tensor]:
    """Zeros where nothing flows."""
    if not total.requires_grad:
        return [torch.zeros_like(x) for x in wanted]
    return torch.autograd.grad(total, wanted, create_graph=again, allow_unused=True, materialize_grads=True)


def compare_runs(got: Ran, want: Ran) -> None:
    """Raise AssertionError where they differ."""
    compare(got.outputs, want.outputs, got.arguments, want.arguments)
    torch.testing.assert_close(got.first, want.first, rtol=1e-10, atol=1e-10, equal_nan=True)
    torch.testing.assert_close(got.second, want.second, rtol=1e-8, atol=1e-8, equal_nan=True)


def eager(branching: Branching, order: int) -> tuple[Ran, int, str]:
    """Run eager with as many derivatives as its tape has; gives how many, and why no more.

    Writes to what the tape has saved are no reason: it saves copies here. (`allow_mutation_on_saved_tensors` does not
    see writes through views that begin elsewhere in the storage.)
    """
    why = "none asked for"
    if order and not any(a.requires_grad for a in branching.program.arguments):
        order, why = 0, "no argument wants one"
    for n in range(order, 0, -1):
        with contextlib.suppress(RuntimeError), saved_tensors_hooks(copied, lambda t: t):
            return ran(branching, branching.program.arguments, n), n, why
        why = "eager's tape refuses"
    return ran(branching, branching.program.arguments, 0), 0, why


def copied(saved: Tensor) -> Tensor:
    return saved.detach().clone()


def drawn(seed: int, *, again: bool) -> tuple[Branching, int]:
    """The program of a seed and the order asked for: with `again`, the first that eager's tape accepts."""
    choose = random.Random(seed).choice
    order = 2 if seed % 3 else 0
    for _ in range(DRAWS if again else 1):
        torch.manual_seed(seed)
        branching = Branching(draw(choose, grad=order > 0, length=4 + seed % 9))
        with contextlib.suppress(RuntimeError):
            if eager(branching, order)[1] == order:
                break
    return branching, order


def check_seed(seed: int, *, again: bool = True) -> str:
    """Compare one program with eager, and say how far: one of OUTCOMES, with the reason where it is not the first.

    Every other one does not ask for second derivatives when it is compiled: then the first request may be refused, and
    must be met when the step is run again.
    """
    branching, order = drawn(seed, again=again)
    isthmus.reset()
    compiled = isthmus.compile(
        branching.run,
        capture=("trace", "dynamo")[seed % 16 == 0],
        backend="interpret" if seed % 4 == 3 else "native",
        options={"higher_order": bool(seed // 4 % 2)},
    )
    reached = ""
    for way in (0, 1, 0, 2):
        branching.way = way
        try:
            want, n, why = eager(branching, order)
        except RuntimeError:
            return f"{VALUES}: eager refuses the program"

        def call(*arguments: Tensor, way: int = way) -> object:
            return compiled(way, *arguments)

        try:
            compare_runs(ours(call, branching.program.arguments, n), want)
        except UnsupportedError as error:
            return f"skipped: {error.what}"
        except ValueError as error:
            if "Cannot view a tensor" not in str(error):  # torch takes views of a turned tensor again, and fails
                raise
            return "skipped: torch cannot capture it"
        reached = (f"{VALUES}: {why}", f"{FIRST}: {why}", SECOND)[n]
    return reached


def ours(call: Callable[..., object], arguments: Sequence[Tensor], order: int) -> Ran:
    """Run what is compiled; where second derivatives came unexpected, the second time."""
    try:
        return ran(call, arguments, order)
    except UnsupportedError as error:
        if "was not kept" not in error.what:
            raise
    return ran(call, arguments, order)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--every", type=int, default=200, help="show the counts after so many programs")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # torch's, of masked writes to expanded tensors
    seen: Counter[str] = Counter()
    begin = time.time()
    for done in range(chosen.count):
        seed = chosen.start + done
        try:
            reached = check_seed(seed)
            seen[reached] += 1
            if reached.startswith("skipped"):
                print(f"seed {seed}: {reached}", flush=True)
        except Exception as error:
            seen["FAILS"] += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error).strip()[:160]!r}", flush=True)
        if (done + 1) % chosen.every == 0:
            print(f"{done + 1} of {chosen.count}: {summary(seen)} in {time.time() - begin:.0f} s", flush=True)
    print(f"{chosen.count} programs from seed {chosen.start}: {summary(seen)} in {time.time() - begin:.0f} s")
    for what, count in sorted(seen.items(), key=lambda entry: -entry[1]):
        print(f"{count:6} {what}")
    return int(seen["FAILS"] > 0)


def summary(seen: Counter[str]) -> str:
    """How many were compared how far."""
    short: Counter[str] = Counter()
    for what, count in seen.items():
        short[what.partition(":")[0]] += count
    return ", ".join(f"{short[k]} {k}" for k in (*OUTCOMES, "skipped", "FAILS"))


if __name__ == "__main__":
    sys.exit(main())
