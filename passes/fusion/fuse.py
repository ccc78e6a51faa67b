"""Primitives become kernels: fused loop nests and library calls.

Before:
    %e = prim.exp %x : tensor<8x4xf32>
    %s = prim.reduce %e {kind = "add", dims = [1]} : tensor<8xf32>
After:
    %s = kernel.fused %x {sizes = [8, 4], classes = ["parallel", "row"]} ({
      %v = kernel.load {operand = 0, map = [d0, d1]} : f32
      %e = prim.exp %v : f32
      %r = kernel.reduce %e {kind = "add", dims = [1]} : f32
      kernel.store %r {result = 0, map = [d0]}
    }) : tensor<8xf32>
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import kernel, prim
from isthmus.dialects.signature import Signature
from isthmus.ir import Literal, Shape
from isthmus.passes.analysis.prices import Prices
from isthmus.passes.fusion.choose_contractions import take_contractions
from isthmus.passes.fusion.clusters import Builder, Cluster
from isthmus.passes.fusion.contract_price import CONTRACTIONS, Policy
from isthmus.passes.fusion.contraction import Contraction, emit_contraction
from isthmus.passes.fusion.emit import Strides, emit
from isthmus.passes.fusion.epilogue import Bias, take_biases
from isthmus.passes.fusion.extern import Seen, emit_extern, result_strides, seen
from isthmus.passes.fusion.graph import Graph, Kind, Node, Value
from isthmus.passes.fusion.merge import Merger
from isthmus.passes.fusion.roots import choose_roots, drop_roots, write_in_pieces
from isthmus.passes.options import check_words


@dataclass(frozen=True)
class FusePass(ModulePass):
    """Needs: functions of elementary primitives. Leaves: kernels, library calls and control flow in execution order."""

    name = "fuse"

    target: str = "cpu"
    """`cpu` or `gpu`: into how many partial results a long reduction is cut."""

    contractions: str = "library"
    """`own`: a product is a kernel of ours where its factors or its result then need not go through memory; `large`: of
    large products; `joined`: where that saves more than a kernel of ours loses against the library; `auto`: also a
    product with nothing around it that a kernel of ours makes faster; `library`: none. On a GPU: products of half
    precision (and by `tf32`) whose rows the copy engine takes, also where nothing is around them."""

    half: str = "own"
    """`library`: products of 16 bits never are kernels of ours, where the machine has units for them that only the
    library uses."""

    tf32: bool = False
    """On a GPU products of f32 may be kernels of ours, too, which multiply in TF32."""

    def __post_init__(self) -> None:
        """Check the options; IRError for a word without a meaning."""
        check_words(self, target=("cpu", "gpu"), contractions=CONTRACTIONS, half=("own", "library"))

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fuse every function of the module."""
        for func in ir.functions(op).values():
            prices = Prices.of(func, self.target)
            policy = Policy.of(self.contractions, self.target, half=self.half == "own", prices=prices)
            if policy is not None and self.tf32:
                policy = replace(policy, tf32=True)
            fuse_function(func, self.target, policy=policy)
            if self.tf32:
                _allow_tf32(func)


def _allow_tf32(func: FuncOp) -> None:
    """Write on the products of f32 that 10 bits of mantissa are enough."""
    for op in func.walk():
        if isinstance(op, kernel.DotOp) and ir.dtype_of(op.y) == "f32":
            op.properties["precision"] = Literal.of("tf32")


def fuse_function(func: FuncOp, target: str = "cpu", *, policy: Policy | None = None) -> None:
    """Replace the primitives of a function; `policy`: which products may become kernels."""
    signature = Signature.of(func)
    arguments = [a.strides for a in signature.arguments]
    results = [r.strides for r in signature.results]
    fuse_block(func.body.block, arguments, results, target=target, policy=policy)


def fuse_block(
    block: Block,
    arguments: list[Shape | None],
    results: list[Shape | None],
    *,
    merge: bool = True,
    target: str = "cpu",
    policy: Policy | None = None,
    prices: Prices | None = None,
) -> None:
    """Replace the primitives of a block, given strides of its arguments and results where not row-major.

    `prices`: those of the function around it, if not given.
    """
    graph = Graph(block, target, prices)
    for node, strides in zip(graph.sources, arguments, strict=True):
        node.value.strides = strides
    program = Program(graph)
    program.require(results)
    write_in_pieces(graph)
    choose_roots(graph)
    merger = program.kernels()
    if merge:
        merger.run()
        drop_roots(merger, graph.nodes)
        merger.run()
        if policy is not None:
            take_contractions(merger, frozenset(program.fixed), policy, target)
    program.biases = take_biases(merger)
    program.write(block, merger)


