"""Calls of a torch-level graph that are not recorded as calls: their structure is kept, or they only set the scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch._ops import HigherOrderOperator

from isthmus.diagnostics import UnsupportedError
from isthmus.dialects import aten
from isthmus.frontend import control_flow, functorch, gradients
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.structure import Call
from isthmus.ir import Literal

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


def _inline(call: Call) -> object:
    """invoke_subgraph(body, name, *args): the body runs where it is called."""
    args = call.args[2:] if isinstance(call.args[1], str) else call.args[1:]
    return call.run_body(call.body(0), call.recorder, args)


def _enter_inference_mode(call: Call) -> object:
    """Nothing is recorded for gradients; that the results are inference tensors is torch's affair outside."""
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(before and not call.args[0])
    return before


def _exit_inference_mode(call: Call) -> object:
    torch.set_grad_enabled(bool(call.args[0]))
    return None


def _data_attribute(call: Call) -> object:
    """x.data: the same memory without history."""
    return data_of(call.recorder, cast(torch.Tensor, call.args[0]))


def data_of(recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor:
    """Record `tensor.data`."""
    detached = torch.ops.aten.detach.default(tensor)
    made = recorder.scope.block.last_op
    if made is not None:
        made.attributes[aten.DATA] = Literal.of(True)
    return detached


HANDLERS: dict[str, Handler] = {
    "cond": control_flow.cond,
    "while_loop": control_flow.while_loop,
    "scan": control_flow.scan,
    "map_impl": control_flow.map_slices,
    "invoke_subgraph": _inline,
    "wrap": _inline,
    "autograd_function_apply": gradients.custom,
    "tag_activation_checkpoint": gradients.checkpointed,
    "torch.autograd.grad": gradients.gradient,
    "torch.autograd.grad_mode._enter_inference_mode": _enter_inference_mode,
    "torch.autograd.grad_mode._exit_inference_mode": _exit_inference_mode,
    "torch._C._autograd._get_data_attr": _data_attribute,
    **functorch.HANDLERS,
}
"""Name of a target -> what imports its calls."""
