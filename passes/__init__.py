"""Passes over the IR, loaded when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from xdsl.passes import ModulePass

PASSES: dict[str, str] = {
    "functionalize": "isthmus.passes.functionalize.functionalize:FunctionalizePass",
    "decompose": "isthmus.passes.decompose.decompose:DecomposePass",
    "differentiate": "isthmus.passes.autodiff.differentiate:DifferentiatePass",
    "jvp": "isthmus.passes.autodiff.jvp:JvpPass",
    "simplify": "isthmus.passes.simplify.simplify:SimplifyPass",
    "form-fma": "isthmus.passes.simplify.form_fma:FormFmaPass",
    "partition": "isthmus.passes.partition.partition:PartitionPass",
    "fuse": "isthmus.passes.fusion.fuse:FusePass",
    "schedule": "isthmus.passes.memory.schedule:SchedulePass",
    "plan-memory": "isthmus.passes.memory.plan_memory:PlanMemoryPass",
}
"""Pass name -> "module:class"."""


def load_pass(name: str) -> type[ModulePass]:
    """Give the class of a pass; KeyError when there is none of that name."""
    module, _, cls = PASSES[name].partition(":")
    return cast(type[ModulePass], getattr(import_module(module), cls))
