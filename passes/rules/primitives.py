"""Put replacements in the place of patterns among primitives: the user's rules for what is left after gradients.

Before, with a rule that rewrites x*y + z:
    %m = prim.mul %x, %y : tensor<4xf32>
    %r = prim.add %m, %z : tensor<4xf32>
After:
    %r = prim.opaque %x, %y, %z {callee = "mylib::fma.default", args = [arg0, arg1, arg2]} : tensor<4xf32>

A pattern is a function of primitives made for some example shapes. Where the ops of a program have its outline, it is
made again for the shapes found there, and then everything has to be equal: types, literals and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue

from isthmus import ir
from isthmus.diagnostics import CompileError
from isthmus.dialects import prim
from isthmus.passes.rules.apply import copied

Make: TypeAlias = Callable[[Sequence[Attribute]], FuncOp | None]
"""From the types of a pattern's arguments to a function of primitives; None: not wanted there."""

Bound: TypeAlias = dict[SSAValue, SSAValue]

COMMUTATIVE = (prim.AddOp, prim.MulOp, prim.AndOp, prim.OrOp, prim.XorOp)
"""Primitives whose operands may change places."""


def rewrite(module: ModuleOp, outline: FuncOp, pattern: Make, replacement: Make) -> int:
    """Replace every match in every function of the module; gives their number. What is put in is not matched again."""
    root = root_of(outline)
    blocks = {op.parent: None for op in module.walk() if type(op) is type(root)}
    return sum(_rewrite(block, outline, pattern, replacement) for block in blocks if block is not None)


def root_of(func: FuncOp) -> prim.PrimOp:
    """Give the primitive that makes a pattern's only result; CompileError for patterns of another form."""
    last = func.body.block.last_op
    returned = () if last is None else ir.operands_of(last)
    root = returned[0].owner if len(returned) == 1 else None
    if not isinstance(root, prim.PrimOp) or len(root.results) != 1:
        raise CompileError("a pattern gives one tensor that it computes")
    if any(op.regions for op in func.body.block.ops):
        raise CompileError("a pattern holds no control flow")
    if unused := [a.index for a in func.body.block.args if a.first_use is None]:
        raise CompileError(f"the pattern does not use its argument {unused[0]}")
    return root


def _rewrite(block: Block, outline: FuncOp, pattern: Make, replacement: Make) -> int:
    count = 0
    root = root_of(outline)
    for op in reversed([o for o in block.ops if type(o) is type(root)]):
        if op.parent is not block:
            continue  # part of an earlier match, and nothing else needed it
        for guess in _matches(root, op, {}, exact=False):
            found = _exact(op, outline, guess, pattern)
            made = None if found is None else replacement([v.type for v in found.arguments])
            if found is not None and made is not None:
                _put_in_place(op, made, found)
                count += 1
                break
    return count


@dataclass(frozen=True)
class _Match:
    arguments: list[SSAValue]
    """What the pattern's arguments stand for."""
    ops: list[Operation]
    """What it is made of, users first."""


def _exact(op: Operation, outline: FuncOp, guess: Bound, pattern: Make) -> _Match | None:
    """The match, if the pattern, made for the types found, is what is there."""
    func = pattern([guess[a].type for a in outline.body.block.args])
    if func is None:
        return None
    arguments = func.body.block.args
    for bound in _matches(root_of(func), op, {}, exact=True):
        if all(a.type == bound[a].type for a in arguments):
            inner = [bound[r] for o in func.body.block.ops for r in o.results if r in bound]
            makers = dict.fromkeys(v.owner for v in reversed(inner) if isinstance(v, OpResult))
            return _Match([bound[a] for a in arguments], [op, *makers])
    return None


def _matches(pattern: Operation, op: Operation, bound: Bound, *, exact: bool) -> Iterator[Bound]:
    """Give the ways in which an op is what a pattern's op says, as extensions of what is bound."""
    if type(pattern) is not type(op) or op.regions or len(pattern.operands) != len(op.operands):
        return
    if exact and not _are_equal(pattern, op):
        return
    wanted, given = ir.operands_of(pattern), ir.operands_of(op)
    yield from _all(wanted, given, bound, exact)
    if isinstance(op, COMMUTATIVE):
        yield from _all(wanted, given[::-1], bound, exact)


def _are_equal(pattern: Operation, op: Operation) -> bool:
    types = [[r.type for r in o.results] for o in (pattern, op)]
    return pattern.properties == op.properties and types[0] == types[1]


def _all(wanted: Sequence[SSAValue], given: Sequence[SSAValue], bound: Bound, exact: bool) -> Iterator[Bound]:
    if not wanted:
        yield bound
        return
    for first in _value(wanted[0], given[0], bound, exact):
        yield from _all(wanted[1:], given[1:], first, exact)


def _value(wanted: SSAValue, given: SSAValue, bound: Bound, exact: bool) -> Iterator[Bound]:
    known = bound.get(wanted)
    if known is not None:
        if known is given:
            yield bound
    elif isinstance(wanted, BlockArgument):
        yield {**bound, wanted: given}
    elif isinstance(wanted, OpResult) and isinstance(given, OpResult) and wanted.index == given.index:
        for found in _matches(wanted.owner, given.owner, bound, exact=exact):
            yield {**found, wanted: given}


def _put_in_place(op: Operation, func: FuncOp, match: _Match) -> None:
    """Copy a function's ops before an op; its result takes the op's place, and what nothing reads any more goes."""
    made: list[Operation] = []
    (result,) = copied(func, match.arguments, made)
    for new in made:
        new.location = op.location
    block = op.parent
    assert block is not None
    block.insert_ops_before(made, op)
    result.name_hint = result.name_hint or op.results[0].name_hint
    op.results[0].replace_all_uses_with(result)
    for old in match.ops:
        if all(r.first_use is None for r in old.results):
            old.detach()
            old.erase()
