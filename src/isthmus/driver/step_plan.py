"""One structure of training step: which parameters it updates, their state, the numbers it reads, its programs.

The program takes the numbers of all groups as one tensor, which is refilled when one of them changes. The `step`
entries of the optimizer's state are views of one tensor, so that one addition counts them all. Parameters of one group
that were updated equally often are of one kind: what their updates share is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from isthmus.driver.artifacts import Announced
from isthmus.driver.session import Session
from isthmus.frontend.capture_dynamo import CaptureLog
from isthmus.frontend.capture_trace import TracedFunction
from isthmus.frontend.optimizers import Rule
from isthmus.frontend.torch_private import outside_modes
from isthmus.frontend.whole_step import Clipping, Kind, Member, Reached, WholeStep
from isthmus.runtime.device_libraries import PRODUCTS, load_behind

State = dict[str, Any]


class OtherParameters(Exception):
    """A program reaches other parameters than the one before: no two may count their updates together."""


@dataclass(frozen=True)
class Recipe:
    """What a step is made of."""

    model: nn.Module
    loss_fn: Callable[..., object]
    optimizer: Optimizer
    rule: type[Rule]
    clipping: Clipping
    micro_batches: int
    keeps_gradients: bool = False


@dataclass
class _Slot:
    """One trainable parameter: its group, its kind, its state as the program writes it (without `step`)."""

    param: Tensor
    group: int
    state: State
    kind: int = 0


class StepPlan:
    """Runs the steps of one structure. With `apart` every parameter is a kind of its own."""

    def __init__(self, recipe: Recipe, structure: object, session: Session, *, apart: bool = False) -> None:
        optimizer, rule = recipe.optimizer, recipe.rule
        self.structure, self.recipe = structure, recipe
        self._groups: list[dict[str, Any]] = optimizer.param_groups
        self._apart = apart
        self._slots = [
            _Slot(p, k, dict(optimizer.state.get(p) or {}))
            for k, g in enumerate(self._groups)
            for p in g["params"]
            if p.requires_grad
        ]
        self._device = self._slots[0].param.device if self._slots else torch.device("cpu")
        load_behind(self._device, PRODUCTS)  # few steps have none, and tracing takes as long
        self._steps = self._packed_steps() if rule.counts_steps else None
        self._kinds = self._classify()
        self._values: tuple[float, ...] = ()
        self._reached: Reached | None = None
        self._remember()
        kinds, count = self._layout()
        self._numbers = torch.zeros(count, dtype=torch.float64, device=self._device)
        step = WholeStep(
            recipe.model,
            recipe.loss_fn,
            rule,
            [Member(s.param, s.kind, i) for i, s in enumerate(self._slots)],
            kinds,
            recipe.clipping,
            recipe.micro_batches,
            self._steps,
            self._states_of,
            recipe.keeps_gradients,
        )
        log = CaptureLog(Announced("graph_breaks"), Announced("guards"), Announced("recompiles"))
        self._traced = TracedFunction(step, session.compile_captured, dynamic=session.options.dynamic, log=log)

    # ---- Kinds

    def _packed_steps(self) -> Tensor:
        """One tensor of all counts, in torch's dtype for them (float32, or float64 where that is the default)."""
        dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        counts = [float(slot.state.pop("step", 0.0)) for slot in self._slots]
        packed = torch.tensor(counts, dtype=dtype, device=self._device)
        known = self.recipe.optimizer.state
        for slot, count in zip(self._slots, packed.unbind(), strict=True):
            if slot.param in known and "step" in known[slot.param]:
                known[slot.param]["step"] = count
        return packed

    def _classify(self) -> list[list[Any]]:
        """Put each slot in its kind; gives per kind [group, fresh]."""
        counts = [float(c) for c in self._steps] if self._steps is not None else [_age(s.state) for s in self._slots]
        found: dict[tuple[int, float, int], int] = {}
        for i, (slot, count) in enumerate(zip(self._slots, counts, strict=True)):
            slot.kind = found.setdefault((slot.group, count, i if self._apart else 0), len(found))
        return [[group, count < 0] for group, count, _ in found]

    def _layout(self) -> tuple[list[Kind], int]:
        """Where the numbers of each kind are; the first two are the bounds of clipping."""
        kinds: list[Kind] = []
        first = 2
        for group, fresh in self._kinds:
            settings = self._groups[group]
            width = len(self.recipe.rule.numbers(settings, fresh))
            kinds.append(Kind(self.recipe.rule.settings(settings), first, width))
            first += width
        return kinds, first

    # ---- Calls

    def _settled(self) -> list[object] | None:
        """The settings of all groups to compare by identity; None where one may change in place (a tensor, a list)."""
        plain = all(_is_settled(v) for g in self._groups for name, v in g.items() if name != "params")
        return _settings(self._groups) if plain else None

    def fits(self, others: object) -> bool:
        """Whether the optimizer and its state are still what this plan is for; `others`: the rest of the structure.

        The usual answer, that nothing changed, is found without a step of Python for each parameter.
        """
        optimizer = self.recipe.optimizer
        if others != self.structure or optimizer.param_groups is not self._groups:
            return False
        if self._settings is None or not _same(_settings(self._groups), self._settings):
            if [self.recipe.rule.settings(g) for g in self._groups] != self._rules:
                return False
            self._values = ()  # a number may be another
            self._settings = self._settled()
        params = self._params
        if not _same(_params(self._groups), params) or any(map(_HOOKS, params)) or any(map(_LATE_HOOKS, params)):
            return False
        if list(map(_WANTED, params)) != self._wanted:
            return False
        entries = optimizer.state
        if entries is not self._entries or not _same(list(entries.values()), self._inner):
            return False
        if not _same(list(chain.from_iterable(map(_VALUES, self._inner))), self._held):
            return False
        steps = self._steps
        return steps is None or steps._version == self._version or self._still_alike(steps)

    def run(self, bounds: tuple[float, float], batch: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Run one step."""
        if not self._values or self._values[:2] != bounds:
            numbers = self.recipe.rule.numbers
            values = bounds
            for group, fresh in self._kinds:
                values += numbers(self._groups[group], fresh)
            self._numbers.copy_(torch.tensor(values, dtype=torch.float64))
            self._values = values
        found = self._traced(self._numbers, *batch, **kwargs)
        results, reached, gradients = cast(tuple[object, Reached, list[Tensor]], found)
        if self.recipe.keeps_gradients:
            for slot in self._slots:
                slot.param.grad = None
            for index, gradient in zip(reached.indices, gradients, strict=True):
                self._slots[index].param.grad = gradient
        if reached is not self._reached:
            self._install(reached)
        if self._steps is not None:
            self._version = self._steps._version
        return results

    def _still_alike(self, steps: Tensor) -> bool:
        """After somebody else wrote the counts: whether those of one kind are equal."""
        counts: dict[int, set[float]] = {}
        for slot, count in zip(self._slots, steps.tolist(), strict=True):
            counts.setdefault(slot.kind, set()).add(count)
        self._version = steps._version
        return all(len(c) == 1 for c in counts.values())

    # ---- State

    def _states_of(self, members: Sequence[Member]) -> list[State]:
        """The states of parameters that get a gradient (asked for while tracing), made where missing."""
        reached = Reached(tuple(m.index for m in members))
        if self._reached is not None and reached != self._reached and not self._apart:
            raise OtherParameters
        with outside_modes(), torch.no_grad():
            for member in members:
                slot = self._slots[member.index]
                wanted = self.recipe.rule.new_state(slot.param, self.recipe.rule.settings(self._groups[slot.group]))
                for name, tensor in wanted.items():
                    if slot.state.get(name) is None:
                        slot.state[name] = tensor
        return [self._slots[m.index].state for m in members]

    def _install(self, reached: Reached) -> None:
        """After a step: show the optimizer the state of what was updated; it is not fresh any more."""
        entries = self.recipe.optimizer.state
        for index in reached.indices:
            slot = self._slots[index]
            self._kinds[slot.kind][1] = False
            if not slot.state:
                continue
            entry: State = entries[slot.param]
            if self._steps is not None and "step" not in entry:
                entry["step"] = self._steps[index]
            for name, tensor in slot.state.items():
                if entry.get(name) is None:
                    entry[name] = tensor
        self._reached, self._values = reached, ()
        self._remember()

    def _remember(self) -> None:
        """Note by identity all that `fits` compares."""
        entries = self.recipe.optimizer.state
        self._settings = self._settled()
        self._rules = [self.recipe.rule.settings(g) for g in self._groups]
        self._params = _params(self._groups)
        self._wanted = list(map(_WANTED, self._params))
        self._entries, self._inner = entries, list(entries.values())
        self._version = 0 if self._steps is None else self._steps._version
        self._held = list(chain.from_iterable(map(_VALUES, self._inner)))


_VALUES = cast("Callable[[dict[str, Any]], Iterable[object]]", dict.values)
_HOOKS, _LATE_HOOKS = attrgetter("_backward_hooks"), attrgetter("_post_accumulate_grad_hooks")
_WANTED = attrgetter("requires_grad")


def _settings(groups: Sequence[dict[str, Any]]) -> list[object]:
    return list(chain.from_iterable(map(_VALUES, groups)))


def _is_settled(value: object) -> bool:
    """Whether a value stays what it is as long as it is the same object."""
    if isinstance(value, tuple):
        return all(map(_is_settled, cast("tuple[object, ...]", value)))
    return isinstance(value, int | float | str | None)


def _params(groups: Sequence[dict[str, Any]]) -> list[Tensor]:
    return list(chain.from_iterable(map(itemgetter("params"), groups)))


def _same(now: Sequence[object], then: Sequence[object]) -> bool:
    """Whether two lists hold the very same objects."""
    return len(now) == len(then) and all(map(is_, now, then))


def _age(state: State) -> float:
    """-1 for a parameter without state."""
    return 0.0 if any(v is not None for v in state.values()) else -1.0
