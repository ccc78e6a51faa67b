"""A call of an ATen overload: its schema, what it mutates and aliases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import cast

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def, var_operand_def, var_result_def
from xdsl.utils.exceptions import VerifyException

from isthmus import ir
from isthmus.dialects.aten.module import schemas_of
from isthmus.dialects.aten.references import RefType
from isthmus.dialects.schema import check_arguments
from isthmus.ir import Literal, LiteralOp, LiteralValue, Operand


class CallLike(LiteralOp):
    """What calls and region ops share."""

    @property
    def grad(self) -> bool:
        """Whether autograd records this op; False inside no_grad."""
        return ir.literal(self, "grad") is not False


@irdl_op_definition
class CallOp(CallLike):
    """One call of one overload.

    `overload` is "add.Tensor", or "mylib::scale.default" outside of the aten namespace. `args` has one entry per
    schema argument in schema order, defaults filled in: `Operand(i)` for a tensor, a tuple for a list, None, numbers,
    sizes; dtypes as "f32", layouts, devices and memory formats as "strided", "cpu", "preserve_format". A number where
    the schema says Tensor is torch's wrapped number; an operand where it says float or Scalar is a 0-d tensor that
    holds the number. `mutates` lists operands that the call writes, `aliases` has per result the operand whose
    storage it shares, or -1. `grad = false` marks what autograd does not record, `non_differentiable` lists results of
    a recorded call that carry no history all the same (the statistics of native_layer_norm). A list of tensors becomes
    that many results; where torch gives None for some result, `present` lists the positions of those that are there.

    On values nothing is written: a mutating overload works on copies of the operands that `updates` lists, and their
    new values are the last results; what torch returns only to give them back is no result of its own.

        %y = aten.call %x {overload = "mul_.Tensor", args = [arg0, 2.0], updates = [0]} : tensor<4xf32>
    """

    name = "aten.call"
    operands_ = var_operand_def()
    results_ = var_result_def()
    overload_ = prop_def(Literal, prop_name="overload")
    args_ = prop_def(Literal, prop_name="args")
    mutates_ = opt_prop_def(Literal, prop_name="mutates")
    aliases_ = opt_prop_def(Literal, prop_name="aliases")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    present_ = opt_prop_def(Literal, prop_name="present")
    updates_ = opt_prop_def(Literal, prop_name="updates")
    non_differentiable_ = opt_prop_def(Literal, prop_name="non_differentiable")

    @property
    def overload(self) -> str:
        """The overload's name."""
        return cast(str, cast(Literal, self.properties["overload"]).data)

    @property
    def args(self) -> tuple[LiteralValue, ...]:
        """One entry per schema argument."""
        return cast(tuple[LiteralValue, ...], cast(Literal, self.properties["args"]).data)

    @property
    def mutates(self) -> tuple[int, ...]:
        """The operands that the call writes."""
        return cast(tuple[int, ...], ir.literal(self, "mutates") or ())

    @property
    def aliases(self) -> tuple[int, ...]:
        """Per result the operand whose storage it shares, or -1."""
        return cast(tuple[int, ...], ir.literal(self, "aliases") or (-1,) * len(self.results))

    @property
    def present(self) -> tuple[int, ...]:
        """Per result its position among what torch gives; new values of operands have none."""
        default = tuple(range(len(self.results) - len(self.updates)))
        return cast(tuple[int, ...], ir.literal(self, "present") or default)

    @property
    def updates(self) -> tuple[int, ...]:
        """The operands whose new values are the last results; only on values."""
        return cast(tuple[int, ...], ir.literal(self, "updates") or ())

    @property
    def non_differentiable(self) -> tuple[int, ...]:
        """The results that autograd sees as constants though it records the call."""
        return cast(tuple[int, ...], ir.literal(self, "non_differentiable") or ())

    def verify_(self) -> None:
        _verify_operand_use(self)
        if len(set(self.mutates)) != len(self.mutates) or any(not 0 <= i < len(self.operands) for i in self.mutates):
            raise VerifyException(f"mutates = {list(self.mutates)} does not name operands, each once")
        if len(self.aliases) != len(self.results) or any(not -1 <= i < len(self.operands) for i in self.aliases):
            raise VerifyException(f"aliases = {list(self.aliases)} needs an operand or -1 for each result")
        if len(self.present) != len(self.results) - len(self.updates):
            raise VerifyException(f"present = {list(self.present)} needs a position for each result")
        if any(not 0 <= k < len(self.results) for k in self.non_differentiable):
            raise VerifyException(f"non_differentiable = {list(self.non_differentiable)} does not name results")
        _verify_updates(self)
        types = [v.type for v in (*self.operands, *self.results)]
        if any(isinstance(t, TensorType) for t in types):
            if any(isinstance(t, RefType) for t in types):
                raise VerifyException("references and values in one call")
            if self.mutates:
                raise VerifyException("a call on values cannot mutate its operands")
        _verify_schema(self)


