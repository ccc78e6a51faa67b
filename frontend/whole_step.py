"""A whole training step as one function to trace: loss, gradients, clipping, the optimizer's update in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from isthmus.diagnostics import UnsupportedError
from isthmus.frontend.optimizers import Rule


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
    ) -> None:
        self.__self__ = model  # whose attributes the guards watch
        self.__wrapped__ = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn  # and whose closure
        self.model, self.loss_fn, self.rule = model, loss_fn, rule
        self.members, self.kinds, self.clipping = members, kinds, clipping
        self.micro_batches = micro_batches
        self.steps, self.states = steps, states

    def __call__(self, numbers: Tensor, *args: object, **kwargs: object) -> tuple[object, Reached]:
        """Give what the loss function returns, detached, and which members were updated, in place."""
        with torch.enable_grad():
            results, grads = self._accumulated(args, kwargs)
        with torch.no_grad():
            reached = [(m, g) for m, g in zip(self.members, grads, strict=True) if g is not None]
            found = self._clipped([g for _, g in reached], numbers)
            self._update([m for m, _ in reached], found, numbers)
        return results, Reached(tuple(m.index for m, _ in reached))

    # ---- Loss and gradients

    def _accumulated(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, list[Tensor | None]]:
        """Mean of losses and gradients over the micro-batches."""
        n = self.micro_batches
        if n == 1:
            return self._gradients(args, kwargs)
        parts = [self._gradients(*part) for part in _pieces(args, kwargs, n)]
        grads = [_sum(gs) for gs in zip(*(g for _, g in parts), strict=True)]
        return _joined([r for r, _ in parts]), [None if g is None else g / n for g in grads]

    def _gradients(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, list[Tensor | None]]:
        results = self.loss_fn(self.model, *args, **kwargs)
        loss = results[0] if isinstance(results, tuple | list) else results
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise UnsupportedError(
                "the loss function must return one number that depends on a parameter, or a tuple that begins with it",
                op="train_step",
                cure="return loss, or (loss, anything else), and see that some parameter requires a gradient",
            )
        wanted = [m.param for m in self.members]
        grads = torch.autograd.grad(loss.sum(), wanted, allow_unused=True)
        return pytree.tree_map_only(Tensor, torch.Tensor.detach, results), list(grads)

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
        for member, grad, state in zip(members, grads, states, strict=True):
            kind = self.kinds[member.kind]
            if member.kind not in shared:
                own = [numbers[kind.first + k] for k in range(kind.count)]
                step = None if steps is None else steps[member.index]
                shared[member.kind] = self.rule.prepare(kind.settings, own, step)
            self.rule.update(kind.settings, shared[member.kind], member.param, grad, state)


def _sum(terms: Sequence[Tensor | None]) -> Tensor | None:
    found = [t for t in terms if t is not None]
    total = found[0] if found else None
    for term in found[1:]:
        total = cast(Tensor, total) + term
    return total


def _pieces(
    args: Sequence[object], kwargs: Mapping[str, object], n: int
) -> list[tuple[Sequence[object], Mapping[str, object]]]:
    """Cut every tensor of at least one dimension along the first; all else goes to every piece."""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    columns = [_cut(leaf, n) for leaf in leaves]
    return [pytree.tree_unflatten([c[i] for c in columns], structure) for i in range(n)]


def _cut(leaf: object, n: int) -> list[object]:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        return [leaf] * n
    if leaf.shape[0] % n:
        raise UnsupportedError(
            f"a batch of {int(leaf.shape[0])} cannot be split in {n} equal micro-batches",
            op="train_step",
            cure="use a batch size that is a multiple of micro_batches (a data loader's drop_last=True)",
        )
    size = leaf.shape[0] // n
    return [leaf[i * size : (i + 1) * size] for i in range(n)]


def _joined(parts: Sequence[object]) -> object:
    """The results of the micro-batches as one: numbers are averaged, other tensors follow each other."""
    flat = [pytree.tree_flatten(p) for p in parts]
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    return pytree.tree_unflatten([_join(c) for c in columns], flat[0][1])


def _join(column: Sequence[object]) -> object:
    if not isinstance(column[0], Tensor):
        return column[0]
    tensors = cast(Sequence[Tensor], column)
    if tensors[0].dim():
        return torch.cat(list(tensors))
    mean = torch.stack(list(tensors)).to(torch.promote_types(tensors[0].dtype, torch.float32)).mean()
    return mean.to(tensors[0].dtype) if tensors[0].is_floating_point() else mean
