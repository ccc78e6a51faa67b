"""The derivative table: op class -> pullback, and which classes have none by their nature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Protocol, Self, TypeVar

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.dialects.prim import Emitter, PrimOp, UnaryOp
from isthmus.passes import elementary_form

Cotangents = Sequence[SSAValue | None]
"""One per result (given to a rule) or per operand (given by it); None is a symbolic zero."""

Needs = Sequence[bool]
"""Per operand whether its cotangent is asked for."""

Pullback = Callable[[Emitter, Operation, Cotangents, Needs], Cotangents]
NestedPullback = Callable[[Emitter, Operation, Cotangents, Needs, "Fallbacks"], Cotangents]

PULLBACKS: dict[type[Operation], Pullback] = {}
"""Filled when the rules are imported."""

NESTED_PULLBACKS: dict[type[Operation], NestedPullback] = {}
"""Rules of ops with regions or without a formula: they pull through other ops and so need the fallbacks too."""

CALL_PULLBACKS: dict[str, Pullback] = {}
"""Rules of `prim.opaque`, by callee; users add to it."""

CONSTANT: set[type[Operation]] = set()
"""Classes whose results do not depend differentiably on their operands (torch: requires_grad is False)."""

OpT = TypeVar("OpT", bound=Operation)
OpT_contra = TypeVar("OpT_contra", bound=Operation, contravariant=True)


class Rule(Protocol[OpT_contra]):
    """`rule(e, op, cts, needs)`: one cotangent per operand from one per result."""

    def __call__(self, e: Emitter, op: OpT_contra, cts: Cotangents, needs: Needs, /) -> Cotangents: ...


class NestedRule(Protocol[OpT_contra]):
    """A rule that gets the fallbacks beside."""

    def __call__(
        self, e: Emitter, op: OpT_contra, cts: Cotangents, needs: Needs, fallbacks: Fallbacks, /
    ) -> Cotangents: ...


def pullback(cls: type[OpT]) -> Callable[[Rule[OpT]], Rule[OpT]]:
    """Enter a rule for an op class. At least one of `cts` and of `needs` is there when it is called."""

    def enter(rule: Rule[OpT]) -> Rule[OpT]:
        PULLBACKS[cls] = rule  # pyright: ignore[reportArgumentType]
        return rule

    return enter


def nested_pullback(cls: type[OpT]) -> Callable[[NestedRule[OpT]], NestedRule[OpT]]:
    """Enter a rule that pulls through other ops."""

    def enter(rule: NestedRule[OpT]) -> NestedRule[OpT]:
        NESTED_PULLBACKS[cls] = rule  # pyright: ignore[reportArgumentType]
        return rule

    return enter


def call_pullback(callee: str) -> Callable[[Rule[OpT]], Rule[OpT]]:
    """Enter a rule for the library call of this overload, e.g. "mylib::op.default"."""

    def enter(rule: Rule[OpT]) -> Rule[OpT]:
        CALL_PULLBACKS[callee] = rule  # pyright: ignore[reportArgumentType]
        return rule

    return enter


def derivative(
    *classes: type[UnaryOp],
) -> Callable[[Callable[[Emitter, SSAValue, SSAValue], SSAValue]], Callable[[Emitter, SSAValue, SSAValue], SSAValue]]:
    """Enter y' as `rule(e, x, y)` of y = f(x); the pullback is x̄ = ȳ · conj y'."""

    def enter(rule: Callable[[Emitter, SSAValue, SSAValue], SSAValue]):
        def pull(e: Emitter, op: UnaryOp, cts: Cotangents, needs: Needs) -> Cotangents:
            return (e.mul(one(cts), e.conj(rule(e, op.x, op.y))),)

        for cls in classes:
            pullback(cls)(pull)
        return rule

    return enter


def zero_derivative(*classes: type[PrimOp]) -> None:
    """Declare piecewise constant functions: their results carry gradients, as in torch, which are 0."""

    def pull(e: Emitter, op: PrimOp, cts: Cotangents, needs: Needs) -> Cotangents:
        return (None,) * len(needs)

    for cls in classes:
        pullback(cls)(pull)


def constant(*classes: type[PrimOp]) -> None:
    """Declare functions whose results have no gradient at all."""
    CONSTANT.update(classes)


def one(cts: Cotangents) -> SSAValue:
    """Give the cotangent of the only result."""
    (g,) = cts
    if g is None:
        raise IRError("a pullback was called without a cotangent")
    return g


class Elementary(Protocol):
    """`form(e, op, *operands)`: the op's results from elementary primitives."""

    def __call__(self, e: Emitter, op: Operation, /, *operands: SSAValue) -> SSAValue | Sequence[SSAValue]: ...


ElementaryForms = Callable[[type[Operation]], Elementary | None]
"""Op class -> its elementary form, or None."""

DerivativeOf = Callable[[PrimOp, Needs], FuncOp | None]
"""Traced derivative of one library call, in primitives.

Arguments: the op's operands, its results, then one cotangent per differentiable result.
Results: one gradient per operand with `needs`, in order. None where nobody can derive it.
"""


BatchedOf = Callable[[PrimOp, Sequence[bool], ir.Dim], FuncOp | None]
"""One library call for all examples at once, in primitives: its operands, those with the flag with the examples in
front, to its results, all with the examples in front. None where nobody knows a better way than a loop."""


def _no_form(cls: type[Operation]) -> Elementary | None:
    return None


def _no_derivative(op: PrimOp, needs: Needs) -> None:
    return None


def _no_batched_form(op: PrimOp, mapped: Sequence[bool], size: ir.Dim) -> None:
    return None


def _draws_nothing(op: PrimOp) -> bool:
    return False


@dataclass(frozen=True)
class Fallbacks:
    """Where the derivative of an op without a rule comes from, and what is known of library calls."""

    elementary: ElementaryForms = _no_form
    derivative_of: DerivativeOf = _no_derivative
    batched_of: BatchedOf = _no_batched_form
    draws: Callable[[PrimOp], bool] = _draws_nothing
    """Whether a library call draws random numbers."""


FROM_TABLES = Fallbacks(elementary_form)
"""Elementary forms from the table of decompositions, no traced derivatives."""


class TakesDerivatives:
    """A pass that may need the derivative of a library call, which is handed to it."""

    fallbacks: Fallbacks = FROM_TABLES

    def with_derivatives(
        self,
        derivative_of: DerivativeOf,
        batched_of: BatchedOf = _no_batched_form,
        draws: Callable[[PrimOp], bool] = _draws_nothing,
    ) -> Self:
        """Give the same pass, which asks these functions about library calls."""
        prepared = copy(self)
        object.__setattr__(prepared, "fallbacks", Fallbacks(elementary_form, derivative_of, batched_of, draws))
        return prepared


def is_differentiable(value: SSAValue) -> bool:
    """Tell whether a value can have a gradient: a float or complex tensor."""
    return value.type is not ir.INDEX and ir.is_differentiable(ir.dtype_of(value))


RULES = (
    "arithmetic",
    "transcendental",
    "complex",
    "shape",
    "reduce",
    "windows",
    "index",
    "contract",
    "structured",
    "control",
    "call",
)
"""Modules of the rules, by subject."""


@cache
def load_rules() -> None:
    """Import every rule module once."""
    for subject in RULES:
        import_module(f"isthmus.passes.autodiff.rules.{subject}")
