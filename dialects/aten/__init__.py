"""The captured program: one call op for every ATen overload; what it mutates and aliases are attributes on it.

    %y = aten.call %x, %b {overload = "add.Tensor", args = [arg0, arg1, 1]} : !aten.ref<4x4xf32>
    %z = aten.call %y {overload = "relu_.default", args = [arg0], mutates = [0], aliases = [0]} : !aten.ref<4x4xf32>

The same ops describe the functionalized program: there the types are builtin tensors and nothing mutates.
"""

from xdsl.ir import Dialect

from isthmus.dialects.aten.calls import FALSE, CallOp, call, operand_indices
from isthmus.dialects.aten.control import CondOp, MapOp, ScanOp, WhileLoopOp, YieldOp, count, written_arguments
from isthmus.dialects.aten.module import (
    DATA,
    EQUAL_SIZES,
    HINTS,
    PUTS_BACK,
    REBOUND,
    SCHEMAS,
    TORCHS_NOISE,
    attach_schemas,
    hints_of,
    schemas_of,
)
from isthmus.dialects.aten.references import RefFacts, RefType, facts_of, ref, value_type

ATEN = Dialect("aten", [CallOp, YieldOp, CondOp, WhileLoopOp, ScanOp, MapOp], [RefType])

__all__ = [
    "ATEN",
    "DATA",
    "EQUAL_SIZES",
    "FALSE",
    "HINTS",
    "PUTS_BACK",
    "REBOUND",
    "SCHEMAS",
    "TORCHS_NOISE",
    "CallOp",
    "CondOp",
    "MapOp",
    "RefFacts",
    "RefType",
    "ScanOp",
    "WhileLoopOp",
    "YieldOp",
    "attach_schemas",
    "call",
    "count",
    "facts_of",
    "hints_of",
    "operand_indices",
    "ref",
    "schemas_of",
    "value_type",
    "written_arguments",
]
