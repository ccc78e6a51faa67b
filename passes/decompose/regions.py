"""Control flow and checkpoints: what their regions draw comes from keys of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Attribute, Operation, Region, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError, UnsupportedError
from isthmus.dialects import aten, autodiff, prim
from isthmus.dialects.prim import Emitter
from isthmus.passes.decompose.rebuild import REGIONS, Handler, Rebuild, Scope
from isthmus.passes.decompose.table import RandomNumbers


def _rebuilds(cls: type[Operation]) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        REGIONS[cls] = handler
        return handler

    return enter


# ---- keys


def _keys(e: Emitter, random: RandomNumbers | None, shape: Sequence[ir.Dim]) -> SSAValue:
    """Keys that nothing else uses: 62 random bits of the surroundings"""
    assert random is not None
    high, low = (random.draw(e, "bits", shape, "i64") for _ in range(2))
    return e.add(e.mul(high, e.const_like(2**30, high)), low)


def _key_for(scope: Scope, inner: Sequence[Scope]) -> list[SSAValue]:
    """The operand for regions that draw, [] where none does; regions that do not draw get the argument too."""
    if all(s.key is None for s in inner):
        return []
    for s in inner:
        if s.key is None:
            s.block.insert_arg(ir.tensor((), "i64"), len(s.block.args))
    return [_keys(scope.e, scope.random, ())]


def _move_key(scope: Scope, position: int) -> None:
    """Put the argument that holds the key at a position."""
    key = scope.key
    assert key is not None
    moved = scope.block.insert_arg(key.type, position)
    key.replace_all_uses_with(moved)
    scope.block.erase_arg(scope.block.args[-1])


# ---- conditions and loops


@_rebuilds(aten.CondOp)
def _cond(rebuild: Rebuild, scope: Scope, op: Operation) -> Sequence[SSAValue]:
    inner = [rebuild.region(region, prim.YieldOp) for region in op.regions]
    operands = [*scope.of(op.operands), *_key_for(scope, inner)]
    return rebuild.emit(scope, op, prim.CondOp, operands, [Region(s.block) for s in inner])


@_rebuilds(aten.WhileLoopOp)
def _while_loop(rebuild: Rebuild, scope: Scope, op: Operation) -> Sequence[SSAValue]:
    """A body that draws carries its key; each turn makes the next one."""
    carried = aten.count(op, "carried")
    condition, body = (rebuild.region(region, prim.YieldOp) for region in op.regions)
    operands = list(scope.of(op.operands))
    types: list[Attribute] = [r.type for r in op.results]
    if condition.key is not None:
        raise IRError("a condition of a loop draws random numbers", op=op.name, location=ir.source_location(op))
    if body.key is not None:
        last = body.block.last_op
        assert last is not None
        values = last.operands
        last.detach()
        following = _keys(body.e, body.random, ())
        body.block.add_op(ir.create_op(prim.YieldOp, [*values, following], [], location=last.location))
        last.erase()
        _move_key(body, carried)
        condition.block.insert_arg(ir.tensor((), "i64"), carried)
        operands.insert(carried, _keys(scope.e, scope.random, ()))
        types.append(ir.tensor((), "i64"))
        carried += 1
    regions = [Region(condition.block), Region(body.block)]
    results = rebuild.emit(scope, op, prim.WhileOp, operands, regions, types, carried=carried)
    return results[: len(op.results)]


def _along(
    rebuild: Rebuild, scope: Scope, op: Operation, region: Region, carried: int, scanned: int
) -> Sequence[SSAValue]:
    """A loop along dimension 0; a body that draws gets a key for each step, as one more scanned operand."""
    body = rebuild.region(region, prim.YieldOp)
    operands = list(scope.of(op.operands))
    if body.key is not None:
        length = ir.shape_of(operands[carried])[0]
        _move_key(body, carried + scanned)
        operands.insert(carried + scanned, _keys(scope.e, scope.random, (length,)))
        scanned += 1
    regions = [Region(body.block)]
    return rebuild.emit(scope, op, prim.ScanOp, operands, regions, carried=carried, scanned=scanned, reverse=False)


@_rebuilds(aten.ScanOp)
def _scan(rebuild: Rebuild, scope: Scope, op: Operation) -> Sequence[SSAValue]:
    return _along(rebuild, scope, op, op.regions[0], aten.count(op, "inits"), aten.count(op, "xs"))


@_rebuilds(aten.MapOp)
def _map(rebuild: Rebuild, scope: Scope, op: Operation) -> Sequence[SSAValue]:
    return _along(rebuild, scope, op, op.regions[0], 0, aten.count(op, "xs"))


# ---- differentiation


@_rebuilds(autodiff.CheckpointOp)
def _checkpoint(rebuild: Rebuild, scope: Scope, op: Operation) -> Sequence[SSAValue]:
    """The key is an operand, so that recomputing draws the same numbers."""
    given = scope.of(op.operands)
    inner = rebuild.region(op.regions[0], active=[i for i, v in enumerate(given) if v in scope.history.active])
    operands = [*given, *_key_for(scope, [inner])]
    return rebuild.emit(scope, op, autodiff.CheckpointOp, operands, [Region(inner.block)])


@_rebuilds(autodiff.BatchOp)
def _batch(rebuild: Rebuild, scope: Scope, op: Operation) -> Sequence[SSAValue]:
    """A body that draws gets one key for all examples, or one for each."""
    assert isinstance(op, autodiff.BatchOp)
    body = rebuild.region(op.body)
    operands, mapped = list(scope.of(op.operands)), list(op.mapped)
    randomness = ir.literal(op, "randomness")
    if body.key is not None:
        if randomness == "error":
            raise UnsupportedError(
                "a function under vmap draws random numbers",
                location=ir.source_location(op),
                op="vmap",
                cure="say vmap(f, randomness='different') or 'same', or draw outside",
            )
        different = randomness == "different"
        operands.append(_keys(scope.e, scope.random, (op.size,) if different else ()))
        mapped.append(0 if different else None)
    literals = {"mapped": tuple(mapped), "size": op.size, "randomness": randomness}
    if op.chunk is not None:
        literals["chunk"] = op.chunk
    return rebuild.emit(scope, op, autodiff.BatchOp, operands, [Region(body.block)], None, **literals)


@_rebuilds(autodiff.CustomOp)
def _custom(rebuild: Rebuild, scope: Scope, op: Operation) -> Sequence[SSAValue]:
    """Forward may draw; the key has no gradient."""
    assert isinstance(op, autodiff.CustomOp)
    forward, backward = (rebuild.region(region) for region in op.regions)
    if backward.key is not None:
        raise IRError("backward draws random numbers", op=op.name, location=ir.source_location(op))
    keys = _key_for(scope, [forward])
    literals = {key: attr.data for key, attr in op.properties.items() if isinstance(attr, ir.Literal)}
    literals["gradients"] = (*op.gradients, *(-1 for _ in keys))
    operands = [*scope.of(op.operands), *keys]
    regions = [Region(forward.block), Region(backward.block)]
    return rebuild.emit(scope, op, autodiff.CustomOp, operands, regions, None, **literals)
