"""The program as fusion sees it: values, the nodes that make them, and which values have a buffer of their own.

A node is *inlined* (computed where it is wanted: arithmetic, views, constants), *anchored* (a reduction, computed at
one place of one kernel) or *extern* (a library call or control flow). A reduction down columns becomes two nodes:
partial results of each partition, and an ordinary reduction that combines them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

from xdsl.ir import Block, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import integer, ints, without
from isthmus.ir import Shape
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.pieces import piece_of, product_that_adds
from isthmus.passes.analysis.prices import Prices
from isthmus.sizes import Dim


class Kind(Enum):
    """How fusion treats a node."""

    SOURCE = "argument"
    INLINE = "inline"
    REDUCE = "reduce"
    PARTIAL = "partial"
    WINDOW = "window"
    CUMULATIVE = "cumulative"
    SCATTER = "scatter"
    PIECES = "pieces"
    """A concatenation of equal pieces, written piece by piece into its buffer."""
    EXTERN = "extern"
    CONTRACT = "contract"
    """A product of a kernel of ours."""


ANCHORED = (Kind.REDUCE, Kind.PARTIAL, Kind.WINDOW, Kind.CUMULATIVE, Kind.SCATTER, Kind.PIECES, Kind.CONTRACT)
"""Nodes that exist once, at one index."""


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of the program; `root` says that it is (or may be) kept in a buffer."""

    shape: Shape
    dtype: str
    maker: Node
    ssa: SSAValue | None
    number: int
    users: list[Node] = field(default_factory=list["Node"])
    root: bool = False
    required: bool = False
    """A library call, control flow or the function's caller reads its buffer."""
    strides: Shape | None = None
    """Of its buffer; None: row-major."""
    nbytes: int = field(init=False)
    """Bytes of its buffer, with a guess for symbols."""

    def __post_init__(self) -> None:
        """Note what is asked for often."""
        self.nbytes = cost.numeric(math.prod(cast("tuple[int, ...]", self.shape))) * ir.itemsize(self.dtype)

    def __repr__(self) -> str:
        return f"%{self.number}"


@dataclass(eq=False, slots=True)
class Node:
    """What makes values. `reduced`: the operand's dims that a reduction takes; `op`: the primitive (None: a copy)."""

    kind: Kind
    op: Operation | None
    operands: tuple[Value, ...]
    number: int
    results: tuple[Value, ...] = ()
    reduced: tuple[int, ...] = ()
    form: str = ""
    """How its scalar is made where it is inlined: `arith`, `view`, `copy`, or a kind of op of its own."""
    cost: float = 0.0
    along: int | None = None
    """The dim along which its operands lie side by side, where it takes a concatenation piece by piece."""
    piece: int | None = None
    """Which of several pieces of a computation it belongs to, done one after the other."""
    identity: int | None = None
    """What two nodes share whose ops are equal but for types, so that the same scalar op serves arithmetic ones."""

    @property
    def value(self) -> Value:
        """The first result."""
        return self.results[0]


def kept(node: Node) -> tuple[int, ...]:
    """Give the operand's dims that a reduction leaves."""
    return tuple(d for d in range(len(node.operands[0].shape)) if d not in node.reduced)


_KINDS: dict[type[Operation], Kind] = {
    prim.ReduceOp: Kind.REDUCE,
    prim.ArgReduceOp: Kind.REDUCE,
    prim.ReduceWindowOp: Kind.WINDOW,
    prim.MaxPoolOp: Kind.WINDOW,
    prim.CumulativeOp: Kind.CUMULATIVE,
    prim.ScatterOp: Kind.SCATTER,
}
_INLINE = (prim.ElementwiseOp, prim.MovementOp, prim.SourceOp, prim.ConcatOp, prim.GatherOp, prim.RngOp)


_FORMS: dict[type[Operation], str] = {}


def _form(op: Operation) -> str:
    """Asked for every op, so classes are looked up once."""
    found = _FORMS.get(type(op))
    if found is None:
        if isinstance(op, (prim.StopGradientOp,)):
            found = "copy"
        elif isinstance(op, prim.ElementwiseOp):
            found = "arith"
        else:
            found = "view" if isinstance(op, prim.ViewOp) else type(op).name
        _FORMS[type(op)] = found
    return found


def kind_of(op: Operation) -> Kind:
    """Give how fusion treats a primitive; what no kernel can express is a library call."""
    found = _KINDS.get(type(op))
    if found is None:
        found = Kind.INLINE if isinstance(op, _INLINE) else Kind.EXTERN
    return found


