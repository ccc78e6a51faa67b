"""The ground under the dialects: literals, interned types, fast op creation, the uniform text format, SSA order.

Every private access to xDSL is in this file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, Union, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    ComplexType,
    FileLineColLoc,
    FusedLoc,
    IndexType,
    IntAttr,
    IntegerType,
    LocationAttr,
    ModuleOp,
    NoneAttr,
    Signedness,
    StringAttr,
    TensorType,
    UnknownLoc,
    bf16,
    f16,
    f32,
    f64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import (
    Attribute,
    Block,
    BlockArgument,
    Data,
    Dialect,
    Operation,
    OpResult,
    Region,
    SSAValue,
    SSAValues,
    Use,
)
from xdsl.irdl import IRDLOperation, irdl_attr_definition
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from isthmus.diagnostics import IRError, SourceLocation
from isthmus.sizes import Dim, Size

# ---- Literals


@dataclass(frozen=True)
class Operand:
    """Inside a literal: the operand of the same op with this index."""

    index: int


LiteralValue = Union[None, bool, int, float, complex, str, Size, Operand, tuple["LiteralValue", ...]]  # noqa: UP007


@irdl_attr_definition
class Literal(Data[LiteralValue]):
    """An immutable Python value as an attribute; equal literals are the same object.

    Text: `none true 3 1.5 -0.0 nan inf complex(1.0, 2.0) "s" arg0 [1, 2] <"s0*4">`.
    """

    name = "isthmus.lit"
    _interned: ClassVar[dict[object, Literal]] = {}

    @staticmethod
    def of(value: LiteralValue) -> Literal:
        """Give the one literal that holds `value`; True, 1 and 1.0 are different, as are 0.0 and -0.0."""
        key = _literal_key(value)
        literal = Literal._interned.get(key)
        if literal is None:
            literal = Literal(value)
        return literal

    def __new__(cls, data: LiteralValue) -> Literal:
        """Intern whatever makes a literal: the parser calls the class itself."""
        key = _literal_key(data)
        found = Literal._interned.get(key)
        return Literal._interned.setdefault(key, object.__new__(cls)) if found is None else found

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> LiteralValue:
        with parser.in_angle_brackets():
            return parse_literal(parser)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(literal_text(self.data))

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self) >> 4


def _literal_key(value: LiteralValue) -> object:
    kind = type(value)
    if kind is tuple:
        return tuple(_literal_key(v) for v in cast(tuple[LiteralValue, ...], value))
    if kind is float:
        return (float, struct.pack("<d", cast(float, value)))
    if kind is complex:
        number = cast(complex, value)
        return (complex, struct.pack("<dd", number.real, number.imag))
    return (kind, value)


def literal_text(value: LiteralValue) -> str:
    """Give the text of a literal, as `parse_literal` reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, complex):
        return f"complex({_float_text(value.real)}, {_float_text(value.imag)})"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        return f'"{escaped}"'
    if isinstance(value, Operand):
        return f"arg{value.index}"
    if isinstance(value, Size):
        return f'<"{value}">'
    return "[" + ", ".join(map(literal_text, value)) + "]"


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    text = repr(value)
    if "e" in text and "." not in text:  # the MLIR lexer wants a fraction before the exponent
        text = text.replace("e", ".0e")
    return text


def parse_literal(parser: AttrParser) -> LiteralValue:
    """Read one literal; a parse error with its position otherwise."""
    if parser.parse_optional_punctuation("["):
        values: list[LiteralValue] = []
        if not parser.parse_optional_punctuation("]"):
            values.append(parse_literal(parser))
            while parser.parse_optional_punctuation(","):
                values.append(parse_literal(parser))
            parser.parse_punctuation("]")
        return tuple(values)
    if (text := parser.parse_optional_str_literal()) is not None:
        return text
    if parser.parse_optional_punctuation("<"):
        text = parser.parse_str_literal(" of a size")
        parser.parse_punctuation(">")
        try:
            return Size.parse(text)
        except ValueError as error:
            parser.raise_error(str(error))
    if parser.parse_optional_punctuation("-"):
        if parser.parse_optional_keyword("inf"):
            return -math.inf
        number = parser.parse_optional_number()
        if number is None:
            parser.raise_error("expected a number or inf after '-'")
        return -number
    if (word := parser.parse_optional_identifier()) is not None:
        return _parse_word(parser, word)
    number = parser.parse_optional_number()
    if number is None:
        parser.raise_error("expected a literal")
    return number


