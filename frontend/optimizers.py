"""Update rules of optimizers as tensor programs, over torch's own param_groups and state.

Every number of a group (learning rate, betas, ...) is a 0-d float64 tensor here, so that a schedule changes no program;
0-d tensors do not promote the parameters that they multiply.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from isthmus.diagnostics import UnsupportedError

Group = Mapping[str, Any]
"""One entry of `optimizer.param_groups`."""

_EAGER = "call optimizer.step() yourself and compile forward and loss with isthmus.compile"


class Rule(Protocol):
    """How one kind of optimizer updates parameters. `Settings` below is what a program's structure depends on."""

    counts_steps: ClassVar[bool]
    """Whether the state holds `step`, the number of updates so far."""

    @staticmethod
    def settings(group: Group) -> Hashable:
        """What of a group decides the program's structure: flags, and which numbers are not zero."""
        ...

    @staticmethod
    def numbers(group: Group, fresh: bool) -> tuple[float, ...]:
        """The numbers of a group that the program takes as inputs; `fresh`: its parameters have no state yet."""
        ...

    @staticmethod
    def new_state(param: Tensor, settings: Any) -> dict[str, Tensor]:
        """The state before the first update, but for `step`."""
        ...

    @staticmethod
    def prepare(settings: Any, numbers: Sequence[Tensor], step: Tensor | None) -> tuple[Tensor, ...]:
        """0-d values that all parameters of one group share; `step` counts this update."""
        ...

    @staticmethod
    def update(
        settings: Any, shared: tuple[Tensor, ...], param: Tensor, grad: Tensor, state: Mapping[str, Tensor]
    ) -> None:
        """Write the parameter and its state in place."""
        ...


@dataclass(frozen=True)
class SGDSettings:
    """What the program of a group of SGD depends on."""

    momentum: bool
    nesterov: bool
    weight_decay: bool
    maximize: bool


class SGDRule:
    """Gradient descent with momentum: b = m b + (1 - d) g; p -= lr b, or lr (g + m b) with Nesterov's momentum.

    Sutskever, Martens, Dahl and Hinton, On the importance of initialization and momentum in deep learning, 2013, in
    the form that torch.optim.SGD documents. The first b is g, without dampening d.
    """

    counts_steps: ClassVar[bool] = False

    @staticmethod
    def settings(group: Group) -> SGDSettings:
        """Flags of a group."""
        return SGDSettings(group["momentum"] != 0, group["nesterov"], group["weight_decay"] != 0, group["maximize"])

    @staticmethod
    def numbers(group: Group, fresh: bool) -> tuple[float, ...]:
        """Learning rate, momentum, what a gradient counts in the buffer, weight decay."""
        gain = 1.0 if fresh else 1.0 - float(group["dampening"])
        return float(group["lr"]), float(group["momentum"]), gain, float(group["weight_decay"])

    @staticmethod
    def new_state(param: Tensor, settings: SGDSettings) -> dict[str, Tensor]:
        """A zero buffer: with gain 1 the first update makes it the gradient."""
        return {"momentum_buffer": torch.zeros_like(param)} if settings.momentum else {}

    @staticmethod
    def prepare(settings: SGDSettings, numbers: Sequence[Tensor], step: Tensor | None) -> tuple[Tensor, ...]:
        """The numbers themselves."""
        return tuple(numbers)

    @staticmethod
    def update(
        settings: SGDSettings, shared: tuple[Tensor, ...], param: Tensor, grad: Tensor, state: Mapping[str, Tensor]
    ) -> None:
        """One update in place."""
        lr, momentum, gain, weight_decay = shared
        grad = -grad if settings.maximize else grad
        if settings.weight_decay:
            grad = grad + param * weight_decay
        if settings.momentum:
            buffer = state["momentum_buffer"]
            buffer.mul_(momentum).add_(grad * gain)
            grad = grad + buffer * momentum if settings.nesterov else buffer
        param.sub_(grad * lr)


@dataclass(frozen=True)
class AdamSettings:
    """What the program of a group of Adam or AdamW depends on."""

    amsgrad: bool
    decoupled: bool
    weight_decay: bool
    maximize: bool


