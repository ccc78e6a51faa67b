"""Storages and the references into them while a program is made functional: lazy views, writes that reach every alias.

A root stands for a whole storage and counts its writes. A reference is the root's own tensor or a view of another
reference, and remembers its value as of some number of writes. Reading a stale one takes its view again on its parent;
writing one puts its new value back into its parent, and so on up to the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from isthmus import ir
from isthmus.diagnostics import RefusedError, UnsupportedError
from isthmus.dialects import aten
from isthmus.dialects.aten import RefFacts, RefType
from isthmus.passes.functionalize import geometry, views
from isthmus.passes.functionalize.emission import Emission
from isthmus.passes.functionalize.geometry import Interval, Reshaped, Same
from isthmus.passes.functionalize.views import Call, Converted, Link, permuted

_WRITES_LOOKED_AT = 8
"""How many writes a reading looks back on to see that none touched it: keeps the pass linear."""


@dataclass(eq=False)
class Root:
    """One storage: its writes so far, each with the bytes it may have touched."""

    writes: list[Interval | None] = field(default_factory=list[Interval | None])

    @property
    def version(self) -> int:
        """The number of writes so far."""
        return len(self.writes)

    def untouched(self, since: int, where: Interval | None) -> bool:
        """Tell whether writes since a version surely left an interval alone."""
        if self.version - since > _WRITES_LOOKED_AT:
            return False
        return all(geometry.disjoint(w, where) for w in self.writes[since:])


@dataclass(eq=False)
class Reference:
    """A tensor of the captured program."""

    root: Root
    type: RefType
    value: SSAValue | None = None
    """Its value as of `version`; None before it is first read."""
    version: int = 0
    parent: Reference | None = None
    link: Link | None = field(default_factory=Same)
    """How it follows from the parent; None where only the geometry within the base says it."""
    call: Call | None = None
    """The call that makes this view; None for one known by its place alone (arguments that share storage)."""
    result: int = 0
    """Which of the call's results it is."""
    placed: bool = False
    """Whether it is taken by its place in the base's memory, not by its call (as_strided)."""
    quiet: bool = False
    """Whether autograd does not see it as a view of the parent (detach, a view taken under no_grad)."""
    stops: bool = False
    """The same where anything can be differentiated: then it has a history of its own."""
    is_data: bool = False
    """Whether it is `.data` of its parent: a write through it does not change the parent's version."""
    history: SSAValue | None = None
    """What was last written through a reference that stops, with the history that it has of its own."""
    frozen: str | None = None
    """Why it can be neither taken again nor written: an alias whose view nobody knows."""
    argument: int | None = None
    """The argument of the function that it is."""
    written: bool = False
    """Whether it was written, itself or through views of it."""
    seen: bool = False
    """Whether any of these writes was one that autograd sees."""
    counted: bool = False
    """Whether any of these writes changes its version."""
    by_geometry: bool = field(init=False)
    """Whether a write must go by the memory's geometry: some view between it and its base has no inverse."""
    distinct: bool = field(init=False)
    """Whether different indices are surely different elements: views that have an inverse keep that."""

    def __post_init__(self) -> None:
        parent = self.parent
        unknown = parent is not None and self.link is None
        self.by_geometry = unknown or (not self.is_base and parent is not None and parent.by_geometry)
        if parent is None or self.by_geometry:
            self.distinct = geometry.injective(self.facts) is True
        else:
            self.distinct = parent.distinct

    @property
    def facts(self) -> RefFacts:
        """Shape, dtype, strides, offset."""
        return self.type.data

    @property
    def is_base(self) -> bool:
        """Whether geometry leads no further: a root, an argument, a history of its own, converted numbers."""
        ends = self.parent is None or self.stops or self.argument is not None
        return ends or isinstance(self.link, Converted)


def base_of(reference: Reference) -> Reference:
    """Give the reference within whose elements the geometry of this one counts."""
    while not reference.is_base:
        reference = _parent(reference)
    return reference


def _parent(reference: Reference) -> Reference:
    assert reference.parent is not None
    return reference.parent


# ---- Reading


def read(e: Emission, reference: Reference) -> SSAValue:
    """Give the value that a reference has now."""
    stale: list[Reference] = []
    current = reference
    while not _is_fresh(current):
        stale.append(current)
        current = base_of(_parent(current)) if current.placed else _parent(current)
    value = _value(current)
    for current in reversed(stale):
        value = current.value = _taken(e, current, value)
        current.version = current.root.version
    return value


def _is_fresh(reference: Reference) -> bool:
    if reference.value is None:
        return False
    root = reference.root
    if reference.parent is None or reference.version == root.version:
        return True
    if not root.untouched(reference.version, geometry.interval(reference.facts)):
        return False
    reference.version = root.version
    return True


def _value(reference: Reference) -> SSAValue:
    assert reference.value is not None
    return reference.value


def _taken(e: Emission, reference: Reference, base: SSAValue) -> SSAValue:
    """Take a view again on the value of its parent (of its base, when it is placed)."""
    if reference.frozen is not None:
        raise UnsupportedError(reference.frozen)
    if isinstance(reference.link, Same):
        value = base
    elif reference.call is None and isinstance(reference.link, Reshaped):
        value = views.reshaped(e, base, reference.facts.shape)
    elif reference.placed:
        value = _at_place(e, base_of(_parent(reference)), base, reference.facts)
    else:
        assert reference.call is not None
        value = reference.call.take(e, base)[reference.result]
    if not reference.stops:
        return value
    return e.stopped(value) if reference.history is None else e.rewritten(reference.history, value)