_WORDS: dict[str, LiteralValue] = {
    "none": None,
    "true": True,
    "false": False,
    "nan": math.nan,
    "inf": math.inf,
}


def _parse_word(parser: AttrParser, word: str) -> LiteralValue:
    if word in _WORDS:
        return _WORDS[word]
    if word.startswith("arg") and word[3:].isdigit():
        return Operand(int(word[3:]))
    if word == "complex":
        parser.parse_punctuation("(")
        real = parse_literal(parser)
        parser.parse_punctuation(",")
        imaginary = parse_literal(parser)
        parser.parse_punctuation(")")
        return complex(cast(float, real), cast(float, imaginary))
    parser.raise_error(f"unknown literal '{word}'")


# ---- Types

DTYPES: dict[str, Attribute] = {
    "f64": f64,
    "f32": f32,
    "bf16": bf16,
    "f16": f16,
    "i64": IntegerType(64),
    "i32": IntegerType(32),
    "i16": IntegerType(16),
    "i8": IntegerType(8),
    "u8": IntegerType(8, Signedness.UNSIGNED),
    "i1": IntegerType(1),
    "c64": ComplexType(f32),
    "c128": ComplexType(f64),
}
"""dtype name -> element type; `i1` is a boolean, one byte in memory."""

_DTYPE_NAMES: dict[Attribute, str] = {t: n for n, t in DTYPES.items()}

_BYTES = dict(f64=8, f32=4, bf16=2, f16=2, i64=8, i32=4, i16=2, i8=1, u8=1, i1=1, c64=8, c128=16)

INDEX = IndexType()

Shape = tuple[Dim, ...]

AttributeT = TypeVar("AttributeT", bound=Attribute)


def itemsize(dtype: str) -> int:
    """Give the bytes of one element in memory."""
    return _BYTES[dtype]


def is_float(dtype: str) -> bool:
    """Tell whether the dtype is a real floating-point one."""
    return dtype in ("f64", "f32", "bf16", "f16")


def is_complex(dtype: str) -> bool:
    """Tell whether the dtype is a complex one."""
    return dtype in ("c64", "c128")


def is_integer(dtype: str) -> bool:
    """Tell whether the dtype is an integer one; booleans are not."""
    return dtype in ("i64", "i32", "i16", "i8", "u8")


def is_differentiable(dtype: str) -> bool:
    """Tell whether values of the dtype can have gradients."""
    return is_float(dtype) or is_complex(dtype)


_TENSORS: dict[tuple[Shape, str], TensorType[Attribute]] = {}


def tensor(shape: Sequence[Dim], dtype: str) -> TensorType[Attribute]:
    """Give the interned tensor type; symbolic dimensions are kept in its encoding."""
    key = (tuple(shape), dtype)
    found = _TENSORS.get(key)
    if found is None:
        shape = key[0]
        symbolic = any(isinstance(d, Size) for d in shape)
        found = TensorType(
            DTYPES[dtype],
            [d if isinstance(d, int) else DYNAMIC_INDEX for d in shape],
            Literal.of(shape) if symbolic else NoneAttr(),
        )
        _remember_facts(found, shape, dtype)
        found = _TENSORS.setdefault(key, found)
    return found


def scalar(dtype: str) -> Attribute:
    """Give the element type itself: the type of values inside kernel bodies."""
    return DTYPES[dtype]


