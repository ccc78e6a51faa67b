"""Calls of a torch-level graph that keep their structure: control flow, custom gradients, checkpoints, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree
from xdsl.ir import Attribute, Operation, Region
from xdsl.irdl import IRDLOperation

from isthmus import ir
from isthmus.diagnostics import CompileError, UnsupportedError
from isthmus.dialects import aten, autodiff
from isthmus.frontend import checkpoint
from isthmus.frontend.custom_gradient import emit_custom, without_grad_marks
from isthmus.frontend.encode import DTYPE_NAMES
from isthmus.frontend.recorder import Recorder, Scope, storage_of
from isthmus.ir import Literal, LiteralValue, Operand


class RunBody(Protocol):
    """Interprets a body under the recorder."""

    def __call__(self, graph: fx.GraphModule, recorder: Recorder, args: Sequence[object], /) -> object: ...


@dataclass(frozen=True)
class Call:
    """One structured call while it is imported; `example` is what Dynamo says it gives."""

    recorder: Recorder
    run_body: RunBody
    args: tuple[object, ...]
    kwargs: dict[str, object]
    example: object

    def body(self, index: int) -> fx.GraphModule:
        """Give an argument that is a body."""
        return cast(fx.GraphModule, self.args[index])

    def run(self, graph: fx.GraphModule, args: Sequence[object]) -> list[object]:
        """Interpret a body; gives its flat results."""
        return _flat(self.run_body(graph, self.recorder, args))


Handler = Callable[[Call], object]


def handler_of(target: object) -> Handler | None:
    """Give what imports calls of a target; None for ordinary functions."""
    handler = HANDLERS.get(name_of(target))
    if handler is None and isinstance(target, HigherOrderOperator):
        return _unsupported
    return handler


def name_of(target: object) -> str:
    """Give the name that a call's target goes by here."""
    if isinstance(target, HigherOrderOperator):
        return target.name()
    name = getattr(target, "__name__", "")
    return f"{getattr(target, '__module__', '')}.{name}"


def _unsupported(call: Call) -> object:
    raise UnsupportedError("this higher-order operator has no compiled form")


# ---- Control flow


def _cond(call: Call) -> object:
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
    inputs = [predicate, *_tensors(operands), *captured]
    return pytree.tree_unflatten(_emit(call, aten.CondOp, inputs, {}, regions, then.results), then.structure)


def _while_loop(call: Call) -> object:
    condition, body, carried, extra = call.args
    arguments = [*as_list(carried), *as_list(extra)]
    regions = [_region(call, cast(fx.GraphModule, b), arguments, aten.YieldOp) for b in (condition, body)]
    captured = _share_captures(call.recorder, regions)
    count = len(_tensors(carried))
    return _emit(
        call, aten.WhileLoopOp, [*_tensors(arguments), *captured], {"carried": count}, regions, _tensors(carried)
    )


def _scan(call: Call) -> object:
    combine, inits, xs, extra = call.args
    with call.recorder.unrecorded():
        slices = [x.select(0, 0) for x in _tensors(xs)]
    slices = [call.recorder.like(s, requires_grad=x.requires_grad) for s, x in zip(slices, _tensors(xs), strict=True)]
    region = _region(call, cast(fx.GraphModule, combine), [*as_list(inits), *slices, *as_list(extra)], aten.YieldOp)
    length = _tensors(xs)[0].shape[0]
    count = len(_tensors(inits))
    results = [*region.results[:count], *(_stacked(call.recorder, r, length) for r in region.results[count:])]
    inputs = [*_tensors(inits), *_tensors(xs), *_tensors(extra), *region.scope.captured]
    counts = {"inits": count, "xs": len(_tensors(xs))}
    return _emit(call, aten.ScanOp, inputs, counts, [region], results)


