"""One joint function from a program: its results, and the gradients of its arguments from the results' cotangents.

Before:
    func.func @main(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}) -> (tensor<4xf32> {autodiff.output}) {
      %y = prim.sin %x : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
After:
    func.func @joint(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient},
                     %t: tensor<4xf32> {autodiff.tangent = 0})
        -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0}) {
      %y = prim.sin %x : tensor<4xf32>
      %c = prim.cos %x : tensor<4xf32>
      %g = prim.mul %t, %c : tensor<4xf32>
      func.return %y, %g : tensor<4xf32>, tensor<4xf32>
    }
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.autodiff import VjpOp, following
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import ZERO, Argument, Result, Signature
from isthmus.passes.autodiff.expand import inline
from isthmus.passes.autodiff.pull import activity, pull
from isthmus.passes.autodiff.table import CONSTANT, FROM_TABLES, Fallbacks, TakesDerivatives, is_differentiable

JOINT = "joint"
"""Name of the function that is made."""


@dataclass(frozen=True)
class DifferentiatePass(TakesDerivatives, ModulePass):
    """Needs: @main in primitives, or a joint function. Leaves: @joint; autodiff ops but custom rules are expanded.

    A function of which no gradient is asked keeps its name; only the autodiff ops in it expand. Applied to a joint
    function, its gradients are what is differentiated, by its primals and tangents: one order more.
    """

    name = "differentiate"

    function: str | None = None
    """The function to differentiate; by default @joint if there is one, else @main."""
    arguments: tuple[int, ...] | None = None
    """By which arguments; by default those marked wants_gradient."""
    order: int = 1
    """How often; order 2 of @main is the derivative of its gradients."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        name = self.function
        for _ in range(self.order):
            name = name or (JOINT if JOINT in ir.functions(op) else "main")
            joint = differentiate(ir.function(op, name), self.fallbacks, self.arguments)
            replace_function(op, name, joint)
            name = joint.sym_name.data


def replace_function(module: ModuleOp, name: str, func: FuncOp) -> None:
    """Put `func` where the module's function of that name is, and drop any other one of `func`'s name."""
    old = ir.function(module, name)
    new_name = func.sym_name.data
    if new_name != name and new_name in ir.functions(module):
        other = ir.function(module, new_name)
        other.detach()
        other.erase()
    module.body.block.insert_op_before(func, old)
    old.detach()
    old.erase()


def differentiate(
    func: FuncOp, fallbacks: Fallbacks, arguments: Collection[int] | None = None, name: str = JOINT
) -> FuncOp:
    """Give the joint function of a program, or of the gradients of a joint function; `func` stays as it is.

    `arguments`: by which to differentiate, by default those that want a gradient. An argument that no result depends
    on has no gradient among the results; one that a result depends on through steps only has zeros.
    CompileError when an op on the way has no derivative.
    """
    body = Body(func, fallbacks)
    signature = body.signature
    wanted = signature.arguments_where(wants_gradient=True) if arguments is None else sorted(arguments)
    for i in wanted:
        if not is_differentiable(body.arguments[i]):
            raise IRError(f"argument {i} of @{func.sym_name.data} is {body.arguments[i].type} and has no gradient")
    marked = [replace(a, wants_gradient=i in wanted) for i, a in enumerate(signature.arguments)]
    signature = replace(signature, arguments=tuple(marked))
    if not wanted:
        return body.close(func.sym_name.data, signature, [])
    ops = list(body.block.ops)
    active = activity(ops, [body.arguments[i] for i in wanted])
    tangents = {k: body.add_argument(v.type, "tangent") for k, v in enumerate(body.results) if v in active}
    seeds = _seeds(body.emitter, ((body.results[k], t) for k, t in tangents.items()))
    found = pull(body.emitter, ops, active, seeds, fallbacks)
    reached: set[SSAValue] | None = None
    has_empty = any(ir.numel(v) == 0 for v in active)  # then torch's formulas run, on no elements
    gradients: dict[int, SSAValue] = {}
    zero: set[int] = set()
    for i in wanted:
        argument = body.arguments[i]
        gradient = found.get(argument)
        if gradient is None:
            reached = reaching(ops, active, seeds) if reached is None else reached
            gradient = body.emitter.zeros_like(argument) if argument in reached else None
            if not has_empty:
                zero.add(i)
        if gradient is not None:
            gradients[i] = gradient
    signature = replace(
        signature,
        arguments=(*signature.arguments, *(Argument(tangent=k) for k in tangents)),
        results=(*signature.results, *(_gradient(i, i in zero) for i in gradients)),
    )
    return body.close(name, signature, list(gradients.values()))


