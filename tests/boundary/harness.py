"""Eager against compiled on equal inputs: values, gradients, mutated inputs, who is whose view, versions, flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import isthmus
from tests.unit.passes.functionalize.harness import compare, compare_gradients, copies, writable

Function = Callable[..., object]
CAPTURES = ("dynamo", "trace")


@dataclass(frozen=True)
class Facts:
    """What can be asked of one tensor beside its elements."""

    requires_grad: bool
    is_leaf: bool
    is_view: bool
    base: int | None
    same_as: tuple[int, ...]
    version: int
    is_inference: bool


def facts(tensors: Sequence[object], versions: Sequence[int], count: int) -> list[Facts | None]:
    """Give the facts of each; the last `count` are the arguments, whose versions are counted from `versions`."""
    found: list[Facts | None] = []
    for k, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            found.append(None)
            continue
        base = t._base
        index = next((i for i, o in enumerate(tensors) if o is base), -1) if base is not None else None
        same = tuple(i for i, o in enumerate(tensors) if o is t)
        at = k - (len(tensors) - count)
        version = t._version - versions[at] if at >= 0 and not t.is_inference() else 0
        found.append(Facts(t.requires_grad, t.is_leaf, t._is_view(), index, same, min(version, 1), t.is_inference()))
    return found


def compiled_by(function: Function, capture: str, backend: str, **options: object) -> Function:
    """Compile with nothing left from earlier cases."""
    isthmus.reset()
    settings = {"fullgraph": True} if capture == "dynamo" else {}
    settings.update(options)
    return isthmus.compile(function, capture=capture, backend=backend, **settings)


def agree(
    function: Function,
    *arguments: Tensor,
    capture: str = "dynamo",
    backend: str = "native",
    gradients: bool = True,
    calls: int = 2,
    **options: object,
) -> None:
    """Run eager and compiled as often as `calls` on fresh copies (the same sharing) and compare everything.

    Arguments that want gradients are passed as copies on the tape, so that the program may write to them.
    """
    compiled = compiled_by(function, capture, backend, **options)
    for _ in range(calls):
        compare_call(function, compiled, arguments, gradients=gradients)


def compare_call(function: Function, compiled: Function, arguments: Sequence[Tensor], *, gradients: bool) -> None:
    """Compare one call."""
    mine, theirs = copies(arguments), copies(arguments)
    inner, outer = writable_once(mine), writable_once(theirs)
    before, before_theirs = versions(inner), versions(outer)
    want = pytree.tree_leaves(function(*outer))
    got = pytree.tree_leaves(compiled(*inner))
    compare(got, want, inner, outer)
    found = facts([*got, *inner], before, len(inner))
    wanted = facts([*want, *outer], before_theirs, len(outer))
    for k, (mine_facts, their_facts) in enumerate(zip(found, wanted, strict=True)):
        what = f"output {k}" if k < len(got) else f"argument {k - len(got)}"
        assert mine_facts == their_facts, f"{what}: {mine_facts}, in eager {their_facts}"
    if gradients:
        compare_gradients([*got, *inner], [*want, *outer], mine, theirs)


def versions(tensors: Sequence[Tensor]) -> list[int]:
    return [0 if t.is_inference() else t._version for t in tensors]


def writable_once(leaves: Sequence[Tensor]) -> list[Tensor]:
    """As `writable`, keeping a tensor that is passed twice one tensor."""
    made = dict(zip(map(id, leaves), writable(leaves), strict=True))
    return [made[id(a)] for a in leaves]


def same_error(function: Function, *arguments: Tensor, capture: str = "dynamo", backend: str = "native") -> None:
    """Eager and compiled refuse with the same type of exception."""
    expected: type[BaseException] | None = None
    try:
        function(*writable_once(copies(arguments)))
    except Exception as error:
        expected = type(error)
    assert expected is not None, "eager accepts this"
    compiled = (
        compiled_by(function, capture, backend, fullgraph=False)
        if capture == "dynamo"
        else compiled_by(function, capture, backend)
    )
    try:
        compiled(*writable_once(copies(arguments)))
    except expected:
        return
    raise AssertionError(f"compiled accepts what eager refuses by {expected.__name__}")


def f64(*shape: int, grad: bool = True) -> Tensor:
    """A float64 tensor that is the same in every run."""
    count = 1
    for n in shape:
        count *= n
    return (torch.arange(count, dtype=torch.float64).reshape(shape) * 0.37 + 0.3).sin().requires_grad_(grad)
