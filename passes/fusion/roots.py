"""Which computed values start with a buffer of their own, and which of these buffers turn out not to be worth it.

A value with several users is kept at first; after kernels have grown, what is still written for others is computed
again where it is read, one value at a time, where the rebuilt kernels move no more bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim.base import integer
from isthmus.passes.analysis import cost
from isthmus.passes.analysis.clusters import LARGEST_CONE
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.fusion.clusters import Cluster
from isthmus.passes.fusion.graph import Graph, Kind, Node, Value
from isthmus.passes.fusion.instructions import Refused
from isthmus.passes.fusion.merge import Merger
from isthmus.passes.fusion.traffic import work

MOST_READS = 4
"""A value that needs more buffers than this is not computed again."""

MOST_COMPUTED_PIECES = 8
"""A concatenation of more pieces than this does not compute them itself."""

SOME = 4
"""Where so many kernels read a number, one is rebuilt and the others are estimated before all are."""


class Cone:
    """What computing a value needs: cost per element, buffers, ops."""

    __slots__ = ("buffers", "cost", "ops")

    def __init__(self, cost_: float, buffers: frozenset[Value], ops: int) -> None:
        self.cost, self.buffers, self.ops = cost_, buffers, ops


def choose_roots(graph: Graph) -> None:
    """Give a buffer to values that several nodes use, unless they are as cheap to compute as to read."""
    cones: dict[Value, Cone] = {}
    uses, prices = _uses(graph), graph.prices
    for node in graph.nodes:
        inline = node.kind is Kind.INLINE
        whole = _cone(node, cones, prices) if inline else None
        for value in node.results:
            if whole is not None and not value.root and _is_root(value, whole, uses.get(value, 0), prices):
                value.root = True
            if whole is None or value.root:
                cones[value] = Cone(0.0, frozenset((value,)), 1)
            else:
                cones[value] = whole
        if isinstance(node.op, prim.BroadcastOp):
            _keep_repeated(node, cones, prices)


def write_in_pieces(graph: Graph) -> None:
    """A concatenation of equal pieces that has a buffer anyway is written by the points of one piece.

    Computed where it is wanted, each element would compute every piece and select one.
    """
    for node in graph.nodes:
        if isinstance(node.op, prim.ConcatOp) and node.value.required:
            shape = node.operands[0].shape
            if len(node.operands) > 1 and all(piece.shape == shape for piece in node.operands):
                node.kind, node.along = Kind.PIECES, integer(node.op.dim.data)
                if len(node.operands) > MOST_COMPUTED_PIECES:
                    _keep_pieces(node)
                else:
                    _sum_pieces(node, node.along)


def _sum_pieces(node: Node, along: int) -> None:
    """Sums over points of a concatenation are taken while its pieces are written, not by reading it again."""
    for user in node.value.users:
        if user.kind is Kind.PARTIAL and along not in user.reduced:
            user.operands, user.along = node.operands, along
            for piece in node.operands:
                piece.users.append(user)


def _keep_pieces(node: Node) -> None:
    """Many computed pieces would be one long kernel: each is written where the rest of its step is, then copied."""
    for piece in node.operands:
        while isinstance(piece.maker.op, prim.ViewOp) and not piece.root:
            piece = piece.maker.operands[0]
        if isinstance(piece.maker.op, prim.ElementwiseOp) and not piece.root:
            piece.root = piece.required = True


def _uses(graph: Graph) -> dict[Value, int]:
    """How many nodes use a value, those behind views included."""
    found: dict[Value, int] = {}
    for node in reversed(graph.nodes):
        through = node.kind is Kind.INLINE and isinstance(node.op, prim.ViewOp)
        weight = min(found.get(node.value, 0), 2) if through else 1
        for operand in set(node.operands):
            found[operand] = found.get(operand, 0) + weight
    return found


def _cone(node: Node, cones: dict[Value, Cone], prices: Prices) -> Cone:
    own = 0.0 if node.op is None else prices.additions(node.op, 0.0)
    parts = [cones[v] for v in dict.fromkeys(node.operands)]
    buffers = frozenset[Value]().union(*(p.buffers for p in parts))
    return Cone(own + sum(p.cost for p in parts), buffers, 1 + sum(p.ops for p in parts))


def _is_root(value: Value, cone: Cone, uses: int, prices: Prices) -> bool:
    op = value.maker.op
    if isinstance(op, (prim.ViewOp, prim.SourceOp)) or op is None or not cone.buffers:
        return False
    if cone.ops > LARGEST_CONE:
        return True
    if uses < 2:
        return False
    read = sum(v.nbytes for v in cone.buffers)
    return not (cone.cost <= prices.cheap and read <= value.nbytes)


def _keep_repeated(node: Node, cones: dict[Value, Cone], prices: Prices) -> None:
    """A dear value that a broadcast repeats is computed once."""
    (x,) = node.operands
    repeated = cost.numeric(cost.product(node.value.shape)) > cost.numeric(cost.product(x.shape))
    if repeated and not x.root and x.maker.kind is Kind.INLINE and cones[x].cost >= prices.dear and cones[x].buffers:
        if not isinstance(x.maker.op, prim.ViewOp):
            x.root = True
            cones[x] = Cone(0.0, frozenset((x,)), 1)
            cones[node.value] = cones[x]


def drop_roots(merger: Merger, order: list[Node]) -> None:
    """Take buffers away that cost more than computing their value where it is read."""
    for node in order:
        value = node.results[0]
        home = merger.home.get(value)
        if node.kind is Kind.INLINE and value.root and not value.required and isinstance(home, Cluster):
            readers = [u for u in merger.readers.get(value, ()) if u is not home]
            if readers and all(isinstance(u, Cluster) for u in readers):
                _try_drop(merger, value, home, [u for u in readers if isinstance(u, Cluster)])


def _try_drop(merger: Merger, value: Value, home: Cluster, readers: list[Cluster]) -> None:
    old = [home, *dict.fromkeys(readers)]
    needed = {v for v in value.maker.operands}
    if len(needed) > MOST_READS:
        return
    value.root = False
    try:
        new = _rebuilt(merger, value, home, old[1:])
    except Refused:
        new = None
    if new is None or price_of(new, merger.prices) > price_of(old, merger.prices):
        value.root = True
        return
    merger.replace(old, new)


def price_of(clusters: Iterable[Cluster], prices: Prices) -> float:
    """Give what kernels cost, in bytes: what they move and what they compute."""
    return sum(c.traffic + work(c.draft) / prices.additions_per_byte for c in clusters)


def _rebuilt(merger: Merger, value: Value, home: Cluster, readers: list[Cluster]) -> list[Cluster]:
    """Rebuild the readers without the buffer, then its home, which may have to store more for them."""
    inside: tuple[Cluster, ...] = (home, *readers)
    prices = merger.prices
    rest = {n: f for n, f in home.frames.items() if n is not value.maker}

    def homes(new: list[Cluster]) -> list[Cluster]:
        reads = {v for c in new for v in c.reads}
        stored = lambda v: v in reads or merger.is_read(v, inside)  # noqa: E731
        return [merger.builder.build(home.sizes, rest, stored)] if rest else []

    new: list[Cluster] = []
    for c in readers:
        new.append(merger.builder.build(c.sizes, c.frames, lambda v, c=c: _stored(merger, v, c)))
        if len(new) == 1 and not value.shape and len(readers) > SOME:
            if _more_bytes(value, new[0], readers) + price_of(homes(new), prices) > price_of([home], prices):
                raise Refused("the numbers that a number is made of are more bytes")
    return [*new, *homes(new)]


def _more_bytes(value: Value, rebuilt: Cluster, readers: list[Cluster]) -> int:
    """At least so many bytes more are read where readers make a number themselves; `rebuilt`: the first of them."""
    instead = [v for v in rebuilt.reads if v not in readers[0].reads]
    each = [sum(ir.itemsize(v.dtype) for v in instead if v not in c.reads) - value.nbytes for c in readers]
    return sum(each)


def _stored(merger: Merger, value: Value, cluster: Cluster) -> bool:
    return merger.is_read(value, (cluster,))
