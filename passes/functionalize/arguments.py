"""The arguments of a captured function as references: each a storage of its own, or parts of one that they share."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, SSAValue

from isthmus import ir
from isthmus.dialects import aten
from isthmus.dialects.aten import RefFacts, RefType
from isthmus.dialects.signature import Signature
from isthmus.passes.functionalize import geometry
from isthmus.passes.functionalize.emission import is_differentiable
from isthmus.passes.functionalize.geometry import Reshaped, Same
from isthmus.passes.functionalize.program import Program
from isthmus.passes.functionalize.storage import Reference, Root


def enter_arguments(program: Program, old: Block, signature: Signature) -> list[Reference | None]:
    """Give the new block its arguments and the program its references; None for sizes."""
    block = program.e.block
    for index, captured in enumerate(old.args):
        value = block.insert_arg(aten.value_type(captured.type), index)
        value.name_hint, value.location = captured.name_hint, captured.location
        role = signature.arguments[index]
        if is_differentiable(value) and program.recorded and (role.wants_gradient or not role.primal):
            program.e.active.add(value)
    references: list[Reference | None] = [None] * len(old.args)
    for group in _groups(signature):
        for index, reference in zip(group, _references(program, [old.args[i] for i in group], group), strict=True):
            references[index] = reference
    for captured, value, reference in zip(old.args, block.args, references, strict=True):
        if reference is None:
            program.values[captured] = value
        else:
            program.define(captured, reference)
    return references


def _groups(signature: Signature) -> list[list[int]]:
    """Give the positions of arguments that share storage, together."""
    group_of: dict[int, list[int]] = {}
    for index, argument in enumerate(signature.arguments):
        group = [index]
        for other in argument.shares:
            if group_of[other] is not group:
                group = group_of[other] + group
        for member in group:
            group_of[member] = group
    return [list(g) for g in dict.fromkeys(tuple(sorted(g)) for g in group_of.values())]


def _references(program: Program, captured: Sequence[SSAValue], group: Sequence[int]) -> list[Reference | None]:
    types = [c.type for c in captured]
    values = [program.e.block.args[i] for i in group]
    if len(group) == 1 and isinstance(types[0], IndexType):
        return [None]
    tensors = [t for t in types if isinstance(t, RefType)]
    root = Root()
    whole = _whole(tensors)
    made: list[Reference | None] = []
    base = Reference(root, tensors[whole], values[whole], argument=group[whole]) if whole is not None else None
    base = base or _joined(program, root, tensors, values)
    for k, (type_, value) in enumerate(zip(tensors, values, strict=True)):
        if base is None:
            frozen = "arguments share memory in a way that is not known while compiling, and one of them is written"
            made.append(Reference(root, type_, value, frozen=frozen, argument=group[k]))
        elif k == whole:
            made.append(base)
        else:
            made.append(_part(base, type_, value, group[k]))
    return made


def _whole(types: Sequence[RefType]) -> int | None:
    """Give the first argument that holds the elements of all others."""
    if len(types) == 1:
        return 0
    return next((i for i, t in enumerate(types) if all(geometry.covers(t.data, u.data) for u in types)), None)


def _part(base: Reference, type_: RefType, value: SSAValue, argument: int) -> Reference:
    """An argument within another one; its own value counts until one of them is written."""
    how = geometry.relation(base.facts, type_.data)
    link = how if isinstance(how, Same | Reshaped) else None
    return Reference(base.root, type_, value, parent=base, link=link, placed=link is None, argument=argument)


def _joined(program: Program, root: Root, types: Sequence[RefType], values: Sequence[SSAValue]) -> Reference | None:
    """Give the memory from the first to the last of arguments that overlap; what none of them holds is never read."""
    spans = [geometry.interval(t.data) for t in types]
    known = [s for s in spans if s is not None]
    dtype = types[0].data.dtype
    if len(known) < len(spans) or any(t.data.dtype != dtype for t in types):
        return None
    unit = ir.itemsize(dtype)
    first, last = min(s[0] for s in known) // unit, max(s[1] for s in known) // unit
    facts = RefFacts((last - first,), dtype, (1,), first)
    e = program.e
    type_ = ir.tensor(facts.shape, dtype)
    (memory,) = e.call("full.default", [], (facts.shape, 0, dtype, None, None, None), [type_], own=True)
    for tensor, value in zip(types, values, strict=True):
        args = (tensor.data.shape, tensor.data.strides, tensor.data.offset - first)
        memory = e.put("as_strided_scatter.default", memory, value, args)
    return Reference(root, aten.ref(*facts), memory)
