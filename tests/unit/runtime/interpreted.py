"""Small programs of primitives for the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func, FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.parser import Parser

from isthmus import ir
from isthmus.dialects import prim
from isthmus.dialects.prim import Emitter
from isthmus.runtime.interpret import run
from isthmus.runtime.interpret_table import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def build(types: Sequence[ir.Attribute], body: Callable[..., SSAValue | tuple[SSAValue, ...]]) -> FuncOp:
    block = Block(arg_types=types)
    results = body(Emitter(block), *block.args)
    results = results if isinstance(results, tuple) else (results,)
    block.add_op(ReturnOp(*results))
    return FuncOp("main", (list(types), [r.type for r in results]), Region(block))


def compute(body: Callable[..., SSAValue | tuple[SSAValue, ...]], *arguments: Tensor) -> list[Tensor]:
    types = [ir.tensor(tuple(t.shape), NAMES[t.dtype]) for t in arguments]
    func = build(types, body)
    ModuleOp([func]).verify()
    return run(func, arguments)


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, ir.ISTHMUS, prim.PRIM):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()
