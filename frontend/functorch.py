"""torch.func as Dynamo writes it, levels that calls in a flat graph enter and leave, as structured ops again.

grad   _wrap_for_grad .. _autograd_grad                one autodiff.vjp
jvp    _make_dual .. _unpack_dual                      the vjp of the vjp: J·u = d⟨Jᵀ·t, u⟩/dt
vmap   _add_batch_dim .. _remove_batch_dim             one autodiff.batch, written when its level is left
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend.batching import Batch
from isthmus.frontend.gradients import gradient
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.structure import Call, tensors_in

# ---- grad, vjp


def wrap_for_grad(call: Call) -> object:
    """The inner function's own variable: a value apart, so that only its uses are differentiated."""
    return torch.ops.aten.alias.default(cast(Tensor, call.args[0]))


def autograd_grad(call: Call) -> object:
    """_autograd_grad(outputs, inputs, grad_outputs, retain_graph, create_graph)."""
    names = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
    kwargs = {"create_graph": True, **dict(zip(names, call.args, strict=False)), **call.kwargs}
    return gradient(Call(call.recorder, call.run_body, (), kwargs, tuple(tensors_in(kwargs["inputs"]))))


# ---- jvp


def enter_jvp(call: Call) -> object:
    """A new set of variables; within torch.func.jvp only the outermost one enters a level of forward mode too."""
    call.recorder.duals.append([])
    return 0


def leave_jvp(call: Call) -> object:
    """Its variables no longer move."""
    call.recorder.duals.pop()
    return None


def make_dual(call: Call) -> object:
    """_make_dual(primal, tangent): a variable that moves."""
    primal, tangent = tensors_in(call.args[:2])
    variable = torch.ops.aten.alias.default(primal)
    call.recorder.duals[-1].append((variable, tangent))
    return variable


def unpack_dual(call: Call) -> object:
    """_unpack_dual(y): y, and how it moves."""
    (y,) = tensors_in(call.args[0])
    moving = call.recorder.duals[-1]
    if not moving or not (y.is_floating_point() or y.is_complex()):
        return y, None
    variables = [v for v, _ in moving]
    still = torch.ops.aten.alias.default(torch.zeros_like(y))
    pulled = _vjp(call, [y], variables, [still])
    (moved,) = _vjp(call, pulled, [still], [u for _, u in moving])
    return y, moved


def _vjp(call: Call, outputs: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> list[Tensor]:
    asked: dict[str, object] = {"outputs": outputs, "inputs": inputs, "grad_outputs": seeds, "create_graph": True}
    return tensors_in(gradient(Call(call.recorder, call.run_body, (), asked, tuple(inputs))))


def set_forward_mode(call: Call) -> object:
    """_set_fwd_grad_enabled: on it always is."""
    if not call.args[0]:
        raise UnsupportedError("switching forward-mode differentiation off has no compiled form")
    return None


# ---- vmap


@dataclass
class _OpenBatch:
    """A vmap while its function is imported. A result's stand-in is returned at once, its value made at the end."""

    batch: Batch
    outs: list[Tensor] = field(default_factory=list[Tensor])
    placed: list[tuple[Tensor, int]] = field(default_factory=list[tuple[Tensor, int]])


def enter_vmap(call: Call) -> object:
    """_vmap_increment_nesting(size, randomness)."""
    size, randomness = call.args
    batch = Batch(call.recorder, cast(int, size), cast(str, randomness))
    call.recorder.batches.append(_OpenBatch(batch))
    return len(call.recorder.batches)


def add_batch_dim(call: Call) -> object:
    """_add_batch_dim(tensor, dim, level): one example of it."""
    tensor, dim = cast(tuple[Tensor, int], call.args[:2])
    return _innermost(call.recorder).batch.example(tensor, dim)


def remove_batch_dim(call: Call) -> object:
    """_remove_batch_dim(example, level, size, dim): all examples, counted by a dimension."""
    (out,), dim = tensors_in(call.args[0]), cast(int, call.args[3])
    recorder, opened = call.recorder, _innermost(call.recorder)
    with recorder.unrecorded(), torch.no_grad():
        whole = out.new_empty((opened.batch.size, *out.shape)).movedim(0, dim)
    stand_in = recorder.like(whole, requires_grad=out.requires_grad, derived_from=[out])
    opened.outs.append(out)
    opened.placed.append((stand_in, dim))
    return stand_in


def leave_vmap(call: Call) -> object:
    """_vmap_decrement_nesting()."""
    recorder = call.recorder
    opened = _innermost(recorder)
    recorder.batches.pop()
    for whole, (stand_in, dim) in zip(opened.batch.close(opened.outs), opened.placed, strict=True):
        recorder.define(stand_in, recorder.value_of(whole.movedim(0, dim)))
    return len(recorder.batches)


def _innermost(recorder: Recorder) -> _OpenBatch:
    return cast(_OpenBatch, recorder.batches[-1])


# ---- what is said without words


def first(call: Call) -> object:
    """The value itself."""
    return call.args[0]


def nothing(call: Call) -> object:
    """Bookkeeping of torch's own."""
    return None


Handler = Callable[[Call], object]

_LEVELS: dict[str, Handler] = {
    "_grad_increment_nesting": nothing,
    "_grad_decrement_nesting": nothing,
    "_wrap_for_grad": wrap_for_grad,
    "_unwrap_for_grad": first,
    "_jvp_increment_nesting": enter_jvp,
    "_jvp_decrement_nesting": leave_jvp,
    "_enter_dual_level": enter_jvp,
    "_exit_dual_level": leave_jvp,
    "_make_dual": make_dual,
    "_unpack_dual": unpack_dual,
    "lazy_load_decompositions": nothing,
    "_vmap_increment_nesting": enter_vmap,
    "_vmap_decrement_nesting": leave_vmap,
    "_add_batch_dim": add_batch_dim,
    "_remove_batch_dim": remove_batch_dim,
}

HANDLERS: dict[str, Handler] = {
    "torch._functorch.eager_transforms._autograd_grad": autograd_grad,
    "torch._functorch.eager_transforms._set_tensor_requires_grad": first,
    "torch._C._functorch.set_inplace_requires_grad_allowed": nothing,
    "torch._C._autograd._saved_tensors_hooks_disable": nothing,
    "torch._C._autograd._saved_tensors_hooks_enable": nothing,
    "torch._C._set_fwd_grad_enabled": set_forward_mode,
    "torch.autograd.forward_ad._maybe_load_decompositions": nothing,
    **{f"torch._functorch.predispatch.{name}": handler for name, handler in _LEVELS.items()},
    **{f"torch._C._functorch.{name}": handler for name, handler in _LEVELS.items()},
    # torch before 2.12 writes forward mode's own functions
    **{f"torch._C.{name}": _LEVELS[name] for name in ("_enter_dual_level", "_exit_dual_level")},
    **{f"torch.{name}": _LEVELS[name] for name in ("_make_dual", "_unpack_dual")},
}
"""Name of a target -> what imports its calls."""
