"""Building the two halves of a joint function around what crosses between them.

Backward follows the order of what depends on tangents; whatever it computes a second time stands just before its first
use, so that it does not live longer than needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import FunctionType, IndexType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects.signature import OUTPUTS, Argument, Result, Signature, symbol_sources
from isthmus.passes.partition.joint import Joint

FORWARD, BACKWARD = "forward", "backward"
"""Names of the two functions."""


@dataclass(frozen=True)
class Halves:
    """The two functions, and the values of the joint function that matter between them."""

    forward: FuncOp
    backward: FuncOp | None
    """None where no gradient is asked for."""
    saved: tuple[SSAValue, ...]
    """Value j of the list that forward hands over."""
    recomputed: tuple[Operation, ...]
    """Ops that both halves run, in the order of backward; what is made from literals alone is among them."""


def split(joint: Joint, kept: Sequence[SSAValue]) -> Halves:
    """Give the halves; `kept` are the values that may cross, of which only those are saved that backward reads."""
    if not joint.gradients:
        return Halves(_forward(joint, ()), None, (), ())
    order, read = _backward_order(joint, frozenset(kept))
    saved = tuple(v for v in kept if v in read)
    recomputed = tuple(op for op in order if op in joint.forward_ops)
    return Halves(_forward(joint, saved), _backward(joint, saved, order), saved, recomputed)


def _backward_order(joint: Joint, kept: frozenset[SSAValue]) -> tuple[list[Operation], set[SSAValue]]:
    """Give the ops of backward in order, and which kept values they (or the results) read: a walk in post-order."""
    order: list[Operation] = []
    done: set[Operation] = set()
    read: set[SSAValue] = set()

    def visit(root: SSAValue) -> None:
        pending = [(root, False)]
        while pending:
            value, operands_are_done = pending.pop()
            op = value.owner
            if value in kept:
                read.add(value)
            elif isinstance(op, Operation) and op not in done:
                if operands_are_done:
                    done.add(op)
                    order.append(op)
                else:
                    pending.append((value, True))
                    pending += [(v, False) for v in reversed(ir.operands_of(op))]

    for op in joint.ops:
        if op in joint.backward_ops and op.results[0] in joint.after_tangent:
            visit(op.results[0])
    for gradient in joint.gradients:
        visit(gradient)
    return order, read


def _forward(joint: Joint, saved: Sequence[SSAValue]) -> FuncOp:
    signature = joint.signature
    arguments = [a for a in joint.block.args if signature.arguments[a.index].tangent is None]
    roles = [r for r in signature.results if r.gradient is None]
    results = [*joint.kept, *saved]
    needed = _needed(results, joint.ops)
    func = _function(FORWARD, arguments, [op for op in joint.ops if op in needed], results)
    handed = [Result(saved=j) for j in range(len(saved))]
    forward = replace(
        signature,
        arguments=tuple(signature.arguments[a.index] for a in arguments),
        results=(*roles, *handed),
    )
    forward.attach(func)
    _copy_attributes(joint.func, func)
    return func


def _backward(joint: Joint, saved: Sequence[SSAValue], order: Sequence[Operation]) -> FuncOp:
    signature = joint.signature
    read = {v for op in order for v in ir.operands_of(op)} | set(joint.gradients)
    tangents = [joint.block.args[i] for i in signature.tangents.values()]
    sizes = [a for a in joint.block.args if isinstance(a.type, IndexType) and a in read]
    roles = [
        *(_saved_role(joint, v, j) for j, v in enumerate(saved)),
        *(signature.arguments[a.index] for a in (*tangents, *sizes)),
    ]
    func = _function(BACKWARD, [*saved, *tangents, *sizes], order, joint.gradients)
    results = tuple(r for r in signature.results if r.gradient is not None)
    Signature(tuple(roles), results).attach(func)
    _copy_attributes(joint.func, func)
    func.attributes.pop(OUTPUTS, None)
    _add_symbols(func)
    return func


def _saved_role(joint: Joint, value: SSAValue, number: int) -> Argument:
    """A saved argument keeps its strides and its name, unless it is a copy of what is overwritten."""
    if not isinstance(value, BlockArgument):
        return Argument(saved=number)
    own = joint.signature.arguments[value.index]
    strides = None if value in joint.overwritten else own.strides
    return Argument(saved=number, static=own.static, source=own.source, strides=strides)


def _copy_attributes(source: FuncOp, target: FuncOp) -> None:
    for key, attr in source.attributes.items():
        target.attributes.setdefault(key, attr)


def _needed(values: Iterable[SSAValue], ops: Sequence[Operation]) -> set[Operation]:
    wanted, found = set(values), set[Operation]()
    for op in reversed(ops):
        if not wanted.isdisjoint(op.results):
            found.add(op)
            wanted.update(ir.operands_of(op))
    return found


def copied(joint: Joint) -> FuncOp:
    """Give a copy of a joint function."""
    func = _function(joint.func.sym_name.data, joint.block.args, joint.ops, joint.returned)
    joint.signature.attach(func)
    _copy_attributes(joint.func, func)
    return func


def _function(
    name: str, arguments: Sequence[SSAValue], ops: Sequence[Operation], results: Sequence[SSAValue]
) -> FuncOp:
    """Copy ops of the joint function into a new function of these arguments."""
    block = Block(arg_types=[a.type for a in arguments])
    copies: dict[SSAValue, SSAValue] = {}
    for argument, new in zip(arguments, block.args, strict=True):
        new.name_hint = argument.name_hint
        copies[argument] = new
    for op in ops:
        ir.copied(op, copies, block)
    returned = [copies[v] for v in results]
    block.add_op(ir.create_op(ReturnOp, returned, ()))
    kind = FunctionType.from_lists([a.type for a in arguments], [v.type for v in results])
    return FuncOp(name, kind, Region(block))


def _add_symbols(func: FuncOp) -> None:
    """Give the function an `index` argument for each symbol that its other arguments do not show."""
    block, signature = func.body.block, Signature.of(func)
    used = _symbols(func)
    for role in signature.arguments:
        _symbols_in(role.strides or (), used)
    missing = sorted(used - symbol_sources(func).keys())
    if not missing:
        return
    for symbol in missing:
        block.insert_arg(ir.INDEX, len(block.args)).name_hint = symbol
    func.update_function_type()
    extra = tuple(Argument(symbol=s) for s in missing)
    replace(signature, arguments=(*signature.arguments, *extra)).attach(func)


def _symbols(func: FuncOp) -> set[str]:
    """Give the symbols in the types and literals of a function."""
    found: set[str] = set()
    seen: set[Attribute] = set()
    for op in func.walk():
        attributes = [*op.properties.values(), *op.attributes.values()] if op is not func else []
        types = [r.type for r in op.results]
        types += [a.type for region in op.regions for block in region.blocks for a in block.args]
        for attribute in (*attributes, *types):
            if attribute not in seen:
                seen.add(attribute)
                _symbols_of(attribute, found)
    return found


def _symbols_of(attribute: Attribute, found: set[str]) -> None:
    if isinstance(attribute, ir.Literal):
        _symbols_in(attribute.data, found)
    elif isinstance(attribute, ir.TensorType):
        _symbols_in(ir.shape_of(attribute), found)


def _symbols_in(value: ir.LiteralValue, found: set[str]) -> None:
    if isinstance(value, ir.Size):
        found |= value.symbols()
    elif isinstance(value, tuple):
        for part in value:
            _symbols_in(part, found)
