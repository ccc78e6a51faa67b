"""What can be read off a kernel: strides, levels, which dims a value belongs to, its key."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import cast

from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue

from isthmus import ir
from isthmus.dialects.kernel.body import AccumulateOp, CheckOp, CumulativeOp, DotOp, LoadOp, ReduceOp, SinkOp
from isthmus.dialects.kernel.map import Map
from isthmus.dialects.kernel.ops import ContractOp, ExternOp, FusedOp, LoopNest
from isthmus.dialects.kernel.stream import Kernel, Seen, StreamOp
from isthmus.dialects.prim import DivOp, RemOp
from isthmus.ir import Literal, Shape
from isthmus.sizes import Dim, Size

_touches = ir.one_of(LoadOp, SinkOp)
_reduces = ir.one_of(ReduceOp, DotOp)
_accumulates = ir.one_of(CumulativeOp)
_checks = ir.one_of(CheckOp)
_divides = ir.one_of(DivOp, RemOp)
_is_launched = ir.one_of(FusedOp, ContractOp, ExternOp, StreamOp)


def strides_of(value: SSAValue) -> Shape:
    """Give the strides, in elements, of the buffer that holds a value: row-major unless its maker says otherwise."""
    owner = value.owner
    if isinstance(owner, Block):
        func, number = owner.parent_op(), cast(BlockArgument, value).index
        if isinstance(func, FuncOp) and func.arg_attrs is not None:
            strides = func.arg_attrs.data[number].data.get("isthmus.strides")
            if isinstance(strides, Literal):
                return cast(Shape, strides.data)
    elif _is_launched(owner) and (layouts := owner.properties.get("layouts")) is not None:
        strides = cast("tuple[Shape | None, ...]", cast(Literal, layouts).data)[cast(OpResult, value).index]
        if strides is not None:
            return strides
    return ir.contiguous_strides(ir.shape_of(value))


def seen_of(op: StreamOp, number: int) -> Seen:
    """Give what a kernel of attention sees of a buffer: operands come first, then results."""
    view = op.views_[number]
    value = op.inputs[number] if number < len(op.inputs) else op.results[number - len(op.inputs)]
    return (ir.shape_of(value), strides_of(value), 0) if view is None else cast(Seen, view)


def size_symbols(op: StreamOp) -> tuple[str, ...]:
    """Give the symbols that the code of a kernel of attention depends on, in order of their names."""
    dims: list[Dim] = [op.partitions_ or 1]
    for number in range(len(op.inputs) + len(op.results)):
        shape, strides, _ = seen_of(op, number)
        dims += (*shape, *strides)
    return tuple(sorted({s for d in dims if isinstance(d, Size) for s in d.symbols()}))


def levels(kernel: LoopNest) -> dict[Operation, int]:
    """Give each body op the number of the row walk that it takes part in.

    level(op) = the largest level of what it reads; one more for what reads a reduction. A reduction itself and a
    sink are in the walk that computes their operands. The values of a reduction are known after its walk.
    """
    found: dict[Operation, int] = {}
    for op in kernel.block.ops:
        level = 0
        for operand in ir.operands_of(op):
            maker = cast(Operation, operand.owner)
            level = max(level, found[maker] + _reduces(maker))
        found[op] = level
    return found


def varying(kernel: LoopNest) -> dict[SSAValue, frozenset[int]]:
    """Give the dims of the space that each body value depends on."""
    found: dict[SSAValue, frozenset[int]] = {}
    for op in kernel.block.ops:
        dims = frozenset[int]().union(*(found[v] for v in ir.operands_of(op)))
        map_ = op.properties.get("map")
        if isinstance(map_, Map):
            dims |= map_.dims()
        if _reduces(op):
            dims -= frozenset(cast(tuple[int, ...], op.dims.data))
        elif _accumulates(op):
            dims |= {cast(int, op.dim.data)}
        for result in op.results:
            found[result] = dims
    return found


def leading_to(kernel: LoopNest, ends: Iterable[Operation], given: Container[Operation] = ()) -> list[Operation]:
    """Give the ops of a body that these need, in order, themselves included; what is given needs nothing more."""
    found: set[Operation] = set()
    stack = list(ends)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            if op not in given:
                stack += [cast(Operation, v.owner) for v in ir.operands_of(op)]
    return [op for op in kernel.block.ops if op in found]


def copy_into(block: Block, op: Operation, values: dict[SSAValue, SSAValue], changes: Mapping[str, Attribute]) -> None:
    """Add a copy of a body's op to another block, with other properties; `values` says what each value is there."""
    operands, types = [values[v] for v in ir.operands_of(op)], [r.type for r in op.results]
    made = ir.create_op(type(op), operands, types, {**op.properties, **changes}, location=op.location)
    made.attributes.update(op.attributes)
    block.add_op(made)
    values.update(zip(op.results, made.results, strict=True))


LINE = 64
"""Bytes of a line of the caches: a start is a multiple, so that what is aligned stays so."""


def starts(kernel: LoopNest) -> tuple[int, ...]:
    """Give per operand, then per result, the element from which the kernel's code counts.

    It is the constant of the first access, in whole lines: a slice of a larger tensor is then read by the same code,
    wherever it lies. Who calls the kernel adds it to the pointer. An accumulation fills all of its result first.
    """
    found: dict[int, int] = {}
    inputs = ir.operands_of(kernel)
    for op in kernel.block.ops:
        if _touches(op) and (buffer := buffer_of(kernel, op)) not in found:
            (linear,) = linear_map(kernel, op).data
            value = inputs[buffer] if buffer < len(inputs) else kernel.results[buffer - len(inputs)]
            line = LINE // ir.itemsize(ir.dtype_of(value))
            start = linear.constant
            found[buffer] = start // line * line if isinstance(start, int) and type(op) is not AccumulateOp else 0
    return tuple([found.get(k, 0) for k in range(len(inputs) + len(kernel.results))])


