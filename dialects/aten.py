"""The captured program: one call op for every ATen overload; what it mutates and aliases are attributes on it.

    %y = aten.call %x, %b {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4x4xf32>
    %z = aten.call %y {overload = "relu_.default", args = [arg0], mutates = [0], aliases = [0]} : !aten.ref<4x4xf32>

The same ops describe the functionalized program: there the types are builtin tensors and nothing mutates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, NamedTuple, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Data, Dialect, Operation, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from isthmus import ir
from isthmus.dialects.schema import Schema, check_arguments, parse_schema
from isthmus.ir import Literal, LiteralOp, LiteralValue, Operand, Shape
from isthmus.sizes import Dim, Size

# ---- Types


class RefFacts(NamedTuple):
    """What a reference type says: shape, dtype name, strides and offset in elements."""

    shape: Shape
    dtype: str
    strides: Shape
    offset: Dim


@irdl_attr_definition
class RefType(Data[RefFacts], TypeAttribute):
    """A reference to a tensor with storage; equal types are the same object.

    Text: `!aten.ref<4x4xf32, strides = [1, 4], offset = 2>`. Row-major strides and offset 0 are left out; with symbolic
    sizes the shape follows: `!aten.ref<?x4xf32, shape = [<"s0">, 4]>`. Which references share storage is written on
    the ops that make them, never here.
    """

    name = "aten.ref"
    _interned: ClassVar[dict[RefFacts, RefType]] = {}

    def __new__(cls, data: RefFacts) -> RefType:
        """Intern whatever makes a type: the parser calls the class itself."""
        found = RefType._interned.get(data)
        return RefType._interned.setdefault(data, object.__new__(cls)) if found is None else found

    def __post_init__(self) -> None:
        super().__post_init__()
        ir.with_facts(self, self.data.shape, self.data.dtype)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> RefFacts:
        with parser.in_angle_brackets():
            dims, element = parser.parse_ranked_shape()
            facts: dict[str, LiteralValue] = {}
            while parser.parse_optional_punctuation(","):
                key = parser.parse_identifier()
                parser.parse_punctuation("=")
                facts[key] = ir.parse_literal(parser)
        dtype = ir.dtype_of(element)
        shape = cast(Shape, facts.pop("shape", tuple(dims)))
        if DYNAMIC_INDEX in shape or len(shape) != len(dims):
            parser.raise_error("every '?' needs its size, as in shape = [<\"s0\">, 4]")
        strides = cast(Shape, facts.pop("strides", ir.contiguous_strides(shape)))
        offset = cast(Dim, facts.pop("offset", 0))
        if facts or len(strides) != len(shape):
            parser.raise_error(f"expected shape, strides (one per dimension) or offset, not {[*facts] or strides}")
        return RefFacts(shape, dtype, strides, offset)

    def print_parameter(self, printer: Printer) -> None:
        shape, dtype, strides, offset = self.data
        with printer.in_angle_brackets():
            for size in shape:
                printer.print_string(f"{size}x" if isinstance(size, int) else "?x")
            printer.print_attribute(ir.scalar(dtype))
            if any(isinstance(size, Size) for size in shape):
                printer.print_string(f", shape = {ir.literal_text(shape)}")
            if strides != ir.contiguous_strides(shape):
                printer.print_string(f", strides = {ir.literal_text(strides)}")
            if offset != 0:
                printer.print_string(f", offset = {ir.literal_text(offset)}")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self) >> 4


def ref(shape: Sequence[Dim], dtype: str, strides: Sequence[Dim] | None = None, offset: Dim = 0) -> RefType:
    """Give the interned reference type; row-major where no strides are given."""
    shape = tuple(shape)
    facts = RefFacts(shape, dtype, ir.contiguous_strides(shape) if strides is None else tuple(strides), offset)
    return RefType._interned.get(facts) or RefType(facts)  # pyright: ignore[reportPrivateUsage]


def facts_of(value: SSAValue | Attribute) -> RefFacts:
    """Give shape, dtype, strides and offset of a reference; IRError where it is none."""
    type_ = value.type if isinstance(value, SSAValue) else value
    if not isinstance(type_, RefType):
        raise ir.IRError(f"{type_} is not a reference type")
    return type_.data


def value_type(type_: Attribute) -> Attribute:
    """Give the tensor type of what a reference type refers to; other types as they are."""
    return ir.tensor(type_.data.shape, type_.data.dtype) if isinstance(type_, RefType) else type_


# ---- Ops


class _CallLike(LiteralOp):
    """What calls and region ops share."""

    @property
    def grad(self) -> bool:
        """Whether autograd records this op; False inside no_grad."""
        return ir.literal(self, "grad") is not False


@irdl_op_definition
class CallOp(_CallLike):
    """One call of one overload.

    `overload` is "add.Tensor", or "mylib::scale.default" outside of the aten namespace. `args` has one entry per
    schema argument in schema order, defaults filled in: `Operand(i)` for a tensor, a tuple for a list, None, numbers,
    sizes; dtypes as "f32", layouts, devices and memory formats as "strided", "cpu", "preserve_format". A number where
    the schema says Tensor is torch's wrapped number; an operand where it says float or Scalar is a 0-d tensor that
    holds the number. `mutates` lists operands that the call writes, `aliases` has per result the operand whose
    storage it shares, or -1. `grad = false` marks what autograd does not record, `non_differentiable` lists results of
    a recorded call that carry no history all the same (the statistics of native_layer_norm). A list of tensors becomes
    that many results; where torch gives None for some result, `present` lists the positions of those that are there.

    On values nothing is written: a mutating overload works on copies of the operands that `updates` lists, and their
    new values are the last results; what torch returns only to give them back is no result of its own.

        %y = aten.call %x {overload = "mul_.Tensor", args = [arg0, 2.0], updates = [0]} : tensor<4xf32>
    """

    name = "aten.call"
    operands_ = var_operand_def()
    results_ = var_result_def()
    overload_ = prop_def(Literal, prop_name="overload")
    args_ = prop_def(Literal, prop_name="args")
    mutates_ = opt_prop_def(Literal, prop_name="mutates")
    aliases_ = opt_prop_def(Literal, prop_name="aliases")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    present_ = opt_prop_def(Literal, prop_name="present")
    updates_ = opt_prop_def(Literal, prop_name="updates")
    non_differentiable_ = opt_prop_def(Literal, prop_name="non_differentiable")

    @property
    def overload(self) -> str:
        """The overload's name."""
        return cast(str, cast(Literal, self.properties["overload"]).data)

    @property
    def args(self) -> tuple[LiteralValue, ...]:
        """One entry per schema argument."""
        return cast(tuple[LiteralValue, ...], cast(Literal, self.properties["args"]).data)

    @property
    def mutates(self) -> tuple[int, ...]:
        """The operands that the call writes."""
        return cast(tuple[int, ...], ir.literal(self, "mutates") or ())

    @property
    def aliases(self) -> tuple[int, ...]:
        """Per result the operand whose storage it shares, or -1."""
        return cast(tuple[int, ...], ir.literal(self, "aliases") or (-1,) * len(self.results))

    @property
    def present(self) -> tuple[int, ...]:
        """Per result its position among what torch gives; new values of operands have none."""
        default = tuple(range(len(self.results) - len(self.updates)))
        return cast(tuple[int, ...], ir.literal(self, "present") or default)

    @property
    def updates(self) -> tuple[int, ...]:
        """The operands whose new values are the last results; only on values."""
        return cast(tuple[int, ...], ir.literal(self, "updates") or ())

    @property
    def non_differentiable(self) -> tuple[int, ...]:
        """The results that autograd sees as constants though it records the call."""
        return cast(tuple[int, ...], ir.literal(self, "non_differentiable") or ())

    def verify_(self) -> None:
        _verify_operand_use(self)
        if len(set(self.mutates)) != len(self.mutates) or any(not 0 <= i < len(self.operands) for i in self.mutates):
            raise VerifyException(f"mutates = {list(self.mutates)} does not name operands, each once")
        if len(self.aliases) != len(self.results) or any(not -1 <= i < len(self.operands) for i in self.aliases):
            raise VerifyException(f"aliases = {list(self.aliases)} needs an operand or -1 for each result")
        if len(self.present) != len(self.results) - len(self.updates):
            raise VerifyException(f"present = {list(self.present)} needs a position for each result")
        if any(not 0 <= k < len(self.results) for k in self.non_differentiable):
            raise VerifyException(f"non_differentiable = {list(self.non_differentiable)} does not name results")
        _verify_updates(self)
        types = [v.type for v in (*self.operands, *self.results)]
        if any(isinstance(t, TensorType) for t in types):
            if any(isinstance(t, RefType) for t in types):
                raise VerifyException("references and values in one call")
            if self.mutates:
                raise VerifyException("a call on values cannot mutate its operands")
        _verify_schema(self)


