"""Einstein summation as a chain of contractions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.table import Call, Refusal, decomposition
from isthmus.sizes import Dim


@dataclass(frozen=True)
class Term:
    """A value and the label of each of its dimensions, all different."""

    value: SSAValue
    labels: tuple[str, ...]


@decomposition("einsum.default")
def einsum(e: Emitter, call: Call, equation: str, xs: Sequence[SSAValue], path: Sequence[int] | None) -> SSAValue:
    """From left to right: labels that occur nowhere else are summed, those of both and not later contracted."""
    xs = [e.convert(x, call.dtype()) for x in xs]
    inputs, output = _labels(equation, xs)
    sizes: dict[str, Dim] = {}
    for labels, x in zip(inputs, xs, strict=True):
        for label, size in zip(labels, ir.shape_of(x), strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    terms = [
        _summed_out(e, _distinct(e, x, labels, sizes), _later(inputs, k, output))
        for k, (x, labels) in enumerate(zip(xs, inputs, strict=True))
    ]
    total = terms[0]
    for k, term in enumerate(terms[1:], 1):
        wanted = set(output) | {label for later in terms[k + 1 :] for label in later.labels}
        total = _joined(e, total, term, wanted)
    total = _summed_out(e, total, set(output))
    total = _with_missing(e, total, output, sizes)
    ordered = e.transpose(total.value, [total.labels.index(label) for label in output])
    return e.broadcast_to(ordered, call.shape())


def _labels(equation: str, xs: Sequence[SSAValue]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Labels of every operand and of the result; "..." becomes the labels .0, .1, ... counted from the right."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs: list[tuple[str, ...]] = []
    widest = 0
    for part, x in zip(left.split(","), xs, strict=True):
        hidden = len(ir.shape_of(x)) - len(part.replace("...", ""))
        widest = max(widest, hidden)
        inputs.append(_expanded(part, hidden))
    if arrow:
        return inputs, _expanded(right, widest)
    every = [label for labels in inputs for label in labels]
    named = sorted(label for label in set(every) if not label.startswith(".") and every.count(label) == 1)
    return inputs, (*_expanded("...", widest), *named)


def _expanded(part: str, hidden: int) -> tuple[str, ...]:
    before, dots, after = part.partition("...")
    middle = [f".{k}" for k in range(hidden)][::-1] if dots else []
    return (*before, *middle, *after)


def _later(inputs: Sequence[tuple[str, ...]], own: int, output: Sequence[str]) -> set[str]:
    others = {label for k, labels in enumerate(inputs) if k != own for label in labels}
    return others | set(output)


def _distinct(e: Emitter, x: SSAValue, labels: tuple[str, ...], sizes: dict[str, Dim]) -> Term:
    """Dimensions of size 1 that broadcast are dropped; of a repeated label the diagonal is taken."""
    keep = [d for d, label in enumerate(labels) if not (ir.shape_of(x)[d] == 1 and sizes[label] != 1)]
    x = e.reshape(x, [ir.shape_of(x)[d] for d in keep])
    names = [labels[d] for d in keep]
    while len(set(names)) < len(names):
        second = next(d for d, label in enumerate(names) if label in names[:d])
        first = names.index(names[second])
        shape = ir.shape_of(x)
        mask = e.cmp("eq", e.iota(shape, first), e.iota(shape, second))
        x = e.sum(e.select(mask, x, e.zeros_like(x)), (second,))
        del names[second]
    return Term(x, tuple(names))


def _summed_out(e: Emitter, term: Term, wanted: set[str]) -> Term:
    gone = [d for d, label in enumerate(term.labels) if label not in wanted]
    if gone and ir.dtype_of(term.value) == "i1":
        raise Refusal("sums of booleans are left to the library")
    return Term(e.sum(term.value, gone), tuple(label for label in term.labels if label in wanted))


def _joined(e: Emitter, a: Term, b: Term, wanted: set[str]) -> Term:
    """Common labels that are wanted later are batch dimensions, the others contracted."""
    common = [label for label in a.labels if label in b.labels]
    batch = [label for label in common if label in wanted]
    summed = [label for label in common if label not in wanted]
    dims = [tuple(t.labels.index(label) for label in group) for group in (summed, batch) for t in (a, b)]
    value = e.dot(a.value, b.value, (dims[0], dims[1]), (dims[2], dims[3]))
    free = [label for t in (a, b) for label in t.labels if label not in common]
    return Term(value, (*batch, *free))


def _with_missing(e: Emitter, term: Term, output: Sequence[str], sizes: dict[str, Dim]) -> Term:
    """Put back labels whose dimensions of 1 were dropped."""
    missing = [label for label in output if label not in term.labels]
    shape = (*ir.shape_of(term.value), *(sizes[label] for label in missing))
    return Term(e.broadcast(term.value, shape, range(len(term.labels))), (*term.labels, *missing))
