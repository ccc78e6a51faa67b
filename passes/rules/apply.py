"""Put the user's rules in the place of calls: decompositions, derivatives, replacements of patterns.

Before:
    %m = aten.call %x, %y {overload = "mul.Tensor", args = [arg0, arg1]} : tensor<4xf32>
    %r = aten.call %m, %z {overload = "add.Tensor", args = [arg0, arg1, 1]} : tensor<4xf32>
After, with a rule that rewrites x*y + z:
    %r = aten.call %x, %y, %z {overload = "mylib::fma.default", args = [arg0, arg1, arg2]} : tensor<4xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects import aten, autodiff
from isthmus.ir import Literal
from isthmus.passes.rules.match import Pattern

Expand = Callable[[aten.CallOp], FuncOp | None]
"""From a call to a function (operands) -> (results) that stands for it, or None."""

Gradients = Callable[[aten.CallOp], "tuple[FuncOp, Sequence[bool]] | None"]
"""From a call to (cotangents, operands, results) -> (gradients) and which operands have one, or None."""

Replace = Callable[[aten.CallOp, Sequence[SSAValue]], FuncOp | None]
"""From a matched call and what the pattern's arguments stand for to a function of these, or None: leave it."""


@dataclass(frozen=True)
class Rewrite:
    """A pattern and what comes in its place."""

    name: str
    pattern: Pattern
    replace: Replace


def blocks_of(module: ModuleOp) -> list[Block]:
    """Give every block that holds calls, inner ones first."""
    found = {op.parent: None for op in module.walk() if isinstance(op, aten.CallOp)}
    return [b for b in reversed(found) if b is not None]


def rewrite(module: ModuleOp, rule: Rewrite) -> int:
    """Replace every match that the rule wants; gives their number. What is put in is not matched again."""
    count = 0
    for block in blocks_of(module):
        for op in reversed([o for o in block.ops if isinstance(o, aten.CallOp)]):
            if op.parent is not block:
                continue  # part of an earlier match, and nothing else needed it
            found = rule.pattern.match(op)
            if found is None or any(c.grad != op.grad or c.parent is not block for c in found[1]):
                continue
            bound, matched = found
            func = rule.replace(op, bound)
            if func is None:
                continue
            put_in_place(op, func, bound)
            _erase_unused(matched)
            count += 1
    return count


def expand(module: ModuleOp, rule: Expand) -> int:
    """Replace every call for which the rule has a function; gives their number."""
    count = 0
    for block in blocks_of(module):
        for op in [o for o in block.ops if isinstance(o, aten.CallOp)]:
            func = rule(op)
            if func is not None:
                put_in_place(op, func, ir.operands_of(op))
                count += 1
    return count


def override(module: ModuleOp, rule: Gradients) -> int:
    """Wrap every call for which the rule has gradients into `autodiff.custom`; gives their number."""
    count = 0
    for block in blocks_of(module):
        for op in [o for o in block.ops if isinstance(o, aten.CallOp)]:
            found = rule(op)
            if found is not None:
                _wrap(op, *found)
                count += 1
    return count


def put_in_place(op: aten.CallOp, func: FuncOp, operands: Sequence[SSAValue]) -> None:
    """Copy a function's ops before a call; its results take the call's place."""
    block = op.parent
    assert block is not None
    made: list[Operation] = []
    results = copied(func, operands, made)
    for new in made:
        new.location = op.location  # one traced rule serves many calls
        for key, tag in op.attributes.items():
            new.attributes.setdefault(key, tag)
        if isinstance(new, aten.CallOp) and not op.grad:
            new.properties["grad"] = aten.FALSE
    block.insert_ops_before(made, op)
    for old, new in zip(op.results, results, strict=True):
        new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()


def copied(func: FuncOp, operands: Sequence[SSAValue], made: list[Operation]) -> list[SSAValue]:
    """Copy a function's ops onto other operands; gives its results."""
    source = func.body.block
    values: dict[SSAValue, SSAValue] = dict(zip(source.args, operands, strict=True))
    for op in source.ops:
        if isinstance(op, ReturnOp):
            return [values[v] for v in ir.operands_of(op)]
        copy = ir.create_op(
            type(op),
            [values[v] for v in ir.operands_of(op)],
            [r.type for r in op.results],
            op.properties,
            location=op.location,
            regions=[r.clone() for r in op.regions],
            attributes=op.attributes,
        )
        made.append(copy)
        for old, new in zip(op.results, copy.results, strict=True):
            new.name_hint = old.name_hint
            values[old] = new
    raise AssertionError("a function ends with func.return")


def _wrap(op: aten.CallOp, func: FuncOp, wanted: Sequence[bool]) -> None:
    operands, types = ir.operands_of(op), [r.type for r in op.results]
    forward = Block(arg_types=[v.type for v in operands])
    call = ir.create_op(aten.CallOp, forward.args, types, op.properties, location=op.location, attributes=op.attributes)
    forward.add_ops([call, ir.create_op(autodiff.YieldOp, [*call.results, *forward.args, *call.results], ())])
    backward = Block(arg_types=[*types, *(v.type for v in operands), *types])
    made: list[Operation] = []
    gradients = copied(func, backward.args, made)
    for new in made:
        new.location = op.location
    backward.add_ops([*made, ir.create_op(autodiff.YieldOp, gradients, ())])
    places = iter(range(len(gradients)))
    properties = {
        "saved": len(operands) + len(types),
        "gradients": tuple([next(places) if w else -1 for w in wanted]),
        "non_differentiable": tuple(i for i, t in enumerate(types) if not ir.is_differentiable(ir.dtype_of(t))),
    }
    custom = ir.create_op(
        autodiff.CustomOp,
        operands,
        types,
        {k: Literal.of(v) for k, v in properties.items()},
        regions=[Region(forward), Region(backward)],
        location=op.location,
    )
    if not op.grad:
        custom.properties["grad"] = aten.FALSE
    block = op.parent
    assert block is not None
    block.insert_ops_before([custom], op)
    for old, new in zip(op.results, custom.results, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    op.detach()
    op.erase()


def _erase_unused(matched: Sequence[aten.CallOp]) -> None:
    """Take out the calls of a match that nothing else needs, users first."""
    for op in matched:
        if op.parent is not None and all(r.first_use is None for r in op.results):
            op.detach()
            op.erase()