def _at_place(e: Emission, base: Reference, value: SSAValue, facts: RefFacts) -> SSAValue:
    """Read elements by their place in memory: `as_strided` of a value counts in its row-major copy."""
    flat = permuted(e, value, _order(base))
    args = (facts.shape, facts.strides, facts.offset - base.facts.offset)
    return e.view("as_strided.default", flat, args, ir.tensor(facts.shape, facts.dtype))


def require_inside(base: Reference, facts: RefFacts) -> None:
    """Refuse a view by strides that leaves what it is a view of."""
    if facts.dtype != base.facts.dtype or not geometry.may_cover(base.facts, facts):
        raise UnsupportedError(
            "a view by strides reaches memory outside of the tensor that it is taken of", cure="take it of the whole"
        )


def _order(base: Reference) -> tuple[int, ...]:
    order = geometry.dense_order(base.facts)
    if order is None:
        raise UnsupportedError(
            "a view by strides into a tensor that has gaps itself has no compiled form", cure="clone the tensor first"
        )
    return order


# ---- Writing

OVERLAP = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
PARTIAL_OVERLAP = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    "location. Please clone() the tensor before performing the operation."
)
_ORDER_DECIDES = "the written tensor's elements overlap in memory, so that the order of writes would decide"


def write(
    e: Emission, reference: Reference, new: SSAValue, *, seen: bool, uniform: bool = False, warned: bool = False
) -> None:
    """Give a reference, and with it every alias, a new value; `seen` tells whether autograd sees the write.

    `uniform` says that all elements of the new value are equal, which may be written where elements share memory,
    `warned` that eager only warns there. RefusedError where eager refuses an overlap, UnsupportedError where the order
    of writes would decide.
    """
    _require_writable(reference, uniform, warned)
    new = new if seen else e.rewritten(read(e, reference), new)
    updates: list[tuple[Reference, SSAValue]] = []
    current, through, counted = reference, True, True
    while True:
        if through:
            current.written, current.seen = True, current.seen or seen
            current.counted = current.counted or counted
            through = current.argument is None
        if current.stops and seen:
            current.history = new if new in e.active else None
        updates.append((current, new))
        if current.parent is None:
            break
        seen, counted = seen and not current.stops, counted and not current.is_data
        current, new = _into_parent(e, current, new, uniform)
    root = reference.root
    root.writes.append(geometry.interval(reference.facts))
    for updated, value in updates:
        updated.value, updated.version = value, root.version


def _into_parent(e: Emission, reference: Reference, new: SSAValue, uniform: bool) -> tuple[Reference, SSAValue]:
    """Give the next reference towards the root and its new value."""
    parent = _parent(reference)
    if reference.by_geometry:
        parent = base_of(parent)
        value = _put_at_place(e, parent, new, reference.facts, uniform)
    else:
        assert reference.link is not None
        value = views.put_back(e, reference.link, aten.value_type(parent.type), lambda: read(e, parent), new)
    return parent, e.rewritten(read(e, parent), value) if reference.stops else value


def _put_at_place(e: Emission, base: Reference, new: SSAValue, facts: RefFacts, uniform: bool) -> SSAValue:
    if facts.dtype != base.facts.dtype or (geometry.repeats(facts) and not uniform):
        raise UnsupportedError("a write through this view has no compiled form", cure="clone() the view first")
    order = _order(base)
    flat = permuted(e, read(e, base), order)
    shape = list(facts.shape)
    for dim, (size, stride) in enumerate(zip(facts.shape, facts.strides, strict=True)):
        if stride == 0 and size != 1:  # the same element each time: write it once
            shape[dim] = 1
            new = e.view("slice.Tensor", new, (dim, 0, 1, 1), ir.tensor(shape, facts.dtype))
    args = (tuple(shape), facts.strides, facts.offset - base.facts.offset)
    whole = e.put("as_strided_scatter.default", flat, new, args)
    return permuted(e, whole, views.inverse_order(order))


def _require_writable(reference: Reference, uniform: bool, warned: bool) -> None:
    if reference.frozen is not None:
        raise UnsupportedError(reference.frozen)
    if geometry.repeats(reference.facts):
        if warned:
            raise UnsupportedError(_ORDER_DECIDES, cure="clone() the tensor before it is written")
        if not uniform:
            raise RefusedError(OVERLAP)
        return
    base = base_of(reference)
    if reference.distinct and base.distinct:
        return
    if not uniform or not (base is reference or (base.distinct and reference.by_geometry)):
        raise UnsupportedError(_ORDER_DECIDES, cure="clone() the tensor before it is written")


def require_no_partial_overlap(written: Reference, operands: Sequence[Reference]) -> None:
    """Refuse what eager refuses: an input that shares some elements with what is written, at other indices."""
    for operand in operands:
        related = operand.root is written.root and operand.facts.dtype == written.facts.dtype
        if related and geometry.partly_overlaps(written.facts, operand.facts):
            raise RefusedError(PARTIAL_OVERLAP)


def same_elements(a: Reference, b: Reference) -> bool:
    """Tell whether two references are the same elements with the same history, so that a copy does nothing."""
    return a is b or (a.root is b.root and a.facts == b.facts and base_of(a) is base_of(b))
