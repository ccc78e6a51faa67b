"""Putting two kernels into one space: which dim of one is which dim of the other, by what both touch.

Dims are matched along the read that connects the kernels, then along buffers that both read, then by size. Where one
side has d and the other e·n + f for the same position, d is split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from isthmus.dialects.kernel import Expr, constant, dim
from isthmus.dialects.kernel.index import Atom
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.access import Index, radix
from isthmus.passes.fusion.clusters import Cluster
from isthmus.passes.fusion.graph import Node, Value
from isthmus.sizes import Dim, exact_quotient

FIRST, SECOND = 1, 2

Link = tuple[Value, Index, Index]
"""A buffer and where the first and the second kernel touch it."""


def links(first: Cluster, second: Cluster) -> list[Link]:
    """What both touch: what one makes and the other reads, then what both read, the largest first."""
    made = [(v, at, second.reads[v]) for v, at in first.makes.items() if v in second.reads]
    made += [(v, first.reads[v], at) for v, at in second.makes.items() if v in first.reads]
    shared = [(v, at, second.reads[v]) for v, at in first.reads.items() if v in second.reads]
    shared.sort(key=lambda link: -link[0].nbytes)
    return [link for link in (*made, *shared) if len(link[1]) == len(link[2])]  # partial results have one index more


class Joint:
    """The dims of two kernels, one after the other, on their way to a common space."""

    def __init__(self, first: Sequence[Dim], second: Sequence[Dim]) -> None:
        self.sizes: list[Dim] = [*first, *second]
        self.owners = [FIRST] * len(first) + [SECOND] * len(second)
        self._moved = [dim(k + len(first)) for k in range(len(second))]
        self.replaced: dict[int, Expr] = {}

    def bound(self, atom: Atom) -> Dim | None:
        """Sizes of the joint dims."""
        return self.sizes[cast(int, atom[1])] if atom[0] == "d" else None

    def resolve(self, expr: Expr) -> Expr:
        """Give an expression in the dims that are left."""
        while any(d in self.replaced for d in expr.dims()):
            expr = expr.substitute([self.replaced.get(d) for d in range(len(self.sizes))], self.bound)
        return expr

    def shifted(self, index: Index) -> Index:
        """Give an index of the second kernel in joint dims."""
        return tuple(e.substitute(self._moved) if e.terms else e for e in index)

    def unify(self, a: Expr, b: Expr, size: Dim) -> bool:
        """Make two expressions of the same position equal where both take each of `size` values once."""
        left = radix(self.resolve(a), size, self.bound)
        right = radix(self.resolve(b), size, self.bound)
        if left is None or right is None:
            return False
        ours, theirs = list(left), list(right)
        while ours and theirs:
            (d, m), (e, n) = ours.pop(), theirs.pop()
            if d == e:
                continue
            if m == n:
                if not self._equate(d, e):
                    return False
            elif (more := exact_quotient(m, n)) is not None:
                outer, inner = self._split(d, more, n)
                if not self._equate(inner, e):
                    return False
                ours.append((outer, more))
            elif (more := exact_quotient(n, m)) is not None:
                outer, inner = self._split(e, more, m)
                if not self._equate(d, inner):
                    return False
                theirs.append((outer, more))
            else:
                return False
        return True

    def _equate(self, d: int, e: int) -> bool:
        """Two dims become one; dims of the same kernel stay apart."""
        if self.owners[d] & self.owners[e]:
            return False
        self.owners[d] |= self.owners[e]
        self.replaced[e] = dim(d)
        return True

    def _split(self, d: int, outer: Dim, inner: Dim) -> tuple[int, int]:
        n = len(self.sizes)
        self.sizes += [outer, inner]
        self.owners += [self.owners[d]] * 2
        self.replaced[d] = dim(n) * inner + dim(n + 1)
        return n, n + 1

    def match_sizes(self) -> None:
        """Loops of equal size that only one kernel has become one, in order."""
        left = [d for d in range(len(self.sizes)) if d not in self.replaced and self.owners[d] == FIRST]
        right = [d for d in range(len(self.sizes)) if d not in self.replaced and self.owners[d] == SECOND]
        for d in left:
            same = next((e for e in right if self.sizes[e] == self.sizes[d]), None)
            if same is not None:
                self._equate(d, same)
                right.remove(same)

    def finish(self) -> tuple[tuple[Dim, ...], list[Expr]]:
        """Give the sizes of the common space, and each joint dim in it."""
        left = [d for d in range(len(self.sizes)) if d not in self.replaced]
        new: list[Expr | None] = [None] * len(self.sizes)
        for k, d in enumerate(left):
            new[d] = dim(k)
        sizes = tuple(self.sizes[d] for d in left)
        return sizes, [self.resolve(dim(d)).substitute(new) for d in range(len(self.sizes))]


def align(
    first: tuple[Sequence[Dim], dict[Node, Index]],
    second: tuple[Sequence[Dim], dict[Node, Index]],
    links: Sequence[Link],
) -> tuple[tuple[Dim, ...], dict[Node, Index]]:
    """Give one space and the frames of all nodes in it; `links` say what both touch, the most telling first."""
    if tuple(first[0]) == tuple(second[0]) and all([a == b for _, a, b in links]):  # one space already, dim by dim
        return tuple(first[0]), {**first[1], **{n: f for n, f in second[1].items() if n not in first[1]}}
    joint = Joint(first[0], second[0])
    for value, a, b in links:
        _unify_access(joint, value, a, joint.shifted(b))
    joint.match_sizes()
    sizes, new = joint.finish()
    frames = _moved(first[1], new[: len(first[0])])
    for n, frame in _moved(second[1], new[len(first[0]) : len(first[0]) + len(second[0])]).items():
        frames.setdefault(n, frame)
    return sizes, frames


def _moved(frames: dict[Node, Index], new: Sequence[Expr]) -> dict[Node, Index]:
    """Give frames in other dims; many nodes have the same."""
    if all([e is dim(k) for k, e in enumerate(new)]):
        return dict(frames)
    moved = {frame: tuple([e.substitute(new) for e in frame]) for frame in dict.fromkeys(frames.values())}
    return {n: moved[frame] for n, frame in frames.items()}


def _unify_access(joint: Joint, value: Value, a: Index, b: Index) -> None:
    whole = constant(0), constant(0)
    for e, f, size in zip(a, b, value.shape[len(value.shape) - len(a) :], strict=True):
        whole = whole[0] * size + e, whole[1] * size + f
    if joint.unify(*whole, cost.product(value.shape)):
        return
    for e, f, size in zip(a, b, value.shape[len(value.shape) - len(a) :], strict=True):
        joint.unify(e, f, size)
