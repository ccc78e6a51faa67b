"""The ground under the dialects: literals, interned types, fast op creation, the uniform text format, SSA order.

Every private access to xDSL is in this package.
"""

from xdsl.dialects.builtin import IndexType, LocationAttr, TensorType
from xdsl.ir import Attribute, Block, Dialect, SSAValue

from isthmus.diagnostics import IRError, SourceLocation
from isthmus.ir.blocks import block_arguments, erase_unused, function, functions, verify, verify_order
from isthmus.ir.literals import Literal, LiteralValue, Operand, literal_text, parse_literal
from isthmus.ir.locations import UNKNOWN, location_attr, source_location, source_location_of
from isthmus.ir.ops import OpT, append_result, copied, create_op, one_of, operands_of, replace_terminator, result_of
from isthmus.ir.quick import quicken
from isthmus.ir.text import LiteralOp, literal
from isthmus.ir.types import (
    DTYPES,
    INDEX,
    AttributeT,
    Shape,
    contiguous_strides,
    dtype_of,
    intern_type,
    is_complex,
    is_differentiable,
    is_float,
    is_half,
    is_integer,
    itemsize,
    like,
    nbytes,
    numel,
    scalar,
    shape_of,
    tensor,
    with_facts,
)
from isthmus.sizes import Dim, Size

ISTHMUS = Dialect("isthmus", [], [Literal])

quicken()

__all__ = [
    "DTYPES",
    "INDEX",
    "ISTHMUS",
    "UNKNOWN",
    "Attribute",
    "AttributeT",
    "Block",
    "Dim",
    "IRError",
    "IndexType",
    "Literal",
    "LiteralOp",
    "LiteralValue",
    "LocationAttr",
    "OpT",
    "Operand",
    "SSAValue",
    "Shape",
    "Size",
    "SourceLocation",
    "TensorType",
    "append_result",
    "block_arguments",
    "contiguous_strides",
    "copied",
    "create_op",
    "dtype_of",
    "erase_unused",
    "function",
    "functions",
    "intern_type",
    "is_complex",
    "is_differentiable",
    "is_float",
    "is_half",
    "is_integer",
    "itemsize",
    "like",
    "literal",
    "literal_text",
    "location_attr",
    "nbytes",
    "numel",
    "one_of",
    "operands_of",
    "parse_literal",
    "replace_terminator",
    "result_of",
    "scalar",
    "shape_of",
    "source_location",
    "source_location_of",
    "tensor",
    "verify",
    "verify_order",
    "with_facts",
]
