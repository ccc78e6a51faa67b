"""Joint functions written by hand, and what every partition of one must keep true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from isthmus import ir
from isthmus.dialects.prim import Emitter
from isthmus.dialects.signature import Argument, Result, Signature, saved_sources
from isthmus.passes.partition.network import Plan
from isthmus.passes.partition.partition import plan_partition
from isthmus.passes.partition.split import Halves
from isthmus.runtime.interpret import run
from isthmus.runtime.interpret_table import DTYPES

Built = tuple[Sequence[SSAValue], Sequence[Result]]


def joint(
    types: Sequence[Attribute], roles: Sequence[Argument], build: Callable[..., Built], name: str = "joint"
) -> FuncOp:
    """A function @joint in a module of its own; `build(e, *arguments)` gives results and their roles."""
    block = Block(arg_types=types)
    values, results = build(Emitter(block), *block.args)
    block.add_op(ir.create_op(ReturnOp, values, ()))
    func = FuncOp(name, FunctionType.from_lists(types, [v.type for v in values]), Region(block))
    Signature(tuple(roles), tuple(results)).attach(func)
    ModuleOp([func])
    return func


PRIMAL = Argument(primal=True, wants_gradient=True)
CONSTANT = Argument(primal=True)
KEY = Argument(primal=True, key=True)
OUTPUT = Result(output=True)


def tangent(k: int = 0) -> Argument:
    return Argument(tangent=k)


def gradient(i: int = 0) -> Result:
    return Result(gradient=i)


def kinds(func: FuncOp) -> list[type[Operation]]:
    """The classes of the ops in order."""
    return [type(op) for op in func.body.block.ops][:-1]


def kept(halves: Halves) -> list[str]:
    """How the saved values are called in the joint function."""
    return [v.name_hint or "" for v in halves.saved]


def saved_bytes(plan: Plan, halves: Halves) -> int:
    """Bytes of the saved values that would not be alive anyway."""
    return sum(p.nbytes for v in halves.saved if (p := plan.prices[v]).keep != 0)


def check(func: FuncOp, strategy: str = "min-cut", seed: int = 0, budget: float = 1.0) -> tuple[Plan, Halves]:
    """Partition; forward and backward together must give the bits of the joint function.

    A scalar tangent is a power of two: as the last factor it gives the same bits as in the place where it was.
    """
    plan, halves = plan_partition(func, strategy, budget)
    ir.verify(ModuleOp([f.clone() for f in (halves.forward, halves.backward) if f is not None]))
    generator = torch.Generator().manual_seed(seed)
    signature = Signature.of(func)
    arguments = [_random(v.type, generator) for v in func.body.block.args]
    for index in signature.tangents.values():
        if arguments[index].shape == ():
            arguments[index] = torch.randint(-2, 3, (), generator=generator).float().exp2()
    expected = run(func, [a.clone() for a in arguments])
    primals = [a.clone() for a, r in zip(arguments, signature.arguments, strict=True) if r.tangent is None]
    results = run(halves.forward, primals)
    roles = Signature.of(halves.forward).results
    handed = {r.saved: v.clone() for r, v in zip(roles, results, strict=True) if r.saved is not None}
    given = [v.clone() for v, r in zip(results, roles, strict=True) if r.saved is None]
    for j, (kind, i) in enumerate(saved_sources(halves.forward)):
        if kind == "argument":  # the tensor itself is kept, not a copy
            handed[j] = primals[i]
    for r, v in zip(roles, results, strict=True):
        if r.mutated is not None:  # the copy-back comes before backward
            primals[r.mutated].copy_(v.clone())
    if halves.backward is not None:
        tangents = {r.tangent: a for a, r in zip(arguments, signature.arguments, strict=True)}
        takes = Signature.of(halves.backward).arguments
        given += run(halves.backward, [handed[r.saved] if r.saved is not None else tangents[r.tangent] for r in takes])
    for mine, theirs in zip(given, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    return plan, halves


def _random(type_: Attribute, generator: torch.Generator) -> torch.Tensor:
    shape, dtype = ir.shape_of(type_), ir.dtype_of(type_)
    if dtype == "i64":
        return torch.randint(0, 3, shape, generator=generator)
    return torch.randn(shape, generator=generator).to(DTYPES[dtype])
