"""Loops over a part of a contraction's body, and which of its positions neighbours of a vector share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation

from isthmus import ir
from isthmus.codegen.cpu.plan import Access, Plan
from isthmus.dialects import kernel as k
from isthmus.dialects import prim
from isthmus.dialects.kernel import Expr
from isthmus.dialects.kernel.index import Atom
from isthmus.dialects.kernel.lanes import Steps


class Nest(Plan):
    """A part of a contraction's body in loops over these dims, the innermost last; one of them is the vector's.

    Where vectors begin at multiples of their lanes, ⌊(64·h + j + lane) / 64⌋ is the same in all lanes, and the
    remainder goes up by one from lane to lane: heads side by side are read as vectors.
    """

    def __init__(self, kernel: k.ContractOp, ops: Sequence[Operation], loops: Sequence[int], vector: Steps) -> None:
        self.kernel = kernel
        self.sizes = kernel.sizes_
        self.starts = k.starts(kernel)
        self.levels = k.levels(kernel)
        self.varying = k.varying(kernel)
        self.vector, self.lanes, self.unroll = vector.dim, vector.lanes, None
        self._steps = vector
        outer = tuple(d for d in range(len(self.sizes)) if d not in loops)
        self.scopes = ((), outer, *((d,) for d in loops))
        self.point = 1
        self._scope_of_dim = {d: s for s, dims in enumerate(self.scopes) for d in dims}
        self.ops = tuple(ops)
        self.accesses = {op: self._access(op) for op in ops if isinstance(op, (k.LoadOp, k.SinkOp))}
        self._uniform = self._find_uniform()

    def home(self, op: Operation) -> int:
        """The scope in which an op is emitted: that of the innermost dim that it depends on."""
        return max((self._scope_of_dim[d] for d in self._dims_of(op)), default=1)

    def is_uniform(self, op: Operation) -> bool:
        """Whether an op that depends on the vector's dim gives the same in all lanes."""
        return op in self._uniform

    def _find_uniform(self) -> frozenset[Operation]:
        """Indices that do not step, and arithmetic on them."""
        found: set[Operation] = set()
        for op in self.ops:
            if isinstance(op, k.IndexOp):
                (expr,) = op.map.data
                same = self._step(expr) == 0
            else:
                same = isinstance(op, (prim.ConstOp, prim.ElementwiseOp))
            if same and all(v.owner in found for v in ir.operands_of(op)):
                found.add(op)
        return frozenset(found)

    # ---- positions that go up by one from lane to lane

    def _access(self, op: k.LoadOp | k.SinkOp) -> Access:
        access = super()._access(op)
        (linear,) = k.linear_map(self.kernel, op).data
        for atom, coefficient in linear.terms:
            if atom[0] in ("div", "mod") and not self._is_late(atom) and self._atom_step(atom) == 1:
                access = replace(access, stride=access.stride + coefficient)
        return access

    def _is_late(self, atom: Atom) -> bool:
        return super()._is_late(atom) and (atom[0] == "v" or self._atom_step(atom) is None)

    def _step(self, expr: Expr) -> int | None:
        return self._steps.of(expr)

    def _atom_step(self, atom: Atom) -> int | None:
        return self._steps.of_atom(atom)