class AdamRule:
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr m' / (sqrt(v') + eps), m' = m / (1 - b1^t), v' likewise.

    Kingma and Ba, Adam: a method for stochastic optimization, 2015; AMSGrad's running maximum of v: Reddi, Kale and
    Kumar, On the convergence of Adam and beyond, 2018; decoupled weight decay, p *= 1 - lr w: Loshchilov and Hutter,
    Decoupled weight decay regularization, 2019. As torch documents them the maximum is of v, not of v'.
    """

    counts_steps: ClassVar[bool] = True

    @staticmethod
    def settings(group: Group) -> AdamSettings:
        """Flags of a group."""
        decoupled = bool(group.get("decoupled_weight_decay", False))
        return AdamSettings(group["amsgrad"], decoupled, group["weight_decay"] != 0, group["maximize"])

    @staticmethod
    def numbers(group: Group, fresh: bool) -> tuple[float, ...]:
        """Learning rate, both betas, epsilon, weight decay."""
        first, second = group["betas"]
        return float(group["lr"]), float(first), float(second), float(group["eps"]), float(group["weight_decay"])

    @staticmethod
    def new_state(param: Tensor, settings: AdamSettings) -> dict[str, Tensor]:
        """Zero moments."""
        names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if settings.amsgrad else ()))
        return {name: torch.zeros_like(param) for name in names}

    @staticmethod
    def prepare(settings: AdamSettings, numbers: Sequence[Tensor], step: Tensor | None) -> tuple[Tensor, ...]:
        """What is computed once from the number of the update: lr / (1 - b1^t), 1 / sqrt(1 - b2^t), ..."""
        assert step is not None
        lr, first, second, eps, weight_decay = numbers
        t = step.double()
        size = lr / (1 - first**t)
        scale = (1 - second**t).rsqrt()
        decay = 1 - lr * weight_decay if settings.decoupled else weight_decay
        return size, scale, 1 - first, second, 1 - second, eps, decay

    @staticmethod
    def update(
        settings: AdamSettings, shared: tuple[Tensor, ...], param: Tensor, grad: Tensor, state: Mapping[str, Tensor]
    ) -> None:
        """One update in place."""
        size, scale, new_first, second, new_second, eps, decay = shared
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        grad = -grad if settings.maximize else grad
        if settings.weight_decay and settings.decoupled:
            param.mul_(decay)
        elif settings.weight_decay:
            grad = grad + param * decay
        mean.add_((grad - mean) * new_first)
        square.mul_(second).add_(grad * grad * new_second)
        if settings.amsgrad:
            state["max_exp_avg_sq"].copy_(torch.maximum(state["max_exp_avg_sq"], square))
            square = state["max_exp_avg_sq"]
        param.sub_(mean * size / (square.sqrt() * scale + eps))


RULES: Mapping[type[Optimizer], type[Rule]] = {SGD: SGDRule, Adam: AdamRule, AdamW: AdamRule}
"""Exact type of an optimizer -> its update rule; a subclass may compute something else."""


def rule_of(optimizer: Optimizer) -> type[Rule]:
    """Give the update rule; UnsupportedError where there is none."""
    rule = RULES.get(type(optimizer))
    if rule is None:
        known = ", ".join(t.__name__ for t in RULES)
        raise UnsupportedError(
            f"the update of {type(optimizer).__name__} has no compiled form (there are {known})",
            op="train_step",
            cure=_EAGER,
        )
    return rule


def require_compilable(optimizer: Optimizer) -> None:
    """Refuse what the eager step would do beside the update; UnsupportedError names it."""
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise UnsupportedError(
                "an update with differentiable=True has no compiled form", op="train_step", cure=_EAGER
            )
        for param in group["params"]:
            _require_plain(param)
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)  # pyright: ignore
    if any(hooks):
        raise UnsupportedError(
            "hooks around optimizer.step() do not run in a compiled step",
            op="train_step",
            cure="remove them and do their work before or after the step; or " + _EAGER,
        )


def _require_plain(param: Tensor) -> None:
    if getattr(param, "_backward_hooks", None) or getattr(param, "_post_accumulate_grad_hooks", None):
        raise UnsupportedError(
            "hooks on parameters do not run in a compiled step",
            op="train_step",
            cure="do in the loss function what the hook does, or " + _EAGER,
        )
    if param.is_complex() or param.layout != torch.strided:
        raise UnsupportedError(
            f"a {param.dtype} parameter ({param.layout}) has no compiled update", op="train_step", cure=_EAGER
        )
