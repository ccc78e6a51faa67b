"""What Dynamo gets wrong about user rules inside of transforms and about tensors that modules hold, put right.

Dynamo keeps a `torch.autograd.Function` in the graph only where an argument wants a gradient by itself. Inside of
`grad`, `vjp`, `jacrev` and `vmap` none does, so that Dynamo would write down forward alone and the rule would be lost
without a word. Its own stand-in for the rule cannot be batched: inside of `vmap` the graph ends.

Before torch 2.13 the guards of a parameter are passed over while the dict that holds it is the same: one that is thawed
after the first call would get no gradient. A guard on an attribute of the tensor makes Dynamo look at it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import unimplemented
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.misc import AutogradFunctionVariable
from torch._guards import ChainedSource, TracingContext

from isthmus.frontend.torch_private import dynamo_source, open_transforms

Apply = Callable[..., VariableTracker]


def keeping_rules(apply: Apply) -> Apply:
    """Give Dynamo's way to call a user rule, made right inside of transforms."""

    @functools.wraps(apply)
    def repaired(self: Any, tx: Any, args: list[VariableTracker], kwargs: dict[str, VariableTracker]) -> Any:
        levels = open_transforms()
        if "Vmap" in levels and ("Grad" in levels or _wants_gradient(tx)):
            unimplemented(
                gb_type="autograd.Function inside of vmap",
                context=str(self),
                explanation="Dynamo has no form of a torch.autograd.Function over all examples of a vmap.",
                hints=["Compile with capture='trace'."],
            )
        marked: list[Any] = []
        if "Grad" in levels:
            VariableTracker.visit(lambda variable: _mark(variable, marked), (args, kwargs))
        try:
            return apply(self, tx, args, kwargs)
        finally:
            for variable in marked:
                variable.requires_grad = False

    return repaired


def _mark(variable: Any, marked: list[Any]) -> None:
    dtype = getattr(variable, "dtype", None)
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex) and not variable.requires_grad:
        variable.requires_grad = True
        marked.append(variable)


def _wants_gradient(tx: Any) -> bool:
    """Whether any tensor that the graph was given wants a gradient: inside of vmap none says so by itself."""
    known = (tracked.fake for tracked in tx.output.tracked_fakes)
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in known)


LOOKS_AT_HELD_TENSORS = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 13)


def guard_held_tensors(graph: fx.GraphModule) -> None:
    """Have Dynamo look at parameters and buffers whenever it checks its guards; for a backend, while it is called."""
    if LOOKS_AT_HELD_TENSORS or TracingContext.try_get() is None:
        return
    for node in graph.graph.find_nodes(op="placeholder"):
        source = dynamo_source(node)
        if isinstance(source, ChainedSource) and isinstance(node.meta.get("example_value"), torch.Tensor):
            install_guard(AttrSource(source, "requires_grad").make_guard(GuardBuilder.CONSTANT_MATCH))


def repair() -> None:
    """Wrap Dynamo's method once."""
    apply = getattr(AutogradFunctionVariable, "call_apply", None)
    if apply is not None and not hasattr(apply, "__wrapped__"):
        setattr(AutogradFunctionVariable, "call_apply", keeping_rules(apply))  # noqa: B010
