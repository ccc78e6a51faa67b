"""Ops with regions and requests for gradients: control flow, the user's own rules, checkpoints, vjp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten, autodiff
from isthmus.ir import Literal
from isthmus.passes.functionalize import storage
from isthmus.passes.functionalize.emission import Emission, is_differentiable
from isthmus.passes.functionalize.program import Program, asked_for, name_of, rewrites
from isthmus.passes.functionalize.storage import Reference


class _Body:
    """A region that becomes functional: its arguments as references, its block of values."""

    def __init__(self, program: Program, region: Region, outside: frozenset[SSAValue] = frozenset()) -> None:
        """`outside`: arguments that are values of the surroundings, by which a gradient may be asked for."""
        old = region.block
        self.block = Block(arg_types=[aten.value_type(a.type) for a in old.args])
        self.e = Emission(self.block)
        inner = Program(self.e, asked_for(old) - outside, recorded=program.recorded)
        self.arguments: list[Reference | None] = []
        for captured, argument in zip(old.args, self.block.args, strict=True):
            argument.name_hint = captured.name_hint
            if program.recorded and is_differentiable(argument):
                self.e.active.add(argument)
            inner.define_fresh(captured, argument)
            self.arguments.append(inner.references.get(captured))
        self.terminator = old.last_op
        assert self.terminator is not None
        for op in old.ops:
            if op is not self.terminator:
                inner.rewrite(op)
        self.program = inner
        self.yielded = [inner.read(v) for v in ir.operands_of(self.terminator)]

    @property
    def written(self) -> list[int]:
        """The arguments that the body writes."""
        return [i for i, a in enumerate(self.arguments) if a is not None and a.written]

    def final(self, argument: int) -> SSAValue:
        """Give the value that an argument has at the end."""
        reference = self.arguments[argument]
        assert reference is not None
        return storage.read(self.e, reference)

    def close(self, values: Sequence[SSAValue]) -> Region:
        """End the block with these values; gives the region."""
        assert self.terminator is not None
        self.e.block.add_op(ir.create_op(type(self.terminator), values, (), location=self.terminator.location))
        self.e.drop_unused()
        return Region(self.block)


def _literals(op: Operation, **changes: Literal | None) -> dict[str, Attribute]:
    """Give the properties of an op without those that speak of references."""
    kept: dict[str, Attribute | None] = {**op.properties, "grad": None, "mutates": None, "aliases": None, **changes}
    return {key: attr for key, attr in kept.items() if attr is not None}


def _operands(program: Program, op: Operation) -> list[SSAValue]:
    return [program.read(v) for v in ir.operands_of(op)]


@rewrites(aten.CondOp, aten.WhileLoopOp, aten.ScanOp, aten.MapOp)
def _control_flow(program: Program, op: Operation) -> None:
    """Regions read their operands and give new values; outer tensors that they write become carries or results."""
    bodies = [_Body(program, region) for region in op.regions]
    written = sorted({i for body in bodies for i in body.written})
    _require_possible_writes(program, op, bodies, written)
    values, blocks = _operands(program, op), [body.block for body in bodies]
    offset = len(values) - len(blocks[0].args)
    carries = _carries(op)
    kept = [[body.final(i) for i in written] for body in bodies]
    yielded = [
        body.yielded if isinstance(op, aten.WhileLoopOp) and k == 0 else _joined(body.yielded, finals, carries)
        for k, (body, finals) in enumerate(zip(bodies, kept, strict=True))
    ]
    if carries is not None:
        for place, i in enumerate(written):
            values.insert(carries + place, values.pop(i))
            for block in blocks:
                _move_argument(block, i, carries + place)
    types = _joined([aten.value_type(r.type) for r in op.results], [v.type for v in kept[-1]], carries)
    counts = {} if carries is None else {_CARRIED[type(op)]: Literal.of(carries + len(written))}
    made = ir.create_op(
        type(op),
        values,
        types,
        _literals(op, **counts),
        location=op.location,
        regions=[body.close(ends) for body, ends in zip(bodies, yielded, strict=True)],
        attributes=op.attributes,
    )
    results = list(program.e.add(made))
    recorded = ir.literal(op, "grad") is not False
    at = len(op.results) if carries is None else carries
    after = [results.pop(at) for _ in written]
    for captured, value in zip(op.results, results, strict=True):
        program.define_fresh(captured, value if recorded else program.e.stopped(value))
    operands = ir.operands_of(op)
    for i, value in zip(written, after, strict=True):
        seen = recorded and any(cast(Reference, body.arguments[i]).seen for body in bodies)
        storage.write(program.e, program.references[operands[offset + i]], value, seen=seen)


_CARRIED: dict[type[Operation], str] = {aten.WhileLoopOp: "carried", aten.ScanOp: "inits"}
"""Loops -> the property that counts what they carry."""

T = TypeVar("T")


def _carries(op: Operation) -> int | None:
    """How many values a loop carries; None for what is no loop."""
    return aten.count(op, _CARRIED[type(op)]) if type(op) in _CARRIED else None


def _joined(values: Sequence[T], further: Sequence[T], at: int | None) -> list[T]:
    at = len(values) if at is None else at
    return [*values[:at], *further, *values[at:]]


def _move_argument(block: Block, old: int, new: int) -> None:
    argument = block.args[old]
    moved = block.insert_arg(argument.type, new)
    moved.name_hint = argument.name_hint
    argument.replace_all_uses_with(moved)
    block.erase_arg(argument)


def _require_possible_writes(program: Program, op: Operation, bodies: Sequence[_Body], written: Sequence[int]) -> None:
    """Refuse writes whose order matters or that nobody outside could see."""
    if not written:
        return
    operands, blocks = ir.operands_of(op), [body.block for body in bodies]
    offset = len(operands) - len(blocks[0].args)
    own = (_carries(op) or 0) + (aten.count(op, "xs") if isinstance(op, aten.ScanOp | aten.MapOp) else 0)
    roots = [r.root if (r := program.references.get(v)) is not None else None for v in operands]
    for i in written:
        if isinstance(op, aten.MapOp):
            _refuse_write(op, "a mapped body writes a tensor from outside, in no order that is known")
        if i < own:
            _refuse_write(op, "a loop's body writes what it carries, or a slice, in place")
        if isinstance(op, aten.WhileLoopOp) and i in bodies[0].written:
            _refuse_write(op, "the condition of a loop writes a tensor from outside")
        if roots.count(roots[offset + i]) > 1:
            _refuse_write(op, "a branch or loop body writes a tensor that it also reads through another alias")
        if any(body.final(i).type != body.block.args[i].type for body in bodies):
            _refuse_write(op, "a branch or loop body changes the shape of a tensor from outside")


def _refuse_write(op: Operation, what: str) -> None:
    """At the first write that is in a region of the op."""
    writes = (inner for region in op.regions for inner in region.walk() if ir.literal(inner, "mutates"))
    first = next(writes, op)
    place = ir.source_location(first) or ir.source_location(op)
    raise UnsupportedError(what, location=place, op=name_of(first), cure="write a clone of it, and return that")


@rewrites(autodiff.BatchOp)
def _batch(program: Program, op: Operation) -> None:
    """The body gives new values; what it writes of its examples becomes further results."""
    assert isinstance(op, autodiff.BatchOp)
    shared = frozenset[SSAValue](a for a, at in zip(op.body.block.args, op.mapped, strict=True) if at is None)
    body = _Body(program, op.body, shared)
    written = body.written
    if any(op.mapped[i] is None for i in written):
        _refuse_write(op, "a function under vmap writes a tensor that all examples share")
    finals = [body.final(i) for i in written]
    whole = [ir.tensor((op.size, *ir.shape_of(v)), ir.dtype_of(v)) for v in finals]
    made = ir.create_op(
        autodiff.BatchOp,
        _operands(program, op),
        [*(aten.value_type(r.type) for r in op.results), *whole],
        op.properties,
        location=op.location,
        regions=[body.close([*body.yielded, *finals])],
        attributes=op.attributes,
    )
    results = program.e.add(made)
    for captured, value in zip(op.results, results, strict=False):
        program.define_fresh(captured, value)
    operands = ir.operands_of(op)
    for i, value in zip(written, results[len(op.results) :], strict=True):
        at, type_ = cast(int, op.mapped[i]), operands[i].type
        back = (*range(1, at + 1), 0, *range(at + 1, len(ir.shape_of(value))))
        placed = value if at == 0 else program.e.view("permute.default", value, (back,), aten.value_type(type_))
        seen = cast(Reference, body.arguments[i]).seen
        storage.write(program.e, program.references[operands[i]], placed, seen=seen)


@rewrites(autodiff.CheckpointOp)
def _checkpoint(program: Program, op: Operation) -> None:
    """What the body writes becomes further results."""
    body = _Body(program, op.regions[0])
    written = body.written
    finals = [body.final(i) for i in written]
    types = [aten.value_type(r.type) for r in op.results] + [v.type for v in finals]
    operands = ir.operands_of(op)
    made = ir.create_op(
        autodiff.CheckpointOp,
        _operands(program, op),
        types,
        _literals(op),
        location=op.location,
        regions=[body.close([*body.yielded, *finals])],
        attributes=op.attributes,
    )
    results = program.e.add(made)
    for i, value in zip(written, results[len(op.results) :], strict=True):
        seen = cast(Reference, body.arguments[i]).seen
        storage.write(program.e, program.references[operands[i]], value, seen=seen)
    _define_results(program, op, body, results)


def _define_results(program: Program, op: Operation, body: _Body, results: Sequence[SSAValue]) -> None:
    """Results that are operands themselves stay them; others that share storage with one are known by their value."""
    assert body.terminator is not None
    aliases = cast(tuple[int, ...], ir.literal(op, "aliases") or (-1,) * len(op.results))
    yielded = ir.operands_of(body.terminator)
    for index, (captured, alias) in enumerate(zip(op.results, aliases, strict=True)):
        inner = body.program.references.get(yielded[index])
        argument = body.arguments.index(inner) if inner is not None and inner in body.arguments else None
        if argument is not None and isinstance(op, autodiff.CheckpointOp):
            program.define(captured, program.references[ir.operands_of(op)[argument]])
        else:
            program.define_shared(op, captured, alias, results[index])


@rewrites(autodiff.CustomOp)
def _custom(program: Program, op: Operation) -> None:
    """What forward writes and returns has the rule's history; what it writes and does not return keeps its own."""
    assert isinstance(op, autodiff.CustomOp)
    forward, backward = _Body(program, op.forward), _Body(program, op.backward)
    if backward.written:
        raise UnsupportedError("backward writes its arguments in place", cure="write a clone of them")
    count, operands = len(op.results), ir.operands_of(op)
    returned = {_returned_argument(forward, k) for k in range(count)}
    hidden = [i for i in forward.written if i not in returned]
    finals = [forward.final(i) for i in hidden]
    yielded = [*forward.yielded[:count], *finals, *forward.yielded[count:]]
    for position, value in enumerate(finals):
        backward.block.insert_arg(value.type, count + position)
    extra = tuple(range(count, count + len(finals)))
    silent = (*op.non_differentiable, *extra)
    made = ir.create_op(
        autodiff.CustomOp,
        _operands(program, op),
        [*(aten.value_type(r.type) for r in op.results), *(v.type for v in finals)],
        _literals(op, non_differentiable=Literal.of(silent) if silent else None),
        location=op.location,
        regions=[forward.close(yielded), backward.close(backward.yielded)],
        attributes=op.attributes,
    )
    results = list(program.e.add(made))
    if ir.literal(op, "grad") is False:
        results = [program.e.stopped(v) for v in results]
    for i, value in zip(hidden, results[count:], strict=True):
        storage.write(program.e, program.references[operands[i]], value, seen=False)
    aliases = cast(tuple[int, ...], ir.literal(op, "aliases") or (-1,) * count)
    for k, (captured, alias) in enumerate(zip(op.results, aliases, strict=True)):
        argument = _returned_argument(forward, k)
        if argument is not None and argument in forward.written:
            target = program.references[operands[argument]]
            storage.write(program.e, target, results[k], seen=True)
            program.define(captured, target)
        else:
            program.define_shared(op, captured, alias, results[k])


def _returned_argument(body: _Body, result: int) -> int | None:
    """Give the argument that a body returns as this result, itself, or None."""
    assert body.terminator is not None
    reference = body.program.references.get(ir.operands_of(body.terminator)[result])
    return next((i for i, a in enumerate(body.arguments) if a is not None and a is reference), None)


@rewrites(autodiff.VjpOp)
def _vjp(program: Program, op: Operation) -> None:
    """The same request on values; without create_graph its results are constants."""
    assert isinstance(op, autodiff.VjpOp)
    made = ir.create_op(
        autodiff.VjpOp,
        _operands(program, op),
        [aten.value_type(r.type) for r in op.results],
        op.properties,
        location=op.location,
        attributes=op.attributes,
    )
    results = program.e.add(made)
    for captured, value in zip(op.results, results, strict=True):
        if not op.create_graph:
            program.e.active.discard(value)
        program.define_fresh(captured, value)


@rewrites(autodiff.StopGradientOp)
def _stop_gradient(program: Program, op: Operation) -> None:
    """A constant copy."""
    (captured,) = op.results
    program.define_fresh(captured, program.e.stopped(program.read(ir.operands_of(op)[0])))
