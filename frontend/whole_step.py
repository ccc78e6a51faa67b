"""A whole training step as one function to trace: loss, gradients, clipping, the optimizer's update in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan_op
from torch.utils import _pytree as pytree

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend.locations import of_function
from isthmus.frontend.optimizers import Rule
from isthmus.frontend.repeats import Repeats


@dataclass(frozen=True)
class Member:
    """One trainable parameter: its class, and its place in the tensor of step counts."""

    param: Tensor
    kind: int
    index: int


@dataclass(frozen=True)
class Kind:
    """Parameters that share every number of their update: one group, updated equally often."""

    settings: Any
    first: int
    """Where its numbers begin in the tensor of numbers."""
    count: int


@dataclass(frozen=True)
class Clipping:
    """Which clipping is asked for; the bounds are the first two entries of the tensor of numbers."""

    value: bool
    norm: bool


@dataclass(frozen=True)
class Reached:
    """Which of the members a program updates."""

    indices: tuple[int, ...]


class WholeStep:
    """What is traced. `states(members)` gives the state of the parameters that get a gradient, made where missing."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., object],
        rule: type[Rule],
        members: Sequence[Member],
        kinds: Sequence[Kind],
        clipping: Clipping,
        micro_batches: int,
        steps: Tensor | None,
        states: Callable[[Sequence[Member]], Sequence[Mapping[str, Tensor]]],
        keeps_gradients: bool = False,
    ) -> None:
        self.__self__ = model  # whose attributes the guards watch
        self.__wrapped__ = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn  # and whose closure
        self.model, self.loss_fn, self.rule = model, loss_fn, rule
        self.members, self.kinds, self.clipping = members, kinds, clipping
        self.micro_batches = micro_batches
        self.steps, self.states = steps, states
        self.keeps_gradients = keeps_gradients

    def __call__(self, numbers: Tensor, *args: object, **kwargs: object) -> tuple[object, Reached, list[Tensor]]:
        """Give what the loss function returns, detached, which members were updated, in place, and by what gradients.

        The gradients are as they were applied, clipped; none where nobody keeps them.
        """
        with torch.enable_grad():
            results, grads = self._accumulated(args, kwargs)
        with torch.no_grad():
            reached = [(m, g) for m, g in zip(self.members, grads, strict=True) if g is not None]
            found = self._clipped([g for _, g in reached], numbers)
            self._update([m for m, _ in reached], found, numbers)
        return results, Reached(tuple(m.index for m, _ in reached)), found if self.keeps_gradients else []

    # ---- Loss and gradients

    def _accumulated(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, list[Tensor | None]]:
        """Mean of losses and gradients over the micro-batches."""
        n = self.micro_batches
        if n == 1:
            return self._gradients(args, kwargs)
        leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        cut = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()]
        pieces = [_pieces(cast(Tensor, leaves[i]), n) for i in cut]
        template: list[object] = []
        reached: list[bool] = []

        def body(*given: Tensor) -> list[Tensor]:
            sums, parts = given[: len(self.members)], given[len(self.members) :]
            own = [parts[cut.index(i)] if i in cut else leaf for i, leaf in enumerate(leaves)]
            with torch.enable_grad():
                results, grads = self._gradients(*pytree.tree_unflatten(own, structure))
            reached[:] = [g is not None for g in grads]
            template[:] = [results]
            outputs = [t for t in pytree.tree_leaves(results) if isinstance(t, Tensor)]
            return [*(s.clone() if g is None else s + g for s, g in zip(sums, grads, strict=True)), *outputs]

        with torch.no_grad():
            start = [torch.zeros_like(m.param, requires_grad=False) for m in self.members]
            totals = scan_op(body, start, pieces, ())
            grads = [t / n if r else None for t, r in zip(totals, reached, strict=False)]
            return _joined(template[0], totals[len(start) :]), grads

    def _gradients(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, list[Tensor | None]]:
        results = self.loss_fn(self.model, *args, **kwargs)
        loss = results[0] if isinstance(results, tuple | list) else results
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise UnsupportedError(
                f"the loss function gave {_described(loss)}, not one number that depends on a parameter",
                op="train_step",
                location=of_function(self.__wrapped__),
                cure="return loss, or (loss, anything else), and see that some parameter requires a gradient",
            )
        wanted = [m.param for m in self.members]
        grads = list(cast(Sequence[Tensor | None], torch.autograd.grad(loss.sum(), wanted, allow_unused=True)))
        if all(g is None for g in grads):
            raise UnsupportedError(
                "the loss depends on no parameter that the optimizer has",
                op="train_step",
                location=of_function(self.__wrapped__),
                cure="make the optimizer of this model's parameters: Optimizer(model.parameters(), ...)",
            )
        return pytree.tree_map_only(Tensor, torch.Tensor.detach, results), grads

    # ---- Clipping

    def _clipped(self, grads: list[Tensor], numbers: Tensor) -> list[Tensor]:
        """Clip each element first, then the norm of all: g *= min(max_norm / (norm + 1e-6), 1)."""
        if self.clipping.value:
            bound = numbers[1]
            grads = [torch.minimum(torch.maximum(g, -bound.to(g.dtype)), bound.to(g.dtype)) for g in grads]
        if self.clipping.norm and grads:
            squares = [(g * g).sum() for g in grads]
            norm = torch.stack(squares).sum().sqrt()
            factor = (numbers[0] / (norm + 1e-6)).clamp(max=1.0)
            grads = [g * factor for g in grads]
        return grads

    # ---- Update

    def _update(self, members: Sequence[Member], grads: Sequence[Tensor], numbers: Tensor) -> None:
        steps = self.steps
        states = self.states(members)
        if steps is not None:
            mask = [1.0 if any(m.index == i for m in members) else 0.0 for i in range(len(self.members))]
            steps.add_(1) if all(mask) else steps.add_(torch.tensor(mask, device=steps.device))
        shared: dict[int, tuple[Tensor, ...]] = {}
        repeats = Repeats()
        for member, grad, state in zip(members, grads, states, strict=True):
            kind = self.kinds[member.kind]
            if member.kind not in shared:
                own = [numbers[kind.first + k] for k in range(kind.count)]
                step = None if steps is None else steps[member.index]
                shared[member.kind] = self.rule.prepare(kind.settings, own, step)
            own, given = shared[member.kind], (kind.settings, shared[member.kind], member.param, grad, state)
            tensors = [member.param, grad, *state.values()]
            repeats.run(lambda given=given: self.rule.update(*given), tensors, own, (member.kind, *state))