def strides_of(value: Value) -> Shape:
    """Give the strides of a value's buffer."""
    return ir.contiguous_strides(value.shape) if value.strides is None else value.strides


class Writer:
    """Writes kernels as ops; one that looks like another is a copy of that, with its own operands and place."""

    def __init__(self, strides: Strides, buffers: Mapping[Value, SSAValue]) -> None:
        self.strides, self.buffers = strides, buffers
        self._written: dict[Cluster, tuple[Cluster, kernel.LoopNest]] = {}

    def write(self, cluster: Cluster) -> Operation:
        """Give the op of a kernel; its results are what it writes, in order."""
        known = self._written.get(cluster.model or cluster)
        if known is None:
            op = self._emitted(cluster)
            self._written[cluster.model or cluster] = cluster, op
        else:
            pairs = zip(known[0].reads, cluster.reads, strict=True)
            op = ir.copied(known[1], {self.buffers[a]: self.buffers[b] for a, b in pairs})
        last = max((value.maker for value in cluster.writes), key=lambda node: node.number).op
        op.location = ir.UNKNOWN if last is None else last.location
        return op

    def _emitted(self, cluster: Cluster) -> kernel.LoopNest:
        def buffer_of(value: Value) -> SSAValue:
            return self.buffers[cluster.own(value)]

        if isinstance(cluster, Contraction):
            return emit_contraction(cluster, self.strides, buffer_of)
        return emit(cluster.draft, cluster.parallel, self.strides, buffer_of)