def call(
    overload: str,
    operands: Sequence[SSAValue],
    args: Sequence[LiteralValue],
    result_types: Sequence[Attribute],
    *,
    mutates: Sequence[int] = (),
    aliases: Sequence[int] = (),
    grad: bool = True,
    present: Sequence[int] | None = None,
    updates: Sequence[int] = (),
    non_differentiable: Sequence[int] = (),
    location: ir.LocationAttr = ir.UNKNOWN,
) -> CallOp:
    """Make a call; facts that hold by default (nothing mutated, nothing aliased, recorded) are left out."""
    properties: dict[str, Attribute] = {"overload": Literal.of(overload), "args": Literal.of(tuple(args))}
    if mutates:
        properties["mutates"] = Literal.of(tuple(mutates))
    if any(i >= 0 for i in aliases):
        properties["aliases"] = Literal.of(tuple(aliases))
    if not grad:
        properties["grad"] = FALSE
    if present is not None and tuple(present) != tuple(range(len(present))):
        properties["present"] = Literal.of(tuple(present))
    if updates:
        properties["updates"] = Literal.of(tuple(updates))
    if non_differentiable:
        properties["non_differentiable"] = Literal.of(tuple(non_differentiable))
    made = ir.create_op(CallOp, operands, result_types, properties, location=location)
    name = _name_hint(overload)
    for result in made.results:
        result._name = name  # pyright: ignore[reportPrivateUsage]
    return made


@cache
def _name_hint(overload: str) -> str | None:
    name = re.sub(r"^[_\d]+|_+$|(_\d+)+$", "", overload.split(".")[0].split("::")[-1])
    return name or None


FALSE = Literal.of(False)


def _verify_schema(op: CallOp) -> None:
    root: Operation = op
    while (parent := root.parent_op()) is not None:
        root = parent
    schemas = schemas_of(root) if isinstance(root, ModuleOp) else None
    if schemas is None:
        return
    schema = schemas.get(op.overload)
    if schema is None:
        raise VerifyException(f"the module carries no schema of '{op.overload}'")
    if wrong := check_arguments(schema, op.args):
        raise VerifyException(wrong)
    expected = schema.tensor_results
    if expected is not None and len(op.present) > expected:
        raise VerifyException(f"'{op.overload}' gives {expected} tensors, not {len(op.present)}")


def _verify_updates(op: CallOp) -> None:
    updates, types = op.updates, [v.type for v in op.operands]
    if len(set(updates)) != len(updates) or any(not 0 <= i < len(types) for i in updates):
        raise VerifyException(f"updates = {list(updates)} does not name operands, each once")
    if any(not isinstance(types[i], TensorType) for i in updates):
        raise VerifyException("updates are new values: the operands must be values")
    new = [r.type for r in op.results[len(op.results) - len(updates) :]]
    if new != [types[i] for i in updates]:
        raise VerifyException(f"the new values of operands {list(updates)} must have their types, not {new}")


def _verify_operand_use(op: CallOp) -> None:
    used = set(operand_indices(op.args))
    if used != set(range(len(op.operands))):
        raise VerifyException(f"args name the operands {sorted(used)}, there are {len(op.operands)}")


def operand_indices(args: Sequence[LiteralValue]) -> Iterator[int]:
    """Give the operand numbers in an argument list, in order, lists included."""
    for value in args:
        if isinstance(value, Operand):
            yield value.index
        elif isinstance(value, tuple):
            yield from operand_indices(cast(tuple[LiteralValue, ...], value))