def _described(loss: object) -> str:
    if not isinstance(loss, Tensor):
        return "nothing" if loss is None else f"a value of type {type(loss).__name__}"
    return f"a tensor of shape {list(loss.shape)}{'' if loss.requires_grad else ' without a gradient'}"


def _pieces(whole: Tensor, n: int) -> Tensor:
    """The pieces of a tensor along its first dimension, stacked."""
    if whole.shape[0] % n:
        raise UnsupportedError(
            f"a batch of {int(whole.shape[0])} cannot be split in {n} equal micro-batches",
            op="train_step",
            cure="use a batch size that is a multiple of micro_batches (a data loader's drop_last=True)",
        )
    return whole.view(n, whole.shape[0] // n, *whole.shape[1:])


def _joined(template: object, stacked: Sequence[Tensor]) -> object:
    """The results of the micro-batches as one: numbers are averaged, other tensors follow each other."""
    rest = iter(stacked)
    leaves, structure = pytree.tree_flatten(template)
    return pytree.tree_unflatten([_join(next(rest)) if isinstance(t, Tensor) else t for t in leaves], structure)


def _join(stacked: Tensor) -> Tensor:
    if stacked.dim() > 1:
        return stacked.flatten(0, 1)
    mean = stacked.to(torch.promote_types(stacked.dtype, torch.float32)).mean()
    return mean.to(stacked.dtype) if stacked.is_floating_point() else mean
