"""Forward mode: the derivative of a program along a direction, by differentiating its joint function in the tangents.

J·u is the gradient of ⟨Jᵀ·t, u⟩ by t, which does not depend on t: after the second transposition the tangents are dead.

Before:
    func.func @main(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<4xf32> {autodiff.output}) {
      %y = prim.sin %x : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
After:
    func.func @jvp(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient},
                   %u: tensor<4xf32> {autodiff.primal, autodiff.direction = 0})
        -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.output, autodiff.derivative = 0}) {
      %y = prim.sin %x : tensor<4xf32>
      %c = prim.cos %x : tensor<4xf32>
      %d = prim.mul %u, %c : tensor<4xf32>
      func.return %y, %d : tensor<4xf32>, tensor<4xf32>
    }
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import IsTerminator, Pure

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.signature import DERIVATIVE, DIRECTION, Argument, Result
from isthmus.ir import LiteralValue
from isthmus.passes.autodiff.differentiate import Body, replace_function
from isthmus.passes.autodiff.pull import activity, pull
from isthmus.passes.autodiff.table import Fallbacks, TakesDerivatives, is_differentiable


@dataclass(frozen=True)
class JvpPass(TakesDerivatives, ModulePass):
    """Needs: a function in primitives. Leaves: @jvp of arguments and directions, giving derivatives too."""

    name = "jvp"

    function: str = "main"
    """The function to differentiate."""
    arguments: tuple[int, ...] | None = None
    """Which arguments move; by default those marked wants_gradient."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        made = jvp(ir.function(op, self.function), self.fallbacks, self.arguments)
        replace_function(op, self.function, made)


def jvp(func: FuncOp, fallbacks: Fallbacks, arguments: Collection[int] | None = None, name: str = "jvp") -> FuncOp:
    """Give the function of (arguments, one direction for each that moves) -> (outputs, derivatives, mutated values).

    Every output of a differentiable dtype has a derivative, zeros where it does not move. An ordinary program: it can
    be differentiated again. IRError when a pullback on the way is not linear in its cotangents.
    """
    body = Body(func, fallbacks)
    signature, e = body.signature, body.emitter
    moving = signature.arguments_where(wants_gradient=True) if arguments is None else sorted(arguments)
    directions = {i: body.add_argument(body.arguments[i].type, "direction") for i in moving}
    outputs = [k for k, r in enumerate(signature.results) if r.output and is_differentiable(body.results[k])]
    ops = list(body.block.ops)
    active = activity(ops, [body.arguments[i] for i in moving])
    tangents: dict[SSAValue, SSAValue] = {}
    for k in outputs:
        value = body.results[k]
        if value in active and value not in tangents:
            tangents[value] = body.add_argument(value.type, "tangent")
    first = pull(e, ops, active, tangents, fallbacks)
    seeds: dict[SSAValue, SSAValue] = {}
    for i, u in directions.items():
        gradient = first.get(body.arguments[i])
        if gradient is not None:
            seeds[gradient] = e.add(seeds[gradient], u) if gradient in seeds else u
    ops = list(body.block.ops)
    second = pull(e, ops, activity(ops, tangents.values()), seeds, fallbacks)
    derivatives: list[SSAValue] = []
    for k in outputs:
        tangent = tangents.get(body.results[k])
        found = None if tangent is None else second.get(tangent)
        derivatives.append(e.zeros_like(body.results[k]) if found is None else found)
    _drop_tangents(body, list(tangents.values()), derivatives)
    return _closed(body, name, directions, outputs, derivatives)


def _drop_tangents(body: Body, tangents: Sequence[SSAValue], derivatives: Sequence[SSAValue]) -> None:
    """Erase what computed gradients, then the tangents, which nothing else may read."""
    live = {*body.results, *derivatives}
    ir.erase_unused(
        body.block,
        lambda op: op.has_trait(IsTerminator) or not op.has_trait(Pure) or not live.isdisjoint(op.results),
    )
    for tangent in tangents:
        use = tangent.first_use
        if use is not None or tangent in live:
            reader = None if use is None else use.operation
            raise IRError(
                "the derivative depends on the tangent: a pullback is not linear in its cotangent",
                op=None if reader is None else reader.name,
                location=None if reader is None else ir.source_location(reader),
            )
        body.arguments.remove(tangent)
        body.block.erase_arg(cast(BlockArgument, tangent))


def _closed(
    body: Body, name: str, directions: dict[int, SSAValue], outputs: Sequence[int], derivatives: list[SSAValue]
) -> FuncOp:
    """End the function: outputs, derivatives, mutated values."""
    signature = body.signature
    kept = [k for k, r in enumerate(signature.results) if r.output]
    rest = [k for k, r in enumerate(signature.results) if not r.output]
    position = {k: i for i, k in enumerate(kept)} | {k: len(kept) + len(derivatives) + i for i, k in enumerate(rest)}
    user = signature.user_outputs
    if user is not None:
        added = tuple(("value", len(kept) + i) for i in range(len(derivatives)))
        user = (*(_moved(entry, position) for entry in user), *added)
    roles = [Result(output=True, extra={DERIVATIVE: _integer(position[k])}) for k in outputs]
    signature = replace(
        signature,
        arguments=(
            *signature.arguments,
            *(Argument(primal=True, extra={DIRECTION: _integer(i)}) for i in directions),
        ),
        results=(*(signature.results[k] for k in kept), *roles, *(signature.results[k] for k in rest)),
        user_outputs=user,
    )
    body.results = [*(body.results[k] for k in kept), *derivatives, *(body.results[k] for k in rest)]
    return body.close(name, signature, [])


def _moved(entry: tuple[LiteralValue, ...], position: dict[int, int]) -> tuple[LiteralValue, ...]:
    if entry[0] in ("value", "alias"):
        return (entry[0], position[cast(int, entry[1])], *entry[2:])
    return entry


def _integer(value: int) -> Attribute:
    return IntegerAttr(value, i64)