def call(
    overload: str,
    operands: Sequence[SSAValue],
    args: Sequence[LiteralValue],
    result_types: Sequence[Attribute],
    *,
    mutates: Sequence[int] = (),
    aliases: Sequence[int] = (),
    grad: bool = True,
    present: Sequence[int] | None = None,
    updates: Sequence[int] = (),
    non_differentiable: Sequence[int] = (),
    location: ir.LocationAttr = ir.UNKNOWN,
) -> CallOp:
    """Make a call; facts that hold by default (nothing mutated, nothing aliased, recorded) are left out."""
    properties: dict[str, Attribute] = {"overload": Literal.of(overload), "args": Literal.of(tuple(args))}
    if mutates:
        properties["mutates"] = Literal.of(tuple(mutates))
    if any(i >= 0 for i in aliases):
        properties["aliases"] = Literal.of(tuple(aliases))
    if not grad:
        properties["grad"] = FALSE
    if present is not None and tuple(present) != tuple(range(len(present))):
        properties["present"] = Literal.of(tuple(present))
    if updates:
        properties["updates"] = Literal.of(tuple(updates))
    if non_differentiable:
        properties["non_differentiable"] = Literal.of(tuple(non_differentiable))
    made = ir.create_op(CallOp, operands, result_types, properties, location=location)
    name = _name_hint(overload)
    for result in made.results:
        result._name = name  # pyright: ignore[reportPrivateUsage]
    return made


