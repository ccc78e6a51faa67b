"""Make a captured program functional: mutation and aliasing become values, what callers must see goes into roles.

Before:
    func.func @main(%x: !aten.ref<4x4xf32>) -> !aten.ref<4xf32, offset = 4> {
      %v = aten.call %x {overload = "select.int", args = [arg0, 0, 1], aliases = [0]} : !aten.ref<4xf32, offset = 4>
      %w = aten.call %v {overload = "mul_.Tensor", args = [arg0, 2.0], mutates = [0], aliases = [0]} : !aten.ref<...>
      func.return %w
After:
    func.func @main(%x: tensor<4x4xf32>) -> (tensor<4x4xf32> {isthmus.mutated = 0})
        attributes {isthmus.outputs = [["argument", 0, [["select.int", [arg0, 0, 1], none, [4], [1], 4]]]]} {
      %v = aten.call %x {overload = "select.int", args = [arg0, 0, 1]} : tensor<4xf32>
      %w = aten.call %v {overload = "mul_.Tensor", args = [arg0, 2.0], updates = [0]} : tensor<4xf32>
      %n = aten.call %x, %w {overload = "select_scatter.default", args = [arg0, arg1, 0, 1]} : tensor<4x4xf32>
      func.return %n
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.dialects import aten, autodiff
from isthmus.dialects.schema import Schema, parse_schema
from isthmus.dialects.signature import Signature
from isthmus.passes.functionalize import regions as _regions  # noqa: F401  # pyright: ignore[reportUnusedImport] (fills the table of rewrites)
from isthmus.passes.functionalize.arguments import enter_arguments
from isthmus.passes.functionalize.emission import SCHEMAS, Emission
from isthmus.passes.functionalize.outputs import Outputs
from isthmus.passes.functionalize.program import Program, asked_for
from isthmus.passes.functionalize.verify import verify_functional


@dataclass(frozen=True)
class FunctionalizePass(ModulePass):
    """Needs: functions on references. Leaves: the same calls on values, none of which mutates or aliases.

    Raises RefusedError for writes that eager refuses, UnsupportedError for aliases that have no compiled form.
    """

    name = "functionalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite every function of the module that has references."""
        schemas = aten.schemas_of(op)
        for func in ir.functions(op).values():
            if _has_references(func):
                functionalize(func, schemas)
        _attach_schemas(op)
        verify_functional(op)


def _has_references(func: FuncOp) -> bool:
    block = func.body.block
    results = (r for o in block.ops for r in o.results)
    return any(isinstance(v.type, aten.RefType) for v in (*block.args, *results))


def functionalize(func: FuncOp, schemas: Mapping[str, Schema] | None = None) -> None:
    """Rewrite one function in place."""
    signature = Signature.of(func)
    old, new = func.body.block, Block()
    asked = asked_for(old)
    e = Emission(new)
    program = Program(e, asked, recorded=_differentiates(func) or _may_have_gradients(signature))
    arguments = enter_arguments(program, old, signature)
    returned: tuple[SSAValue, ...] = ()
    for op in old.ops:
        if isinstance(op, ReturnOp):
            returned = ir.operands_of(op)
            e.location = op.location
        else:
            program.rewrite(op)
    outputs = Outputs(program, signature, arguments, schemas)
    values, signature = outputs.of(returned)
    new.add_op(ir.create_op(ReturnOp, values, (), location=e.location))
    e.drop_unused()
    func.body.detach_block(old)
    old.erase()
    func.body.add_block(new)
    func.function_type = FunctionType.from_lists([a.type for a in new.args], [v.type for v in values])
    signature.attach(func)


def _differentiates(func: FuncOp) -> bool:
    """Tell whether the program itself asks for gradients, in regions too."""
    return any(isinstance(op, autodiff.VjpOp) for op in func.walk())


def _may_have_gradients(signature: Signature) -> bool:
    """Tell whether the function may be differentiated: an argument says so, or nothing is said about any."""
    return any(a.wants_gradient for a in signature.arguments) or not any(a.primal for a in signature.arguments)


def _attach_schemas(module: ModuleOp) -> None:
    """Add the schemas of calls that were made here to those that the module carries."""
    carried = module.attributes.get(aten.SCHEMAS)
    if not isinstance(carried, ir.Literal):
        return
    used = {o.overload for o in module.walk() if isinstance(o, aten.CallOp)}
    made = [text for text in SCHEMAS if parse_schema(text).name in used]
    aten.attach_schemas(module, [*cast(tuple[str, ...], carried.data), *made])
