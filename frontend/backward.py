"""`loss.backward()` while a function is traced: gradients are outputs of the program, added to `.grad` after each call.

What comes back from the traced function is wrapped in a pytree node, so whoever fills in the outputs of a call also
accumulates the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from xdsl.ir import BlockArgument

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend.recorder import Recorder
from isthmus.frontend.torch_private import is_entered

_INSIDE = "use torch.autograd.grad inside, isthmus.train_step for whole steps, or capture='dynamo'"


@dataclass
class Backward:
    """The gradients that a traced function accumulates."""

    recorder: Recorder
    found: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, tuple[Tensor, Tensor]])
    """Per leaf, by its id: the real tensor, and the sum of its gradients so far."""

    def run(self, gradient: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Tensor.backward or torch.autograd.backward; `gradient` is torch.autograd.grad as it is traced."""
        is_function = "tensors" in kwargs or isinstance(args[0], tuple | list) or "grad_tensors" in kwargs
        names = _OF_THE_FUNCTION if is_function else _OF_THE_METHOD
        named = dict(zip(names, args, strict=False))
        named |= {_RENAMED.get(name, name): value for name, value in kwargs.items()}
        if named.get("create_graph"):
            raise UnsupportedError("backward(create_graph=True) has no compiled form", cure=_INSIDE)
        leaves = self._leaves(named.get("inputs"))
        seeds = named.get("gradient")
        grads = gradient(named["outputs"], leaves, seeds, allow_unused=True) if leaves else ()
        for leaf, grad in zip(leaves, cast("Sequence[Tensor | None]", grads), strict=True):
            if grad is None:
                continue
            _require_plain(leaf)
            before = self.found.get(id(leaf))
            with torch.no_grad():
                self.found[id(leaf)] = (leaf, grad if before is None else before[1] + grad)

    def _leaves(self, inputs: object) -> list[Tensor]:
        """The leaves that the program may reach: those it holds by itself. Arguments change from call to call."""
        values = self.recorder.root.values
        given = [t for t, v in values.items() if isinstance(v, BlockArgument) and t.requires_grad]
        held = [t for t in self.recorder.constants if t.requires_grad and t.is_leaf]
        if len(given) > len(held):
            raise UnsupportedError(
                "backward() to an argument of the function, or to a tensor with history, has no compiled form",
                cure=_INSIDE,
            )
        if inputs is None:
            return held
        wanted = {id(t) for t in pytree.tree_leaves(inputs)}
        if not wanted <= {id(t) for t in held}:
            raise UnsupportedError("backward(inputs=...) reaches parameters only", cure=_INSIDE)
        return [t for t in held if id(t) in wanted]

    def refuse_grad(self) -> None:
        """`.grad` is read or assigned in the program: it would be that of the first call for ever."""
        if is_entered(self.recorder):
            self.recorder.locate()
            with self.recorder.errors_at("grad"):
                raise UnsupportedError("the program reads or assigns .grad while it is compiled", cure=_INSIDE)

    def wrapped(self, result: object) -> object:
        """The function's result, with the gradients that a call accumulates."""
        if not self.found:
            return result
        leaves, grads = zip(*self.found.values(), strict=True)
        return _WithGradients(result, tuple(grads), tuple(leaves))


_OF_THE_METHOD = ("outputs", "gradient", "retain_graph", "create_graph", "inputs")
_OF_THE_FUNCTION = ("outputs", "gradient", "retain_graph", "create_graph", "grad_variables", "inputs")
_RENAMED = {"tensors": "outputs", "grad_tensors": "gradient"}


def _require_plain(leaf: Tensor) -> None:
    if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType]
        raise UnsupportedError("hooks on parameters do not run in a compiled backward()", cure=_INSIDE)


@dataclass(frozen=True)
class _WithGradients:
    result: object
    grads: tuple[object, ...]
    leaves: tuple[Tensor, ...]


def _flatten(node: _WithGradients) -> tuple[list[object], tuple[Tensor, ...]]:
    return [node.result, node.grads], node.leaves


def _unflatten(children: Sequence[object], leaves: tuple[Tensor, ...]) -> object:
    """Put the outputs of a call in place: real gradients are accumulated, and the plain result is given."""
    result, grads = children[0], cast("tuple[object, ...]", children[1])
    if not all(isinstance(g, Tensor) for g in grads):
        return _WithGradients(result, grads, leaves)  # the template itself
    with torch.no_grad():
        for leaf, grad in zip(leaves, cast("tuple[Tensor, ...]", grads), strict=True):
            if leaf.grad is None:
                leaf.grad = grad.detach()
            else:
                leaf.grad += grad
    return result


pytree.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
    _WithGradients,
    _flatten,  # pyright: ignore[reportArgumentType]
    _unflatten,  # pyright: ignore[reportArgumentType]
    serialized_type_name="isthmus.frontend.backward._WithGradients",
)