@cache
def _name_hint(overload: str) -> str | None:
    name = re.sub(r"^[_\d]+|_+$|(_\d+)+$", "", overload.split(".")[0].split("::")[-1])
    return name or None


FALSE = Literal.of(False)


@irdl_op_definition
class YieldOp(LiteralOp):
    """The end of a region: its results."""

    name = "aten.yield"
    operands_ = var_operand_def()
    traits = traits_def(IsTerminator())


class _RegionOp(_CallLike):
    """Regions are isolated: they see their own arguments and sizes, nothing else. Operands are read, never written."""

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        """Give each region's name, the region, and the types its arguments must have (shape and dtype)."""
        raise NotImplementedError

    def verify_(self) -> None:
        for name, region, expected in self.regions_with_arguments():
            _verify_signature(f"region {name}", [a.type for a in region.block.args], expected)
            last = region.block.last_op
            if not isinstance(last, YieldOp):
                raise VerifyException(f"region {name} does not end with aten.yield")
            self.verify_yield(name, [v.type for v in last.operands])

    def verify_yield(self, name: str, types: Sequence[Attribute]) -> None:
        """Check what a region gives; by default one value per result."""
        _verify_signature(f"what region {name} yields", types, [r.type for r in self.results])


@irdl_op_definition
class CondOp(_RegionOp):
    """`%r.. = aten.cond %predicate, %x.. ({then}, {else})`: both regions take x.., the predicate is a 0-d i1."""

    name = "aten.cond"
    operands_ = var_operand_def()
    results_ = var_result_def()
    grad_ = opt_prop_def(Literal, prop_name="grad")
    then_region = region_def("single_block")
    else_region = region_def("single_block")

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        types = [v.type for v in self.operands[1:]]
        yield "then", self.then_region, types
        yield "else", self.else_region, types

    def verify_(self) -> None:
        if not self.operands or ir.shape_of(self.operands[0]) != () or ir.dtype_of(self.operands[0]) != "i1":
            raise VerifyException("the predicate must be a 0-d i1 tensor")
        super().verify_()


