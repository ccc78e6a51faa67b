"""The uniform text format: an op whose properties are literals."""

from __future__ import annotations

from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser
from xdsl.printer import Printer

from isthmus.ir.literals import Literal, LiteralValue, literal_text, parse_literal
from isthmus.ir.ops import create_op, operands_of
from isthmus.ir.types import intern_type


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
