"""What every primitive has: result types inferred from operands and literals, a verifier, folding at birth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar

from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from isthmus import ir
from isthmus.diagnostics import IRError
from isthmus.ir import Literal, LiteralOp, LiteralValue, Shape

if TYPE_CHECKING:
    from isthmus.dialects.prim.emitter import Emitter

Types = tuple[Attribute, ...]
Literals = Mapping[str, LiteralValue]


class PrimOp(LiteralOp):
    """A pure function of tensors: no aliasing, no implicit broadcasting, every dimension named."""

    HINT: ClassVar[str] = "v"
    COST: ClassVar[float] = 1.0
    """Price of one result element in units of an addition (an exp is about 10); data movement is priced by bytes."""
    EXPLICIT: ClassVar[bool] = False
    """Whether the result type is chosen by who makes the op (a shape, a dtype), not inferred."""

    traits = traits_def(Pure())

    @classmethod
    def infer(cls, types: Types, literals: Literals) -> Types:
        """Give the result types; IRError when the operands do not fit."""
        raise NotImplementedError(cls.name)

    @classmethod
    def check(cls, types: Types, literals: Literals, results: Types) -> None:
        """Check chosen result types (`EXPLICIT` ops); IRError when they do not fit."""

    @classmethod
    def fold(cls, e: Emitter, operands: tuple[SSAValue, ...], literals: Literals) -> SSAValue | None:
        """Give a value that already is the result, or None. Only rewrites that keep every bit."""
        return None

    def verify_(self) -> None:
        """Compare the result types with the inferred ones."""
        types = tuple(v.type for v in ir.operands_of(self))
        results = tuple(r.type for r in self.results)
        literals = literals_of(self)
        try:
            if self.EXPLICIT:
                self.check(types, literals, results)
                return
            expected = self.infer(types, literals)
        except IRError as error:
            raise VerifyException(f"'{self.name}': {error.what}") from error
        if expected != results:
            wanted = ", ".join(map(str, expected))
            raise VerifyException(f"'{self.name}': result types must be {wanted}, not {', '.join(map(str, results))}")


def literals_of(op: LiteralOp) -> dict[str, LiteralValue]:
    """Give the properties of an op as Python values."""
    return {key: attr.data for key, attr in op.properties.items() if isinstance(attr, Literal)}


PRIM_OPS: list[type[PrimOp]] = []

OpT = TypeVar("OpT", bound=PrimOp)


def prim_op(cls: type[OpT]) -> type[OpT]:
    """Define a primitive: IRDL's checks, the name hint of its results, the dialect's list."""
    defined = irdl_op_definition(cls)
    defined.HINT = defined.name.rpartition(".")[2]
    PRIM_OPS.append(defined)
    return defined


# ---- checks that several primitives share


def require(condition: bool, what: str | Callable[[], str]) -> None:
    """Raise IRError(what) unless the condition holds."""
    if not condition:
        raise IRError(what if isinstance(what, str) else what())


def require_dims(dims: tuple[int, ...], rank: int, what: str = "dims") -> None:
    """Check that dims are distinct and 0 <= d < rank."""
    require(
        len(set(dims)) == len(dims) and all(0 <= d < rank for d in dims),
        lambda: f"{what} {list(dims)} must be distinct and in [0, {rank})",
    )


def without(shape: Shape, dims: tuple[int, ...]) -> Shape:
    """Give the shape less the dims."""
    return tuple(s for d, s in enumerate(shape) if d not in dims)


def ints(value: LiteralValue) -> tuple[int, ...]:
    """Give a literal as a tuple of ints; IRError when it is none."""
    if isinstance(value, tuple) and all(type(v) is int for v in value):
        return value  # pyright: ignore[reportReturnType]
    raise IRError(f"expected a list of integers, not {ir.literal_text(value)}")


def dim(value: LiteralValue) -> ir.Dim:
    """Give a literal as one size; IRError when it is none."""
    if type(value) is int or isinstance(value, ir.Size):
        return value
    raise IRError(f"expected a size, not {ir.literal_text(value)}")


def integer(value: LiteralValue) -> int:
    """Give a literal as an int; IRError when it is none."""
    if type(value) is int:
        return value
    raise IRError(f"expected an integer, not {ir.literal_text(value)}")


def text(value: LiteralValue) -> str:
    """Give a literal as a string; IRError when it is none."""
    if isinstance(value, str):
        return value
    raise IRError(f"expected a string, not {ir.literal_text(value)}")