def _map(call: Call) -> object:
    body, xs, extra = call.args
    with call.recorder.unrecorded():
        slices = [x.select(0, 0) for x in _tensors(xs)]
    slices = [call.recorder.like(s, requires_grad=x.requires_grad) for s, x in zip(slices, _tensors(xs), strict=True)]
    region = _region(call, cast(fx.GraphModule, body), [*slices, *as_list(extra)], aten.YieldOp)
    length = _tensors(xs)[0].shape[0]
    results = [_stacked(call.recorder, r, length) for r in region.results]
    inputs = [*_tensors(xs), *_tensors(extra), *region.scope.captured]
    return _emit(call, aten.MapOp, inputs, {"xs": len(_tensors(xs))}, [region], results)


def _inline(call: Call) -> object:
    """invoke_subgraph(body, name, *args): the body runs where it is called."""
    args = call.args[2:] if isinstance(call.args[1], str) else call.args[1:]
    return call.run_body(call.body(0), call.recorder, args)


# ---- Differentiation


def _custom(call: Call) -> object:
    """autograd_function_apply(forward, backward, *args): forward gives (outputs, saved)."""
    recorder = call.recorder
    forward, backward, *args = call.args
    if call.kwargs.get("dirty_idx"):
        raise UnsupportedError("ctx.mark_dirty has no compiled form", op="autograd.Function")
    with without_grad_marks(recorder), recorder.region(_tensors(args)) as scope:
        given = call.run_body(cast(fx.GraphModule, forward), recorder, args)
        outputs, saved = cast(tuple[object, object], given)
        results, saved_tensors = _tensors(outputs), _tensors(as_list(saved))
        emit_yield(recorder, [*results, *saved_tensors])
    cotangents = [recorder.like(r, requires_grad=False) for r in results]
    with without_grad_marks(recorder), recorder.region([*cotangents, *saved_tensors]) as back:
        arguments = [*exchange(as_list(outputs), cotangents), *as_list(saved)]
        grads = as_list(call.run_body(cast(fx.GraphModule, backward), recorder, arguments))
        emit_yield(recorder, _tensors(grads))
    if back.captured:
        raise UnsupportedError("backward uses a tensor that forward did not save", op="autograd.Function")
    fresh = emit_custom(
        recorder,
        args,
        results,
        grads,
        saved=len(saved_tensors),
        forward=scope,
        backward=back,
        non_differentiable=cast(Sequence[int], call.kwargs.get("non_differentiable_idx", ())),
    )
    return in_place_of(outputs, fresh)


def _position(tensor: Tensor, among: Sequence[Tensor]) -> int:
    return next((i for i, t in enumerate(among) if storage_of(t) == storage_of(tensor)), -1)


def _checkpoint(call: Call) -> object:
    body = call.body(0)
    args = call.args[1:]
    policy = checkpoint.policy_of(body)
    with call.recorder.region(_tensors(args)) as scope, checkpoint.tagging(call.recorder, policy):
        results = call.run(body, args)
        tensors = _tensors(results)
        emit_yield(call.recorder, tensors)
    aliases = [_position(r, _tensors(args)) for r in tensors]
    properties: dict[str, LiteralValue] = {"aliases": tuple(aliases)} if any(a >= 0 for a in aliases) else {}
    if mutates := aten.written_arguments(scope.block):
        properties["mutates"] = tuple(mutates)
    inputs = [*_tensors(args), *scope.captured]
    _create(call.recorder, autodiff.CheckpointOp, inputs, properties, [Region(scope.block)], tensors)
    return tuple(results)


