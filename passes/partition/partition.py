"""Cut a joint function into a forward and a backward function at its narrowest place.

Before (`partition{strategy=min-cut}`):
    func.func @joint(%x: tensor<4xf32> {autodiff.primal}, %t: tensor<4xf32> {autodiff.tangent = 0})
        -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0}) {
      %c = prim.cos %x : tensor<4xf32>
      %y = prim.cos %c : tensor<4xf32>
      %s = prim.sin %c : tensor<4xf32>
      ...
After, with x kept and c computed a second time:
    func.func @forward(%x: tensor<4xf32> {autodiff.primal})
        -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.saved = 0})
    func.func @backward(%x: tensor<4xf32> {autodiff.saved = 0}, %t: tensor<4xf32> {autodiff.tangent = 0})
        -> (tensor<4xf32> {autodiff.gradient = 0}) {
      %c = prim.cos %x : tensor<4xf32>
      %s = prim.sin %c : tensor<4xf32>
      ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.signature import Signature
from isthmus.passes.options import check_words
from isthmus.passes.partition.choose import Choose, plan_chosen
from isthmus.passes.partition.early import plan_early
from isthmus.passes.partition.joint import Joint
from isthmus.passes.partition.narrow import narrowed
from isthmus.passes.partition.network import Plan, plan_default, plan_min_cut, plan_min_traffic
from isthmus.passes.partition.split import FORWARD, Halves, split
from isthmus.passes.partition.verify import verify_halves

STRATEGIES: dict[str, Callable[[Joint], Plan]] = {
    "min-cut": plan_early,
    "min-cut-late": plan_min_cut,
    "min-traffic": plan_min_traffic,
    "default": plan_default,
}
"""What decides which values are kept."""

OPTIMAL = "optimal"
"""The strategy that takes a budget."""


def plan_partition(
    func: FuncOp, strategy: str = "min-cut", budget: float = 1.0, choose: Choose | None = None
) -> tuple[Plan, Halves]:
    """Decide and build, leaving the joint function as it is. IRError for a strategy that does not exist.

    `budget` is for the strategy `optimal`, see `optimal.plan_optimal`; `choose` decides in place of a strategy.
    """
    joint = narrowed(func)
    plan: Plan
    if choose is not None:
        plan = plan_chosen(joint, choose)
    elif strategy == OPTIMAL:
        optimal = import_module("isthmus.passes.partition.optimal")  # scipy takes 0.1 s to import
        plan = optimal.plan_optimal(joint, budget)
    elif strategy in STRATEGIES:
        plan = STRATEGIES[strategy](joint)
    else:
        raise IRError(
            f"there is no strategy '{strategy}'", cure=f"the strategies are {', '.join(STRATEGIES)}, {OPTIMAL}"
        )
    halves = split(plan.joint, plan.kept)
    verify_halves(plan.joint, halves)
    return plan, halves


@dataclass(frozen=True)
class PartitionPass(ModulePass):
    """Needs: prim functions; those with tangents are joint ones. Leaves: @forward, and @backward where gradients are.

    `strategy`: `min-cut` keeps the fewest bytes that need nothing but pointwise recomputation; the gradient of a scalar
    begins in forward where that leaves less (not with `min-cut-late`). `min-traffic` makes both halves move the fewest
    (it keeps what a library call in backward reads), `default` keeps whatever backward reads; `optimal` recomputes as
    little as a `budget` allows: the most bytes that backward holds at once, or (up to 1) a fraction of what it holds
    with min-cut. A function without tangents becomes @forward.
    """

    name = "partition"

    strategy: str = "min-cut"
    budget: float = 1.0

    def __post_init__(self) -> None:
        """Check the strategy; IRError when there is none of that name."""
        check_words(self, strategy=(*STRATEGIES, OPTIMAL))

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace the module's function. IRError when there is not exactly one."""
        cut(op, self.strategy, self.budget)


def cut(module: ModuleOp, strategy: str = "min-cut", budget: float = 1.0, choose: Choose | None = None) -> None:
    """Replace a module's function by its halves. IRError when there is not exactly one."""
    functions = list(ir.functions(module).values())
    if len(functions) != 1:
        raise IRError(f"partition wants a module of one function, not of {len(functions)}")
    (func,) = functions
    if not Signature.of(func).tangents:
        func.sym_name = StringAttr(FORWARD)
        return
    _, halves = plan_partition(func, strategy, budget, choose)
    block = module.body.block
    func.detach()
    func.erase()
    block.add_ops(f for f in (halves.forward, halves.backward) if f is not None)
