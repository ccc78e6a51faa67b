"""Who is who among the arguments and results of a function: roles as attributes, decoded and encoded in one place.

func.func @joint(%x: tensor<4xf32> {autodiff.primal, autodiff.wants_gradient}, %t: tensor<4xf32> {autodiff.tangent = 0})
    -> (tensor<4xf32> {autodiff.output}, tensor<4xf32> {autodiff.gradient = 0})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from isthmus import ir
from isthmus.diagnostics import IRError, nearest
from isthmus.ir import Literal, LiteralValue, Shape
from isthmus.sizes import Dim

OUTPUTS = "isthmus.outputs"
"""Function attribute: the user's flat output list, see `Signature.user_outputs`."""

OWN_SAVED = "isthmus.own_saved"
"""Attribute of a backward function: the saved values that nobody else has, so that it may write over them."""


WRITTEN_BACK = "isthmus.written_back"
"""Attribute of a planned function: the results that the program itself copies to the arguments they are to replace."""

ZERO = "autodiff.zero"
"""Attribute of a gradient that no cotangent reached: zeros, which do not follow from any tangent."""

DIRECTION = "autodiff.direction"
"""Attribute of an argument: the direction in which this argument moves."""

DERIVATIVE = "autodiff.derivative"
"""Attribute of a result: how fast this result moves."""


def own_saved(func: FuncOp) -> frozenset[int]:
    """Give the saved values that a backward function may write over."""
    found = ir.literal(func, OWN_SAVED)
    return frozenset(cast("tuple[int, ...]", found)) if isinstance(found, tuple) else frozenset()


@dataclass(frozen=True)
class Argument:
    """One argument's roles; every field that does not apply is False or None."""

    primal: bool = False
    wants_gradient: bool = False
    tangent: int | None = None
    """Cotangent of this result of the undifferentiated function."""
    saved: int | None = None
    """Position in the list that the forward function hands over."""
    key: bool = False
    """A random key (0-d i64), drawn by the runtime at each call."""
    symbol: str | None = None
    """The size that an `index` argument carries."""
    static: bool = False
    """Parameter or buffer of a module: alive anyway."""
    source: str | None = None
    """How the user names it."""
    strides: Shape | None = None
    """In elements; None when row-major."""
    shares: tuple[int, ...] = ()
    """Earlier arguments whose storage it shares."""
    rebound: tuple[Shape, Shape, Dim] | None = None
    """Shape, strides and offset (from where it was) that the caller's tensor gets: `x.t_()`."""
    extra: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    """Attributes that others put there."""


@dataclass(frozen=True)
class Result:
    """One result's roles."""

    output: bool = False
    mutated: int | None = None
    """New value of this argument."""
    hidden: bool = False
    """The program wrote it behind autograd's back (no_grad, detach): the argument keeps its history."""
    uncounted: bool = False
    """Only through `.data`: the argument's version stays as it is."""
    gradient: int | None = None
    """Gradient of this argument (position in the joint or undifferentiated function)."""
    saved: int | None = None
    """Position in the list handed to the backward function."""
    strides: Shape | None = None
    """Strides the caller must see; None when row-major."""
    extra: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])


