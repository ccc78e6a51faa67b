"""Differentiation inside a program: custom rules, checkpoints, torch.autograd.grad, torch.func.grad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, fx
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from xdsl.ir import Region

from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten, autodiff
from isthmus.frontend import checkpoint
from isthmus.frontend.custom_gradient import emit_custom, without_grad_marks
from isthmus.frontend.structure import Call, as_list, create, emit_yield, exchange, in_place_of, tensors_in
from isthmus.frontend.torch_private import storage_of
from isthmus.ir import LiteralValue, Operand


def custom(call: Call) -> object:
    """autograd_function_apply(forward, backward, *args): forward gives (outputs, saved)."""
    recorder = call.recorder
    forward, backward, *args = call.args
    if call.kwargs.get("dirty_idx"):
        raise UnsupportedError("ctx.mark_dirty has no compiled form", op="autograd.Function")
    with without_grad_marks(recorder), recorder.region(tensors_in(args)) as scope:
        given = call.run_body(cast(fx.GraphModule, forward), recorder, args)
        outputs, saved = cast(tuple[object, object], given)
        results, saved_tensors = tensors_in(outputs), tensors_in(as_list(saved))
        emit_yield(recorder, [*results, *saved_tensors])
    cotangents = [recorder.like(r, requires_grad=False) for r in results]
    with without_grad_marks(recorder), recorder.region([*cotangents, *saved_tensors]) as back:
        arguments = [*exchange(as_list(outputs), cotangents), *as_list(saved)]
        grads = as_list(call.run_body(cast(fx.GraphModule, backward), recorder, arguments))
        emit_yield(recorder, tensors_in(grads))
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


def sorted_by(names: Sequence[object], values: Mapping[str, object]) -> list[object]:
    """Give the values of a mapping in the order of names."""
    return [values[str(name)] for name in names if name in values]


def _position(tensor: Tensor, among: Sequence[Tensor]) -> int:
    return next((i for i, t in enumerate(among) if storage_of(t) == storage_of(tensor)), -1)


def checkpointed(call: Call) -> object:
    """tag_activation_checkpoint(body, *args): one region, its ops tagged by the policy if there is one."""
    body = call.body(0)
    _, named = TagActivationCheckpoint.divide_kwargs(call.kwargs)
    places = [n.target for n in body.graph.nodes if n.op == "placeholder"]
    args = (*call.args[1:], *sorted_by(places, named))
    policy = checkpoint.policy_of(body)
    with call.recorder.region(tensors_in(args)) as scope, checkpoint.tagging(call.recorder, policy):
        results = call.run(body, args)
        tensors = tensors_in(results)
        emit_yield(call.recorder, tensors)
    aliases = [_position(r, tensors_in(args)) for r in tensors]
    properties: dict[str, LiteralValue] = {"aliases": tuple(aliases)} if any(a >= 0 for a in aliases) else {}
    if mutates := aten.written_arguments(scope.block):
        properties["mutates"] = tuple(mutates)
    inputs = [*tensors_in(args), *scope.captured]
    create(call.recorder, autodiff.CheckpointOp, inputs, properties, [Region(scope.block)], tensors)
    return tuple(results)


def gradient(call: Call) -> object:
    """torch.autograd.grad and its like: the gradients of outputs by inputs as one op."""
    arguments = dict(zip(_GRAD_ARGUMENTS, call.args, strict=False)) | call.kwargs
    outs, ins = tensors_in(arguments["outputs"]), tensors_in(arguments["inputs"])
    given = arguments.get("grad_outputs")
    seeds = [None] * len(outs) if given is None else as_list(given)
    if arguments.get("is_grads_batched"):
        raise UnsupportedError("is_grads_batched has no compiled form", op="torch.autograd.grad")
    create_graph = bool(arguments.get("create_graph", False))
    examples = as_list(call.example)
    present = [i for i, e in enumerate(examples) if isinstance(e, Tensor)]
    recorder = call.recorder
    fakes = [recorder.fake_of(t) for t in ins]
    if not all(recorder.scope.sees_history_of(t) or recorder.scope.begins_at(t) for t in fakes):
        raise UnsupportedError(
            "a gradient by a tensor from outside of the region that asks for it has no compiled form",
            op="torch.autograd.grad",
            cure="differentiate inside of it: call isthmus.grad or isthmus.vjp in the branch or the loop's body",
        )
    sources = [*outs, *ins, *(s for s in seeds if isinstance(s, Tensor))]
    results = [
        recorder.like(cast(Tensor, examples[i]), requires_grad=create_graph, derived_from=sources) for i in present
    ]
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
    create(recorder, autodiff.VjpOp, operands, properties, [], results)
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