def intern_type(type_: Attribute) -> Attribute:
    """Give the interned object equal to a type that the parser made."""
    return tensor(shape_of(type_), dtype_of(type_)) if isinstance(type_, TensorType) else type_


def shape_of(value: SSAValue | Attribute) -> Shape:
    """Give the shape of a value or type; () for scalars. IRError where it has none."""
    return _facts(value)[0]


def dtype_of(value: SSAValue | Attribute) -> str:
    """Give the dtype name of a value or type. IRError where it has none."""
    return _facts(value)[1]


def numel(value: SSAValue | Attribute) -> Dim:
    """Give the number of elements."""
    return math.prod(cast(tuple[int, ...], shape_of(value)))


def nbytes(value: SSAValue | Attribute) -> Dim:
    """Give the size in bytes of a row-major copy."""
    return numel(value) * itemsize(dtype_of(value))


def like(type_: Attribute, dtype: str) -> Attribute:
    """Give the type of the same shape (or the scalar) with another dtype."""
    return tensor(shape_of(type_), dtype) if isinstance(type_, TensorType) else DTYPES[dtype]


def contiguous_strides(shape: Sequence[Dim]) -> Shape:
    """Give row-major strides in elements: a size of 0 or 1 counts as 1, as torch does."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))


def with_facts(type_: AttributeT, shape: Shape, dtype: str) -> AttributeT:
    """Teach `shape_of` and `dtype_of` a dialect's own type; gives the type."""
    _remember_facts(type_, shape, dtype)
    return type_


def _remember_facts(type_: Attribute, shape: Shape, dtype: str) -> tuple[Shape, str]:
    facts = (shape, dtype)
    object.__setattr__(type_, "_isthmus_facts", facts)
    return facts


def _facts(value: SSAValue | Attribute) -> tuple[Shape, str]:
    type_ = cast(Attribute, getattr(value, "_type", value))  # isinstance of an abstract class is slow
    facts = type_.__dict__.get("_isthmus_facts")
    return facts if facts is not None else _compute_facts(type_)


def _compute_facts(type_: Attribute) -> tuple[Shape, str]:
    if isinstance(type_, TensorType):
        tensor_type = cast(TensorType[Attribute], type_)
        dtype = _DTYPE_NAMES.get(tensor_type.element_type)
        if dtype is None:
            raise IRError(f"tensors of {tensor_type.element_type} do not exist here")
        encoding = tensor_type.encoding
        if isinstance(encoding, Literal):
            shape = cast(Shape, encoding.data)
        else:
            shape = tensor_type.get_shape()
            if DYNAMIC_INDEX in shape:
                raise IRError(f"{type_}: every '?' needs its symbol, e.g. tensor<?xf32, #isthmus.lit<[<\"s0\">]>>")
        return _remember_facts(type_, shape, dtype)
    dtype = _DTYPE_NAMES.get(type_)
    if dtype is None:
        raise IRError(f"{type_} has neither shape nor dtype")
    return _remember_facts(type_, (), dtype)


# ---- Locations


def location_attr(location: SourceLocation | None) -> LocationAttr:
    """Give the IR's form of a source location."""
    if location is None:
        return UNKNOWN
    return FileLineColLoc(StringAttr(location.file), IntAttr(location.line), IntAttr(location.column))


def source_location(op: Operation) -> SourceLocation | None:
    """Give the user's line that an op comes from, or None."""
    return source_location_of(op.location)


def source_location_of(location: Attribute) -> SourceLocation | None:
    """Give the user's line of a location, or None."""
    if isinstance(location, FileLineColLoc):
        return SourceLocation(location.filename.data, location.line.data, location.column.data)
    if isinstance(location, FusedLoc):
        parts = cast(ArrayAttr[Attribute], location.locations)
        return next((s for s in map(source_location_of, parts) if s), None)
    return None


UNKNOWN: LocationAttr = UnknownLoc()

# ---- Ops

OpT = TypeVar("OpT", bound=Operation)


