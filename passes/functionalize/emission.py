"""Writing the functional program: calls on values, and the ops that tell autograd what it must not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import LocationAttr, UnitAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects import aten, autodiff
from isthmus.ir import Literal, LiteralValue, Operand

SCHEMAS = (
    "_conj(Tensor(a) self) -> Tensor(a)",
    "_neg_view(Tensor(a) self) -> Tensor(a)",
    "adjoint(Tensor(a) self) -> Tensor(a)",
    "as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)",
    "as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None)"
    " -> Tensor",
    "complex(Tensor real, Tensor imag) -> Tensor",
    "conj(Tensor(a) self) -> Tensor(a)",
    "diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
    "full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,"
    " bool? pin_memory=None) -> Tensor",
    "imag(Tensor(a) self) -> Tensor(a)",
    "mH(Tensor(a) self) -> Tensor(a)",
    "matrix_H(Tensor(a) self) -> Tensor(a)",
    "permute(Tensor(a) self, int[] dims) -> Tensor(a)",
    "real(Tensor(a) self) -> Tensor(a)",
    "reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)",
    "select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor",
    "slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)",
    "slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
    "view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)",
    "view_as_complex(Tensor(a) self) -> Tensor(a)",
    "view_as_real(Tensor(a) self) -> Tensor(a)",
)
"""Of the calls that are made here: the module carries the schemas that it uses."""


_FORMULA_OF_ITS_OWN = frozenset(("as_strided_scatter.default",))
"""Calls made here whose derivative in torch is not that of a write."""


class Emission:
    """Appends to one block, and knows which values gradients flow through.

    What it makes of its own accord (views, their inverses) is dropped at the end where nobody uses it.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.location: LocationAttr = ir.UNKNOWN
        self.carried: Mapping[str, Attribute] = {}
        """What is said of the op that is emitted now: by a checkpoint policy, for instance."""
        self.active: set[SSAValue] = set()
        self._own: set[Operation] = set()
        self._data: dict[SSAValue, SSAValue] = {}

    def call(
        self,
        overload: str,
        operands: Sequence[SSAValue],
        args: Sequence[LiteralValue],
        types: Sequence[Attribute],
        *,
        updates: Sequence[int] = (),
        present: Sequence[int] | None = None,
        non_differentiable: Sequence[int] = (),
        own: bool = False,
    ) -> Sequence[SSAValue]:
        """Emit a call on values; gives its results."""
        op = aten.call(
            overload,
            operands,
            args,
            types,
            updates=updates,
            present=present,
            non_differentiable=non_differentiable,
            location=self.location,
        )
        results = self.add(op, own=own)
        self.active.difference_update(results[k] for k in non_differentiable)
        return results

    def view(self, overload: str, base: SSAValue, args: Sequence[LiteralValue], type_: Attribute) -> SSAValue:
        """Emit a call `overload(base, *args)` that nobody may need."""
        return self.call(overload, [base], (Operand(0), *args), [type_], own=True)[0]

    def put(
        self,
        overload: str,
        base: SSAValue,
        part: SSAValue,
        args: Sequence[LiteralValue],
        type_: Attribute | None = None,
    ) -> SSAValue:
        """Emit `overload(base, part, *args)`, the base with a part replaced."""
        types = [type_ or base.type]
        (whole,) = self.call(overload, [base, part], (Operand(0), Operand(1), *args), types, own=True)
        if overload in _FORMULA_OF_ITS_OWN:
            op = self.block.last_op
            assert op is not None
            op.attributes[aten.PUTS_BACK] = UnitAttr()
        return whole

    def add(self, op: Operation, *, own: bool = False) -> Sequence[SSAValue]:
        """Append an op; its results are active where an operand is."""
        self.block.add_op(op)
        for key, attribute in self.carried.items():
            op.attributes.setdefault(key, attribute)
        if own:
            self._own.add(op)
        if any(v in self.active for v in ir.operands_of(op)):
            self.active.update(r for r in op.results if is_differentiable(r))
        return op.results

    def stopped(self, value: SSAValue) -> SSAValue:
        """Give the value as autograd must see it: a constant."""
        if value in self._data:
            return self._data[value]
        return self.leaf(value) if value in self.active else value

    def leaf(self, value: SSAValue) -> SSAValue:
        """Give the value as one of its own, which nothing flows through."""
        op = ir.create_op(autodiff.StopGradientOp, [value], [value.type], location=self.location)
        self.block.add_op(op)
        self._own.add(op)
        return op.results[0]

    def rewritten(self, old: SSAValue, new: SSAValue) -> SSAValue:
        """Give new data with the history of the old: y = new, dy/dold = 1, dy/dnew = 0."""
        new = self.stopped(new)
        if old not in self.active:
            return new
        result = self._passing([old, new])
        self._data[result] = new
        return result

    def apart(self, value: SSAValue) -> SSAValue:
        """Give the value as one of its own, which gradients flow through: no equal value is ever taken for it."""
        return self._passing([value])

    def _passing(self, values: Sequence[SSAValue]) -> SSAValue:
        """Give the last of the values, with the derivative of the first."""
        types = [v.type for v in values]
        forward, backward = Block(arg_types=types), Block(arg_types=types[-1:])
        forward.add_op(ir.create_op(autodiff.YieldOp, [forward.args[-1]], []))
        backward.add_op(ir.create_op(autodiff.YieldOp, [backward.args[0]], []))
        gradients = (0, *(-1 for _ in values[1:]))
        op = ir.create_op(
            autodiff.CustomOp,
            values,
            types[-1:],
            {"saved": Literal.of(0), "gradients": Literal.of(gradients)},
            location=self.location,
            regions=[Region(forward), Region(backward)],
        )
        return self.add(op, own=True)[0]

    def drop_unused(self) -> None:
        """Erase what was made of its own accord and is not used."""
        ir.erase_unused(self.block, lambda op: op not in self._own)


def is_differentiable(value: SSAValue) -> bool:
    """Tell whether a value can have a gradient."""
    return not isinstance(value.type, ir.IndexType) and ir.is_differentiable(ir.dtype_of(value))
