"""`isthmus.train_step`: loss, gradients, clipping and the optimizer's update as one program, one native call a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from isthmus.driver.options import Options
from isthmus.driver.session import Session
from isthmus.driver.step_plan import OtherParameters, Recipe, StepPlan
from isthmus.frontend.generation import generation
from isthmus.frontend.optimizers import require_compilable, rule_of
from isthmus.frontend.whole_step import Clipping


def train_step(
    model: nn.Module,
    loss_fn: Callable[..., object],
    optimizer: Optimizer,
    *,
    max_norm: float | None = None,
    clip_value: float | None = None,
    micro_batches: int = 1,
    keep_gradients: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> TrainStep:
    """Compile a whole training step; `step(*batch)` then runs it and gives what the loss function returns, detached.

    `loss_fn(model, *batch)` returns the loss (one number), or a tuple that begins with it. The step computes its
    gradients, clips each element to [-clip_value, clip_value] and then the norm of all to `max_norm` (as
    torch.nn.utils.clip_grad_value_ and clip_grad_norm_), and updates parameters and optimizer state in place as
    `optimizer.step()` would. `micro_batches=n` cuts every tensor of the batch in n along dimension 0, one after the
    other, and averages losses and gradients; other tensors that are returned are joined along dimension 0, numbers
    averaged. `.grad` is not read; with `keep_gradients` it holds the gradients that the step applied (clipped)
    afterwards, None where there was none, else it is not written either. Numbers in `optimizer.param_groups` are read
    at every step: a schedule compiles nothing. `dynamic`, `mode`, `options`: as for `isthmus.compile`; on a GPU the
    step is replayed as a CUDA graph unless a mode without graphs ("default") or `options={"cuda_graphs": False}` is
    asked for.

    Raises ValueError and TypeError on bad arguments, UnsupportedError for optimizers without a compiled update (there
    are SGD, Adam, AdamW) and for hooks that a compiled step would skip.
    """
    _require_in_order(model, loss_fn, optimizer)
    if micro_batches < 1:
        raise ValueError(f"micro_batches={micro_batches} must be at least 1")
    chosen = Options(dynamic=dynamic, cuda_graphs=mode is None).with_settings(mode, options)
    return TrainStep(
        model, loss_fn, optimizer, Session(chosen, warm=True), max_norm, clip_value, micro_batches, keep_gradients
    )


def _require_in_order(model: object, loss_fn: object, optimizer: object) -> None:
    if not (isinstance(model, nn.Module) and callable(loss_fn) and isinstance(optimizer, Optimizer)):
        given = ", ".join(type(a).__name__ for a in (model, loss_fn, optimizer))
        raise TypeError(f"train_step takes a module, a loss function and an optimizer, not ({given})")


class TrainStep:
    """A compiled training step. `max_norm` and `clip_value` may be changed between steps; None is off."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., object],
        optimizer: Optimizer,
        session: Session,
        max_norm: float | None = None,
        clip_value: float | None = None,
        micro_batches: int = 1,
        keep_gradients: bool = False,
    ) -> None:
        self.model, self.loss_fn, self.optimizer, self.session = model, loss_fn, optimizer, session
        self.max_norm, self.clip_value = max_norm, clip_value
        self.micro_batches = micro_batches
        self.keep_gradients = keep_gradients
        self._rule = rule_of(optimizer)
        require_compilable(optimizer)
        self._plan: StepPlan | None = None

    def __call__(self, *batch: object, **kwargs: object) -> Any:
        """Run one step on a batch; gives what the loss function returns, detached."""
        structure = self._structure()
        if self._plan is None or not self._plan.fits(structure):
            require_compilable(self.optimizer)
            self._plan = StepPlan(self._what(), structure, self.session)
        bounds = (self.max_norm or 0.0, self.clip_value or 0.0)
        try:
            results = self._plan.run(bounds, batch, kwargs)
        except OtherParameters:
            self._plan = StepPlan(self._what(), structure, self.session, apart=True)
            results = self._plan.run(bounds, batch, kwargs)
        self.optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue] (what schedulers look at)
        return results

    def _structure(self) -> tuple[object, ...]:
        """What the program depends on, beside the batch, the model and the optimizer."""
        clipping = self.max_norm is None, self.clip_value is None
        return clipping, self.micro_batches, self.keep_gradients, generation()

    def _what(self) -> Recipe:
        clipping = Clipping(self.clip_value is not None, self.max_norm is not None)
        parts = (self.model, self.loss_fn, self.optimizer, self._rule, clipping)
        return Recipe(*parts, self.micro_batches, self.keep_gradients)