class Graph:
    """One block of primitives, for a kind of machine. `values` finds the fusion value of an SSA value."""

    def __init__(self, block: Block, target: str = "cpu", prices: Prices | None = None) -> None:
        self.target = target
        self.prices = Prices.of(block.parent_op(), target) if prices is None else prices
        self.nodes: list[Node] = []
        self.values: dict[SSAValue, Value] = {}
        self.returned: list[Value] = []
        self._count = 0
        self._identities: dict[object, int] = {}
        for argument in block.args:
            node = self._add(Node(Kind.SOURCE, None, (), -1))
            self._result(node, argument)
        self.sources = tuple(self.nodes)
        for op in block.ops:
            if op is block.last_op:
                self.returned = [self.values[v] for v in ir.operands_of(op)]
            else:
                self._add_op(op)

    def _add(self, node: Node) -> Node:
        node.number = len(self.nodes)
        self.nodes.append(node)
        for operand in node.operands:
            operand.users.append(node)
        return node

    def _result(self, node: Node, ssa: SSAValue) -> Value:
        value = self.new_value(node, ir.shape_of(ssa) if node.kind is not Kind.SOURCE else _shape(ssa), ssa)
        self.values[ssa] = value
        return value

    def copy_of(self, x: Value, strides: Shape | None) -> Value:
        """Add a buffer with the content of a value, as soon as there is one."""
        node = Node(Kind.INLINE, None, (x,), x.maker.number, form="copy")
        self.nodes.insert(self.nodes.index(x.maker) + 1, node)
        x.users.append(node)
        copy = self.new_value(node, x.shape, None, x.dtype)
        copy.root, copy.strides = True, strides
        return copy

    def new_value(self, node: Node, shape: Shape, ssa: SSAValue | None, dtype: str = "") -> Value:
        """Add a result to a node."""
        value = Value(shape, dtype or _dtype(cast(SSAValue, ssa)), node, ssa, self._count)
        value.root = node.kind not in (Kind.INLINE, *ANCHORED)
        self._count += 1
        node.results = (*node.results, value)
        return value

    def _add_op(self, op: Operation) -> None:
        dot = product_that_adds(op)
        if dot is not None:
            self._let_add(self.values[dot.y], op)
            return
        operands = tuple(self.values[v] for v in ir.operands_of(op))
        kind = kind_of(op)
        reduced = _reduced(op)
        if kind is Kind.REDUCE and isinstance(op, prim.ReduceOp) and self._splits(operands[0], reduced):
            operands = (self._partial(op, operands[0], reduced),)
            reduced = (0,)
        node = self._add(Node(kind, op, operands, 0, (), reduced, _form(op)))
        node.piece = piece_of(op)
        for operand in operands:
            if operand.maker.piece not in (None, node.piece):  # a piece is done when others begin
                operand.root = operand.required = True
        if isinstance(op, prim.PrimOp):
            node.cost = self.prices.additions(op)
            node.identity = self._identity(op)
        for result in op.results:
            self._result(node, result)

    def _identity(self, op: Operation) -> int:
        facts = (type(op), *op.properties, *op.properties.values())  # names too: they come in any order
        return self._identities.setdefault(facts, len(self._identities))

    def _let_add(self, product: Value, addition: Operation) -> None:
        """A product takes what it is added to as a third operand."""
        node, before = product.maker, self.values[addition.operands[1]]
        node.operands = (*node.operands, before)
        before.users.append(node)
        self.values[addition.results[0]] = product

    def _splits(self, x: Value, reduced: tuple[int, ...]) -> bool:
        return cost.splits(x.shape, reduced, self.prices)

    def _partial(self, op: prim.ReduceOp, x: Value, reduced: tuple[int, ...]) -> Value:
        node = self._add(Node(Kind.PARTIAL, op, (x,), 0, (), reduced))
        node.identity = self._identity(op)
        partitions = cost.partial_results(x.shape, reduced, ir.itemsize(x.dtype), self.prices)
        return self.new_value(node, (partitions, *without(x.shape, reduced)), None, x.dtype)


def _shape(ssa: SSAValue) -> Shape:
    try:
        return ir.shape_of(ssa)
    except ir.IRError:  # an index argument: a size, which no kernel reads through a buffer
        return ()


def _dtype(ssa: SSAValue) -> str:
    try:
        return ir.dtype_of(ssa)
    except ir.IRError:
        return "i64"


def _reduced(op: Operation) -> tuple[int, ...]:
    if isinstance(op, prim.ReduceOp):
        return ints(op.dims.data)
    if isinstance(op, (prim.ArgReduceOp, prim.CumulativeOp)):
        return (integer(op.dim.data),)
    return ()


def cones(nodes: Iterable[Node]) -> dict[Value, frozenset[Value]]:
    """Give, for each value, the buffers that computing it reads when everything that is no root is inlined.

    A root's own cone is itself.
    """
    found: dict[Value, frozenset[Value]] = {}
    for node in nodes:
        inner = frozenset[Value]().union(*(found[v] for v in node.operands))
        for value in node.results:
            found[value] = frozenset((value,)) if value.root or node.kind in ANCHORED else inner
    return found


def total(sizes: Iterable[Dim]) -> Dim:
    """Give the product of sizes."""
    return math.prod(cast(Iterable[int], sizes))