def _gradient(call: Call) -> object:
    """torch.autograd.grad and its like: the gradients of outputs by inputs as one op."""
    arguments = dict(zip(_GRAD_ARGUMENTS, call.args, strict=False)) | call.kwargs
    outs, ins = _tensors(arguments["outputs"]), _tensors(arguments["inputs"])
    given = arguments.get("grad_outputs")
    seeds = [None] * len(outs) if given is None else as_list(given)
    if arguments.get("is_grads_batched"):
        raise UnsupportedError("is_grads_batched has no compiled form", op="torch.autograd.grad")
    create_graph = bool(arguments.get("create_graph", False))
    examples = as_list(call.example)
    present = [i for i, e in enumerate(examples) if isinstance(e, Tensor)]
    recorder = call.recorder
    results = [recorder.like(cast(Tensor, examples[i]), requires_grad=create_graph) for i in present]
    encoded: list[LiteralValue] = []
    operands: list[Tensor] = [*outs, *ins]
    for seed in seeds:
        encoded.append(None if seed is None else Operand(len(operands)))
        operands.extend([] if seed is None else [cast(Tensor, seed)])
    properties: dict[str, LiteralValue] = {
        "outs": len(outs),
        "ins": len(ins),
        "seeds": tuple(encoded),
        "create_graph": create_graph,
        "present": tuple(present),
    }
    _create(recorder, autodiff.VjpOp, operands, properties, [], results)
    found = dict(zip(present, results, strict=True))
    return tuple(found.get(i) for i in range(len(ins)))


_GRAD_ARGUMENTS = (
    "outputs",
    "inputs",
    "grad_outputs",
    "retain_graph",
    "create_graph",
    "only_inputs",
    "allow_unused",
    "is_grads_batched",
    "materialize_grads",
)


def _functorch_gradient(call: Call) -> object:
    """_autograd_grad(outputs, inputs, grad_outputs, retain_graph, create_graph) of torch.func.grad and vjp."""
    arguments = dict(
        zip(("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph"), call.args, strict=False)
    )
    kwargs = {"create_graph": True, **arguments, **call.kwargs}
    return _gradient(Call(call.recorder, call.run_body, (), kwargs, tuple(_tensors(kwargs["inputs"]))))


def _wrap_for_grad(call: Call) -> object:
    """The inner function's own variable: a value apart, so that only its uses are differentiated."""
    return torch.ops.aten.alias.default(cast(Tensor, call.args[0]))


def _enter_inference_mode(call: Call) -> object:
    """Nothing is recorded for gradients; that the results are inference tensors is torch's affair outside."""
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(before and not call.args[0])
    return before


def _exit_inference_mode(call: Call) -> object:
    torch.set_grad_enabled(bool(call.args[0]))
    return None


def _first(call: Call) -> object:
    return call.args[0]


def _nothing(call: Call) -> object:
    return None


def _enter_grad_level(call: Call) -> object:
    call.recorder.skipped_levels += 1
    return None


def _exit_grad_level(call: Call) -> object:
    call.recorder.skipped_levels -= 1
    return None


def _add_batch_dim(call: Call) -> object:
    tensor, dim, level = call.args
    return torch._C._functorch._add_batch_dim(tensor, dim, cast(int, level) - call.recorder.skipped_levels)


def _remove_batch_dim(call: Call) -> object:
    tensor, level, size, dim = call.args
    return torch._C._functorch._remove_batch_dim(tensor, cast(int, level) - call.recorder.skipped_levels, size, dim)


HANDLERS: dict[str, Handler] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "invoke_subgraph": _inline,
    "wrap": _inline,
    "autograd_function_apply": _custom,
    "tag_activation_checkpoint": _checkpoint,
    "torch.autograd.grad": _gradient,
    "torch.autograd.grad_mode._enter_inference_mode": _enter_inference_mode,
    "torch.autograd.grad_mode._exit_inference_mode": _exit_inference_mode,
    "torch._functorch.eager_transforms._autograd_grad": _functorch_gradient,
    "torch._C._functorch._wrap_for_grad": _wrap_for_grad,
    "torch._functorch.predispatch._unwrap_for_grad": _first,
    "torch._C._functorch._unwrap_for_grad": _first,
    "torch._functorch.eager_transforms._set_tensor_requires_grad": _first,
    "torch._C._functorch._grad_increment_nesting": _enter_grad_level,
    "torch._C._functorch._grad_decrement_nesting": _exit_grad_level,
    "torch._functorch.predispatch._add_batch_dim": _add_batch_dim,
    "torch._functorch.predispatch._remove_batch_dim": _remove_batch_dim,
    "torch._C._functorch.set_inplace_requires_grad_allowed": _nothing,
    "torch._C._autograd._saved_tensors_hooks_disable": _nothing,
    "torch._C._autograd._saved_tensors_hooks_enable": _nothing,
}
"""Name of a target -> what imports its calls."""


