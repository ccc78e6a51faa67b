"""A small typed builder of LLVM IR text: types, values with operators, structured loops, modules.

Values know their type, so an operator picks the float or the integer instruction. Nothing here
sets a fast-math flag: what LLVM may do with a number is written by whoever emits it. Index
arithmetic on constants folds at once, which keeps the text short.
"""

from isthmus.codegen.llvm_text.builder import Function, Module
from isthmus.codegen.llvm_text.types import F32, F64, FLOATS, I1, I8, I32, I64, PTR, VOID, Number, Type
from isthmus.codegen.llvm_text.value import Value

__all__ = [
    "F32",
    "F64",
    "FLOATS",
    "I1",
    "I8",
    "I32",
    "I64",
    "PTR",
    "VOID",
    "Function",
    "Module",
    "Number",
    "Type",
    "Value",
]