class Program:
    """One block on its way to kernels."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.operands: dict[Node, list[Seen]] = {}
        self.returned: list[tuple[Value, Shape | None]] = []
        """Buffers of the results, and the shape that each is seen in where it is another."""
        self.biases: dict[Node, Bias] = {}
        self.fixed: set[Value] = set()
        """Buffers that somebody reads who is no product."""

    # ---- what must have a buffer

    def require(self, results: list[Shape | None]) -> None:
        """Find the buffers that library calls and the caller read."""
        graph = self.graph
        for node in list(graph.nodes):
            if node.kind is Kind.EXTERN:
                if isinstance(node.op, prim.ControlOp):
                    node.operands = tuple(map(self._row_major, node.operands))
                self.operands[node] = [self._seen(node, k) for k in range(len(node.operands))]
                for value, strides in zip(node.results, result_strides(node, self.operands[node]), strict=True):
                    value.strides = strides
            elif node.kind is Kind.SCATTER:
                start = self._row_major(node.operands[0])
                node.operands = (start, *node.operands[1:])
                self._keep(start)
                self.fixed.add(start)
        found: dict[tuple[Value, Shape | None], tuple[Value, Shape | None]] = {}  # one buffer for each layout
        for value, strides in zip(graph.returned, results, strict=True):
            if (value, strides) not in found:
                found[value, strides] = self._result(value, strides)
            self.returned.append(found[value, strides])
            self.fixed.add(found[value, strides][0])

    def _seen(self, node: Node, position: int) -> Seen:
        found = seen(node, position, strides_of)
        self._keep(found.value)
        if not isinstance(node.op, prim.DotOp):
            self.fixed.add(found.value)
        return found

    def _row_major(self, value: Value) -> Value:
        """The value, or a copy where its buffer has other strides."""
        plain = strides_of(value) == ir.contiguous_strides(value.shape)
        return value if plain else self.graph.copy_of(value, None)

    def _keep(self, value: Value) -> None:
        value.root = value.required = True

    def _result(self, value: Value, strides: Shape | None) -> tuple[Value, Shape | None]:
        wanted = ir.contiguous_strides(value.shape) if strides is None else strides
        if strides is None and value.maker.kind is Kind.SOURCE:
            wanted = strides_of(value)  # what is an argument's is the argument's business
        if wanted != strides_of(value):
            if value.root or value.maker.kind is not Kind.INLINE:
                value = self.graph.copy_of(value, strides)
            value.strides = strides
            self._keep(value)
            return value, None
        base = value
        while isinstance(base.maker.op, prim.ReshapeOp) and not base.root:
            base = base.maker.operands[0]
        if isinstance(base.maker.op, prim.MovementOp) or base.strides is not None:
            base = value
        self._keep(base)
        return base, None if base.shape == value.shape else value.shape

    # ---- kernels in order

    def kernels(self) -> Merger:
        """Give the kernels of all nodes that anything reads, one each."""
        wanted = self._wanted()
        builder = Builder(strides_of, self.graph.prices)
        singles = [
            builder.single(node, lambda v: v in wanted[v.maker])
            for node in self.graph.nodes
            if node in wanted and node.kind not in (Kind.SOURCE, Kind.EXTERN)
        ]
        externs = {n: [s.value for s in self.operands[n]] for n in self.operands if n in wanted}
        return Merger(singles, externs, builder, launches_cost=self.graph.target == "gpu")

    def _wanted(self) -> dict[Node, set[Value]]:
        """Find the nodes whose buffers are read, and which of these."""
        found: dict[Node, set[Value]] = {}
        stack = [v for v, _ in self.returned]
        for node in self.graph.nodes:
            if node.kind is Kind.EXTERN and not _is_pure(node):
                found.setdefault(node, set())
                stack += [s.value for s in self.operands[node]]
        seen_: set[Value] = set()
        while stack:
            value = stack.pop()
            if value in seen_:
                continue
            seen_.add(value)
            node = value.maker
            first = node not in found
            if value.root or node.kind is not Kind.INLINE:
                found.setdefault(node, set()).add(value)
            if first or node.kind is Kind.INLINE:
                stack += [s.value for s in self.operands[node]] if node in self.operands else node.operands
        return found

    def write(self, block: Block, merger: Merger) -> None:
        """Put kernels and library calls into the block, in order, and take the primitives out."""
        old = list(block.ops)
        terminator = old.pop()
        buffers: dict[Value, SSAValue] = {v: v.ssa for n in self.graph.sources for v in n.results if v.ssa is not None}
        made: dict[Node, Operation] = {}
        writer = Writer(strides_of, buffers)
        for step in merger.in_order():
            if isinstance(step, Cluster):
                op = writer.write(step)
                buffers.update(zip(step.writes, op.results, strict=True))
                made.update((n, op) for n in step.frames)
            else:
                operands = [(buffers[s.value], s.view) for s in self.operands[step]]
                bias = self.biases.get(step)
                if bias is None:
                    adds = isinstance(step.op, prim.DotOp) and len(operands) == 3
                    op = emit_extern(step, operands, (("bias", "c"),) if adds else ())
                    buffers.update(zip(step.results, op.results, strict=True))
                else:
                    op = emit_extern(step, [*operands, (buffers[bias.bias], None)], (("bias", "c"),))
                    buffers[bias.result] = op.results[0]
                made[step] = op
                for region in op.regions:
                    nothing: list[Shape | None] = [None] * len(region.block.args)
                    yields: list[Shape | None] = [None] * _yields(region.block)
                    fuse_block(region.block, nothing, yields, target=self.graph.target, prices=self.graph.prices)
            block.insert_op_before(op, terminator)
        _note_refusals(merger, made)
        reshaped: dict[tuple[Value, Shape | None], SSAValue] = {}  # what is returned twice stays one value
        for number, (value, shape) in enumerate(self.returned):
            if (value, shape) not in reshaped:
                reshaped[value, shape] = _reshaped(buffers[value], shape, terminator)
            terminator.operands[number] = reshaped[value, shape]
        for op in reversed(old):
            op.detach()
            op.erase()


def _note_refusals(merger: Merger, made: dict[Node, Operation]) -> None:
    """Write on each kernel which earlier launches it could not join: [number of the launch in the block, reason]."""
    numbers = {op: k for k, op in enumerate(dict.fromkeys(made.values()))}
    notes: dict[Operation, dict[int, str]] = {}
    for refusal in merger.refusals.values():
        first, second = made.get(refusal.first), made.get(refusal.second)
        if first is not None and second is not None and first is not second:
            first, second = sorted((first, second), key=numbers.__getitem__)
            notes.setdefault(second, {})[numbers[first]] = refusal.reason
    for op, reasons in notes.items():
        op.attributes["refused"] = Literal.of(tuple(sorted(reasons.items())))


def _reshaped(value: SSAValue, shape: Shape | None, before: Operation) -> SSAValue:
    if shape is None:
        return value
    op = ir.create_op(kernel.ReshapeOp, (value,), (ir.tensor(shape, ir.dtype_of(value)),))
    cast(Block, before.parent).insert_op_before(op, before)
    return op.results[0]


def _yields(block: Block) -> int:
    return len(ir.operands_of(cast(Operation, block.last_op)))


def _is_pure(node: Node) -> bool:
    return not isinstance(node.op, (prim.OpaqueOp, prim.ControlOp))