def buffer_of(kernel: LoopNest, op: LoadOp | SinkOp) -> int:
    """Give the number of the buffer that an access touches: operands come first, then results."""
    if type(op) is LoadOp:
        return cast(int, cast(Literal, op.properties["operand"]).data)
    return len(ir.operands_of(kernel)) + cast(int, cast(Literal, op.properties["result"]).data)


def linear_map(kernel: LoopNest, op: LoadOp | SinkOp) -> Map:
    """Give the position in elements that a load or store touches, as a map of one index."""
    buffer, inputs = buffer_of(kernel, op), ir.operands_of(kernel)
    value = inputs[buffer] if buffer < len(inputs) else kernel.results[buffer - len(inputs)]
    map_ = cast(Map, op.properties["map"])
    strides = strides_of(value)[-len(map_.data) :] if map_.data else ()
    return Map.of((map_.linear(strides),))


def result_of(kernel: LoopNest, op: SinkOp) -> SSAValue:
    """Give the result that a sink writes."""
    return kernel.results[cast(int, cast(Literal, op.properties["result"]).data)]


def checks(kernel: LoopNest) -> tuple[CheckOp, ...]:
    """Give the index checks of a kernel in order: error n is that of check n - 1."""
    return tuple(op for op in kernel.block.ops if _checks(op))


def can_fail(kernel: Kernel) -> bool:
    """Tell whether the kernel gets an error word: it checks an index or divides integers."""
    if isinstance(kernel, StreamOp):
        return False
    return any(_checks(op) or (_divides(op) and ir.is_integer(ir.dtype_of(op.results[0]))) for op in kernel.block.ops)


def key(kernel: Kernel) -> str:
    """Give a digest that two kernels share iff the same code serves both.

    It holds the body with values numbered in order, every decision, and what is touched of the buffers, counted from
    their starts; not where buffers live, what lies around, which values they are, or how symbols are called.
    """
    if isinstance(kernel, StreamOp):
        return _stream_key(kernel)
    symbols = {name: f"s{k}" for k, name in enumerate(kernel.symbols_)}
    parts: list[str] = [kernel.name]
    names = ("sizes", "classes", "initial", "partitions", "vector", "width", "unroll", "grid", "tile", "block")
    for name in (
        *names,
        "direct",
        "threads",
        "group",
        "chunk",
        "flat",
        "owners",
        "ahead",
        "dealt",
        "sharers",
        "unless_one",
        "past_caches",
    ):
        literal = kernel.properties.get(name)
        parts.append(f"{name}={_text(literal, symbols)}")
    first = starts(kernel)
    parts.append(" ".join(ir.dtype_of(value) for value in (*kernel.inputs, *kernel.results)))
    numbers: dict[SSAValue, int] = {}
    for op in kernel.block.ops:
        facts: dict[str, Attribute] = {**op.properties, **op.attributes}
        if _touches(op):
            (linear,) = linear_map(kernel, op).data
            facts["map"] = Map.of((linear - first[buffer_of(kernel, op)],))
        if type(op) is AccumulateOp:  # fills its partition's part of the result
            result = result_of(kernel, op)
            facts["filled"] = Literal.of((ir.shape_of(result), strides_of(result)))
        entries = ", ".join(f"{k}={_text(a, symbols)}" for k, a in facts.items())
        operands = " ".join(str(numbers[v]) for v in ir.operands_of(op))
        types = " ".join(ir.dtype_of(r) for r in op.results)
        parts.append(f"{op.name} {operands} {{{entries}}} {types}")
        for result in op.results:
            numbers[result] = len(numbers)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _stream_key(op: StreamOp) -> str:
    """Give a digest that two kernels of attention share iff the same code serves both."""
    symbols = {name: f"s{k}" for k, name in enumerate(op.symbols_)}
    parts = [op.name]
    for name in ("scale", "causal", "empty", "fill", "hidden", "partitions", "tile", "block", "split"):
        parts.append(f"{name}={_text(op.properties.get(name), symbols)}")
    for number, value in enumerate((*op.inputs, *op.results)):
        shape, strides, _ = seen_of(op, number)
        parts.append(f"{ir.dtype_of(value)} {ir.literal_text(_renamed((shape, strides), symbols))}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _text(attr: Attribute | None, symbols: dict[str, str]) -> str:
    if not symbols:
        return _plain_text(attr)
    if isinstance(attr, Map):
        names = {old: Size.symbol(new) for old, new in symbols.items() if old != new}
        return str(Map.of([e.resize(names) for e in attr.data]) if names else attr)
    if isinstance(attr, Literal):
        return ir.literal_text(_renamed(attr.data, symbols))
    return str(attr)


@lru_cache(maxsize=1 << 14)
def _plain_text(attr: Attribute | None) -> str:
    return ir.literal_text(attr.data) if isinstance(attr, Literal) else str(attr)


def _renamed(value: ir.LiteralValue, symbols: dict[str, str]) -> ir.LiteralValue:
    if isinstance(value, Size):
        return value.substitute({old: Size.symbol(new) for old, new in symbols.items()})
    return tuple(_renamed(v, symbols) for v in value) if isinstance(value, tuple) else value


def launches(func: FuncOp) -> list[Kernel | ExternOp]:
    """Give the kernels and library calls of a function in order, those in regions of control flow included."""
    return [op for op in func.walk() if _is_launched(op)]


def points(kernel: LoopNest) -> Dim:
    """Give the number of parallel points."""
    total: Dim = 1
    for d in kernel.parallel:
        total = total * kernel.sizes_[d]
    return total