@irdl_op_definition
class WhileLoopOp(_RegionOp):
    """`%r.. = aten.while_loop %carried.., %x.. {carried = n} ({condition}, {body})`.

    Both regions take carried.. and x..; condition yields a 0-d i1, body the next carried... Results: the last ones.
    """

    name = "aten.while_loop"
    operands_ = var_operand_def()
    results_ = var_result_def()
    carried_ = prop_def(Literal, prop_name="carried")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    condition = region_def("single_block")
    body = region_def("single_block")

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        types = [v.type for v in self.operands]
        yield "condition", self.condition, types
        yield "body", self.body, types

    def verify_yield(self, name: str, types: Sequence[Attribute]) -> None:
        if name == "condition":
            _verify_signature("what region condition yields", types, [ir.tensor((), "i1")])
        else:
            super().verify_yield(name, types)


@irdl_op_definition
class ScanOp(_RegionOp):
    """`%r.. = aten.scan %inits.., %xs.., %x.. {inits = n, xs = m} ({combine})`: along dimension 0 of xs, forwards.

    combine takes inits.., one slice of each of xs.., x..; yields the next inits.. and one slice of each stacked result.
    Results: the last inits.., then the stacked slices.
    """

    name = "aten.scan"
    operands_ = var_operand_def()
    results_ = var_result_def()
    inits_ = prop_def(Literal, prop_name="inits")
    xs_ = prop_def(Literal, prop_name="xs")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    combine = region_def("single_block")

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        inits, xs = count(self, "inits"), count(self, "xs")
        types = [v.type for v in self.operands]
        yield "combine", self.combine, [*types[:inits], *map(_slice, types[inits : inits + xs]), *types[inits + xs :]]

    def verify_yield(self, name: str, types: Sequence[Attribute]) -> None:
        inits = count(self, "inits")
        results = [r.type for r in self.results]
        _verify_signature("what region combine yields", types, [*results[:inits], *map(_slice, results[inits:])])


@irdl_op_definition
class MapOp(_RegionOp):
    """`%r.. = aten.map %xs.., %x.. {xs = m} ({body})`: body on slices of xs.. along dimension 0, results stacked."""

    name = "aten.map"
    operands_ = var_operand_def()
    results_ = var_result_def()
    xs_ = prop_def(Literal, prop_name="xs")
    grad_ = opt_prop_def(Literal, prop_name="grad")
    body = region_def("single_block")

    def regions_with_arguments(self) -> Iterator[tuple[str, Region, Sequence[Attribute]]]:
        xs = count(self, "xs")
        types = [v.type for v in self.operands]
        yield "body", self.body, [*map(_slice, types[:xs]), *types[xs:]]

    def verify_yield(self, name: str, types: Sequence[Attribute]) -> None:
        _verify_signature("what region body yields", types, [_slice(r.type) for r in self.results])


def count(op: Operation, key: str) -> int:
    """Give a count property of a region op."""
    number = ir.literal(op, key)
    if not isinstance(number, int):
        raise VerifyException(f"{key} must be a number")
    return number


def written_arguments(block: Block) -> list[int]:
    """Give the arguments of a block that its ops write, directly or through a view, in order."""
    root: dict[SSAValue, int] = {a: i for i, a in enumerate(block.args)}
    written: set[int] = set()
    for op in block.ops:
        operands = ir.operands_of(op)
        mutates = cast(tuple[int, ...], ir.literal(op, "mutates") or ())
        aliases = cast(tuple[int, ...], ir.literal(op, "aliases") or ())
        written |= {root[operands[i]] for i in mutates if operands[i] in root}
        for result, index in zip(op.results, aliases, strict=False):
            if index >= 0 and operands[index] in root:
                root[result] = root[operands[index]]
    return sorted(written)


# ---- What a captured module says beside its ops

HINTS = "isthmus.hints"
"""Module attribute: `[["s0", 8], ...]`, an example value for each symbol; for prices, never for correctness."""

EQUAL_SIZES = "isthmus.equal_sizes"
"""Module attribute: `[[<"s0*s1">, <"s2">], ...]`, sizes that the guards make equal; types already use one form."""