def create_op(
    cls: type[OpT],
    operands: Sequence[SSAValue],
    result_types: Sequence[Attribute],
    properties: Mapping[str, Attribute] | None = None,
    *,
    location: LocationAttr = UNKNOWN,
    regions: Sequence[Region] = (),
    attributes: Mapping[str, Attribute] | None = None,
) -> OpT:
    """Create an op without IRDL's normalisation of arguments (a third of `Operation.create`'s time)."""
    op = cls.__new__(cls)
    uses: list[Use] = []
    for index, operand in enumerate(operands):
        use = Use(op, index)
        first = operand.first_use
        if first is not None:
            use._next_use = first  # pyright: ignore[reportPrivateUsage]
            first._prev_use = use  # pyright: ignore[reportPrivateUsage]
        operand.first_use = use
        uses.append(use)
    hint = getattr(cls, "HINT", None)
    results: list[OpResult[Attribute]] = []
    for index, type_ in enumerate(result_types):
        result = OpResult(type_, op, index)
        result._name = hint  # pyright: ignore[reportPrivateUsage]
        results.append(result)
    cast(dict[str, object], op.__dict__).update(
        _operands=SSAValues(operands),
        _operand_uses=tuple(uses),
        results=SSAValues(results),
        _successors=(),
        _successor_uses=(),
        properties=dict(properties) if properties else {},
        attributes=dict(attributes) if attributes else {},
        location=location,
        regions=(),
        parent=None,
        _next_op=None,
        _prev_op=None,
    )
    for region in regions:
        op.add_region(region)
    return op


def append_result(op: Operation, type_: Attribute) -> SSAValue:
    """Give an op one more result, after those it has, which stay the same values."""
    result = OpResult(type_, op, len(op.results))
    result._name = getattr(type(op), "HINT", None)  # pyright: ignore[reportPrivateUsage]
    op.results = SSAValues([*op.results, result])
    return result


def replace_terminator(block: Block, terminator: Operation) -> None:
    """Put another op in the place of the block's last one, whose results nobody uses."""
    last = block.last_op
    if last is not None:
        last.detach()
        last.erase()
    block.add_op(terminator)


def operands_of(op: Operation) -> tuple[SSAValue, ...]:
    """Give the operands as a tuple, without making a view."""
    return op._operands  # pyright: ignore[reportPrivateUsage]


def result_of(op: Operation) -> SSAValue:
    """Give the first result."""
    return op.results[0]


class LiteralOp(IRDLOperation):
    """An op whose properties are literals: `%r = d.op %a, %b {key = literal, ...} (regions) : result types`.

    Operand types are not written: an operand is always defined before.
    """

    @classmethod
    def parse(cls, parser: Parser) -> LiteralOp:
        """Read the uniform format; undefined operands and undeclared keys are errors at their position."""
        operands = _parse_operands(parser)
        properties, attributes = _parse_entries(parser, cls)
        regions: list[Region] = []
        if parser.parse_optional_punctuation("("):
            regions.append(parser.parse_region())
            while parser.parse_optional_punctuation(","):
                regions.append(parser.parse_region())
            parser.parse_punctuation(")")
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":"):
            types.append(intern_type(parser.parse_type()))
            while parser.parse_optional_punctuation(","):
                types.append(intern_type(parser.parse_type()))
        return create_op(cls, operands, types, properties, regions=regions, attributes=attributes)

    @classmethod
    def parse_entry(cls, key: str, parser: Parser) -> Attribute:
        """Read the value of one key: a literal, unless a dialect has attributes of its own."""
        return Literal.of(parse_literal(parser))

    def print(self, printer: Printer) -> None:
        """Write the uniform format."""
        for index, operand in enumerate(operands_of(self)):
            printer.print_string(", " if index else " ")
            printer.print_ssa_value(operand)
        literals = {**self.properties, **self.attributes}
        if literals:
            entries = [f"{key} = {_entry_text(attr)}" for key, attr in literals.items()]
            printer.print_string(" {" + ", ".join(entries) + "}")
        if self.regions:
            printer.print_string(" (")
            for index, region in enumerate(self.regions):
                printer.print_string(", " if index else "")
                printer.print_region(region)
            printer.print_string(")")
        for index, result in enumerate(self.results):
            printer.print_string(", " if index else " : ")
            printer.print_attribute(result.type)


