"""The tables: overload -> decomposition, structured primitive -> elementary form, and what a rule is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar

from xdsl.ir import Attribute, Block, SSAValue

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter, PrimOp
from isthmus.ir import Shape
from isthmus.sizes import Dim

Values = SSAValue | Sequence[SSAValue | None]
"""What a rule gives: one value, or one per result (None where the result does not exist)."""

Scalar = bool | int | float | complex | ir.Size | SSAValue
"""What stands for a number in a schema: a number, a size, or a 0-d value that holds it."""

REASON = "isthmus.reason"
"""Attribute of a call that stays with the library: why."""

Rule = Callable[..., Values]
"""`rule(e, call, *args)`: one Python argument per schema argument."""


class Refusal(Exception):
    """Raised by a rule that does not cover a call: the call stays a library call, and says why."""


class RandomNumbers:
    """The random draws of one block: one key argument, made when first asked for, and the first unused counter."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._counter: Dim = 0
        self.key: SSAValue | None = None

    def draw(self, e: Emitter, kind: str, shape: Sequence[Dim], dtype: str) -> SSAValue:
        """Give numbers of the kind that no other draw of the block gives."""
        if self.key is None:
            self.key = self._block.insert_arg(ir.tensor((), "i64"), len(self._block.args))
            self.key.name_hint = "key"
        served = prim.elements_of_a_counter(dtype)
        numbers = e.rng(self.key, kind, self._counter * served, shape, dtype)
        self._counter = self._counter + (ir.numel(ir.tensor(shape, dtype)) + (served - 1)) // served
        return numbers


def library_call(
    e: Emitter,
    callee: str,
    operands: Sequence[SSAValue],
    args: tuple[ir.LiteralValue, ...],
    types: Sequence[Attribute],
    reason: str,
) -> tuple[SSAValue, ...]:
    """Emit a call that stays with the library, and why."""
    results = e.opaque(callee, operands, args, types)
    call = e.block.last_op
    assert call is not None
    call.attributes[REASON] = ir.Literal.of(reason)
    return results


@dataclass(frozen=True)
class Call:
    """The call that a rule decomposes: its overload, result types and source of random numbers."""

    e: Emitter
    overload: str
    types: tuple[Attribute, ...]
    random: RandomNumbers | None
    puts_back: bool = False
    """Whether it puts a written view back into its base."""

    def shape(self, result: int = 0) -> Shape:
        """Give the shape of a result."""
        return ir.shape_of(self.types[result])

    def dtype(self, result: int = 0) -> str:
        """Give the dtype of a result."""
        return ir.dtype_of(self.types[result])

    def uniform(self, shape: Sequence[Dim], dtype: str) -> SSAValue:
        """Fresh random numbers, uniform in [0, 1)."""
        return self._draw("uniform", shape, dtype)

    def bits(self, shape: Sequence[Dim]) -> SSAValue:
        """32 fresh random bits an element, as i64."""
        return self._draw("bits", shape, "i64")

    @property
    def draws_from_library(self) -> bool:
        """Whether random numbers are torch's own."""
        return self.random is None

    def library_noise(self, chance: float, like: SSAValue) -> SSAValue:
        """1 with the chance, else 0, drawn by torch from its own stream in the order of `like` in memory"""
        arguments = (ir.Operand(0), float(chance), None)
        (noise,) = library_call(self.e, "bernoulli.p", [like], arguments, [like.type], "the stream is torch's own")
        return self.e.stop_gradient(noise)

    def _draw(self, kind: str, shape: Sequence[Dim], dtype: str) -> SSAValue:
        if self.random is None:
            raise Refusal("random numbers come from the library")
        return self.random.draw(self.e, kind, shape, dtype)


class Table:
    """Rules by overload name ("add.Tensor", "mylib::scale.default")."""

    def __init__(self, base: Table | None = None) -> None:
        self._base = base
        self._rules: dict[str, Rule] = {}

    def find(self, overload: str) -> Rule | None:
        """Give the rule of an overload, or None; on values `add_.Tensor` means `add.Tensor`."""
        rule = self._rules.get(overload) or (self._base.find(overload) if self._base else None)
        if rule is not None:
            return rule
        name, _, variant = overload.rpartition(".")
        in_place = name.endswith("_") and not name.endswith("__")
        return self.find(f"{name[:-1]}.{variant}") if in_place else None

    def add(self, overload: str, rule: Rule) -> None:
        """Enter a rule, replacing the one there is."""
        self._rules[overload] = rule

    def __iter__(self) -> Iterator[str]:
        """The overloads with a rule."""
        yield from {**dict.fromkeys(self._base or ()), **self._rules}


DEFAULT = Table()
"""The rules of `rules/`."""

TABLES: dict[str, Table] = {"default": DEFAULT, "none": Table()}
"""By name, for the pass option `table`; a backend adds its own, `Table(base=DEFAULT)` to change single rules."""

Elementary = Callable[..., Sequence[SSAValue] | SSAValue]
"""`rule(e, op, *operands)`: one value per result."""

ELEMENTARY: dict[type[PrimOp], Elementary] = {}
"""Structured primitive -> its form in elementary primitives."""

RuleT = TypeVar("RuleT", bound=Rule)
ElementaryT = TypeVar("ElementaryT", bound=Elementary)


def decomposition(*overloads: str, table: Table = DEFAULT) -> Callable[[RuleT], RuleT]:
    """Enter `rule(e, call, *args)` for overloads; a later entry replaces an earlier one.

    Tensors are SSA values, lists of tensors tuples of them, sizes `int` or `Size`, dtypes names like "f32", other
    arguments Python values. A rule gives one value per result, of exactly the type in `call.types`, or raises
    `Refusal` to leave the call to the library.
    """

    def enter(rule: RuleT) -> RuleT:
        for overload in overloads:
            table.add(overload, rule)
        return rule

    return enter


def elementary(*classes: type[PrimOp]) -> Callable[[ElementaryT], ElementaryT]:
    """Enter `rule(e, op, *operands)`, the elementary form of structured primitives."""

    def enter(rule: ElementaryT) -> ElementaryT:
        for cls in classes:
            ELEMENTARY[cls] = rule
        return rule

    return enter


def load_rules() -> None:
    """Fill the default tables from `rules/`, once."""
    import_module("isthmus.passes.decompose.rules")
