"""A program that is trained: its joint function, the two halves that it is cut into, its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp

from isthmus import ir
from isthmus.dialects import new_context
from isthmus.dialects.signature import OWN_SAVED, Signature
from isthmus.driver.draws import Draw
from isthmus.driver.options import Options
from isthmus.passes.autodiff.differentiate import gradients_of, replace_function
from isthmus.passes.partition.explain import Explanation, explain_partition
from isthmus.passes.pipelines import run_passes
from isthmus.runtime.convention import Convention


@dataclass(frozen=True)
class Halves:
    """A prim program, its joint function, forward and backward, each a module of one function."""

    prim: ModuleOp
    joint: ModuleOp
    forward: ModuleOp
    backward: ModuleOp
    convention: Convention
    drawn: tuple[Draw, ...]
    """What the forward draws from torch's generators."""

    def backward_with_own(self) -> ModuleOp:
        """Give the backward, told which saved values are nobody's but its own: it may write over them."""
        own = tuple(j for j, saved in enumerate(self.convention.saved) if saved.kind == "intermediate")
        ir.function(self.backward, "backward").attributes[OWN_SAVED] = ir.Literal.of(own)
        return self.backward


def only(module: ModuleOp, name: str) -> ModuleOp:
    """Give a new module with a copy of one function and the module's attributes."""
    return ModuleOp([ir.copied(ir.function(module, name))], dict(module.attributes))


def apart(module: ModuleOp, name: str) -> ModuleOp:
    """Take a function out of a module; gives it in a module of its own with the same attributes."""
    func = ir.function(module, name)
    func.detach()
    return ModuleOp([func], dict(module.attributes))


def explain_cut(joint: ModuleOp, options: Options, before: Sequence[str] = ("end-differentiation",)) -> Explanation:
    """Say what the partition of a joint program keeps, and why; `before`: what is done to it first."""
    ended = joint.clone()
    run_passes(new_context(), ended, before)
    return explain_partition(ir.function(ended, "joint"), *options.cut, options.partition)


def without_gradients(module: ModuleOp) -> None:
    """Drop the wish for gradients: the program was captured where none are recorded."""
    func = ir.function(module, "main")
    signature = Signature.of(func)
    arguments = tuple(replace(a, wants_gradient=False) for a in signature.arguments)
    replace(signature, arguments=arguments).attach(func)


def gradient_function(joint: ModuleOp) -> ModuleOp:
    """Give @main whose results are the gradients of @joint: what order n computes, order n + 1 differentiates."""
    module = only(joint, "joint")
    replace_function(module, "joint", gradients_of(ir.function(module, "joint")))
    return module
