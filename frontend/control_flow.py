"""Control flow: conditions and loops become ops with regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from xdsl.ir import Region
from xdsl.irdl import IRDLOperation

from isthmus import ir
from isthmus.diagnostics import CompileError, UnsupportedError
from isthmus.dialects import aten
from isthmus.frontend import numbers
from isthmus.frontend.encode import DTYPE_NAMES
from isthmus.frontend.program import Scope
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.structure import Call, as_list, create, mark_gradients, tensors_in
from isthmus.ir import LiteralValue


def cond(call: Call) -> object:
    """cond(predicate, then, else, operands); CompileError where the branches disagree."""
    predicate, then_body, else_body, operands = call.args
    if not isinstance(predicate, Tensor):
        return call.run_body(
            cast(fx.GraphModule, then_body if predicate else else_body), call.recorder, as_list(operands)
        )
    regions = [_region(call, cast(fx.GraphModule, b), as_list(operands), aten.YieldOp) for b in (then_body, else_body)]
    then, otherwise = regions
    if [_shape(t) for t in then.results] != [_shape(t) for t in otherwise.results]:
        raise CompileError(
            f"the branches give different tensors: {_describe(then.results)} and {_describe(otherwise.results)}",
            op="cond",
            cure="both branches must give the same number of tensors with the same shapes and dtypes",
        )
    captured = _share_captures(call.recorder, regions)
    inputs = [predicate, *tensors_in(operands), *captured]
    return pytree.tree_unflatten(_emit(call, aten.CondOp, inputs, {}, regions, then.results), then.structure)


def while_loop(call: Call) -> object:
    """while_loop(condition, body, carried, additional)."""
    condition, body, carried, extra = call.args
    arguments = [*as_list(carried), *as_list(extra)]
    steady = len(as_list(carried))
    regions = [
        _region(call, cast(fx.GraphModule, b), arguments, aten.YieldOp, steady=steady) for b in (condition, body)
    ]
    captured = _share_captures(call.recorder, regions)
    count = len(tensors_in(carried))
    _same_kinds("while_loop", tensors_in(carried), regions[1].results)
    return _emit(
        call, aten.WhileLoopOp, [*tensors_in(arguments), *captured], {"carried": count}, regions, tensors_in(carried)
    )


def scan(call: Call) -> object:
    """scan(combine, inits, xs, additional) along dimension 0, forwards."""
    combine, inits, xs, extra = call.args
    with call.recorder.unrecorded():
        slices = [x.select(0, 0) for x in tensors_in(xs)]
    slices = [call.recorder.like(s, requires_grad=x.requires_grad) for s, x in zip(slices, tensors_in(xs), strict=True)]
    varying = [*as_list(inits), *slices]
    region = _region(
        call, cast(fx.GraphModule, combine), [*varying, *as_list(extra)], aten.YieldOp, steady=len(varying)
    )
    length = tensors_in(xs)[0].shape[0]
    count = len(tensors_in(inits))
    _same_kinds("scan", tensors_in(inits), region.results[:count])
    results = [*region.results[:count], *(_stacked(call.recorder, r, length) for r in region.results[count:])]
    inputs = [*tensors_in(inits), *tensors_in(xs), *tensors_in(extra), *region.scope.captured]
    counts = {"inits": count, "xs": len(tensors_in(xs))}
    return pytree.tree_unflatten(_emit(call, aten.ScanOp, inputs, counts, [region], results), region.structure)


def map_slices(call: Call) -> object:
    """map_impl(body, xs, additional) along dimension 0."""
    body, xs, extra = call.args
    with call.recorder.unrecorded():
        slices = [x.select(0, 0) for x in tensors_in(xs)]
    slices = [call.recorder.like(s, requires_grad=x.requires_grad) for s, x in zip(slices, tensors_in(xs), strict=True)]
    region = _region(call, cast(fx.GraphModule, body), [*slices, *as_list(extra)], aten.YieldOp, steady=len(slices))
    length = tensors_in(xs)[0].shape[0]
    results = [_stacked(call.recorder, r, length) for r in region.results]
    inputs = [*tensors_in(xs), *tensors_in(extra), *region.scope.captured]
    made = _emit(call, aten.MapOp, inputs, {"xs": len(tensors_in(xs))}, [region], results)
    return pytree.tree_unflatten(made, region.structure)


@dataclass(frozen=True)
class _Imported:
    """A body as a region, the fake tensors that it gives, and in which structure."""

    scope: Scope
    results: list[Tensor]
    structure: pytree.TreeSpec


def _region(
    call: Call, body: fx.GraphModule, args: Sequence[object], end: type[IRDLOperation], *, steady: int = 0
) -> _Imported:
    """Import a body on stand-ins of its arguments, so that what it does to them stays inside.

    From `steady` on they are the same at every step: there a number is met as itself, so that its symbol is known.
    """
    recorder = call.recorder
    stand_ins = [recorder.like(a, requires_grad=a.requires_grad) if isinstance(a, Tensor) else a for a in args]
    met = [
        a if i >= steady and isinstance(a, Tensor) and numbers.holds_number(a) else stand_in
        for i, (a, stand_in) in enumerate(zip(args, stand_ins, strict=True))
    ]
    with recorder.region(tensors_in(stand_ins)) as scope:
        results, structure = pytree.tree_flatten(call.run_body(body, recorder, met))
        if not all(isinstance(r, Tensor) for r in results):
            raise UnsupportedError("a body that gives something else than tensors has no compiled form")
        recorder.emit(ir.create_op(end, [recorder.value_of(cast(Tensor, r)) for r in results], []))
    return _Imported(scope, cast(list[Tensor], results), structure)


def _share_captures(recorder: Recorder, regions: Sequence[_Imported]) -> list[Tensor]:
    """Give all regions of an op the same extra arguments; gives these tensors in order."""
    captured = list({id(t): t for r in regions for t in r.scope.captured}.values())
    for region in regions:
        block, own = region.scope.block, region.scope.captured
        first = len(block.args) - len(own)
        old = dict(zip(map(id, own), block.args[first:], strict=True))
        for tensor in captured:
            new = block.insert_arg(recorder.type_of(tensor), len(block.args))
            if (before := old.get(id(tensor))) is not None:
                before.replace_all_uses_with(new)
        for before in old.values():
            block.erase_arg(before)
    return captured


def _emit(
    call: Call,
    kind: type[IRDLOperation],
    inputs: Sequence[Tensor],
    counts: Mapping[str, LiteralValue],
    regions: Sequence[_Imported],
    results: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    requires_grad = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    fresh = [call.recorder.like(r, requires_grad=requires_grad, derived_from=inputs) for r in results]
    op = create(call.recorder, kind, inputs, counts, [Region(r.scope.block) for r in regions], fresh)
    mark_gradients(call.recorder, op)
    return tuple(fresh)


def _same_kinds(op: str, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """A step gives carries as it got them; sizes that are equal for that reason become the same symbol."""
    if [_shape(t) for t in before] != [_shape(t) for t in after]:
        raise CompileError(
            f"a step turns carries {_describe(before)} into {_describe(after)}",
            op=op,
            cure="every carry must keep its shape and dtype from step to step",
        )


def _shape(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, *tensor.shape


def _describe(tensors: Sequence[Tensor]) -> str:
    kinds = [f"{'x'.join(map(str, t.shape)) or 'scalar'} {DTYPE_NAMES.get(t.dtype, t.dtype)}" for t in tensors]
    return f"({', '.join(kinds)})"


def _stacked(recorder: Recorder, one: Tensor, length: int) -> Tensor:
    """Give a stand-in for `length` results of a body, stacked."""
    with recorder.unrecorded(), torch.no_grad():
        return one.new_empty((length, *one.shape))