REBOUND = "isthmus.rebound"
"""Result attribute of a captured function: this reference is what argument i is after the call (x.t_())."""


TORCHS_NOISE = "aten.torchs_noise"
"""Attribute of a call: what it draws comes from torch's generator, whatever other calls do."""


DATA = "isthmus.data"
"""Attribute of a call of `detach` that stands for `x.data`: writes through its result are not counted as versions."""

PUTS_BACK = "aten.puts_back"
"""Attribute of a call that puts a written view back into its base: its derivative is that of the write, whatever
formula torch has for the overload."""


SCHEMAS = "aten.schemas"
"""Module attribute: the schema strings in use, as torch prints them without `aten::`."""


def attach_schemas(module: ModuleOp, schemas: Sequence[str]) -> None:
    """Write the schema strings that the module's calls use."""
    module.attributes[SCHEMAS] = Literal.of(tuple(sorted(set(schemas))))


def schemas_of(module: ModuleOp) -> Mapping[str, Schema] | None:
    """Give the schemas by overload name; None where the module carries none (hand-written IR)."""
    attr = module.attributes.get(SCHEMAS)
    if not isinstance(attr, Literal):
        return None
    found = _SCHEMAS.get(attr)
    if found is None:
        parsed = map(parse_schema, cast(tuple[str, ...], attr.data))
        found = _SCHEMAS.setdefault(attr, {schema.name: schema for schema in parsed})
    return found


_SCHEMAS: dict[Literal, dict[str, Schema]] = {}


def _verify_schema(op: CallOp) -> None:
    root: Operation = op
    while (parent := root.parent_op()) is not None:
        root = parent
    schemas = schemas_of(root) if isinstance(root, ModuleOp) else None
    if schemas is None:
        return
    schema = schemas.get(op.overload)
    if schema is None:
        raise VerifyException(f"the module carries no schema of '{op.overload}'")
    if wrong := check_arguments(schema, op.args):
        raise VerifyException(wrong)
    expected = schema.tensor_results
    if expected is not None and len(op.present) > expected:
        raise VerifyException(f"'{op.overload}' gives {expected} tensors, not {len(op.present)}")


def _verify_updates(op: CallOp) -> None:
    updates, types = op.updates, [v.type for v in op.operands]
    if len(set(updates)) != len(updates) or any(not 0 <= i < len(types) for i in updates):
        raise VerifyException(f"updates = {list(updates)} does not name operands, each once")
    if any(not isinstance(types[i], TensorType) for i in updates):
        raise VerifyException("updates are new values: the operands must be values")
    new = [r.type for r in op.results[len(op.results) - len(updates) :]]
    if new != [types[i] for i in updates]:
        raise VerifyException(f"the new values of operands {list(updates)} must have their types, not {new}")


def _verify_operand_use(op: CallOp) -> None:
    used = set(operand_indices(op.args))
    if used != set(range(len(op.operands))):
        raise VerifyException(f"args name the operands {sorted(used)}, there are {len(op.operands)}")


def operand_indices(args: Sequence[LiteralValue]) -> Iterator[int]:
    """Give the operand numbers in an argument list, in order, lists included."""
    for value in args:
        if isinstance(value, Operand):
            yield value.index
        elif isinstance(value, tuple):
            yield from operand_indices(cast(tuple[LiteralValue, ...], value))


def _slice(type_: Attribute) -> Attribute:
    shape = ir.shape_of(type_)
    if not shape:
        raise VerifyException("what is taken in slices needs a dimension")
    return ir.tensor(shape[1:], ir.dtype_of(type_))


def _verify_signature(what: str, types: Sequence[Attribute], expected: Sequence[Attribute]) -> None:
    """Compare shapes and dtypes; strides may differ."""
    if [_kind(t) for t in types] != [_kind(t) for t in expected]:
        raise VerifyException(f"{what}: {', '.join(map(str, types))} where {', '.join(map(str, expected))} is expected")


def _kind(type_: Attribute) -> object:
    return type_ if isinstance(type_, IndexType) else (ir.shape_of(type_), ir.dtype_of(type_))


ATEN = Dialect("aten", [CallOp, YieldOp, CondOp, WhileLoopOp, ScanOp, MapOp], [RefType])
