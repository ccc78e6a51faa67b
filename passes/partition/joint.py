"""A joint function as the cut sees it: who needs which value, in which half, and what comes from where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects import aten, prim
from isthmus.dialects.signature import Signature
from isthmus.passes.analysis.cost import GUESS
from isthmus.passes.analysis.prices import Prices
from isthmus.sizes import Dim

LIBRARY = (
    prim.ContractionOp,
    prim.AttentionOp,
    prim.AttentionBwdOp,
    prim.SortOp,
    prim.OpaqueOp,
    prim.ControlOp,
)
"""Classes that read their operands from memory."""


@dataclass(frozen=True)
class Joint:
    """A function (primals and tangents) -> (outputs, new values of mutated arguments, gradients), and its facts.

    `forward_ops` are what outputs and mutated arguments need, `backward_ops` what gradients need; an op can be in
    both, or in neither when it is dead. `after_tangent` are the values that depend on a tangent. `hints`: a typical
    value of each symbol, used for prices only (else `GUESS`).
    """

    func: FuncOp
    signature: Signature
    ops: tuple[Operation, ...]
    returned: tuple[SSAValue, ...]
    forward_ops: frozenset[Operation]
    backward_ops: frozenset[Operation]
    after_tangent: frozenset[SSAValue]
    hints: Mapping[str, int]
    prices: Prices

    @staticmethod
    def of(func: FuncOp, hints: Mapping[str, int] | None = None) -> Joint:
        """Read a function; IRError when it does not end with a return in its only block.

        `hints`: those of the module around it, if not given; a copy that is in no module has none of its own.
        """
        block, signature = func.body.block, Signature.of(func)
        last = block.last_op
        if not isinstance(last, ReturnOp):
            raise IRError(f"@{func.sym_name.data} must end with func.return")
        ops = tuple(op for op in block.ops if op is not last)
        returned = ir.operands_of(last)
        roles = signature.results
        gradients = [v for v, r in zip(returned, roles, strict=True) if r.gradient is not None]
        kept = [v for v, r in zip(returned, roles, strict=True) if r.gradient is None]
        return Joint(
            func,
            signature,
            ops,
            returned,
            _needed_for(kept, ops),
            _needed_for(gradients, ops),
            _following([block.args[i] for i in signature.tangents.values()], ops),
            aten.hints_of(func) if hints is None else hints,
            Prices.of(func),
        )

    @property
    def block(self) -> Block:
        """The only block."""
        return self.func.body.block

    @property
    def gradients(self) -> tuple[SSAValue, ...]:
        """The gradients, in the order of the results."""
        return self._results(gradient=True)

    @property
    def kept(self) -> tuple[SSAValue, ...]:
        """The results that are no gradients: outputs, then new values of mutated arguments."""
        return self._results(gradient=False)

    @property
    def outputs(self) -> frozenset[SSAValue]:
        """The values that the user gets as tensors of their own."""
        pairs = zip(self.returned, self.signature.results, strict=True)
        return frozenset(v for v, r in pairs if r.output)

    @property
    def overwritten(self) -> frozenset[SSAValue]:
        """The arguments whose storage gets another value after the forward half."""
        return frozenset(self.block.args[i] for i in self.signature.mutated)

    def wanted_by_tangents(self) -> list[SSAValue]:
        """Give the values that do not depend on a tangent and that an op which does, or a gradient, reads."""
        readers = (op for op in self.ops if op in self.backward_ops and op.results[0] in self.after_tangent)
        read = [v for op in readers for v in ir.operands_of(op)]
        return [v for v in dict.fromkeys([*read, *self.gradients]) if v not in self.after_tangent]

    def read_from_memory(self) -> frozenset[SSAValue]:
        """Give the values of forward that no kernel can compute for its own use: backward's library calls read them.

        A view is read through its source.
        """
        found: set[SSAValue] = set()
        for op in reversed(self.ops):
            if isinstance(op, LIBRARY) and op in self.backward_ops and op not in self.forward_ops:
                found.update(v for v in ir.operands_of(op) if v not in self.after_tangent)
            elif isinstance(op, prim.ViewOp) and op.y in found:
                found.remove(op.y)
                found.add(op.x)
        return frozenset(found)

    def nbytes(self, value: SSAValue | Attribute) -> int:
        """Give the bytes of a compact copy of a value (or of a type), symbols at their hints; 0 for an `index`."""
        type_ = value.type if isinstance(value, SSAValue) else value
        if isinstance(type_, IndexType):
            return 0
        return self.number(ir.nbytes(type_))

    def number(self, size: Dim) -> int:
        """Give a size with symbols at their hints."""
        if isinstance(size, int):
            return size
        return size.evaluate({s: self.hints.get(s, GUESS) for s in size.symbols()})

    def _results(self, gradient: bool) -> tuple[SSAValue, ...]:
        pairs = zip(self.returned, self.signature.results, strict=True)
        return tuple(v for v, r in pairs if (r.gradient is not None) == gradient)


def _needed_for(values: Iterable[SSAValue], ops: tuple[Operation, ...]) -> frozenset[Operation]:
    """Give the ops that the values need, themselves included."""
    wanted = set(values)
    found: set[Operation] = set()
    for op in reversed(ops):
        if not wanted.isdisjoint(op.results):
            found.add(op)
            wanted.update(ir.operands_of(op))
    return frozenset(found)


def _following(values: Iterable[SSAValue], ops: tuple[Operation, ...]) -> frozenset[SSAValue]:
    """Give the values and everything computed from them."""
    found = set(values)
    for op in ops:
        if not found.isdisjoint(ir.operands_of(op)):
            found.update(op.results)
    return frozenset(found)
