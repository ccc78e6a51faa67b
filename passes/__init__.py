"""Passes over the IR, loaded when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from xdsl.ir import Operation
from xdsl.passes import ModulePass

if TYPE_CHECKING:
    from isthmus.passes.autodiff.table import Elementary

PASSES: dict[str, str] = {
    "functionalize": "isthmus.passes.functionalize.functionalize:FunctionalizePass",
    "decompose": "isthmus.passes.decompose.decompose:DecomposePass",
    "vectorize": "isthmus.passes.vectorize.vectorize:VectorizePass",
    "differentiate": "isthmus.passes.autodiff.differentiate:DifferentiatePass",
    "end-differentiation": "isthmus.passes.autodiff.end_differentiation:EndDifferentiationPass",
    "jvp": "isthmus.passes.autodiff.jvp:JvpPass",
    "simplify": "isthmus.passes.simplify.simplify:SimplifyPass",
    "fold-into-conv": "isthmus.passes.simplify.fold_into_conv:FoldIntoConvPass",
    "form-attention": "isthmus.passes.simplify.form_attention:FormAttentionPass",
    "group-dots": "isthmus.passes.simplify.group_dots:GroupDotsPass",
    "join-dots": "isthmus.passes.simplify.join_dots:JoinDotsPass",
    "turn-dots": "isthmus.passes.memory.turn_dots:TurnDotsPass",
    "cse": "isthmus.passes.simplify.cse:CsePass",
    "dce": "isthmus.passes.simplify.dce:DcePass",
    "form-fma": "isthmus.passes.simplify.form_fma:FormFmaPass",
    "prepay-gradients": "isthmus.passes.partition.prepay:PrepayGradientsPass",
    "partition": "isthmus.passes.partition.partition:PartitionPass",
    "select-library": "isthmus.passes.fusion.select_library:SelectLibraryPass",
    "fuse": "isthmus.passes.fusion.fuse:FusePass",
    "chunk-rows": "isthmus.passes.memory.chunk_rows:ChunkRowsPass",
    "join-in-place": "isthmus.passes.memory.join_in_place:JoinInPlacePass",
    "scale-saved": "isthmus.passes.memory.scale_saved:ScaleSavedPass",
    "early-checks": "isthmus.passes.memory.early_checks:EarlyChecksPass",
    "pick-first": "isthmus.passes.memory.pick_first:PickFirstPass",
    "schedule": "isthmus.passes.memory.schedule:SchedulePass",
    "schedule-gpu": "isthmus.passes.memory.schedule_gpu:ScheduleGpuPass",
    "plan-memory": "isthmus.passes.memory.plan_memory:PlanMemoryPass",
    "store-past-caches": "isthmus.passes.memory.store_past_caches:StorePastCachesPass",
}
"""Pass name -> "module:class"."""


def load_pass(name: str) -> type[ModulePass]:
    """Give the class of a pass; KeyError when there is none of that name."""
    module, _, cls = PASSES[name].partition(":")
    return cast(type[ModulePass], getattr(import_module(module), cls))


def elementary_form(cls: type[Operation]) -> Elementary | None:
    """Give the elementary form of a structured primitive from the table of decompositions, or None."""
    table = import_module("isthmus.passes.decompose.table")
    table.load_rules()
    return cast("Elementary | None", table.ELEMENTARY.get(cls))