@dataclass(frozen=True)
class Signature:
    """Roles of all arguments and results, and the user's output list.

    `user_outputs`: each entry `("value", k)`, `("alias", k, chain)`, `("argument", i, chain)` or `("constant", v)`.
    A chain holds views `(overload, arguments after the first, geometry, result)`: what is viewed is the first argument;
    `geometry` is the (shape, strides, offset) that the view must have, its offset counted from the first element of
    result k or argument i; `result` is the position among several results, or None. A view taken under no_grad has a
    fifth entry, True.
    """

    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    user_outputs: tuple[tuple[LiteralValue, ...], ...] | None = None

    @staticmethod
    def of(func: FuncOp) -> Signature:
        """Read the roles; IRError on a role that is not well-formed."""
        inputs, outputs = func.function_type.inputs.data, func.function_type.outputs.data
        arguments = cast(tuple[Argument, ...], _read(func.arg_attrs, len(inputs), _argument))
        results = cast(tuple[Result, ...], _read(func.res_attrs, len(outputs), _result))
        listed = func.attributes.get(OUTPUTS)
        user = cast(tuple[tuple[LiteralValue, ...], ...], listed.data) if isinstance(listed, Literal) else None
        return Signature(arguments, results, user)

    def attach(self, func: FuncOp) -> None:
        """Write the roles onto the function, whose type must have as many arguments and results."""
        kind: FunctionType = func.function_type
        if len(kind.inputs.data) != len(self.arguments) or len(kind.outputs.data) != len(self.results):
            raise IRError(
                f"@{func.sym_name.data} has {len(kind.inputs.data)} arguments and {len(kind.outputs.data)} results, "
                f"its signature {len(self.arguments)} and {len(self.results)}"
            )
        func.arg_attrs = ArrayAttr([DictionaryAttr(_argument_attributes(a)) for a in self.arguments])
        func.res_attrs = ArrayAttr([DictionaryAttr(_result_attributes(r)) for r in self.results])
        if self.user_outputs is None:
            func.attributes.pop(OUTPUTS, None)
        else:
            func.attributes[OUTPUTS] = Literal.of(self.user_outputs)

    def arguments_where(self, **roles: object) -> list[int]:
        """Give the positions of arguments whose fields have these values, e.g. `primal=True`."""
        return [i for i, a in enumerate(self.arguments) if all(getattr(a, k) == v for k, v in roles.items())]

    @property
    def tangents(self) -> dict[int, int]:
        """Result of the undifferentiated function -> argument that is its cotangent."""
        return {a.tangent: i for i, a in enumerate(self.arguments) if a.tangent is not None}

    @property
    def mutated(self) -> dict[int, int]:
        """Argument -> result that is its new value."""
        return {r.mutated: i for i, r in enumerate(self.results) if r.mutated is not None}

    @property
    def gradients(self) -> dict[int, int]:
        """Argument -> result that is its gradient."""
        return {r.gradient: i for i, r in enumerate(self.results) if r.gradient is not None}


def _read(
    attrs: ArrayAttr[DictionaryAttr] | None, count: int, entry: Callable[[Mapping[str, Attribute]], Argument | Result]
) -> tuple[Argument | Result, ...]:
    """Read the entries of a list of dictionaries; attributes are immutable, so what was read stays with the list."""
    if attrs is None:
        return tuple(entry({}) for _ in range(count))
    if len(attrs.data) != count:
        raise IRError(f"{len(attrs.data)} attribute dictionaries for {count} values")
    own = cast("dict[str, dict[object, tuple[Argument | Result, ...]]]", attrs.__dict__)
    known = own.setdefault("_isthmus_roles", {})
    if entry not in known:
        known[entry] = tuple(entry(d.data) for d in attrs.data)
    return known[entry]


_ARGUMENT_KEYS = {
    "primal": "autodiff.primal",
    "wants_gradient": "autodiff.wants_gradient",
    "tangent": "autodiff.tangent",
    "saved": "autodiff.saved",
    "key": "isthmus.key",
    "symbol": "isthmus.symbol",
    "static": "isthmus.static",
    "source": "isthmus.source",
    "strides": "isthmus.strides",
    "shares": "isthmus.shares",
    "rebound": "isthmus.rebound",
}

_RESULT_KEYS = {
    "output": "autodiff.output",
    "mutated": "isthmus.mutated",
    "hidden": "isthmus.hidden",
    "uncounted": "isthmus.uncounted",
    "gradient": "autodiff.gradient",
    "saved": "autodiff.saved",
    "strides": "isthmus.strides",
}