# ---- Regions


@dataclass(frozen=True)
class _Imported:
    """A body as a region, the fake tensors that it gives, and in which structure."""

    scope: Scope
    results: list[Tensor]
    structure: pytree.TreeSpec


def _region(call: Call, body: fx.GraphModule, args: Sequence[object], end: type[IRDLOperation]) -> _Imported:
    """Import a body on stand-ins of its arguments, so that what it does to them stays inside."""
    recorder = call.recorder
    stand_ins = [recorder.like(a, requires_grad=a.requires_grad) if isinstance(a, Tensor) else a for a in args]
    with recorder.region(_tensors(stand_ins)) as scope:
        results, structure = pytree.tree_flatten(call.run_body(body, recorder, stand_ins))
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
    counts: dict[str, LiteralValue],
    regions: Sequence[_Imported],
    results: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    requires_grad = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    fresh = [call.recorder.like(r, requires_grad=requires_grad) for r in results]
    op = _create(call.recorder, kind, inputs, counts, [Region(r.scope.block) for r in regions], fresh)
    _mark_gradients(call.recorder, op)
    return tuple(fresh)


def _create(
    recorder: Recorder,
    kind: type[IRDLOperation],
    operands: Sequence[Tensor],
    properties: dict[str, LiteralValue],
    regions: Sequence[Region],
    results: Sequence[Tensor],
) -> Operation:
    encoded: dict[str, Attribute] = {k: Literal.of(v) for k, v in properties.items()}
    op = ir.create_op(
        kind,
        [recorder.value_of(t) for t in operands],
        [recorder.type_of(t) for t in results],
        encoded,
        regions=regions,
        location=ir.location_attr(recorder.location),
    )
    recorder.emit(op)
    for tensor, value in zip(results, op.results, strict=True):
        recorder.define(tensor, value)
    return op


def _mark_gradients(recorder: Recorder, op: Operation) -> None:
    if not recorder.grad_mode():
        op.properties["grad"] = aten.FALSE


# ---- Values


def _shape(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, *tensor.shape


def _describe(tensors: Sequence[Tensor]) -> str:
    kinds = [f"{'x'.join(map(str, t.shape)) or 'scalar'} {DTYPE_NAMES.get(t.dtype, t.dtype)}" for t in tensors]
    return f"({', '.join(kinds)})"


def _stacked(recorder: Recorder, one: Tensor, length: int) -> Tensor:
    """Give a stand-in for `length` results of a body, stacked."""
    with recorder.unrecorded(), torch.no_grad():
        return one.new_empty((length, *one.shape))


def _flat(values: object) -> list[object]:
    return pytree.tree_leaves(values, is_leaf=lambda v: v is None)


def as_list(values: object) -> list[object]:
    """Give a tuple, a list or a single value as a list."""
    return list(cast(Sequence[object], values)) if isinstance(values, list | tuple) else [values]


def _tensors(values: object) -> list[Tensor]:
    return [v for v in as_list(values) if isinstance(v, Tensor)]


def exchange(values: Sequence[object], tensors: Sequence[Tensor]) -> list[object]:
    """Give the values with their tensors exchanged in order."""
    rest = iter(tensors)
    return [next(rest) if isinstance(v, Tensor) else v for v in values]


def in_place_of(values: object, tensors: Sequence[Tensor]) -> object:
    """Give the same structure with its tensors exchanged in order."""
    exchanged = exchange(as_list(values), tensors)
    return tuple(exchanged) if isinstance(values, list | tuple) else exchanged[0]


def emit_yield(recorder: Recorder, tensors: Sequence[Tensor]) -> None:
    """End a region of autodiff with these values."""
    recorder.emit(ir.create_op(autodiff.YieldOp, [recorder.value_of(t) for t in tensors], []))