def may_have_tangents(func: FuncOp) -> bool:
    """Whether a result may depend differentiably on what wants a gradient: seen before autodiff ops are expanded.

    False is certain; then `differentiate` would do nothing but expand.
    """
    block = func.body.block
    last = block.last_op
    wanted = [block.args[i] for i in Signature.of(func).arguments_where(wants_gradient=True)]
    ops = (op for op in block.ops if not (isinstance(op, VjpOp) and not op.create_graph))
    return last is not None and not activity(ops, wanted).isdisjoint(ir.operands_of(last))


def gradients_of(joint: FuncOp, name: str = "main") -> FuncOp:
    """Give the function of a joint function's primals and tangents whose results are its gradients."""
    body = Body(joint, FROM_TABLES)
    func = body.close(name, body.signature, [])
    ir.erase_unused(func.body.block, lambda op: isinstance(op, ReturnOp))
    return func


def _gradient(argument: int, zero: bool) -> Result:
    return Result(gradient=argument, extra={ZERO: UnitAttr()} if zero else {})


def following_tangents(
    block: Block, gradients: Sequence[SSAValue], zero: Sequence[bool], tangents: Sequence[SSAValue]
) -> list[SSAValue]:
    """Give gradients as values that follow from the tangents, also those of which simplification left constants.

    For torch a gradient of no elements has a history too. `block` holds what computes them, without its terminator;
    `zero` tells which are zeros by nature and so have none.
    """
    active = activity(list(block.ops), tangents)
    found: list[SSAValue] = []
    for value, is_zero in zip(gradients, zero, strict=True):
        if value not in active and not is_zero:
            op = following(value, tangents)
            block.add_op(op)
            value = op.results[0]
        found.append(value)
    return found


def _seeds(e: Emitter, pairs: Iterable[tuple[SSAValue, SSAValue]]) -> dict[SSAValue, SSAValue]:
    """One cotangent per value: a value returned twice has the sum of both."""
    seeds: dict[SSAValue, SSAValue] = {}
    for value, tangent in pairs:
        seeds[value] = e.add(seeds[value], tangent) if value in seeds else tangent
    return seeds


def reaching(ops: Sequence[Operation], active: set[SSAValue], results: Iterable[SSAValue]) -> set[SSAValue]:
    """Give the active values that the results depend on."""
    found = set(results)
    for op in reversed(ops):
        if type(op) not in CONSTANT and any(r in found for r in op.results):
            found.update(v for v in ir.operands_of(op) if v in active)
    return found


class Body:
    """A function under construction: a copy of another's body with its autodiff ops expanded, open at the end.

    With `as_gradients`, the copy of a joint function is the function of primals and tangents that gives its gradients.
    """

    def __init__(self, func: FuncOp, fallbacks: Fallbacks, as_gradients: bool = True) -> None:
        source = func.body.block
        self.block = Block(arg_types=[ir.intern_type(a.type) for a in source.args])
        for old, new in zip(source.args, self.block.args, strict=True):
            new.name_hint = old.name_hint
        self.arguments: list[SSAValue] = list(self.block.args)
        self.emitter = Emitter(self.block)
        self.results = inline(self.emitter, source, self.arguments, fallbacks)
        self.signature = Signature.of(func)
        self._func = func
        if as_gradients and self.signature.tangents:
            self._keep_gradients()

    def _keep_gradients(self) -> None:
        """The gradients become the outputs, by argument; the tangents become arguments like any other."""
        signature = self.signature
        wanted = signature.gradients
        kept = [wanted[i] for i in sorted(wanted)]
        tangents = [self.arguments[i] for i in signature.tangents.values()]
        zero = [ZERO in signature.results[k].extra for k in kept]
        self.results = following_tangents(self.block, [self.results[k] for k in kept], zero, tangents)
        arguments = [
            replace(a, tangent=None, primal=True, wants_gradient=a.tangent is not None or i in wanted)
            if a.primal or a.tangent is not None
            else a
            for i, a in enumerate(signature.arguments)
        ]
        outputs = tuple(("value", k, ()) for k in range(len(kept)))
        self.signature = Signature(tuple(arguments), tuple(Result(output=True) for _ in kept), outputs)

    def add_argument(self, type_: Attribute, hint: str) -> SSAValue:
        """Add an argument after the others."""
        argument = self.block.insert_arg(type_, len(self.block.args))
        argument.name_hint = hint
        self.arguments.append(argument)
        return argument

    def close(self, name: str, signature: Signature, more: Sequence[SSAValue]) -> FuncOp:
        """End the body with its results and `more`; gives the function."""
        results = [*self.results, *more]
        self.block.add_op(ir.create_op(ReturnOp, results, (), location=self._func.location))
        kind = FunctionType.from_lists([a.type for a in self.block.args], [v.type for v in results])
        func = FuncOp(name, kind, Region(self.block), self._func.sym_visibility)
        func.location = self._func.location
        func.attributes.update(self._func.attributes)
        signature.attach(func)
        return func
