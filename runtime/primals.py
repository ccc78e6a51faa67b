"""The arguments of a forward call, kept for a derivative of its gradient: references, not saved tensors.

Nothing is copied. Whether an argument was overwritten since matters only if such a derivative runs: versions tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from isthmus.diagnostics import UnsupportedError
from isthmus.runtime.convention import Convention, Value


class Primals:
    """What is kept of one call."""

    __slots__ = ("_missing", "_packed", "_values", "_versions")

    def __init__(self, arguments: Sequence[Value], keeper: PrimalKeeper, clones: dict[int, Tensor] | None) -> None:
        self._values: list[Value] | None = list(arguments)
        self._missing: frozenset[int] = frozenset()
        self._packed: tuple[int, ...] = ()
        self._versions = _versions(arguments, keeper.steady)
        for i in keeper.unwanted:  # without a history of its own it cannot keep this node's alive
            value = arguments[i]
            if isinstance(value, Tensor) and value.requires_grad:
                self._values[i] = value.detach()
        if keeper.overwritten:
            for i in keeper.overwritten:
                value = arguments[i]
                stand_in = without_value(value) if isinstance(value, Tensor) else value
                self._values[i] = stand_in if clones is None else clones[i]
            if clones is None:
                self._missing = keeper.overwritten

    def release(self) -> None:
        """Let go of the arguments: the graph was freed."""
        self._values = None

    @property
    def is_released(self) -> bool:
        """Whether the graph was freed."""
        return self._values is None

    @property
    def is_packed(self) -> bool:
        """Whether the arguments are among the node's saved tensors."""
        return bool(self._packed)

    def pack(self, *, expected: bool) -> list[Tensor]:
        """Give up the references, because the user's hooks decide what stays in memory.

        Where a derivative is expected, the tensors are given back, to be saved as torch saves tensors.
        """
        assert self._values is not None
        tensors = {i: v for i, v in enumerate(self._values) if isinstance(v, Tensor)}
        self._values = [v.new_zeros(()).expand(v.shape) if isinstance(v, Tensor) else v for v in self._values]
        self._versions = []
        if expected:
            self._packed = tuple(tensors)
            return list(tensors.values())
        self._missing = self._missing.union(tensors)
        return []

    def restore(self, keeper: PrimalKeeper, unpacked: Sequence[Tensor], unused: frozenset[int]) -> list[Value]:
        """The arguments, unchanged since; `unused` ones may be anything.

        `unpacked` are the saved tensors of the node, whose last ones are those that were packed. Raises
        UnsupportedError where one was not kept, RuntimeError where one was overwritten since.
        """
        assert self._values is not None
        values = list(self._values)
        if self._packed:
            for i, value in zip(self._packed, unpacked[-len(self._packed) :], strict=True):
                values[i] = value
        for i in sorted(self._missing - unused):
            raise UnsupportedError(
                f"a derivative of this gradient needs the value that {keeper.convention.name(i)} had in the forward"
                " call, and it was not kept",
                cure='compile with options={"higher_order": True}, or run the step again: from now on it is kept',
            )
        for i, version in zip(keeper.steady, self._versions, strict=False):
            if i not in unused and (now := _version(values[i])) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation:"
                    f" {keeper.convention.name(i)} is at version {now}; expected version {version} instead. It is"
                    " needed because the gradient of a compiled function is differentiated again"
                )
        return values


class _WithoutValue(torch.autograd.Function):
    """A tensor's shape and history; nobody reads its elements."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        return x.new_zeros(()).expand(x.shape)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Tensor:
        return gradients[0]


def without_value(x: Tensor) -> Tensor:
    """Stand in for a tensor whose value is about to go: gradients still find their way to where it came from."""
    with torch.enable_grad():
        return cast(Tensor, _WithoutValue.apply(x)) if x.requires_grad else x.detach()


class PrimalKeeper:
    """How the arguments of one function are kept."""

    def __init__(self, convention: Convention) -> None:
        self.convention = convention
        self.overwritten = frozenset(m.argument for m in convention.mutations)
        self.steady = tuple(i for i in range(convention.arguments) if i not in self.overwritten)
        wanted = set(convention.gradients)
        self.unwanted = tuple(i for i in self.steady if i not in wanted)


def _versions(arguments: Sequence[Value], which: Sequence[int]) -> list[int]:
    try:
        return [arguments[i]._version for i in which]  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    except (AttributeError, RuntimeError):  # a size, or an inference tensor
        return [_version(arguments[i]) for i in which]


def _version(value: Value) -> int:
    if not isinstance(value, Tensor) or value.is_inference():
        return 0
    return value._version