def _entry_text(attr: Attribute) -> str:
    return literal_text(attr.data) if isinstance(attr, Literal) else str(attr)


def _property_names(cls: type[IRDLOperation]) -> frozenset[str]:
    names = cls.__dict__.get("_isthmus_properties")
    if names is None:
        names = frozenset(cls.get_irdl_definition().properties)
        setattr(cls, "_isthmus_properties", names)  # noqa: B010
    return names


def _parse_operands(parser: Parser) -> list[SSAValue]:
    operands: list[SSAValue] = []
    while (name := parser.parse_optional_unresolved_operand()) is not None:
        values = parser.ssa_values.get(name.operand_name)
        if values is None or name.index >= len(values):
            parser.raise_error(f"%{name.operand_name} is used before it is defined", name.span)
        operands.append(values[name.index])
        if not parser.parse_optional_punctuation(","):
            break
    return operands


def _parse_entries(parser: Parser, cls: type[LiteralOp]) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    declared = _property_names(cls)
    properties: dict[str, Attribute] = {}
    attributes: dict[str, Attribute] = {}
    if parser.parse_optional_punctuation("{") and not parser.parse_optional_punctuation("}"):
        while True:
            key = parser.parse_identifier()
            parser.parse_punctuation("=")
            value = cls.parse_entry(key, parser)
            (properties if key in declared else attributes)[key] = value
            if not parser.parse_optional_punctuation(","):
                break
        parser.parse_punctuation("}")
    return properties, attributes


def literal(op: Operation, key: str) -> LiteralValue:
    """Give the value of a literal property or attribute, None when absent."""
    attr = op.properties.get(key) or op.attributes.get(key)
    return attr.data if isinstance(attr, Literal) else None


ISTHMUS = Dialect("isthmus", [], [Literal])

# ---- Functions, blocks, order


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    """Give the functions of a module by name, in order."""
    return {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)}


def function(module: ModuleOp, name: str) -> FuncOp:
    """Give the function of that name; IRError naming what there is otherwise."""
    found = functions(module)
    if name not in found:
        raise IRError(f"the module has no function @{name}, only {', '.join('@' + n for n in found) or 'none'}")
    return found[name]


def erase_unused(block: Block, keep: Callable[[Operation], bool]) -> int:
    """Erase ops without used results that `keep` does not hold, last first; give their number."""
    erased = 0
    op = block.last_op
    while op is not None:
        previous = op.prev_op
        if all([r.first_use is None for r in op.results]) and not keep(op):
            op.detach()
            op.erase()
            erased += 1
        op = previous
    return erased


def verify_order(root: Operation) -> None:
    """Check that every operand is defined before its use (xDSL does not). IRError names the first culprit."""
    for region in root.regions:
        _verify_region(region, set())


def _verify_region(region: Region, visible: set[SSAValue]) -> None:
    for block in region.blocks:
        defined = visible | set(block.args) if visible else set[SSAValue](block.args)
        for op in block.ops:
            for index, operand in enumerate(operands_of(op)):
                if operand not in defined:
                    raise IRError(
                        f"operand {index} is used before it is defined",
                        op=op.name,
                        location=source_location(op),
                    )
            for inner in op.regions:
                _verify_region(inner, set() if isinstance(op, FuncOp) else defined)
            defined.update(op.results)


def verify(module: ModuleOp) -> None:
    """Check the module: every op's verifier, then SSA order. IRError on the first fault."""
    try:
        module.verify()
    except VerifyException as error:
        raise IRError(str(error)) from error
    verify_order(module)


def block_arguments(func: FuncOp) -> tuple[BlockArgument, ...]:
    """Give the arguments of a function."""
    return tuple(func.body.block.args)
