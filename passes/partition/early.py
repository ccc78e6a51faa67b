"""Let forward begin with backward's work, where what that leaves is smaller than what backward needs to begin it.

Before, for a scalar result with the tangent t (a loss):
    %b = prim.broadcast %t {dims = []} : tensor<1024x8192xf32>
    %d = prim.mul %p, %b                                            // p: 32 MiB
    %g = prim.dot %d, %x {...} : tensor<8192x256xf32>               // 8 MiB
After, with all of it for t = 1, which needs no tangent, and t as a last factor:
    %one = prim.const {value = 1.0} : tensor<f32>
    %b = prim.broadcast %one {dims = []} : tensor<1024x8192xf32>
    %d = prim.mul %p, %b
    %u = prim.dot %d, %x {...} : tensor<8192x256xf32>
    %s = prim.broadcast %t {dims = []} : tensor<8192x256xf32>
    %g = prim.mul %u, %s

Gradients are linear in tangents: this holds for each value that depends on one scalar tangent through ops that are
linear in it. What moves is a beginning of backward with no more arithmetic than forward has, so that a forward that no
backward follows computes at most twice as much. Where forward is little but a product that gives a matrix of hundreds
of megabytes, both products with its gradient move: then it need not exist as a whole (see chunk-rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Block, Operation, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.ir import Literal
from isthmus.passes.analysis.pieces import is_large_product
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.linear import WAITS, is_linear_in, may_wait, times
from isthmus.passes.partition.network import MEMORY, MEMORY_ONLY, Plan, plan_ahead, plan_min_cut
from isthmus.passes.partition.split import copied
from isthmus.passes.partition.work import operations


def plan_early(joint: Joint) -> Plan:
    """Plan the minimum cut, with what forward does ahead where that keeps fewer bytes; its joint function is new."""
    plain, least = plan_min_cut(joint), joint.prices.early_bytes
    weights, work = (MEMORY_ONLY, (5, 2)) if _makes_large_matrices(joint) else (MEMORY, (1, 1))
    movable = _movable(joint, work)
    if not movable or _kept_bytes(plain) < least:
        return plain
    copy = _Copy(joint)
    early, ahead = plan_ahead(copy.scaled_last(movable), weights)
    moved = [op for op in movable if copy.ops[op] in ahead]
    if not moved:
        return plain
    if len(moved) < len(movable):
        early = replace(early, joint=copy.scaled_last(moved))  # what it keeps is of what forward runs
    most = min(_kept_bytes(plain) * joint.prices.early_part, _kept_bytes(plain) - least)
    return early if _kept_bytes(early) <= most else plain


def _makes_large_matrices(joint: Joint) -> bool:
    """Whether most of forward's work is in products that give large matrices."""
    work = {op: operations(joint, op) for op in joint.forward_ops}
    large = [n for op, n in work.items() if is_large_product(op)]
    return 2 * sum(large) > sum(work.values())


def _kept_bytes(plan: Plan) -> int:
    """Bytes that are held for backward alone: a walk from what it reads up to what is kept."""
    kept = frozenset(plan.kept)
    pending = plan.joint.wanted_by_tangents()
    seen, found = set(pending), 0
    while pending:
        value = pending.pop()
        if value in kept:
            price = plan.prices[value]
            found += price.nbytes if price.keep != 0 else 0
        elif isinstance(value.owner, Operation):
            fresh = [v for v in ir.operands_of(value.owner) if v not in seen]
            seen.update(fresh)
            pending += fresh
    return found


def _movable(joint: Joint, work: tuple[int, int]) -> list[Operation]:
    """Give the beginning of backward that is the same function of t = 1, times t; `work`: times forward's."""
    tangents = [joint.block.args[i] for i in joint.signature.tangents.values()]
    seed: dict[SSAValue, SSAValue] = {t: t for t in tangents if ir.shape_of(t) == () and ir.dtype_of(t) in WAITS}
    allowed = sum(operations(joint, op) for op in joint.forward_ops) * work[0] // work[1] if seed else 0
    found: list[Operation] = []
    for op in joint.ops:
        if op in joint.forward_ops or op not in joint.backward_ops:
            continue
        allowed -= operations(joint, op)
        if allowed < 0:
            break
        depends = [v for v in ir.operands_of(op) if v in joint.after_tangent]
        if not depends:
            continue
        sources = {seed.get(v) for v in depends}
        if len(sources) == 1 and None not in sources and may_wait(op) and is_linear_in(op, frozenset(depends)):
            found.append(op)
            seed.update(dict.fromkeys(op.results, seed[depends[0]]))
    return found


class _Copy:
    """A copy of a joint function in which some ops compute for t = 1, and what others read of them is scaled."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.func = copied(joint)
        self.block = self.func.body.block
        self.ops = dict(zip(joint.ops, self.block.ops, strict=False))  # all but the return
        self._before: list[tuple[Operation, int, SSAValue]] = []
        self._made: list[Operation] = []

    def scaled_last(self, moved: Sequence[Operation]) -> Joint:
        """Have these ops of the original compute for t = 1, and no others; the values stay those of the copy."""
        self._put_back()
        ops = [self.ops[op] for op in moved]
        ahead = frozenset(ops)
        tangents = frozenset(self.block.args[i] for i in self.joint.signature.tangents.values())
        seed: dict[SSAValue, SSAValue] = {t: t for t in tangents}
        ones: dict[SSAValue, SSAValue] = {}
        for original, op in zip(moved, ops, strict=True):
            depends = [k for k, v in enumerate(ir.operands_of(original)) if v in self.joint.after_tangent]
            seed.update(dict.fromkeys(op.results, seed[ir.operands_of(op)[depends[0]]]))
            for index in depends:
                operand = ir.operands_of(op)[index]
                if operand in tangents:
                    self._set(op, index, ones.get(operand) or ones.setdefault(operand, self._one(operand)))
        for op in ops:
            for result in op.results:
                late = [use for use in tuple(result.uses) if use.operation not in ahead]
                if late:
                    scaled = self._scaled(result, seed[result])
                    for use in late:
                        self._set(use.operation, use.index, scaled)
        return Joint.of(self.func, self.joint.hints)

    def _put_back(self) -> None:
        for op, index, operand in reversed(self._before):
            op.operands[index] = operand
        for op in reversed(self._made):
            op.detach()
            op.erase()
        self._before, self._made = [], []

    def _set(self, op: Operation, index: int, operand: SSAValue) -> None:
        self._before.append((op, index, ir.operands_of(op)[index]))
        op.operands[index] = operand

    def _one(self, tangent: SSAValue) -> SSAValue:
        const = ir.create_op(prim.ConstOp, [], [tangent.type], {"value": Literal.of(1.0)})
        first = self.block.first_op
        assert first is not None
        self.block.insert_op_before(const, first)
        self._made.append(const)
        return const.results[0]

    def _scaled(self, value: SSAValue, tangent: SSAValue) -> SSAValue:
        """Multiply right behind the value."""
        maker = value.owner
        assert isinstance(maker, Operation) and maker.next_op is not None
        e = Emitter(Block())
        e.location = maker.location
        result = times(e, value, tangent)
        self._made += e.put_before(maker.next_op)
        return result