def _decode(attr: Attribute) -> object:
    if isinstance(attr, UnitAttr):
        return True
    if isinstance(attr, IntegerAttr):
        return attr.value.data
    if isinstance(attr, StringAttr):
        return attr.data
    if isinstance(attr, Literal):
        return attr.data
    raise IRError(f"{attr} is no role")


def _encode(value: object) -> Attribute:
    if value is True:
        return UnitAttr()
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, str):
        return StringAttr(value)
    return Literal.of(cast(LiteralValue, value))


_INTEGERS: dict[int, Attribute] = {}


def _integer(value: int) -> Attribute:
    if value not in _INTEGERS:
        _INTEGERS[value] = IntegerAttr(value, i64)
    return _INTEGERS[value]


def _fields(attrs: Mapping[str, Attribute], keys: Mapping[str, str]) -> dict[str, object]:
    found = {name: _decode(attrs[key]) for name, key in keys.items() if key in attrs}
    if len(found) == len(attrs):
        return found
    extra = {k: v for k, v in attrs.items() if k not in keys.values()}
    for key in extra:
        if key.startswith("autodiff.") and key not in (ZERO, DIRECTION, DERIVATIVE):
            raise IRError(f"'{key}' is no role{nearest(key, keys.values())}", cure=f"roles: {', '.join(keys.values())}")
    return {**found, "extra": extra}


def _argument(attrs: Mapping[str, Attribute]) -> Argument:
    return Argument(**_fields(attrs, _ARGUMENT_KEYS))  # pyright: ignore[reportArgumentType]


def _result(attrs: Mapping[str, Attribute]) -> Result:
    return Result(**_fields(attrs, _RESULT_KEYS))  # pyright: ignore[reportArgumentType]


def _argument_attributes(argument: Argument) -> dict[str, Attribute]:
    return _attributes(argument, _ARGUMENT_KEYS) | dict(argument.extra)


def _result_attributes(result: Result) -> dict[str, Attribute]:
    return _attributes(result, _RESULT_KEYS) | dict(result.extra)


def _attributes(roles: Argument | Result, keys: Mapping[str, str]) -> dict[str, Attribute]:
    values = ((key, getattr(roles, name)) for name, key in keys.items())
    return {key: _encode(value) for key, value in values if value is not None and value is not False and value != ()}


def symbol_sources(func: FuncOp) -> dict[str, tuple[int, int | None]]:
    """Say where each symbol of a function is read: (argument, dimension), or (argument, None) for an index argument.

    A symbol counts where it stands alone as a dimension. The first such place wins.
    """
    found: dict[str, tuple[int, int | None]] = {}
    signature = Signature.of(func)
    for index, value in enumerate(func.body.block.args):
        symbol = signature.arguments[index].symbol
        if symbol is not None:
            found.setdefault(symbol, (index, None))
            continue
        for dimension, size in enumerate(ir.shape_of(value)):
            if isinstance(size, ir.Size) and len(size.symbols()) == 1 and ir.Size.symbol(str(size)) is size:
                found.setdefault(str(size), (index, dimension))
    return found


def saved_sources(forward: FuncOp) -> list[tuple[str, int]]:
    """Say what each value that a forward function hands over is, in the order of their numbers.

    ("argument", i): argument i itself, which the function does not overwrite; ("output", k): also result k of the
    function; ("temporary", j): a value of its own, also where it is the old value of an overwritten argument.
    """
    signature, returned = Signature.of(forward), ir.operands_of(_terminator(forward))
    outputs = {v: ("output", k) for k, v in reversed(list(enumerate(returned))) if signature.results[k].output}
    kept = {v: ("argument", i) for i, v in enumerate(forward.body.block.args) if i not in signature.mutated}
    known = outputs | kept
    saved = sorted((r.saved, k) for k, r in enumerate(signature.results) if r.saved is not None)
    return [known.get(returned[k], ("temporary", j)) for j, k in saved]


def _terminator(func: FuncOp) -> Operation:
    last = func.body.block.last_op
    if last is None:
        raise IRError(f"@{func.sym_name.data} has no terminator")
    return last
